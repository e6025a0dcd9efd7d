"""Checkers of logs (thesis 3.5, 3.6)."""

from __future__ import annotations

from bascule.raft.effects import Role, Write
from bascule.raft.messages import Entry
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView
from bascule.sim.checkers.committed_log import CommittedLog, describe_entry


class AppendOnly(Checker):
    """A leader never removes or replaces an entry of its log."""

    name = "leader append-only"

    def __init__(self) -> None:
        self._tails: dict[int, tuple[int, int]] = {}
        """Leader -> (its term, its last entry at its last write)."""

    def on_write(self, node: NodeView, write: Write) -> None:
        if node.role is not Role.LEADER:
            return
        term, tail = self._tails.get(node.id, (0, 0))
        if term == node.term:
            start = write.truncate_from or (write.entries[0].index if write.entries else 0)
            if (start and start <= tail) or node.log.last < tail:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} leads term {term} and replaces its log from {start} on, which "
                    f"reached to {tail}",
                )
        self._tails[node.id] = (node.term, node.log.last)


class LogMatching(Checker):
    """An index and a term identify an entry, and all entries before it, in every log."""

    name = "log matching"

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Entry, int | None]] = {}
        """(index, term) -> the entry and the term of the one before it."""

    def on_write(self, node: NodeView, write: Write) -> None:
        entries = write.entries
        if not entries:
            return
        known = self._known
        previous = node.log.term_at(entries[0].index - 1)
        if entries[-1].term > node.term:
            raise InvariantBroken(
                self.name,
                f"node {node.id} has {describe_entry(entries[-1])} in its term {node.term}",
            )
        for entry in entries:
            place = (entry.index, entry.term)
            found = known.get(place)
            if found is None:
                known[place] = (entry, previous)
            elif (found[0] is not entry and found[0] != entry) or (
                previous is not None and found[1] is not None and found[1] != previous
            ):
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} has {describe_entry(entry)} after term {previous}; "
                    f"elsewhere it is {describe_entry(found[0])} after term {found[1]}",
                )
            previous = entry.term


class LeaderCompleteness(Checker):
    """A new leader has every entry that any node committed in an earlier term.

    Because of log matching, checking the last of them is enough.
    """

    name = "leader completeness"

    def __init__(self, committed_log: CommittedLog) -> None:
        self._committed_log = committed_log

    def on_role(self, node: NodeView) -> None:
        if node.role is not Role.LEADER:
            return
        log = node.log
        index = self._committed_log.committed_before(node.term)
        if index <= log.snapshot_index:
            return
        term = self._committed_log.term_at(index)
        found = log.term_at(index) if index <= log.last else None
        if term is not None and found != term:
            raise InvariantBroken(
                self.name,
                f"node {node.id} leads term {node.term} with term {found} at {index}, where an "
                f"entry of term {term} is committed",
            )
