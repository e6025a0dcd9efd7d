"""`CommittedLog`: the entries that the group has committed."""

from __future__ import annotations

from bascule.raft.membership import Members, decode_members
from bascule.raft.messages import Entry, EntryKind
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView


class CommittedLog(Checker):
    """State-machine safety: no two nodes commit different entries at one index.

    Other checkers use its record of what is committed.
    """

    name = "state-machine safety"

    def __init__(self) -> None:
        self.committed: dict[int, Entry] = {}
        self.last = 0
        """The highest index that any node committed."""
        self.records: list[tuple[int, int]] = []
        """(term of the committing node, highest committed index), oldest first."""
        self._members: list[Members] = []

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        if (
            not self._members
            and restored.initial_members is not None
            and restored.initial_members.voters
        ):
            self._members.append(restored.initial_members)

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        log, commit, committed = node.log, node.commit, self.committed
        if commit <= before:
            return
        start = before + 1
        if start <= log.snapshot_index:
            self._check_snapshot(node)
            start = max(start, log.first)
        for index in range(start, commit + 1):
            entry = log.entry(index)
            known = committed.get(index)
            if known is None:
                committed[index] = entry
                if entry.kind == EntryKind.MEMBERS:
                    self._members.append(decode_members(entry.payload))
            elif known is not entry and known != entry:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} commits {describe_entry(entry)} at {index}, where "
                    f"{describe_entry(known)} is committed",
                )
        if commit > self.last:
            self.last = commit
            self.records.append((node.term, commit))

    def _check_snapshot(self, node: NodeView) -> None:
        log = node.log
        known = self.committed.get(log.snapshot_index)
        if known is not None and known.term != log.snapshot_term:
            raise InvariantBroken(
                self.name,
                f"node {node.id} has a snapshot at {log.snapshot_index} of term "
                f"{log.snapshot_term}, where {describe_entry(known)} is committed",
            )

    def term_at(self, index: int) -> int | None:
        """The term of the committed entry at `index`."""
        entry = self.committed.get(index)
        return None if entry is None else entry.term

    def members_at(self, index: int) -> Members | None:
        """The members in force after the committed entry at `index`."""
        for members in reversed(self._members):
            if members.index <= index:
                return members
        return None

    def committed_in(self, index: int) -> int:
        """The term of the leader that committed `index`, or a later one; 0 if it is not
        committed."""
        return next((term for term, last in self.records if last >= index), 0)

    def committed_before(self, term: int) -> int:
        """The highest index committed by a node in an earlier term than `term`."""
        for found, index in reversed(self.records):
            if found < term:
                return index
        return 0


def describe_entry(entry: Entry) -> str:
    """An entry as text, for errors."""
    return (
        f"({entry.index}, term {entry.term}, {EntryKind(entry.kind).name}, {entry.payload[:32]!r})"
    )
