"""What of one partition is committed, by the role of this node, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from bascule.host.api import Clock
from bascule.model import PartitionState, SyncPolicy
from bascule.publish.acks import LEADER, AckError, AckFormat, OnCommitted, indeterminate
from bascule.publish.pending_acks import PendingAcks
from bascule.publish.preconditions import Evaluation
from bascule.publish.unconfirmed import RefusedMessages, UnconfirmedRefusals, answer
from bascule.replica.roles.batch_positions import position_of
from bascule.replica.roles.follower_watermark import FollowerWatermark
from bascule.replica.roles.leader_watermark import LeaderWatermark
from bascule.replica.roles.role import PartitionRole
from bascule.replication.high_watermark import HighWatermark
from bascule.replication.leader import NO_NODE_EPOCH, LeaderReplication
from bascule.storage.epochs import NO_EPOCHS, LeaderEpochs
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.wire.ack_codes import INDETERMINATE

Watermark: TypeAlias = HighWatermark | LeaderWatermark | FollowerWatermark
EMPTY_LOG: Final = LogPosition(0, 0, 0)


class LogFlags(NamedTuple):
    """What a leader says of its whole log."""

    may_have_ids: bool
    """Whether records may have message ids."""
    may_have_gaps: bool
    """Whether offsets may be missing between batches, which compaction has removed."""
    epochs: LeaderEpochs = NO_EPOCHS
    """Those that the records are of, and later ones, where offsets may be missing."""


class ReplicatedEnd(NamedTuple):
    """The end of the committed records that all replicas of a partition have synced."""

    version: int
    """Of the partition's state that has these replicas."""
    offset: int


class TombstoneReader(Protocol):
    """Somebody who reads the log of this replica, and has to read every tombstone: else it would
    keep what that removes. Called on the thread of the cleaner."""

    def sync_to(self, end: int) -> int:
        """The offset up to which it has the log for good, also after a loss of power. Sync what it
        has read if that is not `end` yet. Blocks on the disk."""
        ...

    def has_synced(self, end: int) -> bool:
        """Whether tombstones below `end` may be removed: not if it needs them again, as it begins
        from the start of the log. `Commitment.replacing` is held."""
        ...


class Commitment:
    """The high watermark and the pending acks of one partition, and its followers if it leads.

    The log writer thread changes the role and adds pending acks. The log writer, a sync thread and
    the event loop move the watermark, under a lock. Methods that may move it return the acks to
    send now, or None if nothing has changed for anybody.
    """

    def __init__(
        self, log: PartitionLog | None, ack_format: AckFormat, clock: Clock, policy: SyncPolicy
    ) -> None:
        """Without a role: of the log only what the checkpoint says is known as committed."""
        self.role = PartitionRole.NONE
        self.watermark: Watermark = HighWatermark(policy, EMPTY_LOG)
        if log is not None:
            self.watermark = FollowerWatermark(log, log.checkpointed_high_watermark)
        self.replication: LeaderReplication | None = None
        """What this leader knows of its followers; None without followers."""
        self.pending = PendingAcks(ack_format)
        self._ack_format = ack_format
        self._clock = clock
        self._policy = policy
        self._stored_end = self.watermark.offset
        """Below it this leader's log is synced, or appended, as `sync` demands for an ack."""
        self._lock = threading.Lock()
        self._epoch_in_force = -1
        """The leader epoch of the state by which this node leads or follows."""
        self._version = -1
        """Of the state by which this node leads, or has led."""
        self._removing_end = 0
        """The end of the tombstones that are being removed from this log now; 0: none are."""
        self.tombstone_reader: TombstoneReader | None = None
        """The table of this replica, if the stream is one."""
        self.replacing = threading.Lock()
        """Held while the log is replaced by one without tombstones, and while the table begins: so
        it reads the log from the one before or from the one afterwards. Blocks on the disk."""
        self._leader_watermark = -1
        """What this follower's leader has said of its own last; -1: nothing yet."""
        self._told = ReplicatedEnd(-1, 0)
        """What the leader has told this follower last."""
        self.send_kept: Callable[[bytes], None] = lambda _: None
        """Takes the acks of records that this node appended before it handed the partition over."""
        self.on_refused: Callable[[], None] | None = None
        """Called by any thread when refusals wait that `take_refusals` returns. None: nobody else
        leads this partition at any time, so they are sent without."""
        self._unconfirmed = UnconfirmedRefusals()
        self._leader_epoch = -1
        """In which this node leads, or has led last: that of its refusals."""
        self._is_alone = True
        """Whether no other node can lead the partition before this one knows."""

    @property
    def refusal(self) -> tuple[int, int] | None:
        """Members of the ISR, and how many are required, where these are more; else None."""
        replication = self.replication
        if replication is None or replication.has_min_isr:
            return None
        return replication.isr_size, replication.min_isr

    @property
    def stored_end(self) -> int:
        """Below it this leader has stored its log, as far as an ack of policy `leader` waits."""
        return self._stored_end

    # -- roles, on the log writer thread --------------------------------------------------------

    def lead(
        self, log: PartitionLog, state: PartitionState, node_id: int, *,
        min_isr: int, lag_ns_max: int, epoch_start: int,
    ) -> bytes | None:  # fmt: skip
        """Lead the epoch of `state`, or go on leading it with another ISR or other replicas."""
        is_alone = state.replicas == (node_id,) and min_isr <= 1
        before, position = self.replication, None
        begins = before is None or before.state.leader_epoch != state.leader_epoch
        if begins and not is_alone:
            # Not under the lock, which the event loop takes: this may wait for the disk. The
            # watermark of a follower may move on meanwhile.
            position = position_of(log, self.watermark.offset, nowait=False)
        with self._lock:
            self._version, self._epoch_in_force = state.version, state.leader_epoch
            replies = b""
            if state.leader_epoch != self._leader_epoch and self._waits_for_confirmation:
                replies = self._end_refusals()
            self._is_alone, self._leader_epoch = is_alone, state.leader_epoch
            counts_synced = self._policy is SyncPolicy.ALWAYS
            own = log.synced if counts_synced else log.end
            self._stored_end = own.offset
            self._ack_format.configure(synced=counts_synced, replicas=len(state.isr))
            if is_alone:
                moved = self._lead_alone(own)
            elif before is not None and not begins:
                before.configure(state, min_isr)
                assert isinstance(self.watermark, LeaderWatermark)
                moved = self.watermark.on_replication()
            else:
                known = self.watermark.offset
                replication = LeaderReplication(
                    node_id, state, min_isr=min_isr, own_synced=own.offset,
                    now_ns=self._clock.monotonic_ns(), lag_ns_max=lag_ns_max,
                    epoch_start=epoch_start, high_watermark=known, log_end=log.end.offset,
                    log_start=log.start_offset, counts_synced=counts_synced,
                )  # fmt: skip
                assert position is not None, "only nowait finds nothing"
                self.watermark = LeaderWatermark(log, replication, position, self._clock)
                self.replication = replication
                moved = True
            self.role = PartitionRole.LEADER
            return replies + self._release() if moved else replies or None

    def _lead_alone(self, own: LogPosition) -> bool:
        watermark, self.replication = self.watermark, None
        if isinstance(watermark, HighWatermark):
            return watermark.on_synced(own)
        self.watermark = HighWatermark(self._policy, max(own, watermark.position))
        return True

    def resign(
        self,
        log: PartitionLog | None,
        role: PartitionRole,
        *,
        keeps_acks: bool = False,
        begins: bool = True,
        state: PartitionState | None = None,
    ) -> int:
        """Follow or do nothing; forget who waits for acks, unanswered. Returns their records.
        `begins`: another leader, or another role, in `state`. As the leader of a log that it cannot
        use, this node refuses.

        The successor may have their records, or lose them: this node cannot know. `keeps_acks`: it
        has given the log to the successor. It answers if it learns, as a follower, that the records
        are committed, and forgets those that it has to remove.
        """
        with self._lock:
            keeps_acks = keeps_acks or self.role is PartitionRole.FOLLOWER
            keeps_acks = keeps_acks and role is PartitionRole.FOLLOWER
            self.role, self.replication = role, None
            self._is_alone = False
            self._epoch_in_force = -1 if state is None else state.leader_epoch
            if role is PartitionRole.LEADER and state is not None:
                self._is_alone = state.replicas == (state.leader,)
                self._leader_epoch = state.leader_epoch
            if begins:
                self._leader_watermark = -1
            if log is not None and not isinstance(self.watermark, FollowerWatermark):
                self.watermark = FollowerWatermark(log, self.watermark.offset)
            return self.pending.drop(
                indeterminate("another node leads the partition now"), keeps_committed=keeps_acks
            )

    # -- events ---------------------------------------------------------------------------------

    def configure(self, policy: SyncPolicy) -> None:
        """Follow another policy from the next batch on."""
        with self._lock:
            self._policy = policy
            self.watermark.configure(policy)
            self._ack_format.configure(synced=policy is SyncPolicy.ALWAYS)

    def on_appended(self, end: LogPosition) -> bytes | None:
        """This leader's log ends at `end` now."""
        with self._lock:
            moved = self.watermark.on_appended(end)
            if self._policy is not SyncPolicy.ALWAYS:
                self._stored_end = end.offset
                moved = moved or self.pending.waits_for_leader
            return self._release() if moved else None

    def on_synced(self, end: LogPosition) -> bytes | None:
        """The log is synced up to `end`."""
        with self._lock:
            self._stored_end = max(self._stored_end, end.offset)
            if self.watermark.on_synced(end):
                return self._release()
            # Of a leader with followers, as a rule: these have not synced it yet.
            return (self._release() or None) if len(self.pending) else None

    def answer(
        self,
        evaluation: Evaluation,
        *,
        next_offset: int,
        end_offset: int,
        policies: int,
        on_committed: OnCommitted | None = None,
    ) -> bytes:
        """Answer who was refused and whose message was stored before, now or when it is certain.

        The log ends at `next_offset`, and at `end_offset` after the accepted messages of the batch,
        which has `policies`. Returns the replies to send now.
        """
        with self._lock:
            replies = self._refuse(evaluation, next_offset, end_offset)
            self.pending.add_duplicates(
                evaluation.duplicates, base=evaluation.duplicates_base,
                count=evaluation.duplicate_count, end_offset=end_offset, policies=policies,
            )  # fmt: skip
            if on_committed is not None and evaluation.outcome is not None:
                self.pending.add_outcome(on_committed, evaluation.outcome, end_offset=end_offset)
            return replies + self._release()

    def _refuse(self, evaluation: Evaluation, next_offset: int, end_offset: int) -> bytes:
        """Answer who was refused once it is certain; return the replies to send now.

        A refusal may rest on records that a crash removes, or that a successor does not have, the
        accepted messages of its batch among them.
        """
        rests, end = evaluation.rests_on_log, next_offset
        if rests:
            end = end_offset
        elif self.replication is None and not self._waits_for_confirmation:
            return evaluation.leader_refusals + evaluation.refusals
        entries, count = evaluation.refused_entries, evaluation.refused_count
        self.pending.add_refusals(evaluation.refusals, entries, count=count, end_offset=end)
        if not rests:
            return self._confirm_first(
                RefusedMessages(evaluation.leader_refusals, entries, count, LEADER)
            )
        self.pending.add_refusals(
            evaluation.leader_refusals, entries, count=count, end_offset=end, policy=LEADER
        )
        return b""

    def on_fetch(
        self,
        node: int,
        node_epoch: int,
        *,
        leader_epoch: int,
        log_start: int,
        log_end: int,
        synced_end: int,
        own_end: int,
    ) -> bytes | None:
        """A follower's log starts at `log_start`, ends at `log_end` and is synced up to
        `synced_end`; see `replication`. It said so in `leader_epoch`: what another epoch's leader
        was told does not count, as of a replica that was out of sync since.

        `own_end` is the end of this leader's log.
        """
        with self._lock:
            watermark = self.watermark
            is_late = leader_epoch != self._epoch_in_force
            if is_late or not isinstance(watermark, LeaderWatermark):
                return None
            watermark.replication.on_fetch(
                node, node_epoch, log_end, synced_end, self._clock.monotonic_ns(), own_end,
                log_start=log_start,
            )  # fmt: skip
            return self._release() if watermark.on_replication() else None

    def on_leader_watermark(self, offset: int, leader_epoch: int) -> bool:
        """As a follower: the high watermark of the leader of that epoch, if it is in force. Whether
        this one moved, or is the first that is heard of this leader."""
        with self._lock:
            watermark, is_late = self.watermark, leader_epoch != self._epoch_in_force
            if is_late or not isinstance(watermark, FollowerWatermark):
                return False
            before, self._leader_watermark = self._leader_watermark, offset
            if not watermark.on_leader(offset):
                return before < 0
            acks = self._release() if len(self.pending) else b""
        if acks:
            self.send_kept(acks)
        return True

    @property
    def leader_watermark(self) -> int:
        """The leader's high watermark, which may be beyond the end of this log; -1: not known."""
        with self._lock:
            leads = self.role is PartitionRole.LEADER
            return self.watermark.offset if leads else self._leader_watermark

    def on_replicated(self, end: ReplicatedEnd, leader_epoch: int) -> None:
        """As a follower: what the leader of an epoch knows of all replicas, if it is in force."""
        with self._lock:
            if leader_epoch == self._epoch_in_force:
                self._told = end

    @property
    def replicated(self) -> ReplicatedEnd:
        """What this leader knows of all replicas, or its leader has told it."""
        with self._lock:
            if self.role is not PartitionRole.LEADER:
                return self._told
            watermark, end = self.watermark, self.watermark.offset
            if isinstance(watermark, LeaderWatermark):
                end = watermark.replicated_offset
            return ReplicatedEnd(self._version, end)

    def begin_removal(self, tombstones_end: int) -> bool:
        """Segments are about to be replaced by some without tombstones below `tombstones_end`;
        False if a follower still copies those. `end_removal` must follow.

        All replicas had them when this was planned, but one may have begun again since.
        """
        with self._lock:
            replication = self.replication
            if replication is not None and not replication.has_passed(tombstones_end):
                return False
            self._removing_end = tombstones_end
            return True

    def end_removal(self) -> None:
        with self._lock:
            self._removing_end = 0

    def may_begin_copy(self, log_end: int) -> bool:
        """Whether a follower whose log ends there, which has reported that, may get records now.
        Not while tombstones behind its end are being removed: it must not get a part of what was
        before, and a part of what is afterwards."""
        with self._lock:
            return log_end >= self._removing_end

    def on_replaced(self, offset: int) -> int:
        """As a follower: the log is an empty one that starts at `offset` now.

        Forgets all acks that were kept, and returns their records.
        """
        with self._lock:
            if not isinstance(self.watermark, FollowerWatermark):
                return 0
            self.watermark.on_replaced(offset)
            return self.pending.drop_from(-1)

    def on_truncated(self, offset: int) -> int:
        """As a follower: the log ends at `offset` now.

        Forgets the acks that were kept for what was removed, and returns their records.
        """
        with self._lock:
            if not isinstance(self.watermark, FollowerWatermark):
                return 0
            self.watermark.on_truncated(offset)
            return self.pending.drop_from(offset)

    def rollback(self, offset: int, error: AckError) -> bytes:
        """Remove the batch added last, at `offset`; error acks for duplicates in it."""
        with self._lock:
            return self.pending.rollback(offset, error)

    def fail(self, error: AckError) -> tuple[bytes, int]:
        """Error acks for everyone who waits, and how many records they wait for."""
        with self._lock:
            if self.role is not PartitionRole.LEADER:
                return b"", self.pending.drop(error)  # the leader may have stored them
            count = self.pending.record_count
            return self.pending.fail(error), count

    # -- the in-sync replica set, on the event loop ---------------------------------------------

    def accepts(self, node: int, node_epoch: int) -> bool:
        """Whether fetches of this incarnation of a follower count."""
        with self._lock:
            replication = self.replication
            return replication is not None and replication.accepts(node, node_epoch)

    def on_forgotten(self, node: int, node_epoch: int) -> None:
        """A follower does not fetch the partition any more."""
        with self._lock:
            if (replication := self.replication) is not None:
                replication.on_forgotten(node, node_epoch)

    def on_purged(self, offset: int) -> None:
        """The start of this leader's log was moved to `offset` for good."""
        with self._lock:
            if (replication := self.replication) is not None:
                replication.on_purged(offset)

    def wanted_isr(self, heard_ns: Mapping[int, int]) -> tuple[int, ...] | None:
        """The ISR to propose now; see `LeaderReplication.wanted_isr`."""
        with self._lock:
            replication = self.replication
            if replication is None:
                return None
            return replication.wanted_isr(self._clock.monotonic_ns(), heard_ns)

    @property
    def proposed_isr(self) -> tuple[int, ...]:
        """The ISR that this leader has proposed, while it does not know what became of it."""
        with self._lock:
            replication = self.replication
            return (replication.pending_isr or ()) if replication is not None else ()

    def node_epochs(self, nodes: Iterable[int]) -> dict[int, int]:
        """The incarnations of those of `nodes` that fetch from this leader."""
        with self._lock:
            replication = self.replication
            if replication is None:
                return {}
            found = {node: replication.node_epoch(node) for node in nodes}
            return {node: epoch for node, epoch in found.items() if epoch != NO_NODE_EPOCH}

    @property
    def is_settled(self) -> bool:
        """Whether the ISR can only change after an append, or when a follower is lost."""
        with self._lock:
            return self.replication is None or self.replication.is_settled

    def on_isr_proposed(self, isr: tuple[int, ...], state: PartitionState) -> bool:
        """`isr` is about to be proposed as a change of `state`; False where that is not in force.

        Its new members count from now on.
        """
        with self._lock:
            replication = self.replication
            if replication is None or replication.state != state or replication.pending_isr:
                return False
            replication.on_isr_proposed(isr)
            return True

    def on_isr_failed(self, state: PartitionState) -> bytes | None:
        """The proposed change of `state` will never take effect."""
        with self._lock:
            watermark = self.watermark
            if not isinstance(watermark, LeaderWatermark) or watermark.replication.state != state:
                return None
            watermark.replication.on_isr_failed()
            return self._release() if watermark.on_replication() else None

    # -- refusals -------------------------------------------------------------------------------

    def refuse(self, ack_entries: bytes, error: AckError, *, count: int) -> bytes:
        """Refuse messages with `error`, now or once it is confirmed that this node leads. There are
        at most `count` of them. Returns the replies to send now."""
        if error.err_code == INDETERMINATE:  # it says nothing that a successor could make wrong
            return self._ack_format.errors(ack_entries, error, count=count)
        with self._lock:
            return self._confirm_first(
                RefusedMessages(ack_entries=ack_entries, count=count, error=error)
            )

    def take_refusals(self) -> list[tuple[int, RefusedMessages]]:
        """The refusals that wait, each with the leader epoch in which this node has made it."""
        with self._lock:
            return self._unconfirmed.take()

    def answer_refusal(self, refusal: RefusedMessages, error: AckError | None = None) -> bytes:
        """Answer who was refused, with `error` if that was not confirmed; what to send now."""
        return answer(refusal, self._ack_format, error)

    @property
    def _waits_for_confirmation(self) -> bool:
        return self.on_refused is not None and not self._is_alone

    def _confirm_first(self, refusal: RefusedMessages) -> bytes:
        """Have a refusal wait until it is confirmed; what to send now. The lock is held."""
        if not self._waits_for_confirmation or not (refusal.replies or refusal.error):
            return answer(refusal, self._ack_format)
        assert self.on_refused is not None
        if not self._unconfirmed.refusals:
            self.on_refused()  # once for all that come until they are taken
        return self._unconfirmed.add(self._leader_epoch, refusal, self._ack_format)

    def _end_refusals(self) -> bytes:
        """Have those confirmed that wait since this node led an earlier epoch: a leader in between
        may have stored their messages. What to send now; the lock is held."""
        return b"".join(self._confirm_first(each) for each in self.pending.take_refusals())

    def _release(self) -> bytes:
        """Acks of everything that is committed or stored, as policies ask; the lock is held."""
        offset, stored_end, refuse = self.watermark.offset, self._stored_end, None
        if self._waits_for_confirmation:
            refuse = self._confirm_first
        return self.pending.release(offset, stored_end, now_ms=self._clock.now_ms(), refuse=refuse)
