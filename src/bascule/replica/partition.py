"""One partition of a stream on this node: its log, what of it is committed, and whom to answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bascule.errors import BasculeError, OffsetOutOfRange, PartitionFailed
from bascule.host.api import Clock
from bascule.ingest.sequencer import UnstampedBatch
from bascule.model import PartitionInfo, StreamDefinition, SyncPolicy
from bascule.publish.acks import AckFormat, PendingAcks, store_failed, too_large
from bascule.publish.admission import Admission, LogState
from bascule.publish.headers import HashKey
from bascule.publish.preconditions import Preconditions
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
        moved: Callable[[Partition], None],
        seed: HashKey,
        notes_ids: Callable[[], None] | None = None,
    ) -> None:
        """`moved` is called, from any thread, after the high watermark moved or the log failed.

        `notes_ids` leaves word, on the disk, that the log holds message ids; None where that is
        done. Raises OSError.
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
        self.synced_at_ns = 0
        """When the last sync ended, on the monotonic clock."""
        self.checkpointed_bytes = 0
        """`counts.bytes` at the last checkpoint: what a recovery would have to scan."""
        self._clock = clock
        self._moved = moved
        self._notes_ids = notes_ids
        self._watermark = HighWatermark(config.sync, _NOWHERE if log is None else log.end)
        self._form = AckFormat(
            stream=definition.name,
            subject=config.subject,
            partition=index,
            replicas=1,
            synced=config.sync is SyncPolicy.ALWAYS,
        )
        self._pending = PendingAcks(self._form)
        self._admission = Admission(definition, self._form, seed)

    @property
    def contract(self) -> Preconditions:
        """What publishers may ask of this partition."""
        return self._admission.contract

    def configure(self, definition: StreamDefinition) -> None:
        """Take over the altered definition of the same stream; on the event loop.

        The sync policy goes with the next batch, the rest with what is done next.
        """
        self.definition = definition
        config = definition.config
        self._watermark.configure(config.sync)
        self._form.configure(synced=config.sync is SyncPolicy.ALWAYS)
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

    def append(self, draft: UnstampedBatch) -> bytes:
        """Give the draft its offset and time and append it; acks and error acks to send now.

        Never raises: what cannot be stored is answered with an error ack and counted.
        """
        answers = b""
        if draft.refused_count:
            self.counts.messages_refused += draft.refused_count
            limit = too_large(self.definition.config.message_bytes_max)
            answers = self._form.errors(draft.refused, limit, count=draft.refused_count)
        if not draft.record_count:
            return answers
        if self.log is None or self.failure is not None or self.deleted:
            return answers + self._not_stored(draft, str(self.failure or "the stream is deleted"))
        now_ms = max(self._clock.now_ms(), self.log.timestamp_max)
        try:
            # First of all, so that what a failure takes back is this draft and none before it.
            answers += self._admit(self.log, draft, now_ms)
            if not draft.record_count:
                return answers
            if draft.terms is not None and self._notes_ids is not None and draft.terms.has_ids():
                self._notes_ids()
                self._notes_ids = None
            self._append(self.log, draft, now_ms)
        except (OSError, BasculeError) as error:
            self.counts.disk_errors += isinstance(error, OSError)
            answers += self._pending.take_back(self.log.end.offset, store_failed(str(error)))
            self.contract.take_back(self.log.end.offset)
            if self.log.failure is not None:
                return answers + self._not_stored(draft, str(error)) + self.fail(str(error))
            self._log_failed_append(error)
            return answers + self._not_stored(draft, str(error))
        stopped = self._stopped_by()
        if stopped is not None:
            # A sync failed while this was appended, and may have answered everybody before us.
            return answers + self._pending.fail(store_failed(stopped))
        if self._watermark.on_appended(self.log.end):
            answers += self._release()
        return answers

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
        answers = self._pending.fail(store_failed(cause))
        self._moved(self)
        return answers

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

    def _admit(self, store: PartitionLog, draft: UnstampedBatch, now_ms: int) -> bytes:
        """Leave of the draft what the stream takes; answers to send now for the rest."""
        next_offset = store.end.offset
        judged = self._admission.admit(
            draft,
            LogState(next_offset, store.start_offset, store.size_bytes()),
            now_ms=now_ms,
            now_ns=self._clock.monotonic_ns(),
        )
        if judged is None:
            return b""
        if not judged.duplicates:
            return judged.refusals
        end_offset = next_offset + draft.record_count
        if end_offset <= self.high_watermark.offset:
            return judged.refusals + self._form.duplicates(
                judged.duplicates, base=judged.duplicates_base, count=judged.duplicate_count
            )
        self._pending.add_duplicates(
            judged.duplicates,
            base=judged.duplicates_base,
            count=judged.duplicate_count,
            end_offset=end_offset,
        )
        return judged.refusals

    def _append(self, store: PartitionLog, draft: UnstampedBatch, now: int) -> None:
        base_offset = store.end.offset
        batch = compress_batch(draft.batch, self.definition.config.compression)
        batch_header.seal(
            batch,
            record_count=draft.record_count,
            base_timestamp=now,
            max_timestamp=now,
            base_offset=base_offset,
            leader_epoch=self.leader_epoch,
            keep_codec=True,
        )
        # Before the append: a sync that runs beside it may already cover the batch.
        self._pending.add(
            base_offset=base_offset,
            count=draft.record_count,
            answers=draft.answers,
            received_ms=now,
            stored=draft.stored,
        )
        store.append(
            batch,
            base_offset=base_offset,
            end_offset=base_offset + draft.record_count,
            timestamp_max=now,
            leader_epoch=self.leader_epoch,
        )
        self.counts.records += draft.record_count
        self.counts.bytes += len(batch)
        self.counts.batches += 1
        self.metrics.on_appended(
            records=draft.record_count, bytes=len(batch), now_ns=self._clock.monotonic_ns()
        )

    def _release(self) -> bytes:
        answers = self._pending.release(
            self.high_watermark.offset, committed_ms=self._clock.now_ms()
        )
        self._moved(self)
        return answers

    def _not_stored(self, draft: UnstampedBatch, cause: str) -> bytes:
        self.counts.records_not_stored += draft.record_count
        error = store_failed(cause)
        if draft.stored is not None:
            draft.stored(-1, error)
        if not draft.answers:
            return b""
        return self._form.errors(draft.answers, error, count=draft.record_count)
