"""One partition of a stream on this node: its log, what of it is committed, and whom to answer."""

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
from bascule.publish.headers import HashKey
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

_NOWHERE = LogPosition(0, 0, 0)


@dataclass(slots=True)
class PartitionCounts:
    """For metrics. Counts only grow."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    syncs: int = 0
    messages_refused: int = 0
    records_not_stored: int = 0
    """Messages the log could not take; whoever asked for an ack got an error ack."""
    disk_errors: int = 0
    """Appends and syncs that the disk refused."""


class Partition:
    """One partition of a stream on this node.

    `append` belongs to the appender thread, `sync` to one syncer thread at a time; everything else
    is read by any thread. `watchers` belongs to the event loop.
    """

    def __init__(
        self,
        definition: StreamDefinition,
        index: int,
        *,
        log: PartitionLog | None,
        failure: PartitionFailed | None,
        clock: Clock,
        on_moved: Callable[[Partition], None],
        hash_key: HashKey,
        persist_id_marker: Callable[[], None] | None = None,
    ) -> None:
        """`on_moved` is called, from any thread, after the high watermark moved or the log failed.

        `hash_key` keys the hashes of message ids. `persist_id_marker` persists a marker that the
        log contains message ids; it may raise OSError. None: the marker exists.
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
        """Held by whoever changes files beside the appender: checkpoint, retention, swap."""
        self.sync_lock = threading.Lock()
        """Guards the next three; see `replica.log_writer`."""
        self.sync_queued = False
        self.sync_wanted_again = False
        self.checkpoint_wanted = False
        self.stop_cause: str | None = None
        """Why a sync thread is to stop the partition."""
        self.synced_at_ns = 0
        """When the last sync ended, on the monotonic clock."""
        self.checkpointed_bytes = 0
        """`counts.bytes` at the last checkpoint: what a recovery would have to scan."""
        self._clock = clock
        self._on_moved = on_moved
        self._persist_id_marker = persist_id_marker
        self._watermark = HighWatermark(config.sync, _NOWHERE if log is None else log.end)
        self._ack_format = AckFormat(
            stream=definition.name,
            subject=config.subject,
            partition=index,
            replicas=1,
            synced=config.sync is SyncPolicy.ALWAYS,
        )
        self._pending = PendingAcks(self._ack_format)
        self._admission = Admission(definition, self._ack_format, hash_key)

    @property
    def preconditions(self) -> Preconditions:
        """What publishers may ask of this partition."""
        return self._admission.preconditions

    def configure(self, definition: StreamDefinition) -> None:
        """Take over the altered definition of the same stream; on the event loop.

        The sync policy goes with the next batch, the rest with what is done next.
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
        """Only what is below may be served."""
        return self._watermark.position

    @property
    def start_offset(self) -> int:
        return 0 if self.log is None else self.log.start_offset

    @property
    def is_dirty(self) -> bool:
        """Whether something is appended and not synced."""
        return self.log is not None and self.log.synced != self.log.end

    @property
    def wants_sync(self) -> bool:
        """Whether records, or acks of duplicates, wait for a sync under the stream's policy."""
        if self.definition.config.sync is not SyncPolicy.ALWAYS:
            return False
        return self.is_dirty or len(self._pending) > 0

    @property
    def is_awaited(self) -> bool:
        """Whether a publisher or a reader waits for what is not synced yet."""
        return len(self._pending) > 0 or bool(self.watchers)

    def append(self, batch: UnstampedBatch) -> bytes:
        """Give the batch its offset and time and append it; acks and error acks to send now.

        Never raises: what cannot be stored is answered with an error ack and counted.
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
            # First of all, so that what a failure takes back is this batch and none before it.
            replies += self._admit(self.log, batch, now_ms)
            if not batch.record_count:
                return replies
            self._mark_ids(batch)
            self._append(self.log, batch, now_ms)
        except (OSError, BasculeError) as error:
            self.counts.disk_errors += isinstance(error, OSError)
            replies += self._pending.take_back(self.log.end.offset, store_failed(str(error)))
            self.preconditions.take_back(self.log.end.offset)
            if self.log.failure is not None:
                return replies + self._not_stored(batch, str(error)) + self.fail(str(error))
            self._log_failed_append(error)
            return replies + self._not_stored(batch, str(error))
        except Exception as error:  # boundary: a bug stops one partition, not the log writer
            log.exception("log writer failed")
            cause = f"internal error while appending: {error!r}"
            if self.log.end.offset == next_offset:
                replies += self._pending.take_back(next_offset, store_failed(cause))
                replies += self._not_stored(batch, cause)
            return replies + self.fail(cause)
        stopped = self._stopped_by()
        if stopped is not None:
            # A sync failed while this was appended, and may have answered everybody before us.
            return replies + self._pending.fail(store_failed(stopped))
        if self._watermark.on_appended(self.log.end):
            replies += self._release()
        return replies

    def sync(self) -> bytes:
        """Put what is appended on the disk; acks, or error acks, to send now. Never raises."""
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
        if self._watermark.on_synced(synced) or len(self._pending):
            return self._release()
        return b""

    def checkpoint(self) -> None:
        """Shorten the next recovery. A failure is logged: the older checkpoint stays good."""
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
        """Let the log begin later: see `Streams.purge`. Not on the event loop.

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
        """Stop for good; error acks for everybody who waits."""
        name = self.definition.name
        if self.failure is None:
            self.failure = PartitionFailed(name, self.index, cause)
            log.error(
                "partition stopped",
                extra={"stream": name, "partition": self.index, "cause": cause},
            )
        replies = self._pending.fail(store_failed(cause))
        self._on_moved(self)
        return replies

    def _log_failed_append(self, error: OSError | BasculeError) -> None:
        log.error(
            "append failed",
            extra={"stream": self.definition.name, "partition": self.index, "error": str(error)},
        )

    def _stopped_by(self) -> str | None:
        """The cause of failure as it is now: another thread may just have set it."""
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
        """Leave of the batch what the stream takes; replies to send now for the rest."""
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

    def _mark_ids(self, batch: UnstampedBatch) -> None:
        """Persist, before the first message id is appended, that the log contains ids."""
        if self._persist_id_marker is None or batch.headers is None or not batch.headers.has_ids():
            return
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
        # Before the append: a sync that runs beside it may already cover the batch.
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

    def _release(self) -> bytes:
        replies = self._pending.release(
            self.high_watermark.offset, committed_ms=self._clock.now_ms()
        )
        self._on_moved(self)
        return replies

    def _not_stored(self, batch: UnstampedBatch, cause: str) -> bytes:
        self.counts.records_not_stored += batch.record_count
        error = store_failed(cause)
        if batch.on_committed is not None:
            batch.on_committed(-1, error)
        if not batch.ack_entries:
            return b""
        return self._ack_format.errors(batch.ack_entries, error, count=batch.record_count)
