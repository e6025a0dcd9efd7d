"""Checkers of state machines: what they apply, and their snapshots."""

from __future__ import annotations

from bascule.raft.effects import Apply, Write
from bascule.raft.messages import Chunk
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView
from bascule.sim.checkers.committed_log import CommittedLog, describe_entry


class ApplyOrder(Checker):
    """Every state machine applies the committed entries in order, each once after a start, with no
    gap except entries that a snapshot covers."""

    name = "applied in order"

    def __init__(self, committed_log: CommittedLog) -> None:
        self._committed_log = committed_log
        self._applied: dict[int, int] = {}

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._applied[node.id] = 0

    def on_apply(self, node_id: int, apply: Apply) -> None:
        applied = self._applied.get(node_id, 0)
        if apply.restore is not None:
            if apply.entries or apply.restore.index != apply.last or apply.last < applied:
                raise InvariantBroken(
                    self.name,
                    f"node {node_id} restores the snapshot at {apply.restore.index} as "
                    f"{apply.last}, after {applied}, with {len(apply.entries)} entries",
                )
        else:
            self._check(node_id, applied, apply)
        if apply.last > self._committed_log.last:
            raise InvariantBroken(
                self.name,
                f"node {node_id} applies up to {apply.last}; the commit index is "
                f"{self._committed_log.last}",
            )
        self._applied[node_id] = apply.last

    def _check(self, node_id: int, applied: int, apply: Apply) -> None:
        committed = self._committed_log.committed
        for entry in apply.entries:
            applied += 1
            known = committed.get(applied)
            if entry is not known and entry != known:
                raise InvariantBroken(
                    self.name,
                    f"node {node_id} applies {describe_entry(entry)} as number {applied}; "
                    f"the committed entry there is {describe_entry(known) if known else None}",
                )
        if applied != apply.last:
            raise InvariantBroken(
                self.name,
                f"node {node_id} applies up to {apply.last}, and its entries end at {applied}",
            )


class SnapshotsAgree(Checker):
    """Snapshots at one index are equal on all members, chunk by chunk, with the members in force at
    that index, and they cover committed entries."""

    name = "snapshots agree"

    def __init__(self, committed_log: CommittedLog) -> None:
        self._committed_log = committed_log
        self._known: dict[tuple[int, int], Chunk] = {}

    def on_write(self, node: NodeView, write: Write) -> None:
        for chunk in write.chunks:
            place = (chunk.index, chunk.number)
            known = self._known.setdefault(place, chunk)
            if known is not chunk and known != chunk:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} has chunk {chunk.number} of {chunk.count} of the snapshot at "
                    f"{chunk.index}, term {chunk.term}, members {chunk.members}, "
                    f"{len(chunk.data)} bytes; elsewhere it is {known.number} of {known.count}, "
                    f"term {known.term}, members {known.members}, {len(known.data)} bytes",
                )
            if known is chunk:
                self._check(node.id, chunk)

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        if restored.snapshot is not None:
            self._check(node.id, restored.snapshot.as_chunks()[0])

    def _check(self, node_id: int, chunk: Chunk) -> None:
        committed_log = self._committed_log
        term, members = committed_log.term_at(chunk.index), committed_log.members_at(chunk.index)
        if term is None or term != chunk.term:
            raise InvariantBroken(
                self.name,
                f"node {node_id} has a snapshot at {chunk.index} of term {chunk.term}; the entry "
                f"committed there is of term {term}",
            )
        if members is not None and members != chunk.members:
            raise InvariantBroken(
                self.name,
                f"node {node_id} has a snapshot at {chunk.index} with the members {chunk.members}; "
                f"in force there are {members}",
            )
