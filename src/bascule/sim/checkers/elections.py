"""Checkers of elections: one leader per term, durable votes, and a pre-vote before each term."""

from __future__ import annotations

from bascule.raft.effects import Role
from bascule.raft.messages import AnyMessage, TimeoutNow, VoteReply, VoteRequest
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView
from bascule.sim.checkers.disks import Disks


class ElectionSafety(Checker):
    """A term has at most one leader, and that leader leads it in one life only (thesis 3.4)."""

    name = "election safety"

    def __init__(self) -> None:
        self._lives: dict[int, int] = {}
        self._leaders: dict[int, tuple[int, int]] = {}

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._lives[node.id] = self._lives.get(node.id, 0) + 1

    def on_role(self, node: NodeView) -> None:
        if node.role is not Role.LEADER:
            return
        me = (node.id, self._lives.get(node.id, 0))
        leader = self._leaders.setdefault(node.term, me)
        if leader != me:
            raise InvariantBroken(
                self.name,
                f"node {me[0]}, start {me[1]}, leads term {node.term}, which node {leader[0]}, "
                f"start {leader[1]}, led",
            )


class OneVote(Checker):
    """A node votes for one candidate per term, itself included, across restarts. A vote is sent, or
    counted by the node itself, only when it is on disk."""

    name = "one durable vote a term"
    sends = (VoteReply, VoteRequest)

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._votes: dict[tuple[int, int], int] = {}

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        if isinstance(message, VoteReply):
            if message.granted and not message.pre:
                self._vote(node_id, message.term, message.target)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._vote(node_id, message.term, node_id)

    def on_role(self, node: NodeView) -> None:
        if node.role is Role.LEADER:
            self._vote(node.id, node.term, node.id)

    def _vote(self, node_id: int, term: int, candidate: int) -> None:
        given = self._votes.setdefault((node_id, term), candidate)
        if given != candidate:
            raise InvariantBroken(
                self.name,
                f"node {node_id} votes for {candidate} in term {term}, after it voted for {given}",
            )
        disk = self._disks.of(node_id)
        if disk.term < term or (disk.term == term and disk.vote != candidate):
            raise InvariantBroken(
                self.name,
                f"node {node_id} votes for {candidate} in term {term}; on its disk are term "
                f"{disk.term} and a vote for {disk.vote}",
            )


class PreVote(Checker):
    """A term begins only after a majority granted its pre-vote, unless the leader transferred
    leadership (thesis 9.6, 3.10). So no node disrupts a group that has a leader."""

    name = "no term without a pre-vote"
    steps = (VoteReply, TimeoutNow)

    def __init__(self) -> None:
        self._granted: dict[int, dict[int, set[int]]] = {}
        """Node -> requested term -> the nodes that granted its pre-vote. Replies may be late."""
        self._forced: dict[int, int] = {}
        """Node -> the term that its leader requested it to begin (`TimeoutNow`)."""
        self._begun: dict[int, int] = {}

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._granted.pop(node.id, None)
        self._forced.pop(node.id, None)

    def on_step(self, node: NodeView, message: AnyMessage) -> None:
        if isinstance(message, TimeoutNow):
            self._forced[node.id] = message.term + 1
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            said = self._granted.setdefault(node.id, {})
            said.setdefault(message.term, set()).add(message.source)

    def on_role(self, node: NodeView) -> None:
        if node.role not in (Role.CANDIDATE, Role.LEADER):
            return
        begun, self._begun[node.id] = self._begun.get(node.id, 0), node.term
        if begun == node.term or self._forced.get(node.id) == node.term:
            return
        yes = self._granted.pop(node.id, {}).get(node.term, set()) | {node.id}
        if not node.members.is_majority(yes.__contains__):
            raise InvariantBroken(
                self.name,
                f"node {node.id} begins term {node.term}; of the voters {node.members.voters} "
                f"only {sorted(yes)} granted a pre-vote",
            )
