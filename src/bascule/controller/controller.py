"""Requests to a node's streams: decided, committed to the image, then carried out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from bascule.controller.directories import StreamDirectories
from bascule.controller.image_store import ImageStore
from bascule.controller.reconciler import RaiseMaxPayload, Reconciler, Subscriber
from bascule.controller.repair import keep_readable, replace_log
from bascule.errors import (
    BasculeError,
    Broken,
    DiskFull,
    NotSupported,
    PartitionFailed,
    UnknownPartition,
    UnknownStream,
)
from bascule.host.api import Clock, Random
from bascule.metadata import controller
from bascule.metadata.apply import apply
from bascule.metadata.commands import Command, ForgetDeletions
from bascule.metadata.controller import STREAM_ID_BYTES, Existing
from bascule.metadata.image import Image
from bascule.model import (
    DuplicateStream,
    RepairedPartition,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
)
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.maintenance.purging import purge
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.nats import NatsRefused
from bascule.wire.subjects import subjects_overlap

log = logging.getLogger("bascule.controller")

RETRY_SECONDS_MIN: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0
"""Pause before reconciliation is repeated; it doubles from the minimum to the maximum."""


class StreamAnnouncer(Protocol):
    """What other clusters are told of this node's streams; see `announcer`."""

    def on_streams(self, definitions: Mapping[str, StreamDefinition]) -> None: ...
    def duplicates(self, name: str) -> tuple[DuplicateStream, ...]: ...


class CommittedOffsets(Protocol):
    """The part of the committed offsets that a deletion needs; see `groups`."""

    async def remove(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> object: ...
    async def largest(self, stream: str, partition: int) -> int: ...


class Controller:
    """Belongs to the event loop. One decision at a time; readers see complete images."""

    def __init__(
        self,
        partitions: Partitions,
        reconciler: Reconciler,
        *,
        store: ImageStore,
        directories: StreamDirectories,
        reserve: DiskReserve,
        clock: Clock,
        random: Random,
        node_id: int = 1,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._reconciler = reconciler
        self._store = store
        self._directories = directories
        self._reserve = reserve
        self._clock = clock
        self._random = random
        self._image = Image()
        self._is_stored = True
        """False after a failed commit: the file may hold the image of the failed decision."""
        self._deciding = asyncio.Lock()
        self._retry_soon = asyncio.Event()
        self._subscriber: Subscriber | None = None
        self._offsets: CommittedOffsets | None = None
        self._announcer: StreamAnnouncer | None = None

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

    def attach_announcer(self, announcer: StreamAnnouncer) -> None:
        """Announce the streams of the image, now and whenever it changes."""
        self._announcer = announcer
        announcer.on_streams(self._image.streams)

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
        whose names are reserved. The stream is deleted again where the NATS server
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
            await asyncio.to_thread(
                self._reserve.check, self._directories.free_name, name, deletions
            )
            await self._commit(decision, makes_room=False)
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

    async def reassign_stream(
        self, name: str, replicas: Sequence[int], *, partition: int | None
    ) -> StreamDefinition:
        """See `ClusterController.reassign_stream`. Raises: NotSupported."""
        raise NotSupported("other replicas on a node without a cluster")

    async def remove_node(self, number: int, *, force: bool) -> int:
        """See `ClusterController.remove_node`. Raises: NotSupported."""
        raise NotSupported("the removal of a node without a cluster")

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
                await asyncio.to_thread(
                    self._reserve.run, purge, each, to_offset=to_offset, before_ms=before_ms
                )
                self._partitions.notify_watchers(each)
        info = self.stream_info(name)
        log.info(
            "stream purged",
            extra={"stream": name, "log_starts": [p.start_offset for p in info.partitions]},
        )
        return info

    async def repair_stream(
        self, name: str, *, partition: int | None, accept_loss: bool
    ) -> list[RepairedPartition]:
        """Open the failed partitions of a stream again; `partition` None: all of them.

        With `accept_loss` a damaged log ends before its first damage. Where nothing can be kept, or
        the files are missing, an empty log begins at the largest offset that a consumer has
        committed, so that no offset that it has processed gets another record.

        Raises: UnknownStream, UnknownPartition, OSError.
        """
        async with self._deciding:
            definition = self._image.streams.get(name)
            if definition is None:
                raise UnknownStream(name)
            if partition is not None and not 0 <= partition < definition.partition_count:
                raise UnknownPartition(name, partition, definition.partition_count)
            before = self._failed(definition, partition)
            await self._reopen(definition, before)
        # Without the lock: reading a large log takes minutes.
        await self._reconciler.verify(definition, before)
        moved: dict[int, str | None] = {}
        if accept_loss:
            async with self._deciding:
                if self._image.streams.get(name) != definition:
                    raise UnknownStream(name)
                lost = self._failed(definition, partition)
                moved.update(await self._repair_logs(definition, lost, keep=True))
                # Salvage may not help, where a directory is another stream's for example.
                lost = self._failed(definition, partition)
                moved.update(await self._repair_logs(definition, lost, keep=False))
        return [
            _repaired(definition, self._partitions, failed, moved.get(index))
            for index, failed in before.items()
        ]

    def _failed(self, definition: StreamDefinition, index: int | None) -> dict[int, Partition]:
        found = self._partitions.stream_by_id(definition.id) or ()
        return {
            each.index: each
            for each in found
            if each.failure is not None and index in (None, each.index)
        }

    async def _reopen(
        self, definition: StreamDefinition, partitions: Mapping[int, Partition]
    ) -> None:
        if partitions:
            await self._reconciler.let_go(definition, partitions)
            await self._reconcile()

    async def _repair_logs(
        self, definition: StreamDefinition, lost: Mapping[int, Partition], *, keep: bool
    ) -> dict[int, str | None]:
        """Open failed partitions again, each with what can be kept of its log, or empty.

        Returns where the old directories of those that are empty are; see `replace_log`.
        """
        moved: dict[int, str | None] = {}
        if not lost:
            return moved
        await self._reconciler.let_go(definition, lost)
        for index, failed in lost.items():
            if not keep or not await asyncio.to_thread(
                keep_readable, self._directories, self._clock, definition, index
            ):
                moved[index] = await self._give_up(definition, failed)
        await self._reconcile()
        return moved

    async def _give_up(self, definition: StreamDefinition, failed: Partition) -> str | None:
        start_offset = failed.committed_offset
        if self._offsets is not None:
            committed = await self._offsets.largest(definition.name, failed.index)
            start_offset = max(start_offset, committed)
        return await asyncio.to_thread(
            replace_log,
            self._directories,
            self._clock,
            definition,
            failed.index,
            start_offset=start_offset,
        )

    def stream_info(self, name: str) -> StreamInfo:
        """Raises: UnknownStream."""
        partitions = self._partitions.stream(name)
        if partitions is None:
            raise UnknownStream(name)
        info = self._info(partitions, self._refusals())
        return replace(info, overlaps=self._partitions.overlaps(info.definition))

    async def describe(self, name: str) -> StreamInfo:
        """Raises: UnknownStream."""
        return self.stream_info(name)

    async def describe_all(self, subject: str) -> list[StreamInfo]:
        """The streams that store messages on a subject, which may have wildcards."""
        return [
            info
            for info in self.stream_infos()
            if subjects_overlap(info.definition.config.subject, subject)
        ]

    def stream_infos(self) -> list[StreamInfo]:
        refusals = self._refusals()
        streams = self._partitions.streams().values()
        return [self._info(partitions, refusals) for partitions in streams]

    def _info(self, partitions: tuple[Partition, ...], refusals: Mapping[str, str]) -> StreamInfo:
        definition = partitions[0].definition
        name, announcer = definition.name, self._announcer
        here = (self._node_id,)
        infos = tuple(
            replace(each.info(), leader=self._node_id, replicas=here, isr=here)
            for each in partitions
        )
        return StreamInfo(
            definition,
            infos,
            refusal=refusals.get(name),
            duplicates=() if announcer is None else announcer.duplicates(name),
        )

    def _refusals(self) -> dict[str, str]:
        return {} if self._subscriber is None else self._subscriber.refusals()

    async def _commit(self, command: Command, *, makes_room: bool = True) -> None:
        """Persist the image after `command`, then use it.

        A command that `makes_room`, or may be a step towards it, may use the disk reserve.
        Raises: DiskFull, OSError; the old one stays.
        """
        image = self._image
        removed = tuple(id for id in self._reconciler.state.removed if id in image.deletions)
        if removed:
            image = apply(image, ForgetDeletions(removed))
        image = apply(image, command)
        write = self._reserve.run if makes_room else self._reserve.check
        saving = asyncio.ensure_future(asyncio.to_thread(write, self._store.save, image))
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
        except (OSError, DiskFull):
            # The new file may be in place nevertheless: see `replace_file`.
            self._is_stored = False
            self._retry_soon.set()
            raise
        self._use(image, removed)

    def _use(self, image: Image, forgotten: tuple[bytes, ...]) -> None:
        self._image, self._is_stored = image, True
        if self._announcer is not None:
            self._announcer.on_streams(image.streams)
        self._reconciler.forget_deletions(forgotten)

    async def _store_again(self) -> None:
        """Store the current image again after a failed commit."""
        try:
            await asyncio.to_thread(self._reserve.run, self._store.save, self._image)
        except (OSError, DiskFull) as error:
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


def _repaired(
    definition: StreamDefinition, partitions: Partitions, failed: Partition, moved_to: str | None
) -> RepairedPartition:
    now = (partitions.stream_by_id(definition.id) or ())[failed.index].info()
    return RepairedPartition(
        partition=failed.index,
        failure_before=str(failed.failure),
        failure=now.failure,
        start_offset=now.start_offset,
        end_offset=now.end_offset,
        moved_to=moved_to,
    )
