"""The commits of this node, kept in memory behind the stream that holds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bascule.errors import (
    BasculeError,
    Indeterminate,
    PartitionFailed,
    UnknownPartition,
    UnknownStream,
)
from bascule.groups.offset_records import (
    REPAIRS_HEADER,
    Change,
    Held,
    place_in,
    read_changes,
)
from bascule.host.api import Clock
from bascule.model import Cleanup, CommittedOffset, KeyFrom, StreamConfig
from bascule.replica.internal_publisher import InternalPublisher, InternalRecord
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.offsets import (
    OFFSETS_STREAM,
    OFFSETS_SUBJECT,
    Commit,
    OffsetKey,
    commit_subject,
    encode_commit,
)

log = logging.getLogger("bascule.offsets")

OFFSETS_CONFIG: Final = StreamConfig(
    subject=OFFSETS_SUBJECT,
    key_from=KeyFrom.SUBJECT,
    cleanup=(Cleanup.COMPACT,),
    # The active segment is never compacted, and a start reads all of it.
    segment_bytes_max=2 << 20,
    message_bytes_max=16 << 10,
    # A commit is its own duplicate.
    dedupe_window_ms=0,
    # Time to commit again what a malformed record has taken the place of.
    min_compaction_lag_ms=60_000,
)
"""The stream as a node creates it."""

COMMITS_MAX: Final = 1_000_000
"""Kept in memory, some 600 MB: beyond that commits of new consumers or partitions are ignored."""
COMMIT_SECONDS_MAX: Final = 10.0
RETRY_SECONDS: Final = 1.0


@dataclass(slots=True)
class OffsetsCounts:
    """For metrics; all but the last only grow."""

    commits: int = 0
    """Commits read from the stream, at the start too."""
    removals: int = 0
    malformed: int = 0
    """Records that are no commit, and those beyond COMMITS_MAX."""
    repairs: int = 0
    """Commits made again because a malformed record had their key."""
    held: int = 0
    """Consumers' partitions with a commit now."""


class Offsets:
    """Belongs to the event loop, but for `committed` and `entries`, which any thread may ask."""

    def __init__(self, partitions: Partitions, publisher: InternalPublisher, clock: Clock) -> None:
        self._partitions = partitions
        self._publisher = publisher
        self._clock = clock
        self._held: dict[OffsetKey, Held] = {}
        self._of_consumer: dict[str, set[OffsetKey]] = {}
        """The keys of `_held`."""
        self._spoilt: set[OffsetKey] = set()
        """Keys whose last record is malformed although a good one came before."""
        self._position = 0
        """First offset of the stream not yet read."""
        self._wake = asyncio.Event()
        self._advanced = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._failure: str | None = None
        self.counts = OffsetsCounts()

    def start(self) -> None:
        """Begin to read what is committed, and follow from there; `caught_up` waits for it.

        What keeps the stream from being read is logged, and raised by whoever needs it read.
        """
        stream = self._partitions.stream(OFFSETS_STREAM)
        if stream is not None:
            stream[0].watchers.add(self._wake.set)
            self._wake.set()
            self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        stream = self._partitions.stream(OFFSETS_STREAM)
        if stream is not None:
            stream[0].watchers.discard(self._wake.set)

    def committed(self, consumer: str, stream: str, partition: int) -> int | None:
        """The first offset the consumer has not yet done; None where it never committed.

        What is committed a moment ago may not be in it yet, and right after the start nothing is;
        await `caught_up` for that.
        """
        held = self._valid(OffsetKey(consumer, stream, partition))
        return None if held is None else held.commit.offset

    def entries(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """Every commit, or those of a consumer or for a stream, ordered by name."""
        return [
            self._described(key, held)
            for key in sorted(self._keys(consumer=consumer, stream=stream))
            if (held := self._valid(key)) is not None
        ]

    async def caught_up(self) -> None:
        """Return once everything committed to the stream before the call is known here.

        Raises: PartitionFailed where the stream cannot be read, Indeterminate after a time-out.
        """
        wanted = self._partition().high_watermark.offset
        await self._reached(wanted)

    async def commit(self, commits: Sequence[tuple[OffsetKey, Commit]]) -> None:
        """Commit all of them, in one batch; return once they are stored and known here.

        Raises: InvalidName, PublishRejected, PartitionFailed, Indeterminate after a time-out.
        """
        now = self._clock.now_ms()
        await self._publish([(key, encode_commit(_dated(commit, now))) for key, commit in commits])

    async def remove(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> list[OffsetKey]:
        """Forget the commits that fit, for good; return whose they were. Raises: as `commit`."""
        await self.caught_up()
        keys = sorted(self._keys(consumer=consumer, stream=stream, partition=partition))
        if keys:
            await self._publish([(key, None) for key in keys])
        return keys

    async def reset(
        self, consumer: str, stream: str, partition: int | None, to: int | str, *, at_ms: int = 0
    ) -> list[CommittedOffset]:
        """Commit another place: an offset, `earliest`, `latest`, or `time` for the first record at
        or after `at_ms` (the end where there is none); of all partitions where none is named.

        Raises: UnknownStream, UnknownPartition, OffsetOutOfRange, CorruptData, OSError; what
        `commit` raises.
        """
        found = self._partitions.stream(stream)
        if found is None:
            raise UnknownStream(stream)
        if partition is not None and not 0 <= partition < len(found):
            raise UnknownPartition(stream, partition, len(found))
        chosen = found if partition is None else (found[partition],)
        commits = [
            (
                OffsetKey(consumer, stream, each.index),
                Commit(offset=await place_in(each, to, at_ms=at_ms)),
            )
            for each in chosen
        ]
        await self.commit(commits)
        return [
            self._described(key, held)
            for key, _ in commits
            if (held := self._valid(key)) is not None
        ]

    def _partition(self) -> Partition:
        stream = self._partitions.stream(OFFSETS_STREAM)
        if stream is None:
            raise PartitionFailed(OFFSETS_STREAM, 0, "it could not be created")
        if stream[0].failure is not None:
            raise stream[0].failure
        return stream[0]

    def _valid(self, key: OffsetKey) -> Held | None:
        """The commit under `key`, unless the stream was made anew since."""
        held = self._held.get(key)
        stream = self._partitions.stream(key.stream)
        if held is None or (stream and held.appended_ms < stream[0].definition.created_ms):
            return None
        return held

    def _keys(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> Iterator[OffsetKey]:
        keys = self._held if consumer is None else self._of_consumer.get(consumer, ())
        for key in list(keys):
            if stream in (None, key.stream) and partition in (None, key.partition):
                yield key

    def _described(self, key: OffsetKey, held: Held) -> CommittedOffset:
        stream = self._partitions.stream(key.stream) or ()
        partition = stream[key.partition] if key.partition < len(stream) else None
        return CommittedOffset(
            consumer=key.consumer,
            stream=key.stream,
            partition=key.partition,
            offset=held.commit.offset,
            leader_epoch=held.commit.leader_epoch,
            metadata=held.commit.metadata,
            committed_ms=held.commit.committed_ms or held.appended_ms,
            start_offset=None if partition is None else partition.start_offset,
            high_watermark=None if partition is None else partition.high_watermark.offset,
        )

    async def _publish(self, values: Sequence[tuple[OffsetKey, bytes | None]]) -> None:
        records = []
        for key, value in values:
            subject = commit_subject(key)
            records.append(InternalRecord(subject, subject.encode(), value))
        self._partition()
        try:
            async with asyncio.timeout(COMMIT_SECONDS_MAX):
                base = await self._publisher.publish(OFFSETS_STREAM, 0, records)
        except TimeoutError:
            raise Indeterminate(f"the commit is not stored after {COMMIT_SECONDS_MAX} s") from None
        await self._reached(base + len(records))

    async def _reached(self, offset: int) -> None:
        """Return once everything below `offset` is read."""
        if self._position >= offset:
            return
        self._wake.set()
        try:
            async with asyncio.timeout(COMMIT_SECONDS_MAX), self._advanced:
                await self._advanced.wait_for(
                    lambda: self._position >= offset or self._failure is not None
                )
        except TimeoutError:
            raise Indeterminate(f"{OFFSETS_STREAM} is not read up to offset {offset}") from None
        if self._position < offset:
            raise PartitionFailed(OFFSETS_STREAM, 0, str(self._failure))

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Looked up each time: a partition that could not be opened is replaced by a later try.
            if stream := self._partitions.stream(OFFSETS_STREAM):
                stream[0].watchers.add(self._wake.set)
                await self._catch_up(stream[0])
            if self._failure is not None:
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _catch_up(self, partition: Partition) -> None:
        """Read and apply up to the high watermark, then commit again what was spoilt."""
        while (end := partition.high_watermark).offset > self._position:
            store = partition.log
            try:
                if store is None or partition.failure is not None:
                    raise partition.failure or PartitionFailed(OFFSETS_STREAM, 0, "it is not open")
                changes, reached = await asyncio.to_thread(read_changes, store, self._position, end)
                if reached <= self._position:
                    raise PartitionFailed(OFFSETS_STREAM, 0, f"no batch at offset {reached}")
            except (BasculeError, OSError) as error:
                if self._failure is None:
                    log.error("committed offsets cannot be read", extra={"error": str(error)})
                self._failure = str(error)
                break
            self._apply(changes, reached)
            self._failure = None
        async with self._advanced:
            self._advanced.notify_all()
        if self._spoilt:
            await self._repair()

    def _apply(self, changes: list[Change], reached: int) -> None:
        bad = [change for change in changes if not self._is_applied(change)]
        if bad:
            self.counts.malformed += len(bad)
            log.warning(
                "records that are no commits are ignored",
                extra={"records": len(bad), "below_offset": reached, "last": bad[-1].why},
            )
        self.counts.held = len(self._held)
        self._position = reached

    def _is_applied(self, change: Change) -> bool:
        """Take one record in; whether it was a commit or a removal."""
        key, held, repairs, why = change
        if key is None:
            return False
        present = self._held.get(key)
        if why or (repairs is not None and present is not None and present.at > repairs):
            # A repair may have been overtaken by a commit: then that one is made again.
            if present is not None:
                self._spoilt.add(key)
            return not why
        self._spoilt.discard(key)
        if held is None:
            self.counts.removals += 1
            self._forget(key)
        elif present is not None or len(self._held) < COMMITS_MAX:
            self.counts.commits += 1
            self._held[key] = held
            if present is None:
                self._of_consumer.setdefault(key.consumer, set()).add(key)
        else:
            return False
        return True

    def _forget(self, key: OffsetKey) -> None:
        if self._held.pop(key, None) is not None:
            keys = self._of_consumer[key.consumer]
            keys.discard(key)
            if not keys:
                del self._of_consumer[key.consumer]

    async def _repair(self) -> None:
        """Commit again what malformed records took the place of; what fails is tried later."""
        held = [(key, self._valid(key)) for key in self._spoilt]
        spoilt = [(key, _dated(it.commit, it.appended_ms)) for key, it in held if it is not None]
        self._spoilt.clear()
        about = (REPAIRS_HEADER, str(self._position - 1).encode())
        try:
            # Not `commit`: it waits for this very task to read what it wrote.
            for key, commit in spoilt:
                subject = commit_subject(key)
                value = encode_commit(commit)
                record = InternalRecord(subject, subject.encode(), value, (about,))
                async with asyncio.timeout(COMMIT_SECONDS_MAX):
                    await self._publisher.publish(OFFSETS_STREAM, 0, [record])
                self.counts.repairs += 1
        except (BasculeError, TimeoutError) as error:
            self._spoilt.update(key for key, _ in spoilt)
            log.warning("a commit could not be made again", extra={"error": str(error)})


def _dated(commit: Commit, ms: int) -> Commit:
    """`commit` with a time, this one where it has none."""
    return Commit(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        committed_ms=commit.committed_ms or ms,
    )
