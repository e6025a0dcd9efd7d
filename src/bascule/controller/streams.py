"""The streams of this node: the image on disk, opened logs, creation and deletion."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from bascule.errors import BasculeError, ConfigError, PartitionFailed, UnknownStream
from bascule.host.api import Clock, Files, Random
from bascule.ingest.nats_ingest import NatsIngest
from bascule.metadata import codec, controller
from bascule.metadata.apply import apply
from bascule.metadata.commands import Command
from bascule.metadata.controller import STREAM_ID_BYTES, Existing
from bascule.metadata.image import Image
from bascule.model import StreamConfig, StreamDefinition, StreamInfo
from bascule.publish.headers import HashKey
from bascule.replica.dedupe_loading import load
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.checkpoint import replace_file
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config

log = logging.getLogger("bascule.controller")

MESSAGE_IDS_FILE: Final = "message-ids"
"""Stands in a partition's directory once a record had a message id: only then are they looked for
at the next start."""
OPENING_AT_A_TIME: Final = 8
"""Logs opened beside each other at start: enough to keep a disk busy."""


class Streams:
    """Decides nothing: `metadata` does. Keeps image, directories and partitions in step."""

    def __init__(
        self,
        directory: str,
        partitions: Partitions,
        *,
        files: Files,
        clock: Clock,
        random: Random,
        seed: HashKey,
    ) -> None:
        """`seed` is what message ids are hashed with, here and where messages come in."""
        self._streams_dir = f"{directory}/streams"
        self._removed_dir = f"{directory}/removed"
        self._image_path = f"{directory}/metadata.json"
        self._partitions = partitions
        self._files = files
        self._clock = clock
        self._random = random
        self._seed = seed
        self._image = Image()
        self._changing = asyncio.Lock()
        self._ingest: NatsIngest | None = None

    async def open(self) -> None:
        """Read the image and open every partition's log.

        A log that is corrupt stops its partition, not the node. Raises: CorruptData for the image.
        """
        await asyncio.to_thread(self._load)
        gate = asyncio.Semaphore(OPENING_AT_A_TIME)

        async def open_one(definition: StreamDefinition) -> tuple[Partition, ...]:
            async with gate:
                return await asyncio.to_thread(self._open_partitions, definition)

        for opened in await asyncio.gather(*map(open_one, self._image.streams.values())):
            self._partitions.add(opened)

    async def attach(self, ingest: NatsIngest) -> None:
        """Subscribe for every stream; a refusal stops only its own. Raises: Broken."""
        self._ingest = ingest
        await ingest.attach_all(list(self._partitions.streams().values()))

    async def create(
        self, name: str, config: StreamConfig, *, internal: bool = False
    ) -> tuple[StreamDefinition, bool]:
        """Create a stream; once this returns, what is published on its subject is stored.

        `internal` is for the node's own streams, whose names an underscore leads.

        Raises: InvalidName, ConfigError, StreamConflict, NatsRefused, Broken, OSError.
        """
        assert self._ingest is not None
        async with self._changing:
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
            if await asyncio.to_thread(self._files.exists, self._directory(definition)):
                raise ConfigError(
                    f"directory {self._directory(definition)} holds a stream that the metadata "
                    "does not know; move it away to create a stream of that name"
                )
            await self._commit(decision)
            partitions = await asyncio.to_thread(self._open_partitions, definition)
            self._partitions.add(partitions)
            try:
                await self._ingest.attach(partitions)
            except BasculeError:
                await self._remove(name)
                raise
        log.info("stream created", extra={"stream": name, "subject": config.subject})
        return definition, True

    async def delete(self, name: str) -> None:
        """Delete a stream and its data. Raises: UnknownStream, Broken, OSError."""
        async with self._changing:
            controller.delete_stream(self._image, name)
            await self._remove(name)
        log.info("stream deleted", extra={"stream": name})

    async def alter(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition:
        """Give a stream other settings; more partitions take messages once this returns.

        Raises: UnknownStream, InternalStream, CannotAlter, ConfigError, NatsRefused, Broken,
        OSError.
        """
        async with self._changing:
            decision = controller.alter_stream(self._image, name, changes)
            if isinstance(decision, Existing):
                return decision.definition
            before = self._image.streams[name].config
            definition = await self._change(name, decision)
        changed = controller.differences(before, definition.config)
        log.info(
            "stream altered",
            extra={"stream": name, **{field: after for field, (_, after) in changed.items()}},
        )
        return definition

    async def set_paused(self, name: str, paused: bool) -> StreamDefinition:
        """Take no messages, or take them again. Raises: UnknownStream, InternalStream, OSError."""
        async with self._changing:
            decide = controller.pause_stream if paused else controller.resume_stream
            decision = decide(self._image, name)
            if isinstance(decision, Existing):
                return decision.definition
            definition = await self._change(name, decision)
        log.info("stream paused" if paused else "stream resumed", extra={"stream": name})
        return definition

    async def purge(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamInfo:
        """Let the logs of a stream, or of one `partition`, begin later.

        At `to_offset`, at the first record of `before_ms` (Unix milliseconds) or later, or, without
        either, behind everything committed.

        Raises: UnknownStream, InternalStream, UnknownPartition, OffsetOutOfRange, PartitionFailed,
        OSError, CorruptData.
        """
        async with self._changing:
            controller.check_purge(self._image, name, partition=partition)
            partitions = self._partitions.stream(name)
            assert partitions is not None, "the image and the partitions are in step"
            chosen = partitions if partition is None else (partitions[partition],)
            for each in chosen:
                await asyncio.to_thread(each.purge, to_offset=to_offset, before_ms=before_ms)
                self._partitions.notify(each)
        info = self.info(name)
        log.info(
            "stream purged",
            extra={"stream": name, "log_starts": [p.start_offset for p in info.partitions]},
        )
        return info

    async def _change(self, name: str, decision: Command) -> StreamDefinition:
        """Make a decision on a present stream true, on the disk and in its partitions."""
        assert self._ingest is not None
        await self._commit(decision)
        definition = self._image.streams[name]
        partitions = self._partitions.stream(name)
        assert partitions is not None, "the image and the partitions are in step"
        for partition in partitions:
            partition.configure(definition)
        self._ingest.configure(partitions)
        if definition.partition_count > len(partitions):
            added = await asyncio.to_thread(
                self._open_partitions,
                definition,
                range(len(partitions), definition.partition_count),
            )
            partitions += added
            # Readers know a partition before the first message can be in it.
            self._partitions.add(partitions)
            await self._ingest.attach(partitions)
        return definition

    def info(self, name: str) -> StreamInfo:
        """Raises: UnknownStream."""
        partitions = self._partitions.stream(name)
        if partitions is None:
            raise UnknownStream(name)
        return _info(partitions)

    def infos(self) -> list[StreamInfo]:
        return [_info(partitions) for partitions in self._partitions.streams().values()]

    def close(self) -> None:
        """Close every log with a clean checkpoint; a failure is logged and the rest goes on."""
        for partitions in self._partitions.streams().values():
            for partition in partitions:
                _close(partition)

    async def _remove(self, name: str) -> None:
        assert self._ingest is not None
        partitions = self._partitions.remove(name)
        await self._commit(controller.delete_stream(self._image, name, internal=True))
        await self._ingest.detach(partitions)
        await asyncio.to_thread(self._remove_data, partitions)

    async def _commit(self, command: Command) -> None:
        """Make a decision true: on the disk first, then here."""
        image = apply(self._image, command)
        await asyncio.to_thread(self._write_image, image)
        self._image = image

    def _write_image(self, image: Image) -> None:
        replace_file(self._files, self._image_path, codec.encode_image(image))

    def _load(self) -> None:
        files = self._files
        if files.exists(self._image_path):
            data = files.read_bytes(self._image_path)
            self._image = codec.decode_image(data, self._image_path)
        files.make_dirs(self._streams_dir)
        files.make_dirs(self._removed_dir)
        # Only deletions that were decided put anything there.
        for leftover in files.list_dir(self._removed_dir):
            files.remove_tree(f"{self._removed_dir}/{leftover}")
        for found in files.list_dir(self._streams_dir):
            if found not in self._image.streams:
                log.warning(
                    "a directory of no known stream is left alone",
                    extra={"directory": f"{self._streams_dir}/{found}"},
                )

    def _directory(self, definition: StreamDefinition) -> str:
        return f"{self._streams_dir}/{definition.name}"

    def _open_partitions(
        self, definition: StreamDefinition, indexes: range | None = None
    ) -> tuple[Partition, ...]:
        chosen = range(definition.partition_count) if indexes is None else indexes
        return tuple(self._open_partition(definition, index) for index in chosen)

    def _open_partition(self, definition: StreamDefinition, index: int) -> Partition:
        directory = f"{self._directory(definition)}/{index}"
        marker = f"{directory}/{MESSAGE_IDS_FILE}"
        store: PartitionLog | None = None
        failure: PartitionFailed | None = None
        has_ids = False
        try:
            store = PartitionLog.open(
                self._files,
                directory,
                log_config(definition.config),
                self._clock,
                guard=threading.Lock(),
            )
            has_ids = self._files.exists(marker)
            if store.cut_bytes:
                log.warning(
                    "unsynced tail cut",
                    extra={
                        "stream": definition.name,
                        "partition": index,
                        "bytes": store.cut_bytes,
                        "end_offset": store.end.offset,
                    },
                )
        except (OSError, BasculeError) as error:
            failure = self._cannot_open(definition, index, error)
        partition = Partition(
            definition,
            index,
            log=store,
            failure=failure,
            clock=self._clock,
            moved=self._partitions.notify,
            seed=self._seed,
            notes_ids=None if has_ids else lambda: replace_file(self._files, marker, b""),
        )
        if store is not None and has_ids:
            since_ms = self._clock.now_ms() - definition.config.dedupe_window_ms
            try:
                load(partition.contract, store, since_ms=since_ms)
            except (OSError, BasculeError) as error:
                partition.failure = self._cannot_open(definition, index, error)
        return partition

    def _cannot_open(
        self, definition: StreamDefinition, index: int, error: OSError | BasculeError
    ) -> PartitionFailed:
        log.error(
            "partition cannot be opened; the other streams go on",
            extra={"stream": definition.name, "partition": index, "error": str(error)},
        )
        return PartitionFailed(definition.name, index, str(error))

    def _remove_data(self, partitions: tuple[Partition, ...]) -> None:
        """Move the stream's directory out of the way in one step, then delete it."""
        definition = partitions[0].definition
        for partition in partitions:
            _close(partition)
        target = f"{self._removed_dir}/{definition.id.hex()}"
        if self._files.exists(self._directory(definition)):
            self._files.rename(self._directory(definition), target)
            self._files.sync_dir(self._streams_dir)
            self._files.remove_tree(target)


def _info(partitions: tuple[Partition, ...]) -> StreamInfo:
    return StreamInfo(partitions[0].definition, tuple(p.info() for p in partitions))


def _close(partition: Partition) -> None:
    if partition.log is None:
        return
    try:
        with partition.maintenance_lock:
            partition.log.close()
    except (OSError, BasculeError) as error:
        log.error(
            "closing a log failed",
            extra={"stream": partition.definition.name, "error": str(error)},
        )
