"""One partition of a stream on this node: its log, its high watermark and its pending acks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bascule.errors import BasculeError, OffsetOutOfRange, PartitionFailed
from bascule.host.api import Clock
from bascule.model import PartitionInfo, StreamDefinition, SyncPolicy
from bascule.publish.acks import AckFormat, PendingAcks, store_failed, too_large
from bascule.publish.admission import Admission, LogState
from bascule.publish.headers import HashKey, PublishHeaders
from bascule.publish.preconditions import Preconditions
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record import header as batch_header
from bascule.record.compression import compress_batch
from bascule.replica.metrics import PartitionMetrics
from bascule.replication.high_watermark import HighWatermark
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from bascule.storage.segment import LogPosition

log = logging.getLogger("bascule.replica")

_EMPTY_LOG = LogPosition(0, 0, 0)


@dataclass(slots=True)
class PartitionCounts:
    """For metrics. Counts only grow."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    syncs: int = 0
    messages_refused: int = 0
    records_not_stored: int = 0
    """Messages the log could not store; those that asked for an ack got an error ack."""
    disk_errors: int = 0
    """Appends and syncs that failed with an OSError."""


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
        hash_key: HashKey,
        persist_id_marker: Callable[[], None] | None = None,
    ) -> None:
        """Any thread calls `on_changed` after the high watermark moved or the log failed.

        `hash_key` keys the hashes of message ids. `persist_id_marker` persists a marker that the
        log contains message ids; it may raise OSError. None: the marker exists already.
        """
        config = definition.config
        self.definition = definition
        self.index = index
        self.log = log
        self.failure = failure
        self.deleted = False
        self.leader_epoch = 0 if log is None else log.epochs.latest + 1
        self.watchers: set[Callable[[], None]] = set()
        self.counts = PartitionCounts()
        self.metrics = PartitionMetrics()
        self.maintenance_lock = threading.Lock()
        """Held while files other than the end of the log change: checkpoint, retention, swap."""
        self.sync_lock = threading.Lock()
        """Guards the next three; see `replica.log_syncer`."""
        self.sync_queued = False
        self.sync_requested_again = False
        self.checkpoint_requested = False
        self.stop_cause: str | None = None
        """The reason for which a sync thread must stop the partition; None: none."""
        self.synced_at_ns = 0
        """When the last sync ended, on the monotonic clock."""
        self.checkpointed_bytes = 0
        """`counts.bytes` at the last checkpoint; a recovery scans what was appended since."""
        self._clock = clock
        self._on_changed = on_changed
        self._persist_id_marker = persist_id_marker
        self._watermark = HighWatermark(config.sync, _EMPTY_LOG if log is None else log.end)
        self._ack_format = AckFormat(
            stream=definition.name,
            subject=config.subject,
            partition=index,
            replicas=1,
            synced=config.sync is SyncPolicy.ALWAYS,
        )
        self._pending = PendingAcks(self._ack_format)
        self._commit_lock = threading.Lock()
        """Guards the high watermark and the removal of pending acks: where acks do not wait for a
        sync, the log writer and a sync thread both advance the one and take from the other."""
        self._admission = Admission(definition, self._ack_format, hash_key)

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
        self._watermark.configure(config.sync)
        self._ack_format.configure(synced=config.sync is SyncPolicy.ALWAYS)
        self._admission.configure(definition)
        if self.log is not None:
            self.log.configure(log_config(config))

    @property
    def high_watermark(self) -> LogPosition:
        """Only records below it may be served."""
        return self._watermark.position

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
        return self.is_dirty or len(self._pending) > 0

    @property
    def is_awaited(self) -> bool:
        """Whether a publisher or a reader waits for the next sync."""
        return len(self._pending) > 0 or bool(self.watchers)

    def append(self, batch: UnstampedBatch) -> bytes:
        """Stamp the batch and append it; return the acks and error acks to send now.

        Never raises: records that cannot be stored get error acks and are counted.
        """
        replies = b""
        if batch.refused_count:
            self.counts.messages_refused += batch.refused_count
            limit = too_large(self.definition.config.message_bytes_max)
            replies = self._ack_format.errors(
                batch.refused_entries, limit, count=batch.refused_count
            )
        if not batch.record_count:
            return replies
        if self.log is None or self.failure is not None or self.deleted:
            return replies + self._not_stored(batch, str(self.failure or "the stream is deleted"))
        now_ms = max(self._clock.now_ms(), self.log.timestamp_max)
        next_offset = self.log.end.offset
        try:
            # Must come first: the rollback after an error undoes the last evaluation.
            replies += self._admit(self.log, batch, now_ms)
            if not batch.record_count:
                return replies
            if self._persist_id_marker is not None and batch.headers is not None:
                self._persist_marker_before_first_id(batch.headers)
            self._append(self.log, batch, now_ms)
        except (OSError, BasculeError) as error:
            self.counts.disk_errors += isinstance(error, OSError)
            replies += self._roll_back_acks(self.log.end.offset, str(error))
            self.preconditions.rollback(self.log.end.offset)
            if self.log.failure is not None:
                return replies + self._not_stored(batch, str(error)) + self.fail(str(error))
            self._log_failed_append(error)
            return replies + self._not_stored(batch, str(error))
        except Exception as error:  # boundary: a bug stops one partition, not the log writer
            log.exception("log writer failed")
            cause = f"internal error while appending: {error!r}"
            if self.log.end.offset == next_offset:
                replies += self._roll_back_acks(next_offset, cause)
                replies += self._not_stored(batch, cause)
            return replies + self.fail(cause)
        stopped = self._failure_cause()
        if stopped is not None:
            # A sync failed meanwhile; it may have failed the pending acks before this append.
            return replies + self._fail_acks(stopped)
        return replies + self._commit_appended(self.log.end)

    def sync(self) -> bytes:
        """Sync what is appended; return the acks or error acks to send now. Never raises."""
        assert self.log is not None
        if self.failure is not None or self.deleted:
            return b""
        written, began_ns = self.counts.bytes, self._clock.monotonic_ns()
        try:
            synced = self.log.sync()
        except (OSError, BasculeError) as error:
            self.counts.disk_errors += isinstance(error, OSError)
            # The kernel may have dropped the pages: a second sync would lie (fsyncgate).
            return self.fail(str(error))
        self.counts.syncs += 1
        self.synced_at_ns = self._clock.monotonic_ns()
        self.metrics.on_synced(
            synced_bytes=written,
            began_ns=began_ns,
            now_ns=self.synced_at_ns,
            is_dirty=self.is_dirty,
        )
        with self._commit_lock:
            if not self._watermark.on_synced(synced) and not len(self._pending):
                return b""
            replies = self._release()
        self._on_changed(self)
        return replies

    def checkpoint(self) -> None:
        """Write a checkpoint. A failure is logged; the older checkpoint stays valid."""
        if self.log is None or self.failure is not None or self.deleted:
            return
        written = self.counts.bytes
        try:
            with self.maintenance_lock:
                self.log.checkpoint(high_watermark=self.high_watermark.offset)
        except (OSError, BasculeError) as error:
            log.warning(
                "checkpoint failed",
                extra={
                    "stream": self.definition.name,
                    "partition": self.index,
                    "error": str(error),
                },
            )
            return
        self.checkpointed_bytes = written

    def purge(self, *, to_offset: int | None, before_ms: int | None) -> None:
        """Move the start of the log forward: see `Controller.purge_stream`. Blocks on the disk.

        Raises: OffsetOutOfRange, PartitionFailed, CorruptData, LogFailed, Closed, OSError.
        """
        if self.failure is not None or self.log is None:
            raise self.failure or PartitionFailed(self.definition.name, self.index, "not open")
        committed = self.high_watermark
        offset = committed.offset if to_offset is None else to_offset
        if offset > committed.offset:
            raise OffsetOutOfRange(offset, self.start_offset, committed.offset)
        if before_ms is not None:
            found = self.log.find_timestamp(before_ms, end=committed)
            offset = min(offset, committed.offset if found is None else found[0])
        with self.maintenance_lock:
            self.log.advance_start(offset, high_watermark=committed.offset)

    def fail(self, cause: str) -> bytes:
        """Stop the partition; return error acks for every waiting publisher."""
        name = self.definition.name
        if self.failure is None:
            self.failure = PartitionFailed(name, self.index, cause)
            log.error(
                "partition stopped",
                extra={"stream": name, "partition": self.index, "cause": cause},
            )
        replies = self._fail_acks(cause)
        self._on_changed(self)
        return replies

    def _log_failed_append(self, error: OSError | BasculeError) -> None:
        log.error(
            "append failed",
            extra={"stream": self.definition.name, "partition": self.index, "error": str(error)},
        )

    def _failure_cause(self) -> str | None:
        """The cause of the failure, read again: another thread may have set it."""
        return None if self.failure is None else self.failure.cause

    def info(self) -> PartitionInfo:
        store = self.log
        return PartitionInfo(
            partition=self.index,
            start_offset=self.start_offset,
            high_watermark=self.high_watermark.offset,
            synced_offset=0 if store is None else store.synced.offset,
            end_offset=0 if store is None else store.end.offset,
            leader_epoch=self.leader_epoch,
            bytes=0 if store is None else store.size_bytes(),
            failure=None if self.failure is None else str(self.failure),
        )

    def _admit(self, store: PartitionLog, batch: UnstampedBatch, now_ms: int) -> bytes:
        """Remove from the batch what the stream refuses; return the replies to send now."""
        next_offset = store.end.offset
        evaluation = self._admission.admit(
            batch,
            LogState(next_offset, store.start_offset, store.size_bytes()),
            now_ms=now_ms,
            now_ns=self._clock.monotonic_ns(),
        )
        if evaluation is None:
            return b""
        if not evaluation.duplicates:
            return evaluation.refusals
        end_offset = next_offset + batch.record_count
        if end_offset <= self.high_watermark.offset:
            return evaluation.refusals + self._ack_format.duplicates(
                evaluation.duplicates,
                base=evaluation.duplicates_base,
                count=evaluation.duplicate_count,
            )
        self._pending.add_duplicates(
            evaluation.duplicates,
            base=evaluation.duplicates_base,
            count=evaluation.duplicate_count,
            end_offset=end_offset,
        )
        return evaluation.refusals

    def _persist_marker_before_first_id(self, headers: PublishHeaders) -> None:
        """Persist, before the first message id is appended, that the log contains ids."""
        if self._persist_id_marker is not None and headers.has_ids():
            self._persist_id_marker()
            self._persist_id_marker = None

    def _append(self, store: PartitionLog, batch: UnstampedBatch, now: int) -> None:
        base_offset = store.end.offset
        data = compress_batch(batch.data, self.definition.config.compression)
        batch_header.seal(
            data,
            record_count=batch.record_count,
            base_timestamp=now,
            max_timestamp=now,
            base_offset=base_offset,
            leader_epoch=self.leader_epoch,
            keep_codec=True,
        )
        # Before the append: a concurrent sync may already cover the batch.
        self._pending.add(
            base_offset=base_offset,
            count=batch.record_count,
            ack_entries=batch.ack_entries,
            received_ms=now,
            on_committed=batch.on_committed,
        )
        store.append(data)
        self.counts.records += batch.record_count
        self.counts.bytes += len(data)
        self.counts.batches += 1
        self.metrics.on_appended(
            records=batch.record_count, bytes=len(data), now_ns=self._clock.monotonic_ns()
        )

    def _commit_appended(self, end: LogPosition) -> bytes:
        """Commit what is appended, unless the stream's policy waits for the sync; the acks."""
        with self._commit_lock:
            if not self._watermark.on_appended(end):
                return b""
            replies = self._release()
        self._on_changed(self)
        return replies

    def _release(self) -> bytes:
        """Acks of everything below the high watermark; the lock is held."""
        return self._pending.release(self.high_watermark.offset, committed_ms=self._clock.now_ms())

    def _roll_back_acks(self, offset: int, cause: str) -> bytes:
        with self._commit_lock:
            return self._pending.rollback(offset, store_failed(cause))

    def _fail_acks(self, cause: str) -> bytes:
        with self._commit_lock:
            return self._pending.fail(store_failed(cause))

    def _not_stored(self, batch: UnstampedBatch, cause: str) -> bytes:
        self.counts.records_not_stored += batch.record_count
        error = store_failed(cause)
        if batch.on_committed is not None:
            batch.on_committed(-1, error)
        if not batch.ack_entries:
            return b""
        return self._ack_format.errors(batch.ack_entries, error, count=batch.record_count)
