"""What a node is asked for: each request gets a ticket, which is answered once, or is refused."""

from __future__ import annotations

from bascule.errors import (
    CannotReplicate,
    ConfigError,
    LimitExceeded,
    MembersChanged,
    NotLeader,
)
from bascule.raft.config import NEVER
from bascule.raft.effects import ReadPolicy
from bascule.raft.membership import NOBODY, Change, encode_members
from bascule.raft.messages import ENTRY_OVERHEAD_BYTES, Entry, Kind
from bascule.raft.roles.leader import Leading
from bascule.raft.roles.member import Member
from bascule.raft.roles.reads import Read


class Requests:
    """The requests of one node."""

    __slots__ = ("_core", "_member")

    def __init__(self, member: Member) -> None:
        self._member = member
        self._core = member.core

    def propose(self, payload: bytes, *, deadline_ticks: int | None = None) -> int:
        """Append `payload` to the group's log; the ticket is answered with what became of it, or
        with `INDETERMINATE` when that is not known after `deadline_ticks`.

        Raises: NotLeader; CannotReplicate where it was not appended and may be later; LimitExceeded
        where it never will.
        """
        core = self._core
        leading = self._member.leading
        if leading is None:
            raise self._not_leader()
        log, config = core.log, core.config
        size = len(payload) + ENTRY_OVERHEAD_BYTES
        if log.last - log.commit >= config.pending_entries_max:
            raise CannotReplicate(
                f"{log.pending} entries are in progress, the most is {config.pending_entries_max}"
            )
        if log.pending_bytes + size > config.pending_bytes_max:
            if size > config.pending_bytes_max:
                raise LimitExceeded("pending_bytes_max", config.pending_bytes_max, size)
            raise CannotReplicate(
                f"{log.pending_bytes} bytes are in progress, and {size} more would pass "
                f"{config.pending_bytes_max}"
            )
        if leading.target != NOBODY:
            raise CannotReplicate(f"leadership is being handed to node {leading.target}")
        if log.room <= 0:
            raise CannotReplicate("the log is full until its next snapshot is on disk")
        return self._append(leading, Kind.NORMAL, payload, deadline_ticks)

    def _append(
        self, leading: Leading, kind: Kind, payload: bytes, deadline_ticks: int | None
    ) -> int:
        if self._member.resting:
            self._member.wake()
        core = self._core
        index = core.log.last + 1
        core.append(Entry(index, core.term, kind, payload))
        ticket = self._ticket()
        deadline = NEVER if deadline_ticks is None else core.now + deadline_ticks
        core.proposals.add(index, core.term, ticket, deadline)
        return ticket

    def _ticket(self) -> int:
        ticket = self._core.next_ticket
        self._core.next_ticket += 1
        return ticket

    def _not_leader(self) -> NotLeader:
        return NotLeader(self._core.leader or None, term=self._core.term)

    def change_members(
        self,
        change: Change,
        node: int,
        *,
        expected_index: int | None = None,
        deadline_ticks: int | None = None,
    ) -> int:
        """Add, promote or remove one member. The change is in force from its append on, also if it
        is truncated later and reverts (thesis 4.1); one is under way at a time.

        `expected_index` is the `members.index` that the caller decided on.

        Raises: NotLeader; MembersChanged; ConfigError where the change changes nothing or leaves no
        voter; CannotReplicate while another change or the term's first entry is not committed, a
        transfer is under way, the log is full, or a learner to be promoted lags.
        """
        core, leading = self._core, self._member.leading
        if leading is None:
            raise self._not_leader()
        members, log = core.members, core.log
        if expected_index is not None and expected_index != members.index:
            raise MembersChanged(expected_index, members.index)
        changed = members.changed(change, node, log.last + 1)
        if (changed.voters, changed.learners) == (members.voters, members.learners):
            raise ConfigError(f"{change.name.lower()} of node {node} changes nothing: {members}")
        if not changed.voters:
            raise ConfigError(f"node {node} is the last voter and cannot be removed")
        if members.index > log.commit:
            raise CannotReplicate(f"the change of members at {members.index} is not committed")
        if not leading.has_committed:
            raise CannotReplicate("no entry of this term is committed yet")
        if leading.target != NOBODY:
            raise CannotReplicate(f"leadership is being handed to node {leading.target}")
        if log.room <= 0 or log.pending >= core.config.pending_entries_max:
            raise CannotReplicate("the log has no room")
        if change is Change.ADD_VOTER and node in members.learners:
            behind = log.commit - leading.progress[node].match
            if behind > core.config.append_entries_max:
                raise CannotReplicate(f"learner {node} is {behind} entries behind")
        payload = encode_members(changed)
        ticket = self._append(leading, Kind.MEMBERS, payload, deadline_ticks)
        leading.follow_members()
        return ticket

    def transfer(self, target: int, *, deadline_ticks: int | None = None) -> int:
        """Hand leadership to the voter `target`. Proposals are refused until another node leads
        (`COMMITTED`) or the deadline, by default `election_ticks`, passes (`TIMED_OUT`: this node
        may go on leading).

        Raises: NotLeader, ConfigError where `target` cannot lead, CannotReplicate while another
        transfer is under way.
        """
        core, leading = self._core, self._member.leading
        if leading is None:
            raise self._not_leader()
        if target == core.id or target not in core.members.voters:
            raise ConfigError(
                f"leadership cannot be handed to node {target}: expected another voter of "
                f"{core.members.voters}"
            )
        if self._member.transfer is not None:
            raise CannotReplicate("another transfer is under way")
        if self._member.resting:
            self._member.wake()
        ticket = self._ticket()
        ticks = core.config.election_ticks if deadline_ticks is None else deadline_ticks
        self._member.transfer = (ticket, core.now + ticks)
        leading.hand_to(target)
        return ticket

    def read(
        self,
        policy: ReadPolicy = ReadPolicy.LINEARIZABLE,
        *,
        min_index: int = 0,
        deadline_ticks: int | None = None,
    ) -> int:
        """Ask when the state machine may be read. `LOCAL` works in every role, and with `min_index`
        is a barrier: it waits until so much is applied.

        Raises: NotLeader, unless `LOCAL`; CannotReplicate where too many wait; ConfigError for
        `LEASE` where leases are off.
        """
        core, leading = self._core, self._member.leading
        if len(core.reads) >= core.config.reads_max:
            raise CannotReplicate(f"{len(core.reads)} reads are waiting")
        if policy is ReadPolicy.LEASE and not core.config.lease_reads:
            raise ConfigError("reads by lease need lease_reads, which is off")
        if policy is not ReadPolicy.LOCAL and leading is None:
            raise self._not_leader()
        deadline = NEVER if deadline_ticks is None else core.now + deadline_ticks
        read = Read(self._ticket(), deadline)
        read.index = min_index
        if policy is ReadPolicy.LOCAL or leading is None:
            if self._member.resting and min_index > core.applied:
                self._member.wake()  # so that its deadline comes
            core.reads.wait_for_index(read)
        elif policy is ReadPolicy.LEASE and leading.has_lease():
            read.index = core.log.commit
            core.reads.wait_for_index(read)
        else:
            if self._member.resting:
                self._member.wake()
            core.reads.wait_for_round(read)
        return read.ticket
