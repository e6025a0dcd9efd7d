"""The leader's view of its followers. Sources: KIP-101, KIP-497, KIP-903, KIP-966, KAFKA-7128."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bascule.model import PartitionState

UNKNOWN: Final = -1
"""The position of a follower that has not fetched in this leader epoch."""
NO_NODE_EPOCH: Final = -1
_NEVER_HEARD: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(slots=True)
class _Follower:
    """What the leader knows of one follower in this leader epoch."""

    caught_up_ns: int
    """The latest known time at which the follower had everything that was in the leader's log."""
    node_epoch: int = NO_NODE_EPOCH
    position: int = UNKNOWN
    """The follower has the leader's records below this offset, as safely as the policy says."""
    synced: int = UNKNOWN
    """The follower has synced the leader's records below this offset."""
    copied: int = UNKNOWN
    """The end that it last reported as synced in this epoch, also after it was forgotten."""
    log_start: int = UNKNOWN
    """Where its log starts; UNKNOWN where it does not say."""
    fetched_ns: int = 0
    """When the last fetch arrived."""
    mark_end: int = UNKNOWN
    """The end of the leader's log at time `mark_ns`, which `position` has not reached yet."""
    mark_ns: int = 0

    def on_position(self, position: int, log_end: int, now_ns: int) -> None:
        """Take a position over, and when the follower was at the end of the leader's log."""
        self.position = position
        self.fetched_ns = now_ns
        if position >= log_end:
            self.caught_up_ns = now_ns
            self.mark_end = UNKNOWN
        elif self.mark_end == UNKNOWN or position >= self.mark_end:
            if self.mark_end != UNKNOWN:
                self.caught_up_ns = max(self.caught_up_ns, self.mark_ns)
            self.mark_end, self.mark_ns = log_end, now_ns


class LeaderReplication:
    """One leader epoch of one partition, on its leader. One thread at a time uses it."""

    def __init__(
        self,
        node_id: int,
        state: PartitionState,
        *,
        min_isr: int,
        own_synced: int,
        now_ns: int,
        lag_ns_max: int,
        epoch_start: int,
        high_watermark: int = 0,
        log_end: int | None = None,
        log_start: int = 0,
        counts_synced: bool = True,
    ) -> None:
        """`node_id` is the leader in `state`.

        `own_synced` is the leader's own position, `log_end` the end of its log (default: the same),
        `log_start` its start, and `epoch_start` its end when the epoch began. `high_watermark` is
        the one that this node knows. `counts_synced`: only synced records count (`sync = always`);
        else positions are ends of logs. A member of the ISR that has not been at the end of the log
        for `lag_ns_max` is to be removed; at the start each gets that time.
        """
        assert state.leader == node_id, f"node {node_id} does not lead {state}"
        self.node_id = node_id
        self.state = state
        self.min_isr = min_isr
        self.lag_ns_max = lag_ns_max
        self.counts_synced = counts_synced
        self.epoch_start = epoch_start
        self._purged_to = log_start  # what is before may have been purged by an earlier leader
        self.high_watermark = high_watermark
        """The first offset that is not committed."""
        self.pending_isr: tuple[int, ...] | None = None
        """The ISR that is proposed, and neither committed nor refused yet."""
        self._own = own_synced
        self._log_end = own_synced if log_end is None else log_end
        self._followers = {
            node: _Follower(caught_up_ns=now_ns) for node in state.replicas if node != node_id
        }
        self._advance()

    # -- questions -----------------------------------------------------------------------------

    @property
    def isr_size(self) -> int:
        """Members of the committed ISR."""
        return len(self.state.isr)

    @property
    def has_min_isr(self) -> bool:
        """Whether the committed ISR is large enough to commit records."""
        return len(self.state.isr) >= self.min_isr

    def accepts(self, node: int, node_epoch: int) -> bool:
        """Whether fetches of this incarnation of `node` count: it is a follower, and not stale."""
        follower = self._followers.get(node)
        return follower is not None and node_epoch >= follower.node_epoch

    def node_epoch(self, node: int) -> int:
        """The latest incarnation of a follower that has fetched; NO_NODE_EPOCH: none yet."""
        follower = self._followers.get(node)
        return NO_NODE_EPOCH if follower is None else follower.node_epoch

    def position(self, node: int) -> int:
        """The position of a replica; UNKNOWN if it has not fetched in this epoch."""
        if node == self.node_id:
            return self._own
        follower = self._followers.get(node)
        return UNKNOWN if follower is None else follower.position

    def lag(self, node: int) -> int:
        """Offsets by which a replica is behind the end of the leader's log, as far as known."""
        return max(self._log_end - max(self.position(node), 0), 0)

    @property
    def replicated_offset(self) -> int:
        """The committed offset below which every follower has synced the log, in sync or not; 0
        before each has fetched in this epoch. Also where ends of logs count: what was not synced
        may be lost, and is copied again."""
        lowest = min((each.synced for each in self._followers.values()), default=self._own)
        return max(min(lowest, self.high_watermark), 0)

    def has_passed(self, offset: int) -> bool:
        """Whether every follower that has fetched in this epoch was last heard of at `offset` or
        above. One that has not has either all that all replicas had before, or nothing."""
        reported = (each.copied for each in self._followers.values())
        return all(copied >= offset for copied in reported if copied != UNKNOWN)

    @property
    def is_settled(self) -> bool:
        """Whether no time that passes changes the ISR, before an append, a fetch or a loss.

        All members are at the end of the log, and no other replica fetches.
        """
        return all(
            follower.position >= self._log_end
            if node in self.state.isr
            else follower.position == UNKNOWN
            for node, follower in self._followers.items()
        )

    # -- events --------------------------------------------------------------------------------

    def on_appended(self, log_end: int, now_ns: int) -> bool:
        """The leader's log ends at `log_end` now. Returns whether the high watermark moved."""
        for follower in self._followers.values():
            if follower.position >= self._log_end:
                follower.caught_up_ns = now_ns
                follower.mark_end, follower.mark_ns = log_end, now_ns
        self._log_end = max(self._log_end, log_end)
        if self.counts_synced or log_end <= self._own:
            return False
        self._own = log_end
        return self._advance()

    def on_synced(self, offset: int) -> bool:
        """The leader has synced its log up to `offset`. Whether the high watermark moved."""
        if offset <= self._own:
            return False
        self._own = offset
        return self._advance()

    def on_fetch(
        self,
        node: int,
        node_epoch: int,
        fetch_offset: int,
        synced_end: int,
        now_ns: int,
        log_end: int,
        *,
        log_start: int = UNKNOWN,
    ) -> bool:
        """A follower's log starts at `log_start`, ends at `fetch_offset` and is synced up to
        `synced_end`.

        The caller has checked that the follower's log is a prefix of the leader's, which ends at
        `log_end`. A fetch that `accepts` refuses changes nothing. Returns whether the high
        watermark moved.
        """
        follower = self._followers.get(node)
        if follower is None or node_epoch < follower.node_epoch:
            return False
        self._log_end = max(self._log_end, log_end)
        follower.node_epoch = node_epoch
        follower.log_start = log_start
        follower.synced = follower.copied = min(synced_end, fetch_offset, log_end)
        position = follower.synced if self.counts_synced else min(fetch_offset, log_end)
        follower.on_position(position, log_end, now_ns)
        return self._advance()

    def on_forgotten(self, node: int, node_epoch: int) -> None:
        """The follower does not fetch this partition any more: where it is, is unknown again."""
        follower = self._followers.get(node)
        if follower is not None and follower.node_epoch == node_epoch:
            follower.position = follower.synced = follower.mark_end = UNKNOWN

    def on_purged(self, offset: int) -> None:
        """The leader's log was purged up to `offset`."""
        self._purged_to = max(self._purged_to, offset)

    def configure(self, state: PartitionState, min_isr: int) -> bool:
        """Apply a committed change of the ISR, or of `min_isr`; the leader epoch is the same.

        Ends a proposal if `state` has a higher version. Returns whether the high watermark moved.
        """
        assert state.leader_epoch == self.state.leader_epoch, f"{state} is of another epoch"
        assert state.version >= self.state.version, f"{state} is older than {self.state}"
        if state.version > self.state.version:
            self.pending_isr = None
        self.state = state
        self.min_isr = min_isr
        for node in set(state.replicas) - self._followers.keys() - {self.node_id}:
            self._followers[node] = _Follower(caught_up_ns=self._latest_ns())
        for node in self._followers.keys() - set(state.replicas):
            del self._followers[node]
        return self._advance()

    def count(self, *, synced: bool, own_synced: int, now_ns: int) -> None:
        """Count synced records from now on, or appended ones; `own_synced` is up to where this node
        has synced its log. What was only appended before counts again once it is synced."""
        if synced and not self.counts_synced:
            self._own = min(self._own, own_synced)
            for follower in self._followers.values():
                if follower.position >= self._log_end:
                    follower.caught_up_ns = now_ns
                    follower.mark_end, follower.mark_ns = self._log_end, now_ns
                follower.position = min(follower.position, follower.synced)
        self.counts_synced = synced

    # -- the in-sync replica set ---------------------------------------------------------------

    def wanted_isr(
        self, now_ns: int, heard_ns: Mapping[int, int] = _NEVER_HEARD
    ) -> tuple[int, ...] | None:
        """The ISR to propose, sorted; None if it is as it should be, or a proposal is under way.

        A member that has not been at the end of the log for `lag_ns_max` is left out. A replica
        that has reached the high watermark and the start of this leader epoch is added, if it was
        heard of within that time and its log has nothing that may be purged, here or by a leader
        before: else that could come back. What retention has removed since the epoch began may be
        there: followers remove it later than the leader. `heard_ns` says when followers that fetch
        this partition were last heard of, where that is later than their last fetch of it.
        """
        if self.pending_isr is not None:
            return None
        members = {self.node_id}
        for node, follower in self._followers.items():
            if node in self.state.isr:
                keeps = not self._lags(follower, now_ns)
            else:
                heard = max(follower.fetched_ns, heard_ns.get(node, 0))
                is_heard = now_ns - heard <= self.lag_ns_max
                keeps = is_heard and self._may_join(follower)
                if keeps:
                    follower.caught_up_ns = max(follower.caught_up_ns, now_ns)
            if keeps:
                members.add(node)
        wanted = tuple(sorted(members))
        return None if wanted == self.state.isr else wanted

    def on_isr_proposed(self, isr: tuple[int, ...]) -> None:
        """`isr` is proposed to the controller. Its new members count from now on."""
        assert self.pending_isr is None, "one proposal at a time"
        self.pending_isr = isr

    def on_isr_failed(self) -> None:
        """The proposal was refused, and it is certain that it never takes effect.

        Where that is not certain, the proposal stays until `configure` brings a higher version.
        """
        self.pending_isr = None
        self._advance()

    def _lags(self, follower: _Follower, now_ns: int) -> bool:
        if follower.position != UNKNOWN and follower.position >= self._log_end:
            return False
        return now_ns - follower.caught_up_ns > self.lag_ns_max

    def _may_join(self, follower: _Follower) -> bool:
        """Whether its log has what a member of the ISR has to have, and nothing that is purged."""
        position, start = follower.position, follower.log_start
        has_reached = position >= max(self.high_watermark, self.epoch_start)
        return (
            position != UNKNOWN and has_reached and (start == UNKNOWN or start >= self._purged_to)
        )

    def _latest_ns(self) -> int:
        return max((f.caught_up_ns for f in self._followers.values()), default=0)

    def _advance(self) -> bool:
        """Move the high watermark to the least position of those who count."""
        if len(self.state.isr) < self.min_isr:
            return False
        lowest = self._own
        for node, follower in self._followers.items():
            counts = node in self.state.isr or (
                self.pending_isr is not None and node in self.pending_isr
            )
            if counts and follower.position < lowest:
                lowest = follower.position
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True
