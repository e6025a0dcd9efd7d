"""One partition of a stream on this node: its log, its high watermark and its pending acks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from bascule.errors import BasculeError, FencedEpoch, PartitionFailed, reason_without_paths
from bascule.host.api import Clock
from bascule.model import NO_LEADER, PartitionInfo, PartitionState, StreamDefinition, SyncPolicy
from bascule.publish.acks import (
    NOT_LEADING,
    AckError,
    AckFormat,
    indeterminate,
    not_enough_replicas,
    not_stored,
)
from bascule.publish.admission import Admission, LogState
from bascule.publish.headers import HashKey
from bascule.publish.preconditions import Preconditions
from bascule.publish.stream_subjects import StreamSubjects
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record import header as batch_header
from bascule.record.compression import compress_batch
from bascule.replica.dedupe_loading import LoadedIds
from bascule.replica.failure_run import AppendFailures, FailureRun
from bascule.replica.handover.held_messages import HeldMessages
from bascule.replica.log_time import LogClock
from bascule.replica.metrics import PartitionCounts, PartitionMetrics
from bascule.replica.roles.commitment import Commitment, LogFlags
from bascule.replica.roles.role import PartitionRole, is_older, log_loss, log_role, log_stop
from bascule.replica.roles.told_start import ToldStart
from bascule.replica.syncing.sync_state import SyncState
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from bascule.storage.segment import LogPosition

log = logging.getLogger("bascule.replica")


class Partition:
    """One partition of a stream on this node.

    The log writer thread calls `append`, one sync thread at a time `sync`. Any thread may read the
    rest. `watchers` belongs to the event loop.
    """

    def __init__(
        self,
        definition: StreamDefinition,
        index: int,
        *,
        log: PartitionLog | None,
        failure: PartitionFailed | None,
        clock: Clock,
        on_changed: Callable[[Partition], None],
        on_appended: Callable[[Partition], None] = lambda _: None,
        hash_key: HashKey,
        persist_id_marker: Callable[[], None] | None = None,
        subjects: StreamSubjects | None = None,
    ) -> None:
        """Any thread calls `on_changed` after the high watermark moved or the log failed, and
        the log writer `on_appended` after other appends, while there are `replica_watchers`.

        `hash_key` keys the hashes of message ids. `persist_id_marker` persists a marker that the
        log contains message ids (may raise OSError). None: the marker exists already.
        `subjects` are those of all streams on this node. Nothing happens before `set_role`.
        """
        config = definition.config
        self.definition = definition
        self.index = index
        self.log = log
        self.failure = failure
        self.deleted = False
        self.leader_epoch = 0 if log is None else log.epochs.latest + 1
        self.state: PartitionState | None = None
        """As the metadata image says; None before the first `set_role`."""
        self.held: HeldMessages | None = None
        """What has come for the leader that this node is about to be."""
        self.has_handed_over = False
        """Whether this leader leaves messages to its successor, which is about to lead."""
        self.told_start = ToldStart()
        self.on_position: Callable[[Partition], None] | None = None
        """Called by any thread after a sync, and after the start of the log has moved."""
        self.watchers: set[Callable[[], None]] = set()
        self.replica_watchers: set[Callable[[], None]] = set()
        """Called as `watchers`, and after appends of a leader with followers."""
        self.counts = PartitionCounts()
        self.metrics = PartitionMetrics()
        self.maintenance_lock = threading.Lock()
        """Held while closed segments change: by checkpoint, retention or segment replacement."""
        self._sync_guard = threading.Lock()
        """Held while the log is synced or truncated."""
        self.syncing = SyncState(clock)
        self.checkpointed_bytes = 0
        """`counts.bytes` at the last checkpoint; a recovery scans what was appended since."""
        self._clock = clock
        self._on_changed = on_changed
        self._on_appended = on_appended
        self._ack_format = AckFormat(
            stream=definition.name,
            subject=config.subject,
            partition=index,
            replicas=1,
            synced=config.sync is SyncPolicy.ALWAYS,
        )
        self.commitment = Commitment(log, self._ack_format, clock, config.sync)
        self._epoch_start = 0  # the end of the log when this node began to lead
        self.log_clock = LogClock(definition.name, index, clock)
        self._failed_appends = AppendFailures(definition.name, index)
        self.failed_reads = FailureRun()
        """Of listeners: reads and lookups by time."""
        self._admission = Admission(definition, self._ack_format, hash_key, subjects)
        self._admission.answer = self.commitment.refuse
        self._ids = LoadedIds(self._admission.preconditions, persist_id_marker)

    @property
    def preconditions(self) -> Preconditions:
        """The preconditions and the dedupe window of this partition."""
        return self._admission.preconditions

    def configure(self, definition: StreamDefinition) -> None:
        """Apply the altered definition of the stream. Called on the event loop.

        The sync policy applies from the next batch on, all else from the next operation on.
        """
        self.definition = definition
        config = definition.config
        self.commitment.configure(config.sync)
        self._admission.configure(definition)
        if self.log is not None:
            self.log.configure(log_config(config))

    @property
    def high_watermark(self) -> LogPosition:
        """Only records below it may be served."""
        return self.commitment.watermark.position

    @property
    def committed_offset(self) -> int:
        """The offset of the high watermark; never lower than before."""
        return self.commitment.watermark.offset

    @property
    def replicated_offset(self) -> int:
        """The end of the committed records that all replicas have, as far as this node knows."""
        known, state = self.commitment.replicated, self.state
        return 0 if state is None or known.version < state.version else known.offset

    @property
    def role(self) -> PartitionRole:
        return self.commitment.role

    @property
    def is_leader(self) -> bool:
        return self.commitment.role is PartitionRole.LEADER

    @property
    def knows_end(self) -> bool:
        """Whether all is committed here that an earlier leader may have committed (KIP-207)."""
        return self.committed_offset >= self._epoch_start

    @property
    def start_offset(self) -> int:
        return 0 if self.log is None else self.log.start_offset

    @property
    def is_dirty(self) -> bool:
        """Whether appended records are not synced yet."""
        return self.log is not None and self.log.synced != self.log.end

    @property
    def needs_sync(self) -> bool:
        """Whether the sync policy requires a sync for records, or for acks of duplicates."""
        if self.definition.config.sync is not SyncPolicy.ALWAYS:
            return False
        return self.is_dirty or len(self.commitment.pending) > 0

    @property
    def is_awaited(self) -> bool:
        """Whether a publisher, a reader or a leader waits for the next sync."""
        pending, role = self.commitment.pending, self.commitment.role
        return len(pending) > 0 or bool(self.watchers) or role is PartitionRole.FOLLOWER

    def now_ms(self) -> int:
        """The time that a record appended now gets, in Unix milliseconds; see `LogTime`."""
        last_ms = -1 if self.log is None else self.log.timestamp_max
        return self.log_clock.now_ms(last_ms)

    @property
    def ahead_ms(self) -> int:
        """By how much the time of the log is ahead of the wall clock, which was ahead once."""
        self.now_ms()
        return self.log_clock.ahead_ms

    def append(self, batch: UnstampedBatch) -> bytes:
        """Stamp the batch and append it; return the acks and error acks to send now.

        Never raises: records that cannot be stored get error acks and are counted.
        """
        if self.commitment.role is not PartitionRole.LEADER or self.has_handed_over:
            return self._drop(batch)
        replies = self._refuse_too_large(batch) if batch.refused_count else b""
        if not batch.record_count:
            return replies
        if batch.headers is not None:
            self.preconditions.leave_to_others(batch)
        if (refusal := self._refusal_of(batch)) is not None:
            return replies + self._refuse(batch, refusal, knows_ids=not self.deleted)
        assert self.log is not None
        now_ms = self.now_ms()
        next_offset = self.log.end.offset
        try:
            # Must come first: the rollback after an error undoes the last evaluation.
            replies += self._admit(self.log, batch, now_ms)
            if not batch.record_count:
                return replies
            if not self._ids.may_exist and batch.headers is not None and batch.headers.has_ids():
                self._ids.persist_marker()
            self._append(self.log, batch, now_ms)
        except (OSError, BasculeError) as error:
            self.counts.disk_errors += isinstance(error, OSError)
            reason = reason_without_paths(error)
            replies += self.commitment.rollback(self.log.end.offset, indeterminate(reason))
            self.preconditions.rollback(self.log.end.offset)
            if self.log.failure is not None:
                # What the failed append wrote could not be removed: the next opening may find it.
                replies += self._refuse(batch, indeterminate(reason))
                return replies + self.fail(str(error), reason=reason)
            self._failed_appends.on_failure(error, batch.record_count)
            return replies + self._refuse(batch, not_stored(reason))
        except Exception as error:  # boundary: a bug stops one partition, not the log writer
            log.exception("log writer failed")
            if self.log.end.offset == next_offset:
                replies += self.commitment.rollback(next_offset, indeterminate("internal error"))
                replies += self._refuse(batch, not_stored("internal error"))
            return replies + self.fail(f"internal error while appending: {error!r}")
        stopped = self._failure_now()
        if stopped is not None:
            # A sync failed meanwhile; it may have failed the pending acks before this append.
            return replies + self._fail_acks(stopped.reason)
        return replies + self._commit_appended(self.log.end)

    def sync(self) -> bytes:
        """Sync what is appended; return the acks or error acks to send now. Never raises."""
        assert self.log is not None
        if self.failure is not None or self.deleted:
            return b""
        written, began_ns = self.counts.bytes, self._clock.monotonic_ns()
        try:
            with self._sync_guard:
                synced = self.log.sync(self.syncing.on_synced)
        except (OSError, BasculeError) as error:
            self.counts.disk_errors += isinstance(error, OSError)
            # The kernel may have dropped the pages: a second sync would lie (fsyncgate).
            return self.fail(str(error), reason=reason_without_paths(error))
        self.counts.syncs += 1
        now_ns = self.syncing.synced_at_ns = self._clock.monotonic_ns()
        self.metrics.on_synced(
            synced_bytes=written, began_ns=began_ns, now_ns=now_ns, is_dirty=self.is_dirty
        )
        if self.on_position is not None:
            self.on_position(self)
        return self._after(self.commitment.on_synced(synced))

    def _after(self, released: bytes | None) -> bytes:
        """Tell the watchers if the commitment has changed; the acks to send now."""
        if released is None:
            return b""
        self._on_changed(self)
        return released

    def notify(self) -> None:
        """Tell all watchers, and the leader, of a change that others made."""
        self._on_changed(self)
        if self.on_position is not None:
            self.on_position(self)

    def fail(self, cause: str, *, reason: str = "internal error", is_damage: bool = False) -> bytes:
        """Stop the partition; return error acks for every waiting publisher.

        Their messages were appended and may be found when the log is opened again, so the acks
        say that they may or may not be stored. `reason` is the cause without paths, for publishers.
        """
        name = self.definition.name
        if self.failure is None:
            self.failure = PartitionFailed(
                name, self.index, cause, reason=reason, is_damage=is_damage
            )
            log_stop(name, self.index, cause)
        replies = self._fail_acks(reason)
        self._on_changed(self)
        return replies

    def _failure_now(self) -> PartitionFailed | None:
        return self.failure  # read again: another thread may have set it

    def _refusal_of(self, batch: UnstampedBatch) -> AckError | None:
        """Why nothing can be appended now."""
        if self.failure is not None:
            return not_stored(f"partition {self.index} has stopped: {self.failure.reason}")
        if self.deleted or self.log is None:
            return not_stored("the stream is deleted")
        if (short := self.commitment.refusal) is not None:
            return not_enough_replicas(*short)
        return None if batch.is_internal else self._admission.refusal

    # -- roles, on the log writer thread; see `replica.roles` -----------------------------------

    def set_role(self, state: PartitionState, node_id: int, *, lag_ns_max: int) -> bytes:
        """Do what `state` says: lead, follow or neither; return the acks to send now.

        An older state than that in force changes nothing.

        Raises: FencedEpoch if the log has records of the leader epoch that this node is to begin.
        LogFailed, CorruptData, Closed, OSError. The node does not lead then.
        """
        before = self.state
        if before is not None and is_older(state, before):
            return b""
        if self.log is None or self.failure is not None or self.deleted:
            # As the leader of a log that it cannot use, it refuses messages.
            leads = state.leader == node_id
            self._resign(state, PartitionRole.LEADER if leads else PartitionRole.NONE)
            return b""
        self.told_start.begin(state.leader_epoch)  # before: what was said earlier is too late then
        if before is None or state.unclean_epoch > before.unclean_epoch:
            self.told_start.lower(self.log.end.offset)
        if state.leader == node_id:
            return self._lead(self.log, state, node_id, lag_ns_max)
        follows = state.leader != NO_LEADER and node_id in state.replicas
        self._resign(state, PartitionRole.FOLLOWER if follows else PartitionRole.NONE)
        return b""

    def _lead(
        self, store: PartitionLog, state: PartitionState, node_id: int, lag_ns_max: int
    ) -> bytes:
        before, self.has_handed_over = self.state, False
        begins = before is None or before.leader_epoch != state.leader_epoch or not self.is_leader
        if begins:
            if state.leader_epoch <= store.epochs.latest:
                raise FencedEpoch(state.leader_epoch, store.epochs.latest)
            if self.definition.config.sync is SyncPolicy.ALWAYS:
                with self._sync_guard:
                    store.sync()
            if not self._ids.are_complete:
                since_ms = self.now_ms() - self.definition.config.dedupe_window_ms
                self._ids.load(store, since_ms=since_ms)
            self._epoch_start = store.end.offset
            self.told_start.lower(store.end.offset)
        self.state, self.leader_epoch = state, state.leader_epoch
        released = self.commitment.lead(
            store, state, node_id, min_isr=self.definition.needed_in_sync(state),
            lag_ns_max=lag_ns_max, epoch_start=self._epoch_start,
        )  # fmt: skip
        if begins:
            self._log_role()
        self._on_changed(self)
        return released or b""

    def _resign(self, state: PartitionState, role: PartitionRole) -> None:
        changes = role is not self.role or state.leader_epoch != self.leader_epoch
        keeps, self.has_handed_over = self.has_handed_over, False
        self.counts.records_dropped += self.commitment.resign(
            self.log, role, keeps_acks=keeps, begins=changes, state=state
        )
        self.state, self.leader_epoch = state, state.leader_epoch
        if changes:
            self._log_role()
        self._on_changed(self)

    def _log_role(self) -> None:
        assert self.state is not None
        end_offset = 0 if self.log is None else self.log.end.offset
        log_role(
            self.definition.name, self.index, self.role, self.state,
            high_watermark=self.committed_offset, end_offset=end_offset,
        )  # fmt: skip

    @property
    def may_have_ids(self) -> bool:
        """Whether records of the log may have message ids."""
        return self._ids.may_exist

    def append_replicated(self, data: memoryview, leader_log: LogFlags) -> None:
        """Append whole batches of the leader's log, unchanged, as a follower of it.

        Raises: see `PartitionLog.append_as_follower`.
        """
        assert self.log is not None
        if leader_log.may_have_ids:
            self._ids.persist_marker()
        were_complete, self._ids.are_complete = self._ids.are_complete, False
        gaps, told = leader_log.may_have_gaps, leader_log.epochs
        self.log.append_as_follower(data, gaps_allowed=gaps, told=told)
        if were_complete:
            self._ids.add(data, may_have_ids=leader_log.may_have_ids)
        self.counts.replicated_bytes += len(data)
        self.counts.bytes += len(data)

    def truncate_replicated(self, offset: int) -> None:
        """Truncate the log to `offset`, from where on the leader has other records.

        Committed records are removed only if an unclean election has come behind this log's latest
        leader epoch; a log that starts above `offset` is then replaced by an empty one at offset 0.
        Raises: OffsetOutOfRange if others would be; see `truncate_to` and `start_at`.
        """
        store, state = self.log, self.state
        assert store is not None
        start, before = store.start_offset, store.end.offset
        committed = min(self.committed_offset, before)
        may_lose = state is not None and store.epochs.latest < state.unclean_epoch
        with self.maintenance_lock, self._sync_guard:
            self._ids.are_complete = False
            try:
                if may_lose and offset < start:
                    store.start_at(0, self.leader_epoch)
                else:
                    kept, offset = start if may_lose else committed, max(offset, start)
                    store.truncate_to(offset, self.leader_epoch, high_watermark=kept)
            finally:
                # Also after an error: the next attempt finds nothing to truncate where the log has
                # changed already, and nobody may count on what it has no longer.
                end = store.end.offset
                self.told_start.lower(end)
                self.counts.records_dropped += self.commitment.on_truncated(end)
                if self.held is not None:
                    self.held.on_truncated(end)
                if may_lose:
                    self._count_lost(max(end, start), before, committed)

    def restart_replicated(self, offset: int, *, undone_from: int | None = None) -> None:
        """Replace the log by an empty one that starts at `offset`. Raises: see `start_at`.

        `undone_from`: an unclean election has undone the records from there on, as far as the log
        has them.
        """
        store = self.log
        assert store is not None
        start, before = store.start_offset, store.end.offset
        committed = min(self.committed_offset, before)
        with self.maintenance_lock, self._sync_guard:
            self._ids.are_complete = False
            # No watermark is beyond its log, before and after.
            dropped = self.commitment.on_replaced(min(offset, self.committed_offset))
            self.told_start.lower(offset)
            store.start_at(offset, self.leader_epoch)
            self.counts.records_dropped += dropped + self.commitment.on_replaced(offset)
            if undone_from is not None:
                self._count_lost(max(undone_from, start), before, committed)

    def _count_lost(self, start: int, end: int, committed: int) -> None:
        """Records were removed that the leader of an unclean election lacks."""
        if start < end:
            self.counts.records_lost += end - start
            log_loss(self.definition.name, self.index, start, end, committed)

    def on_leader_watermark(self, offset: int, leader_epoch: int) -> None:
        """Take over the high watermark of that epoch's leader, as far as this follower's log goes.
        Any thread may call it."""
        if self.commitment.on_leader_watermark(offset, leader_epoch):
            self._on_changed(self)

    def on_fetch(
        self, node: int, node_epoch: int, *,
        leader_epoch: int, log_start: int, log_end: int, synced_end: int,
    ) -> bytes:  # fmt: skip
        """A follower's log is equal to this one up to `log_end`; return the acks to send now.

        What was said in another leader epoch than that in force changes nothing. Any thread may
        call it.
        """
        if self.log is None or self.failure is not None:
            return b""
        # A follower is ahead where an earlier leader was lost before this node heard of its start.
        self.told_start.hear(log_start, leader_epoch)
        return self._after(
            self.commitment.on_fetch(
                node, node_epoch, leader_epoch=leader_epoch, log_start=log_start,
                log_end=log_end, synced_end=synced_end, own_end=self.log.end.offset,
            )
        )  # fmt: skip

    def info(self) -> PartitionInfo:
        store = self.log
        return PartitionInfo(
            partition=self.index,
            start_offset=self.start_offset,
            high_watermark=self.committed_offset,
            synced_offset=0 if store is None else store.synced.offset,
            end_offset=0 if store is None else store.end.offset,
            leader_epoch=self.leader_epoch,
            bytes=0 if store is None else store.size_bytes(),
            failure=None if self.failure is None else str(self.failure),
            replicated_offset=self.replicated_offset,
        )

    def _admit(self, store: PartitionLog, batch: UnstampedBatch, now_ms: int) -> bytes:
        """Remove from the batch what the stream does not store; return the replies to send now."""
        next_offset = store.end.offset
        evaluation = self._admission.admit(
            batch,
            LogState(next_offset, store.start_offset, store.size_bytes()),
            now_ms=now_ms,
            now_ns=self._clock.monotonic_ns(),
        )
        if evaluation is None:
            return b""
        return self.commitment.answer(
            evaluation, next_offset=next_offset, end_offset=next_offset + batch.record_count,
            policies=batch.ack_policies, on_committed=batch.on_committed,
        )  # fmt: skip

    def _append(self, store: PartitionLog, batch: UnstampedBatch, now: int) -> None:
        base_offset = store.end.offset
        data = compress_batch(batch.data, self.definition.config.compression)
        batch_header.seal(
            data,
            record_count=batch.record_count,
            base_timestamp=now,
            max_timestamp=now,
            attributes=batch_header.LOG_APPEND_TIME | batch.attributes,
            base_offset=base_offset,
            leader_epoch=self.leader_epoch,
            keep_codec=True,
        )
        # Before the append: a concurrent sync may already cover the batch.
        self.commitment.pending.add(
            base_offset=base_offset,
            count=batch.record_count,
            ack_entries=batch.ack_entries,
            received_ms=now,
            policies=batch.ack_policies,
            on_committed=batch.on_committed,
        )
        store.append(data)
        if self._failed_appends.count:
            self._failed_appends.end()
        self.counts.records += batch.record_count
        self.counts.bytes += len(data)
        self.counts.batches += 1
        self.metrics.on_appended(
            records=batch.record_count, bytes=len(data), now_ns=self._clock.monotonic_ns()
        )

    def _commit_appended(self, end: LogPosition) -> bytes:
        """Commit what is appended, unless the stream's policy waits for the sync; the acks."""
        released = self.commitment.on_appended(end)
        if released is None and self.replica_watchers:
            self._on_appended(self)
        return self._after(released)

    def _fail_acks(self, reason: str) -> bytes:
        error = indeterminate(f"partition {self.index} has stopped: {reason}")
        replies, count = self.commitment.fail(error)
        self.counts.records_indeterminate += count
        return replies

    def _drop(self, batch: UnstampedBatch) -> bytes:
        """Leave the batch to the leader. Publishers get no answer: another node may store it."""
        if self.held is not None and batch.on_committed is None and self.held.add(batch):
            return b""
        self.counts.records_dropped += batch.record_count + batch.refused_count
        if batch.on_committed is not None:
            batch.on_committed(-1, NOT_LEADING)
        return b""

    def refuse(self, batch: UnstampedBatch, reason: str) -> bytes:
        """Refuse a whole batch without trying to append it; return the error acks to send now."""
        if not self.is_leader or self.has_handed_over:
            return self._drop(batch)
        replies = self._refuse_too_large(batch)
        self.preconditions.leave_to_others(batch)
        if batch.record_count:
            replies += self._refuse(batch, not_stored(reason), knows_ids=not self.deleted)
        return replies

    def _refuse_too_large(self, batch: UnstampedBatch) -> bytes:
        if not batch.refused_count:
            return b""
        self.counts.messages_refused += batch.refused_count
        limit = self.definition.config.message_bytes_max
        return self._ack_format.too_large(batch.refused_entries, limit, count=batch.refused_count)

    def _refuse(self, batch: UnstampedBatch, error: AckError, *, knows_ids: bool = False) -> bytes:
        """`knows_ids`: repetitions of stored messages are acknowledged. The batch is whole then."""
        ends = (self.committed_offset, self.commitment.stored_end) if knows_ids else None
        replies = self._admission.refuse(batch, error, now_ms=self.now_ms(), ends=ends)
        if error is not self._admission.refusal:
            self.counts.records_not_stored += batch.record_count
        return replies
