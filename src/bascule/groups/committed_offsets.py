"""The committed offsets in memory, kept in step with the stream `_offsets`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from bascule.errors import (
    BasculeError,
    GroupHasMembers,
    Indeterminate,
    LimitExceeded,
    NotLeader,
    PartitionFailed,
    UnknownPartition,
    UnknownStream,
)
from bascule.group_results import CommittedOffset
from bascule.groups.offset_appends import STORE_SECONDS_MAX, OffsetAppends, OffsetRecord, OnStored
from bascule.groups.offset_records import (
    REPAIRS_HEADER,
    OffsetChange,
    OffsetsCounts,
    StoredCommit,
    dated_commit,
    is_for,
    read_changes,
    resolve_offset,
    stop_of,
)
from bascule.groups.prepared_commits import (
    PreparedCommit,
    commit_headers,
    encode_prepared,
    hexadecimal,
    prepare_commits,
    record_key,
)
from bascule.host.api import Clock
from bascule.host.lasting_tasks import start_lasting
from bascule.model import Cleanup, KeyFrom, StreamConfig, StreamDefinition
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
    group_subject,
    member_subject,
)

log = logging.getLogger("bascule.offsets")

OFFSETS_CONFIG: Final = StreamConfig(
    subject=OFFSETS_SUBJECT,
    key_from=KeyFrom.SUBJECT,
    cleanup=(Cleanup.COMPACT,),
    # The active segment is never compacted, and a node reads all of it when it starts.
    segment_bytes_max=2 << 20,
    message_bytes_max=16 << 10,
    # Storing a commit twice changes nothing.
    dedupe_window_ms=0,
    # Time to repair a commit before compaction removes it in favour of a malformed record.
    min_compaction_lag_ms=60_000,
)
"""Configuration with which a node creates the stream."""

COMMITS_MAX: Final = 1_000_000
"""Commits kept in memory, about 600 MB. Beyond it commits with a new key are refused, and those
over NATS are ignored."""
RECORD_BYTES: Final = 200
"""Of the record of a group or member in memory, beyond its key and its value; measured: 130."""
REMOVALS_KEPT: Final = 10_000
"""A repair is stored within seconds after the commit was read that it repeats."""
RETRY_SECONDS: Final = 1.0


class CommittedOffsetStore:
    """Used on the event loop; `committed` and `entries` may be called from any thread."""

    def __init__(self, partitions: Partitions, publisher: InternalPublisher, clock: Clock) -> None:
        self._partitions = partitions
        self._publisher = publisher
        self._clock = clock
        self._commits: dict[OffsetKey, StoredCommit] = {}
        self._keys_by_consumer: dict[str, set[OffsetKey]] = {}
        """The keys of `_commits`."""
        self._removed: dict[OffsetKey, int] = {}
        """The offsets of the last removals: a stale repair must not undo them."""
        self._to_repair: set[OffsetKey] = set()
        """Keys whose last record in the stream is malformed or not a member's."""
        self.group_states: dict[str, bytes] = {}
        """The record of each group that has members: see `groups.classic.snapshot` and
        `groups.consumer.records`."""
        self.member_states: dict[str, dict[str, bytes]] = {}
        """The records of members by their ids, of each group that has such records."""
        self._state_bytes: dict[str, int] = {}
        """Of the two above, by group; see `state_bytes`."""
        self.on_read: Callable[[], None] = lambda: None
        """Called after everything committed was read, and when the partition's role changed."""
        self.has_members: Callable[[str], bool] = lambda _: False
        """Whether a consumer is a group with members here, which may not be stored yet."""
        self._position = 0
        """First offset of the stream not yet read."""
        self._read_from: tuple[Partition | None, int] = (None, 0)
        """The partition, and its `records_lost`, when everything was read again the last time."""
        self._wake = asyncio.Event()
        self._advanced = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._failure: str | None = None
        self._is_reading = False
        """Whether a thread reads the stream from `_position` on."""
        self._appends = OffsetAppends(publisher, self._epoch_led, self._on_committed)
        self.counts = OffsetsCounts()

    def start(self) -> None:
        """Start reading the stream and follow it; `wait_caught_up` waits for the reading.

        An error of reading is logged, and raised by the methods that need the stream read.
        """
        stream = self._partitions.stream(OFFSETS_STREAM)
        if stream is not None:
            stream[0].watchers.add(self._wake.set)
            self._wake.set()
            self._task = start_lasting("committed offsets", self._follow)

    async def close(self) -> None:
        await self._appends.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        stream = self._partitions.stream(OFFSETS_STREAM)
        if stream is not None:
            stream[0].watchers.discard(self._wake.set)

    def committed(self, consumer: str, stream: str, partition: int) -> int | None:
        """The committed offset, the next one the consumer will process; None without a commit.

        The latest commits may be missing, and right after `start` all are; await
        `wait_caught_up` first where that matters.
        """
        stored = self._valid(OffsetKey(consumer, stream, partition))
        return None if stored is None else stored.commit.offset

    async def largest(self, stream: str, partition: int) -> int:
        """The largest committed offset of any consumer; 0 where there is none or none is known."""
        try:
            await self.wait_caught_up()
        except (PartitionFailed, NotLeader, Indeterminate) as error:
            log.warning("committed offsets may be missing", extra={"error": str(error)})
        keys = self._keys(consumer=None, stream=stream, partition=partition)
        found = (self._valid(key) for key in keys)
        return max((stored.commit.offset for stored in found if stored is not None), default=0)

    def entries(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """All commits, or those of a consumer or for a stream, ordered by key."""
        return [
            self._committed_offset(key, stored)
            for key in sorted(self._keys(consumer=consumer, stream=stream))
            if (stored := self._valid(key)) is not None
        ]

    async def wait_caught_up(self) -> None:
        """Return once everything committed to the stream before the call is in memory.

        Raises: PartitionFailed if the stream cannot be read, NotLeader if another replica is about
        to lead it therefore, Indeterminate after a timeout.
        """
        partition = self._partition()
        self._forget_lost(partition)
        await self._wait_position(partition.high_watermark.offset)

    async def commit(self, commits: Sequence[tuple[OffsetKey, Commit]]) -> None:
        """Store all commits in one batch; return once they are stored and in memory.

        A consumer that is a group with members is refused.

        Raises: InvalidName, PublishRejected, PartitionFailed, NotLeader, Indeterminate after a
        timeout, GroupHasMembers, LimitExceeded where there are too many commits for new ones.
        """
        await self.wait_caught_up()
        self._check_no_members({key.consumer for key, _ in commits})
        await self.wait_read(await self.store_checked(commits), len(commits))

    def store_checked(self, commits: Sequence[tuple[OffsetKey, Commit]]) -> asyncio.Future[int]:
        """Store all commits in one batch: the coordinator has found that the committer may commit.

        The result is the offset of the first record, once all are stored. They are in memory if
        `has_read` says so, or else after `wait_read`. Raises, and has errors: as `commit`.
        """
        now = self._clock.now_ms()
        self._check_room(len(commits), (key for key, _ in commits))
        return self._appends.append(
            [self._commit_record(key, commit, now) for key, commit in commits]
        )

    def prepare(self, commits: Sequence[tuple[OffsetKey, str]]) -> list[PreparedCommit]:
        """Commits with this metadata of streams that are here, for `store_prepared`. Raises:
        InvalidName, UnknownStream."""
        return prepare_commits(commits, self._stream_id)

    def store_prepared(
        self, prepared: Sequence[PreparedCommit], values: Sequence[int], on_stored: OnStored
    ) -> None:
        """As `store_checked`, with the offset and the leader epoch of each in turn in `values`."""
        self._check_room(len(prepared), (each.key for each in prepared))
        records, changes, size = encode_prepared(prepared, values, self._clock.now_ms())
        self._appends.append_encodable(records, changes, size, on_stored)

    def _check_room(self, count: int, keys: Iterable[OffsetKey]) -> None:
        """Raises: LimitExceeded."""
        held = len(self._commits)
        if held + count > COMMITS_MAX:
            added = sum(key not in self._commits for key in keys)
            if added and held + added > COMMITS_MAX:
                raise LimitExceeded("the limit of committed offsets", COMMITS_MAX, held + added)

    def has_read(self, offset: int, count: int) -> bool:
        """Whether `count` records from `offset` on are in memory."""
        return self._position >= offset + count

    async def wait_read(self, offset: int, count: int) -> None:
        """Return once `count` records from `offset` on are in memory. Raises: PartitionFailed,
        Indeterminate after a timeout."""
        await self._wait_position(offset + count)

    async def remove(
        self, *, consumer: str, stream: str | None, partition: int | None = None
    ) -> list[OffsetKey]:
        """Remove the matching commits from the stream; return their keys. Raises: as `commit`,
        GroupHasMembers while the consumer is a group with members.
        """
        await self.wait_caught_up()
        keys = sorted(self._keys(consumer=consumer, stream=stream, partition=partition))
        self._check_no_members({consumer})
        if keys:
            await self.remove_keys(keys)
        return keys

    async def remove_deleted(self, stream: str, present: StreamDefinition | None) -> None:
        """Remove the commits for a deleted stream. Those for `present`, the stream that has its
        name by now, stay. Raises: as `commit`.
        """
        # Commits that were taken before the stream was closed may still wait to be stored.
        await self._appends.wait_stored()
        await self.wait_caught_up()
        keys = sorted(self._keys(consumer=None, stream=stream))
        if present is not None:
            keys = [key for key in keys if not is_for(self._commits[key], present)]
        if keys:
            await self.remove_keys(keys)

    async def remove_keys(self, keys: Sequence[OffsetKey]) -> None:
        """Remove commits in one batch, as their coordinator. Raises: as `commit`."""
        await self._publish([self._removal_record(key) for key in keys])

    def streams(self) -> set[str]:
        """The names of the streams that have commits. It takes a time for each commit."""
        return {key.stream for key in self._commits}

    def consumers(self) -> list[str]:
        """The names of those that have commits, in the order of their first ones."""
        return list(self._keys_by_consumer)

    def has_commits(self, consumer: str) -> bool:
        """Whether a consumer has a commit for a stream that is there."""
        keys = self._keys_by_consumer.get(consumer, ())
        return any(self._valid(key) is not None for key in keys)

    def keys(self, consumer: str) -> list[OffsetKey]:
        """The keys of all commits of a consumer."""
        return sorted(self._keys_by_consumer.get(consumer, ()))

    async def resolve(
        self,
        stream: str,
        partition: int,
        to: int | str,
        *,
        at_ms: int,
        is_clamped: bool = False,
    ) -> int:
        """The offset of a position in a partition: a number, `earliest`, `latest`, or `time`, the
        first record at or after `at_ms`, or the end if there is none. With `is_clamped` a number
        out of range is the nearest one within.

        Raises: UnknownStream, UnknownPartition, OffsetOutOfRange, CorruptData, OSError.
        """
        found = self._partitions.stream(stream)
        if found is None:
            raise UnknownStream(stream)
        if not 0 <= partition < len(found):
            raise UnknownPartition(stream, partition, len(found))
        return await resolve_offset(found[partition], to, at_ms=at_ms, is_clamped=is_clamped)

    @property
    def has_read_all(self) -> bool:
        """Whether everything that is committed is in memory."""
        partition = self._partition()
        has_read = self._position >= partition.high_watermark.offset
        return has_read and not self._has_lost(partition)

    async def store_group(self, name: str, state: bytes | None) -> None:
        """Store the record of a group; return once that is committed. Raises: as `commit`."""
        await self.store_members(name, [(None, state)])

    async def store_members(
        self, name: str, records: Sequence[tuple[str | None, bytes | None]]
    ) -> None:
        """Store records of a group (None) and of its members, by id, in one batch.

        Raises: as `commit`.
        """
        batch = []
        for member_id, state in records:
            subject = group_subject(name) if member_id is None else member_subject(name, member_id)
            change = OffsetChange(None, group=name, member_id=member_id, state=state)
            batch.append(OffsetRecord(InternalRecord(subject, subject.encode(), state), change))
        await self._appends.append(batch, is_accounted=True)  # by `memory.GroupMemory`

    def state_bytes(self, name: str) -> int:
        """What the records of a group and its members take in memory; 0 without such records."""
        return self._state_bytes.get(name, 0)

    def _check_no_members(self, consumers: Iterable[str]) -> None:
        for name in consumers:
            if name in self.group_states or self.has_members(name):
                raise GroupHasMembers(name)

    def _partition(self) -> Partition:
        stream = self._partitions.stream(OFFSETS_STREAM)
        if stream is None:
            raise PartitionFailed(OFFSETS_STREAM, 0, "it could not be created")
        if (stop := stop_of(stream[0])) is not None:
            raise stop
        return stream[0]

    def _valid(self, key: OffsetKey) -> StoredCommit | None:
        """The commit of `key`; None if its stream was created again after the commit."""
        stored = self._commits.get(key)
        stream = self._partitions.stream(key.stream)
        if stored is None or not stream:
            return stored
        return stored if is_for(stored, stream[0].definition) else None

    def _keys(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> Iterator[OffsetKey]:
        keys = self._commits if consumer is None else self._keys_by_consumer.get(consumer, ())
        for key in list(keys):
            if stream in (None, key.stream) and partition in (None, key.partition):
                yield key

    def _committed_offset(self, key: OffsetKey, stored: StoredCommit) -> CommittedOffset:
        stream = self._partitions.stream(key.stream) or ()
        partition = stream[key.partition] if key.partition < len(stream) else None
        return CommittedOffset(
            consumer=key.consumer,
            stream=key.stream,
            partition=key.partition,
            offset=stored.commit.offset,
            leader_epoch=stored.commit.leader_epoch,
            metadata=stored.commit.metadata,
            committed_ms=stored.commit.committed_ms or stored.appended_ms,
            start_offset=None if partition is None else partition.start_offset,
            high_watermark=None if partition is None else partition.high_watermark.offset,
        )

    async def _publish(self, records: Sequence[OffsetRecord]) -> None:
        """Return once these removals are stored and in memory."""
        stored = await self._appends.append(records, is_accounted=True)  # by COMMITS_MAX
        await self.wait_read(stored, len(records))

    def _commit_record(self, key: OffsetKey, commit: Commit, now_ms: int) -> OffsetRecord:
        found = self._partitions.stream(key.stream)
        stream_id = hexadecimal(found[0].definition.id) if found else None
        subject, key_bytes = record_key(key)
        dated = dated_commit(commit, now_ms)
        record = InternalRecord(subject, key_bytes, encode_commit(dated), commit_headers(stream_id))
        if stream_id is None:
            return OffsetRecord(record, None)  # whether it is valid depends on its timestamp
        stored = StoredCommit(dated, now_ms, -1, stream_id)
        return OffsetRecord(record, OffsetChange(key, stored, is_checked=True))

    def _removal_record(self, key: OffsetKey) -> OffsetRecord:
        subject = commit_subject(key)
        headers = commit_headers(self._stream_id(key.stream))
        record = InternalRecord(subject, subject.encode(), None, headers)
        return OffsetRecord(record, OffsetChange(key, is_checked=True))

    def _epoch_led(self) -> int:
        """The leader epoch that this node leads. Raises: PartitionFailed, NotLeader."""
        partition = self._partition()
        if not partition.is_leader:
            raise NotLeader.of_partition(partition.state, partition.leader_epoch)
        return partition.leader_epoch

    def _on_committed(self, base: int, changes: Sequence[OffsetChange | None]) -> None:
        """Apply a batch of this node; read it back where something else is to be read first."""
        if base != self._position or self._is_reading or None in changes:
            self._wake.set()
            return
        self._apply([change for change in changes if change is not None], base + len(changes))

    def _stream_id(self, stream: str) -> str | None:
        found = self._partitions.stream(stream)
        return hexadecimal(found[0].definition.id) if found else None

    async def _wait_position(self, offset: int) -> None:
        """Return once everything below `offset` is read. Raises: PartitionFailed, Indeterminate."""
        if self._position >= offset:
            return
        self._wake.set()
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX), self._advanced:
                await self._advanced.wait_for(
                    lambda: self._position >= offset or self._failure is not None
                )
        except TimeoutError:
            raise Indeterminate(f"{OFFSETS_STREAM} is not read up to offset {offset}") from None
        if self._position < offset:
            self._partition()  # raises why it has stopped
            raise PartitionFailed(OFFSETS_STREAM, 0, str(self._failure))

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Looked up each time: a partition that could not be opened is replaced by a retry.
            if stream := self._partitions.stream(OFFSETS_STREAM):
                stream[0].watchers.add(self._wake.set)
                await self._catch_up(stream[0])
            if self._failure is not None:
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _catch_up(self, partition: Partition) -> None:
        """Read and apply up to the high watermark, then repair replaced commits."""
        while True:
            self._forget_lost(partition)
            store, end, read_from = partition.log, partition.high_watermark, self._read_from
            if end.offset <= self._position:
                break
            try:
                if store is None or partition.failure is not None:
                    raise partition.failure or PartitionFailed(OFFSETS_STREAM, 0, "it is not open")
                self._is_reading = True
                changes, reached = await asyncio.to_thread(read_changes, store, self._position, end)
                if reached <= self._position:
                    raise PartitionFailed(OFFSETS_STREAM, 0, f"no batch at offset {reached}")
            except (BasculeError, OSError) as error:
                if self._failure is None:
                    log.error("committed offsets cannot be read", extra={"error": str(error)})
                self._failure = str(error)
                break
            finally:
                self._is_reading = False
            if read_from == self._read_from:
                self._apply(changes, reached)
            self._failure = None
        self.on_read()
        async with self._advanced:
            self._advanced.notify_all()
        if self._to_repair and partition.is_leader:
            await self._repair()

    def _has_lost(self, partition: Partition) -> bool:
        """Whether an unclean election has removed records that may have been read."""
        source, lost = self._read_from
        return partition.counts.records_lost != (lost if partition is source else 0)

    def _forget_lost(self, partition: Partition) -> None:
        """Read everything again where records were removed: others may have their offsets."""
        if self._has_lost(partition):
            self._read_from = partition, partition.counts.records_lost
            self._commits.clear()
            self._keys_by_consumer.clear()
            self._to_repair.clear()
            self._removed.clear()
            self.group_states.clear()
            self.member_states.clear()
            self._state_bytes.clear()
            self.counts.held = self._position = 0

    def _apply(self, changes: list[OffsetChange], reached: int) -> None:
        malformed = [change for change in changes if not self._apply_change(change)]
        if malformed:
            self.counts.malformed += len(malformed)
            log.warning(
                "malformed commits ignored",
                extra={
                    "records": len(malformed),
                    "below_offset": reached,
                    "last": malformed[-1].error,
                },
            )
        self.counts.held = len(self._commits)
        self._position = reached

    def _apply_change(self, change: OffsetChange) -> bool:
        """Apply one record; False if it was ignored as malformed or beyond COMMITS_MAX."""
        if change.group is not None:
            self._apply_group(change.group, change.member_id, change.state)
            return True
        key, stored, read_up_to = change.key, change.stored, change.read_up_to
        if key is None:
            return False
        if not change.error and not change.is_checked and key.consumer in self.group_states:
            # Somebody who is no member has replaced the members' commit, or made one.
            self.counts.fenced += 1
            self._to_repair.add(key)
            return True
        present = self._commits.get(key)
        is_stale_repair = False
        if read_up_to is not None:
            last = self._removed.get(key, -1) if present is None else present.record_offset
            is_stale_repair = last > read_up_to
        if change.error or is_stale_repair:
            # A stale repair replaced a commit, or a removal, that its publisher had not read:
            # repair that.
            if present is not None or is_stale_repair:
                self._to_repair.add(key)
            return not change.error
        self._to_repair.discard(key)
        if stored is None:
            self.counts.removals += 1
            self._remove(key)
            self._note_removal(key, change.record_offset)
        elif change.is_checked or present is not None or len(self._commits) < COMMITS_MAX:
            # What the coordinator has acknowledged is kept; it refuses what is too much.
            self.counts.commits += 1
            self._commits[key] = stored
            if present is None:
                self._keys_by_consumer.setdefault(key.consumer, set()).add(key)
        else:
            return False
        return True

    def _apply_group(self, name: str, member_id: str | None, state: bytes | None) -> None:
        if member_id is None:
            states, record = self.group_states, name
        else:
            states, record = self.member_states.setdefault(name, {}), member_id
        before = states.pop(record, None)
        grown = 0 if before is None else -(RECORD_BYTES + len(record) + len(before))
        if state is not None:
            states[record] = state
            grown += RECORD_BYTES + len(record) + len(state)
        if member_id is not None and not states:
            del self.member_states[name]
        self._state_bytes[name] = self._state_bytes.get(name, 0) + grown
        if not self._state_bytes[name]:
            del self._state_bytes[name]

    def _note_removal(self, key: OffsetKey, offset: int) -> None:
        self._removed.pop(key, None)
        self._removed[key] = offset
        if len(self._removed) > REMOVALS_KEPT:
            del self._removed[next(iter(self._removed))]

    def _remove(self, key: OffsetKey) -> None:
        if self._commits.pop(key, None) is not None:
            keys = self._keys_by_consumer[key.consumer]
            keys.discard(key)
            if not keys:
                del self._keys_by_consumer[key.consumer]

    async def _repair(self) -> None:
        """Publish the commits again that malformed records replaced; failures are retried."""
        repairs: list[tuple[OffsetKey, Commit | None]] = []
        for key in self._to_repair:
            if (stored := self._valid(key)) is not None:
                repairs.append((key, dated_commit(stored.commit, stored.appended_ms)))
            elif key not in self._commits:
                repairs.append((key, None))
        self._to_repair.clear()
        header = (REPAIRS_HEADER, str(self._position - 1).encode())
        try:
            # Not `commit`: it waits until this task has read the commit back.
            for key, commit in repairs:
                subject = commit_subject(key)
                value = None if commit is None else encode_commit(commit)
                headers = (header, *commit_headers(self._stream_id(key.stream)))
                record = InternalRecord(subject, subject.encode(), value, headers)
                async with asyncio.timeout(STORE_SECONDS_MAX):
                    await self._publisher.publish(OFFSETS_STREAM, 0, [record])
                self.counts.repairs += 1
        except (BasculeError, TimeoutError) as error:
            self._to_repair.update(key for key, _ in repairs)
            log.warning("commit repair failed", extra={"error": str(error)})
