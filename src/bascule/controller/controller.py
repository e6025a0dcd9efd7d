"""Requests to a node's streams: decided, committed to the image, then carried out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from bascule.controller.directories import StreamDirectories
from bascule.controller.image_store import ImageStore
from bascule.controller.reconciler import RaiseMaxPayload, Reconciler, Subscriber
from bascule.errors import BasculeError, Broken, PartitionFailed, UnknownStream
from bascule.host.api import Clock, Random
from bascule.metadata import controller
from bascule.metadata.apply import apply
from bascule.metadata.commands import Command, ForgetDeletions
from bascule.metadata.controller import STREAM_ID_BYTES, Existing
from bascule.metadata.image import Image
from bascule.model import StreamConfig, StreamDefinition, StreamInfo
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.nats import NatsRefused

log = logging.getLogger("bascule.controller")

RETRY_SECONDS_MIN: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0
"""Pause before reconciliation is repeated; it doubles from the minimum to the maximum."""


class CommittedOffsets(Protocol):
    """The part of the committed offsets that a deletion needs; see `groups`."""

    async def remove(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> object: ...


class Controller:
    """Belongs to the event loop. One decision at a time; readers see complete images."""

    def __init__(
        self,
        partitions: Partitions,
        reconciler: Reconciler,
        *,
        store: ImageStore,
        directories: StreamDirectories,
        clock: Clock,
        random: Random,
    ) -> None:
        self._partitions = partitions
        self._reconciler = reconciler
        self._store = store
        self._directories = directories
        self._clock = clock
        self._random = random
        self._image = Image()
        self._is_stored = True
        """False after a failed commit: the file may hold the image of the failed decision."""
        self._deciding = asyncio.Lock()
        self._retry_soon = asyncio.Event()
        self._subscriber: Subscriber | None = None
        self._offsets: CommittedOffsets | None = None

    async def open(self) -> None:
        """Load the image and open the partitions of all streams.

        A corrupt log stops its partition and not the node.

        Raises: CorruptData for the image, UnsupportedFormat, OSError.
        """
        self._image = await asyncio.to_thread(self._store.load)
        await self._reconciler.prepare(self._image)
        async with self._deciding:
            await self._reconcile()

    async def attach(
        self, subscriber: Subscriber, raise_max_payload: RaiseMaxPayload | None
    ) -> None:
        """Subscribe for every stream. A refusal concerns its own stream only.

        Raises: Broken where the server does not answer.
        """
        self._subscriber = subscriber
        self._reconciler.attach(subscriber, raise_max_payload)
        async with self._deciding:
            failures = await self._reconcile()
        for error in failures.values():
            if isinstance(error, Broken) and not isinstance(error, NatsRefused):
                raise error

    def attach_offsets(self, offsets: CommittedOffsets) -> None:
        """Remove the committed offsets of a stream with it from now on."""
        self._offsets = offsets

    async def run(self) -> None:
        """Repeat the reconciliation after failures. Runs until cancelled."""
        pause = RETRY_SECONDS_MIN
        while True:
            await self._retry_soon.wait()
            await asyncio.sleep(pause)
            async with self._deciding:
                try:
                    await self._reconcile()
                except Exception:  # boundary: the timer tries again
                    log.exception("reconciliation failed; it is tried again")
            if self._retry_soon.is_set():
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            else:
                pause = RETRY_SECONDS_MIN
                log.info("node reconciled with the metadata image again")

    def pending_steps(self) -> tuple[str, ...]:
        """The steps that are left to do, as text for logs and tests."""
        return tuple(str(step) for step in self._reconciler.pending(self._image))

    @property
    def message_bytes_max(self) -> int:
        """The largest message_bytes_max of all streams, 0 without streams."""
        sizes = (each.config.message_bytes_max for each in self._image.streams.values())
        return max(sizes, default=0)

    async def create_stream(
        self, name: str, config: StreamConfig, *, internal: bool = False
    ) -> tuple[StreamDefinition, bool]:
        """Create a stream; the second value says whether this call created it.

        Messages published after the return are stored. `internal` is for the node's own streams,
        whose names start with an underscore. The stream is deleted again where the NATS server
        refuses the subscription or does not confirm it.

        Raises: InvalidName, ConfigError, StreamConflict, NatsRefused, Broken, OSError.
        """
        async with self._deciding:
            decision = controller.create_stream(
                self._image,
                name,
                config,
                id=self._random.bytes(STREAM_ID_BYTES),
                now_ms=self._clock.now_ms(),
                internal=internal,
            )
            if isinstance(decision, Existing):
                return decision.definition, False
            definition = decision.definition
            deletions = self._image.deletions
            await asyncio.to_thread(self._directories.free_name, name, deletions)
            await self._commit(decision)
            error = (await self._reconcile()).get(definition.id)
            if isinstance(error, (NatsRefused, Broken)):
                await self._commit(controller.delete_stream(self._image, name, internal=True))
                await self._reconcile()
                raise error
        log.info("stream created", extra={"stream": name, "subject": config.subject})
        return definition, True

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its data. The deletion is durable once this returns.

        Data that cannot be removed now is removed later. Raises: UnknownStream, InternalStream,
        OSError where the decision could not be stored.
        """
        async with self._deciding:
            await self._commit(controller.delete_stream(self._image, name))
            await self._reconcile()
        log.info("stream deleted", extra={"stream": name})
        if self._offsets is not None:
            try:
                # A stream of this name created later has other commits; this frees the memory.
                await self._offsets.remove(consumer=None, stream=name)
            except BasculeError as error:
                log.warning(
                    "commits of a deleted stream stay", extra={"stream": name, "error": str(error)}
                )

    async def alter_stream(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition:
        """Change the settings of a stream; added partitions get messages once this returns.

        Raises: UnknownStream, InternalStream, CannotAlter, ConfigError, OSError; NatsRefused and
        Broken where the alteration is stored but NATS has not confirmed the subscriptions.
        """
        async with self._deciding:
            decision = controller.alter_stream(self._image, name, changes)
            if isinstance(decision, Existing):
                return decision.definition
            before = self._image.streams[name].config
            await self._commit(decision)
            definition = self._image.streams[name]
            error = (await self._reconcile()).get(definition.id)
        changed = controller.differences(before, definition.config)
        log.info(
            "stream altered",
            extra={"stream": name, **{field: after for field, (_, after) in changed.items()}},
        )
        if isinstance(error, (NatsRefused, Broken)):
            raise error
        return definition

    async def set_paused(self, name: str, paused: bool) -> StreamDefinition:
        """Refuse messages, or accept them again. Raises: UnknownStream, InternalStream, OSError."""
        async with self._deciding:
            decide = controller.pause_stream if paused else controller.resume_stream
            decision = decide(self._image, name)
            if isinstance(decision, Existing):
                return decision.definition
            await self._commit(decision)
            await self._reconcile()
            definition = self._image.streams[name]
        log.info("stream paused" if paused else "stream resumed", extra={"stream": name})
        return definition

    async def purge_stream(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamInfo:
        """Move the start of a stream's logs, or of one `partition`, forward.

        The new start is `to_offset`, or the first record at `before_ms` (Unix milliseconds) or
        later, or, without either, the high watermark.

        Raises: UnknownStream, InternalStream, UnknownPartition, OffsetOutOfRange, PartitionFailed,
        OSError, CorruptData.
        """
        async with self._deciding:
            definition = controller.check_purge(self._image, name, partition=partition)
            partitions = self._partitions.stream_by_id(definition.id)
            if partitions is None:
                raise PartitionFailed(name, partition or 0, "it is not open yet")
            chosen = partitions if partition is None else (partitions[partition],)
            for each in chosen:
                await asyncio.to_thread(each.purge, to_offset=to_offset, before_ms=before_ms)
                self._partitions.notify_watchers(each)
        info = self.stream_info(name)
        log.info(
            "stream purged",
            extra={"stream": name, "log_starts": [p.start_offset for p in info.partitions]},
        )
        return info

    def stream_info(self, name: str) -> StreamInfo:
        """Raises: UnknownStream."""
        partitions = self._partitions.stream(name)
        if partitions is None:
            raise UnknownStream(name)
        return _info(partitions, self._refusals())

    def stream_infos(self) -> list[StreamInfo]:
        refusals = self._refusals()
        return [_info(partitions, refusals) for partitions in self._partitions.streams().values()]

    def _refusals(self) -> dict[str, str]:
        return {} if self._subscriber is None else self._subscriber.refusals()

    async def _commit(self, command: Command) -> None:
        """Persist the image after `command`, then use it. Raises: OSError; the old one stays."""
        image = self._image
        removed = tuple(id for id in self._reconciler.state.removed if id in image.deletions)
        if removed:
            image = apply(image, ForgetDeletions(removed))
        image = apply(image, command)
        saving = asyncio.ensure_future(asyncio.to_thread(self._store.save, image))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            # The thread cannot be cancelled, and no other decision may be saved beside it.
            await asyncio.wait([saving])
            if saving.exception() is None:
                self._use(image, removed)
            else:
                self._is_stored = False
            self._retry_soon.set()
            raise
        except OSError:
            # The new file may be in place nevertheless: see `replace_file`.
            self._is_stored = False
            self._retry_soon.set()
            raise
        self._use(image, removed)

    def _use(self, image: Image, forgotten: tuple[bytes, ...]) -> None:
        self._image, self._is_stored = image, True
        self._reconciler.forget_deletions(forgotten)

    async def _store_again(self) -> None:
        """Store the current image again after a failed commit."""
        try:
            await asyncio.to_thread(self._store.save, self._image)
        except OSError as error:
            log.warning("image not stored; it is tried again", extra={"error": str(error)})
        else:
            self._is_stored = True

    async def _reconcile(self) -> dict[bytes, Exception]:
        if not self._is_stored:
            await self._store_again()
        try:
            failures = await self._reconciler.reconcile(self._image)
        except BaseException:
            self._retry_soon.set()
            raise
        if not self._is_stored or self._reconciler.pending(self._image):
            self._retry_soon.set()
        else:
            self._retry_soon.clear()
        return failures


def _info(partitions: tuple[Partition, ...], refusals: Mapping[str, str]) -> StreamInfo:
    definition = partitions[0].definition
    return StreamInfo(
        definition,
        tuple(partition.info() for partition in partitions),
        refusal=refusals.get(definition.name),
    )
