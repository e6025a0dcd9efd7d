"""Checkers of membership: one change at a time, in force on every node (thesis 4.1)."""

from __future__ import annotations

from bascule.raft.effects import Role, Write
from bascule.raft.membership import Members, decode_members
from bascule.raft.messages import EntryKind
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView
from bascule.sim.checkers.committed_log import CommittedLog


class OneChange(Checker):
    """A leader begins a change of members only when the previous change and an entry of its own
    term are committed, and changes one member at a time. Entry 1 changes nothing: it has the
    initial members."""

    name = "one membership change at a time"

    def __init__(self) -> None:
        self._last: dict[int, Members] = {}
        """Node -> the members in force before its last write."""

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._last[node.id] = node.members

    def on_write(self, node: NodeView, write: Write) -> None:
        before = self._last.get(node.id)
        self._last[node.id] = node.members
        if node.role is not Role.LEADER or before is None:
            return
        for entry in write.entries:
            if entry.kind != EntryKind.MEMBERS or entry.term != node.term:
                continue
            after = decode_members(entry.payload)
            self._check(node, before, after, entry.index)
            before = after

    def _check(self, node: NodeView, before: Members, after: Members, index: int) -> None:
        if index == 1 and (before.voters, before.learners) == (after.voters, after.learners):
            return  # the first leader puts the initial members into the log
        if before.index > node.commit:
            raise InvariantBroken(
                self.name,
                f"node {node.id} changes the members at {index}, while the change at "
                f"{before.index} is not committed; the commit index is {node.commit}",
            )
        if node.log.term_at(node.commit) != node.term:
            raise InvariantBroken(
                self.name,
                f"node {node.id} changes the members at {index} in term {node.term}, of which no "
                f"entry is committed",
            )
        voters = set(before.voters) ^ set(after.voters)
        everyone = set(before.all) ^ set(after.all)
        if len(voters | everyone) > 1:
            raise InvariantBroken(
                self.name, f"node {node.id} changes the members at {index} from {before} to {after}"
            )


class MembersInForce(Checker):
    """The members in force on a node are those of the last change in its log. At a committed index
    they are the members committed there, also after a restart and with a snapshot."""

    name = "members in force"

    def __init__(self, committed_log: CommittedLog) -> None:
        self._committed_log = committed_log

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._check(node)

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        self._check(node)

    def on_role(self, node: NodeView) -> None:
        self._check_index(node)

    def _check_index(self, node: NodeView) -> None:
        if node.members.index > node.log.last:
            raise InvariantBroken(
                self.name,
                f"node {node.id} goes by the members of {node.members.index} with a log to "
                f"{node.log.last}",
            )

    def _check(self, node: NodeView) -> None:
        self._check_index(node)
        members = node.members
        known = self._committed_log.members_at(node.commit)
        if known is None or node.commit == 0 or members.index > node.commit:
            return
        if not members.voters and node.id not in known:
            return  # the node is joining and has not reached the entry that adds it
        if members != known:
            raise InvariantBroken(
                self.name,
                f"node {node.id} goes by {members} with commit index {node.commit}, where {known} "
                f"are in force",
            )
