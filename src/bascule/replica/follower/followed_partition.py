"""One partition that this node follows: its attempts, its appends, and what its leader is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from struct import Struct
from typing import Final, NamedTuple

from bascule.errors import (
    BasculeError,
    LogFailed,
    RemoteProtocolError,
    UnexpectedOffset,
    reason_without_paths,
)
from bascule.model import Cleanup, PartitionState
from bascule.record.header import HEADER_BYTES, LENGTH_PREFIX_BYTES, PAYLOAD_LINKS
from bascule.replica.failure_run import FailureRun
from bascule.replica.partition import Partition
from bascule.replica.roles import PartitionRole
from bascule.replica.roles.commitment import LogFlags, ReplicatedEnd
from bascule.storage.appended_batches import split_for_segments
from bascule.storage.compaction.segment_replacement import CleanedPart
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.truncation.partial_copy import NOT_TOLD
from bascule.wire.messages.peer.replica_fetch import (
    COMPARE_ONLY,
    ReplicaFetchPartition,
    ReplicaFetchPartitionResponse,
)

log = logging.getLogger("bascule.replica")

_BATCH: Final = Struct(">qii5xhi8xq")
"""Base offset, length, leader epoch, attributes, offset of the last record from the base, largest
timestamp."""


class WholeBatches(NamedTuple):
    """The whole batches at the beginning of what a leader has sent."""

    size: int
    """In bytes."""
    end_offset: int
    epoch: int
    """The leader epoch of the last one."""
    has_links: bool = False
    """Whether records among them have payloads; see `record.payload_links`."""
    offsets: int = 0
    """From the first base offset to `end_offset`."""
    age_ms: int = 0
    """From the largest timestamp of the first batch to that of all."""

    def fit_into_one(self, config: LogConfig) -> bool:
        """Whether one segment of a log may hold them."""
        return (
            self.size <= config.segment_bytes_max
            and self.offsets <= config.segment_messages_max
            and self.age_ms < config.segment_age_ms_max
        )


def whole_batches(records: memoryview) -> WholeBatches:
    """The whole batches at the beginning of `records`.

    Raises: RemoteProtocolError if there is none.
    """
    at, end_offset, epoch, size, kinds = 0, -1, -1, len(records), 0
    first = since = newest = -1
    while at + HEADER_BYTES <= size:
        base, length, number, attributes, delta, timestamp = _BATCH.unpack_from(records, at)
        stop = at + LENGTH_PREFIX_BYTES + length
        if length < 0 or stop > size:
            break
        if not at:
            first, since, newest = base, timestamp, timestamp
        at, end_offset, epoch = stop, base + delta + 1, number
        kinds |= attributes
        if timestamp > newest:
            newest = timestamp
    if not at:
        raise RemoteProtocolError(f"{size} bytes of records without a whole batch")
    has_links = kinds & PAYLOAD_LINKS != 0
    return WholeBatches(at, end_offset, epoch, has_links, end_offset - first, newest - since)


def has_whole_log(state: PartitionState, node_id: int) -> bool:
    """Whether the replica on a node has every committed record, by the state in force."""
    return node_id in state.isr or node_id in state.eligible


_ATTEMPTS: Final = count(1)
"""Numbers of attempts, so that those of one partition in different leader epochs differ."""


class FollowedPartition:
    """One partition in one leader epoch.

    The log writer thread begins attempts and appends. The fetcher thread moves `fetch_offset` and
    `leader_watermark`.
    """

    def __init__(self, partition: Partition, leader_epoch: int, *, node_id: int = -1) -> None:
        """`node_id` is this node."""
        self.partition = partition
        self.key = partition.definition.id, partition.index
        self.leader_epoch = leader_epoch
        self._node_id = node_id
        self.attempt = 0
        """0: none is under way, and nothing is reported."""
        self.fetch_offset = 0
        self.leader_watermark = 0
        self.has_ended = False
        """Another state of the partition is in force, or the node stops."""
        self.failures = FailureRun()
        self._lock = threading.Lock()
        """Guards `attempt`, `fetch_offset` and `_last_fetched_epoch`, which belong together."""
        self._last_fetched_epoch = -1
        self._has_emptied = False
        """Whether the log was replaced by an empty one, as this leader has said."""
        self._asks = self._goes_on = False
        """Whether the attempt has to hear first what compaction has removed from the leader's log,
        and whether that decides if the copy goes on."""
        self._begins_again = False
        """Whether the attempt has to hear first where the logs part, and the copy begins again."""
        self._is_told = False
        """Whether an empty log has heard in this leader epoch what compaction has removed."""
        self._damaged_at = -1
        """The end of the log when damaged batches came last."""

    @property
    def is_in_force(self) -> bool:
        """Whether the partition still follows this leader epoch and can."""
        partition = self.partition
        return (
            not self.has_ended
            and partition.role is PartitionRole.FOLLOWER
            and partition.leader_epoch == self.leader_epoch
            and partition.failure is None
            and not partition.deleted
        )

    def is_in_sync(self, node_id: int) -> bool:
        """Whether the replica on this node is in sync, as far as it knows."""
        state = self.partition.state
        return state is not None and node_id in state.isr

    def begin(self) -> bool:
        """Begin an attempt at the end of the log; False if the partition is not followed now.

        Raises: BasculeError, OSError. Begin another attempt then.
        """
        store = self.partition.log
        if not self.is_in_force or store is None:
            return False
        self._begin_copy(store)
        with self._lock:
            self._last_fetched_epoch = store.epochs.latest
            self.fetch_offset = store.end.offset
            self.attempt = next(_ATTEMPTS)
        return True

    def _may_hide_a_loss(self, store: PartitionLog) -> bool:
        """Whether an empty log begins at an offset of before an unclean election. What the leader
        has below it may be new, and the log has no epoch by which that would be noticed."""
        state = self.partition.state
        is_empty = 0 < store.end.offset == store.start_offset and not store.epochs.entries
        is_late = state is not None and state.unclean_epoch > 0
        return is_empty and is_late and not self._has_emptied

    def _begin_copy(self, store: PartitionLog) -> None:
        """Begin or go on with the copy of a log from its beginning, if it is one.

        The leader of the epoch keeps the tombstones that this replica still needs. Another one may
        have removed them already, when this replica, or the one that it replaces, had them: what is
        copied of a compacted log goes on with the leader of the same epoch, or with another one
        that has them, too. Else it begins again.

        So does any log that may be compacted and has nothing of since the last unclean election.
        Compaction may have removed values for which that has undone the later ones, and nothing
        would bring them back. And so does an empty log that may hide a loss. A replica that has
        lost its unsynced end has nothing to truncate, and the leader would count it as one that has
        all: until the leader has answered, and the log is emptied, nothing is reported that counts.
        Where it never answers, nothing is emptied.
        """
        copy, state = store.partial_copy, self.partition.state
        self._asks = self._goes_on = self._begins_again = False
        if state is None or has_whole_log(state, self._node_id):
            return
        if self._may_hide_a_loss(store):
            self._begins_again = True
            return
        if store.end.offset == store.start_offset:
            if not self._is_told:
                copy.begin(self.leader_epoch)
                self._asks = True
            return
        epoch = copy.epoch
        if not self._may_be_compacted(store):
            return
        if state.unclean_epoch > max(store.epochs.latest, -1 if epoch is None else epoch):
            self._begins_again = True
            return
        if epoch in (None, self.leader_epoch):
            return
        self._goes_on = copy.clean_offset != NOT_TOLD
        if not self._goes_on:
            self._restart_copy(store)
        self._asks = True

    def has_to_take_over(self, leader_log: CleanedPart) -> bool:
        """Whether `take_over` has to follow, before anything is appended."""
        return self._asks and (self._goes_on or leader_log.clean_offset != NOT_TOLD)

    def take_over(self, attempt: int, leader_log: CleanedPart) -> bool:
        """Go on with the copy of another leader's log, or begin again, by what compaction has
        removed from this leader's log; another attempt follows.

        Every tombstone that this leader lacks is in the copy already, or the copy has nothing of
        what it removes: the former leader's log was compacted as far. False if that was said of
        another attempt. Raises: see `Partition.restart_replicated`.
        """
        store, state = self.partition.log, self.partition.state
        if attempt != self.attempt or not self.is_in_force or store is None or state is None:
            return False
        if has_whole_log(state, self._node_id):
            return True
        copy, end = store.partial_copy, store.end.offset
        clean_offset, tombstones_end = leader_log
        is_empty = end == store.start_offset
        if not is_empty:
            if clean_offset == NOT_TOLD or tombstones_end > max(end, copy.clean_offset):
                self._restart_copy(store)
                return True
            clean_offset = min(clean_offset, copy.clean_offset)
        store.replacement.lack_tombstones(tombstones_end, log_end=end)
        copy.go_on(self.leader_epoch, clean_offset)
        self._is_told = is_empty
        if not is_empty:
            self._log_taken_over(end, tombstones_end)
        return True

    def _has_inexact_epochs(self, store: PartitionLog, offset: int) -> bool:
        """Whether this log and the leader's seem to differ from `offset` on, where every leader has
        what this one has: one of the two was copied of a compacted log, or recovered, without what
        the epochs of the removed records were. A replica that nobody counts on is copied again."""
        state = self.partition.state
        return (
            offset < min(self.partition.committed_offset, store.end.offset)
            and state is not None
            and store.epochs.latest >= state.unclean_epoch
            and not has_whole_log(state, self._node_id)
            and self._may_be_compacted(store)
        )

    def _restart_copy(
        self, store: PartitionLog, start: int | None = None, *, undone_from: int | None = None
    ) -> None:
        """Begin again with an empty log, by default where this one starts; see
        `Partition.restart_replicated`."""
        before = store.end.offset
        store.partial_copy.end_epoch()
        self._is_told = False
        start = store.start_offset if start is None else start
        self.partition.restart_replicated(start, undone_from=undone_from)
        self._has_emptied = True
        self._log_truncation(-1, before)
        store.partial_copy.begin(self.leader_epoch)

    def _may_be_compacted(self, store: PartitionLog) -> bool:
        return Cleanup.COMPACT in self.partition.definition.config.cleanup or store.gaps_allowed

    def end_attempt(self) -> None:
        """Drop what the attempt still brings. Nothing is reported until another one begins: what
        was asked for may not have got into the log."""
        with self._lock:
            self.attempt = 0

    def advance(self, attempt: int, arrived: WholeBatches) -> int:
        """Ask for the end of `arrived` next.

        Returns where these records begin, -1 if they are of an older attempt.
        """
        with self._lock:
            start = self.fetch_offset
            if attempt != self.attempt or arrived.end_offset <= start:
                return -1
            self.fetch_offset, self._last_fetched_epoch = arrived.end_offset, arrived.epoch
            return start

    def report(self) -> ReplicaFetchPartition | None:
        """What the leader is told; None between attempts, and once the partition follows no longer.
        Any thread may call it.

        Each report says what comes before its fetch offset: a leader that has forgotten the attempt
        compares the logs again.
        """
        store = self.partition.log
        assert store is not None
        # Before the end: a report must not claim more synced than appended.
        synced = store.synced.offset
        with self._lock:
            found = ReplicaFetchPartition(
                *self.key,
                attempt=self.attempt,
                leader_epoch=self.leader_epoch,
                last_fetched_epoch=self._last_fetched_epoch,
                fetch_offset=self.fetch_offset,
                log_end=COMPARE_ONLY if self._begins_again else store.end.offset,
                synced_end=synced,
                log_start=store.start_offset,
            )
            # Asked last: what a later epoch has appended must not count as the records of a leader
            # that does not know of its successor.
            return found if self.attempt and self.is_in_force else None

    def on_news(self, response: ReplicaFetchPartitionResponse) -> None:
        """Take over the leader's log start, its high watermark, as far as this log goes, and what
        all replicas have. What a leader says that is followed no longer is dropped."""
        partition = self.partition
        if not self.is_in_force:
            return
        # Another leader may have come meanwhile: what follows compares the epoch again.
        epoch = self.leader_epoch
        partition.commitment.on_replicated(
            ReplicatedEnd(response.version, response.replicated_offset), epoch
        )
        self.leader_watermark = max(self.leader_watermark, response.high_watermark)
        partition.told_start.hear(response.log_start_offset, epoch)
        partition.on_leader_watermark(self.leader_watermark, epoch)

    def append(
        self,
        attempt: int,
        start: int,
        data: memoryview,
        flags: LogFlags,
        arrived: WholeBatches | None = None,
    ) -> bool:
        """Append the batches `data` of an attempt, which follow offset `start`; False if they are
        dropped. `arrived` says whether one segment may hold them.

        Raises: BasculeError, OSError; some of them may be appended. Begin another attempt then.
        """
        store = self.partition.log
        if attempt != self.attempt or not self.is_in_force or store is None:
            return False
        if store.end.offset != start:
            # A gap would be taken for one that compaction left.
            raise UnexpectedOffset(store.end.offset, start)
        fits = arrived is not None and arrived.fit_into_one(store.config)
        for part in (data,) if fits else split_for_segments(data, store.config):
            self.partition.append_replicated(part, flags)
        self.partition.on_leader_watermark(self.leader_watermark, self.leader_epoch)
        self.failures.end()
        return True

    def truncate(self, attempt: int, epoch: int, end: int) -> bool:
        """Truncate the log to where it leaves the leader's: the leader's `epoch` ends at `end`.

        `epoch` is -1 if all epochs of the leader's log are later; they begin at `end`.
        False if that was said of another attempt. Raises: RemoteProtocolError if that changes
        nothing, since the leader would say it again at once; see `Partition.truncate_replicated`.
        """
        store = self.partition.log
        if attempt != self.attempt or not self.is_in_force or store is None:
            return False
        before, epochs, self._is_told = store.end.offset, store.epochs, False
        # -1 where all records are of later epochs: none of them is the leader's.
        own_end = epochs.end_of(epoch, end_offset=before)[1] if epoch >= 0 else before
        if self._begins_again:
            # Not truncated before: in the midst of records that compaction has removed the log
            # would end with none, and where another unclean election chose it, no copy would reach
            # that end. At 0: the leader may have other records below where this log starts, too.
            self._restart_copy(store, 0, undone_from=min(end, own_end))
            return True
        if self._has_inexact_epochs(store, min(end, own_end)):
            self._restart_copy(store)
            return True
        self.partition.truncate_replicated(min(end, own_end))
        if store.end.offset == before and store.epochs == epochs:
            raise RemoteProtocolError(
                f"the leader's epoch {epoch} ends at {end}: there is nothing to truncate in a log "
                f"that ends at {before}, with {epochs}"
            )
        self._log_truncation(epoch, before)
        return True

    def restart(self, attempt: int, log_start: int) -> bool:
        """Begin an empty log at the leader's log start, if this one ends below it; or at 0, if the
        copy begins again.

        False if that was said of another attempt. Raises: RemoteProtocolError if this log does not
        end below it; see `Partition.restart_replicated`.
        """
        store = self.partition.log
        if attempt != self.attempt or not self.is_in_force or store is None:
            return False
        before, self._is_told = store.end.offset, False
        if self._begins_again:
            self._restart_copy(store, 0)
            return True
        if before >= log_start:
            raise RemoteProtocolError(
                f"the leader refuses offset {before}, and its log starts at {log_start}"
            )
        self.partition.restart_replicated(log_start)
        self._has_emptied = True
        self._log_truncation(-1, before)
        return True

    def fail(self, error: Exception, send: Callable[[bytes], None]) -> None:
        """Note why an attempt ended; a log that has failed stops the partition."""
        partition = self.partition
        partition.counts.disk_errors += isinstance(error, OSError)
        if isinstance(error, LogFailed) and partition.failure is None:
            send(partition.fail(str(error), reason=reason_without_paths(error)))
        if self.failures.on_failure(error):
            log.warning(
                "copying from the leader failed; it is tried again",
                extra={
                    "stream": partition.definition.name,
                    "partition": partition.index,
                    "leader_epoch": self.leader_epoch,
                    "error": str(error),
                },
            )

    def is_damaged_again(self) -> bool:
        """Note that batches have come damaged; whether those before them at this offset had, too.

        Once is the network, or memory; the same again is the disk of the leader.
        """
        store = self.partition.log
        end = -1 if store is None else store.end.offset
        before, self._damaged_at = self._damaged_at, end
        return before == end

    def _log_taken_over(self, end: int, tombstones_end: int) -> None:
        partition = self.partition
        log.info(
            "copy goes on with another leader",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "leader_epoch": self.leader_epoch,
                "end_offset": end,
                "tombstones_end": tombstones_end,
            },
        )

    def _log_truncation(self, epoch: int, before: int) -> None:
        partition, store = self.partition, self.partition.log
        assert store is not None
        log.info(
            "log truncated to its leader's",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "leader_epoch": self.leader_epoch,
                "diverging_epoch": epoch,
                "end_before": before,
                "end_offset": store.end.offset,
                "high_watermark": partition.committed_offset,
            },
        )


EXPECTED_ERRORS: Final = (BasculeError, OSError)
"""What ends an attempt; anything else is a bug."""
