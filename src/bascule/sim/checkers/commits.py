"""Checkers of commits: what may be committed, and that it stays committed."""

from __future__ import annotations

from collections.abc import Mapping

from bascule.raft.effects import Ready, Role, Write
from bascule.raft.messages import AnyMessage, AppendReply, SnapshotReply
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView
from bascule.sim.checkers.committed_log import CommittedLog
from bascule.sim.checkers.disks import Disks


class Monotonic(Checker):
    """A node's term and commit index never fall while it runs, and it starts at or above the term
    and the snapshot on its disk."""

    name = "monotonic commit and term"

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._terms: dict[int, int] = {}

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        disk = self._disks.of(node.id)
        if node.term < disk.term or node.commit < disk.snapshot_index:
            raise InvariantBroken(
                self.name,
                f"node {node.id} restarts in term {node.term} with commit index {node.commit}; on "
                f"its disk are term {disk.term} and a snapshot at {disk.snapshot_index}",
            )
        self._terms[node.id] = node.term

    def on_role(self, node: NodeView) -> None:
        if node.term < self._terms.get(node.id, 0):
            raise InvariantBroken(
                self.name,
                f"node {node.id} falls from term {self._terms[node.id]} to {node.term}",
            )
        self._terms[node.id] = node.term

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        if node.commit < before:
            raise InvariantBroken(
                self.name, f"node {node.id}'s commit index falls from {before} to {node.commit}"
            )


class CommitIsDurable(Checker):
    """A leader commits by counting only an entry of its own term that a majority of the voters has
    on disk. Other nodes commit only what a leader has committed.

    It is called before `CommittedLog`, which then counts the new index as committed.
    """

    name = "a commit is a majority's"

    def __init__(self, disks: Disks, committed_log: CommittedLog) -> None:
        self._disks = disks
        self._committed_log = committed_log

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        index = node.commit
        if not as_leader:
            if index > self._committed_log.last:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id}, which does not lead, commits {index} in term {node.term}; "
                    f"leaders have committed up to {self._committed_log.last}",
                )
            return
        term = node.log.term_at(index)
        if term != node.term:
            raise InvariantBroken(
                self.name,
                f"node {node.id} leads term {node.term} and commits up to {index}, an entry of "
                f"term {term}, by count",
            )
        voters = node.members.voters
        having = [voter for voter in voters if self._disks.of(voter).has(index, term)]
        if len(having) < node.members.majority:
            raise InvariantBroken(
                self.name,
                f"node {node.id} commits {index} of term {term}; of the voters {voters} only "
                f"{having} have it on disk",
            )


class NothingLost(Checker):
    """No node removes a committed entry that it acknowledged or knows to be committed, except for a
    snapshot, nor its newest snapshot. At the end a majority of the voters has all of them.

    A node acknowledges an entry with a match to the leader that committed it, or to a later one.
    Other nodes may have to truncate it, because of a late message of an earlier leader.
    """

    name = "no committed entry lost"
    sends = (AppendReply, SnapshotReply)

    def __init__(self, disks: Disks, committed_log: CommittedLog) -> None:
        self._disks = disks
        self._committed_log = committed_log
        self._acknowledged: dict[int, dict[int, int]] = {}
        """Node -> term -> the highest index that it acknowledged in that term."""

    def _acknowledge(self, node_id: int, term: int, index: int) -> None:
        terms = self._acknowledged.setdefault(node_id, {})
        terms[term] = max(index, terms.get(term, 0))

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        assert isinstance(message, AppendReply | SnapshotReply)
        if isinstance(message, SnapshotReply) or message.matched:
            self._acknowledge(node_id, message.term, message.index)

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        if as_leader:
            self._acknowledge(node.id, node.term, node.commit)

    def _must_keep(self, node: NodeView, index: int) -> bool:
        since = self._committed_log.committed_in(index)
        acknowledged = self._acknowledged.get(node.id, {})
        return index <= node.commit or any(
            term >= since and index <= last for term, last in acknowledged.items()
        )

    def on_write(self, node: NodeView, write: Write) -> None:
        disk = self._disks.of(node.id)
        for index, _ in write.delete_chunks:
            if index and index == disk.snapshot_index:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} deletes the snapshot at {index}, the newest on its disk",
                )
        index = write.truncate_from
        if not index or index > self._committed_log.last:
            return
        term = self._committed_log.term_at(index)
        if term is None or index <= disk.snapshot_index or not disk.has(index, term):
            return
        if self._must_keep(node, index):
            raise InvariantBroken(
                self.name,
                f"node {node.id} truncates from {index}, where its disk has the committed entry of "
                f"term {term}",
            )

    def at_end(self, nodes: Mapping[int, NodeView]) -> None:
        index = self._committed_log.last
        term, members = self._committed_log.term_at(index), self._committed_log.members_at(index)
        if term is None or members is None:
            return
        having = [voter for voter in members.voters if self._disks.of(voter).has(index, term)]
        if len(having) < members.majority:
            raise InvariantBroken(
                self.name,
                f"of the voters {members.voters} only {having} have the last committed entry, "
                f"{index} of term {term}, on disk",
            )


class SyncedIsOnDisk(Checker):
    """What a node counts as its own part of a majority is on its disk, with the same term."""

    name = "its own part is durable"

    def __init__(self, disks: Disks) -> None:
        self._disks = disks

    def on_ready(self, node: NodeView, ready: Ready) -> None:
        self._check(node)

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        self._check(node)

    def _check(self, node: NodeView) -> None:
        disk, log, index = self._disks.of(node.id), node.log, node.synced
        if index > log.last or index > disk.last:
            raise InvariantBroken(
                self.name,
                f"node {node.id} counts itself up to {index}; its log has entries up to "
                f"{log.last}, and its disk up to {disk.last}",
            )
        term = log.term_at(index)
        if term is not None and index and not disk.has(index, term):
            raise InvariantBroken(
                self.name,
                f"node {node.id} counts itself up to {index}, term {term}; its disk has term "
                f"{disk.terms.get(index)} there",
            )


class MatchIsDurable(Checker):
    """A node that reports a match index has the leader's entries up to that index on disk.

    A match for a leader of an earlier term than the one on disk is not checked: the write that made
    it durable may also contain the truncation by a later leader, elected by a majority. The earlier
    leader can no longer commit those entries by counting.
    """

    name = "a match is durable"
    sends = (AppendReply, SnapshotReply)

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._nodes: dict[int, NodeView] = {}

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._nodes[node.id] = node

    def on_crash(self, node_id: int) -> None:
        self._nodes.pop(node_id, None)

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        assert isinstance(message, AppendReply | SnapshotReply)
        if isinstance(message, AppendReply) and not message.matched:
            return
        disk, index = self._disks.of(node_id), message.index
        if message.term < disk.term:
            return
        if index > disk.last:
            raise InvariantBroken(
                self.name,
                f"node {node_id} reports a match up to {index}; its disk has entries up to "
                f"{disk.last}",
            )
        leader = self._nodes.get(message.target)
        if leader is None or leader.term != message.term or leader.role is not Role.LEADER:
            return
        term = leader.log.term_at(index) if index <= leader.log.last else 0
        if term is not None and index and not disk.has(index, term):
            raise InvariantBroken(
                self.name,
                f"node {node_id} tells leader {message.target} of term {message.term} that it "
                f"matches up to {index}, term {term} there; its disk has term "
                f"{disk.terms.get(index)}",
            )
