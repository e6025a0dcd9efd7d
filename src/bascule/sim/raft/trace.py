"""`Trace`: the events of a run as text, all of them or the last ones before a failure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from bascule.raft.effects import Answer, Apply, ReadPolicy, Ready, Write
from bascule.raft.membership import MemberChange
from bascule.raft.messages import AnyMessage, AppendRequest, Entry
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, NodeView
from bascule.sim.checkers.history import ClientOperation, OperationResult
from bascule.sim.loop import SECOND, SimLoop

LAST_EVENTS: Final = 60


class Trace(Checker):
    """Passes a line for each event to `write`, or keeps the last ones in `last`."""

    name = "trace"

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self.last: deque[str] = deque(maxlen=LAST_EVENTS)
        self._write = write if write is not None else self.last.append
        self._loop: SimLoop | None = None

    def begin(self, loop: SimLoop) -> None:
        """Take the time from `loop`."""
        self._loop = loop

    def note(self, node_id: int, text: str) -> None:
        """Write one line; node 0 is the simulator."""
        now = 0 if self._loop is None else self._loop.now
        who = f"n{node_id}" if node_id else "--"
        self._write(f"{now / SECOND:12.6f} {who:>3} {text}")

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        snapshot = restored.snapshot.index if restored.snapshot else 0
        entries = _entries(restored.entries)
        self.note(
            node.id,
            f"starts: term {restored.term}, voted for {restored.voted_for}, snapshot {snapshot}, "
            f"entries {entries}",
        )

    def on_crash(self, node_id: int) -> None:
        self.note(node_id, "stops")

    def on_role(self, node: NodeView) -> None:
        self.note(node.id, f"is {node.role.value} of term {node.term}")

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        self.note(node.id, f"commits up to {node.commit}, from {before}")

    def on_ready(self, node: NodeView, ready: Ready) -> None:
        if (write := ready.write) is not None:
            self.note(node.id, f"requests write {_write(write)}")
        if (apply := ready.apply) is not None and apply.restore is not None:
            self.note(node.id, f"restores the snapshot at {apply.restore.index}")

    def on_step(self, node: NodeView, message: AnyMessage) -> None:
        self.note(node.id, f"<- n{message.source} {_message(message)}")

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        self.note(node_id, f"-> n{message.target} {_message(message)}")

    def on_written(self, node_id: int, write: Write) -> None:
        self.note(node_id, f"has written {write.number}")

    def on_apply(self, node_id: int, apply: Apply) -> None:
        snapshot = ", takes a snapshot" if apply.take_snapshot else ""
        self.note(node_id, f"has applied up to {apply.last}{snapshot}")

    def on_propose(self, node: NodeView, ticket: int, payload: bytes) -> None:
        self.note(node.id, f"accepts proposal {payload!r} at {node.log.last}: ticket {ticket}")

    def on_change(self, node: NodeView, ticket: int, change: MemberChange, target: int) -> None:
        self.note(node.id, f"accepts {change.name} {target} at {node.log.last}: ticket {ticket}")

    def on_read(self, node: NodeView, ticket: int, policy: ReadPolicy, min_index: int) -> None:
        self.note(node.id, f"accepts a {policy.value} read: ticket {ticket}")

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        self.note(
            node.id, f"answers ticket {answer.ticket}: {answer.outcome.value}, index {answer.index}"
        )

    def on_invoke(self, operation: ClientOperation) -> None:
        self.note(0, f"client {operation.client} begins {_operation(operation)}")

    def on_return(self, operation: ClientOperation, result: OperationResult) -> None:
        self.note(
            0,
            f"client {operation.client} ends {_operation(operation)}: {result.status.value} "
            f"{result.value!r} {result.swapped}",
        )

    def at_end(self, nodes: Mapping[int, NodeView]) -> None:
        for node in nodes.values():
            self.note(node.id, f"ends: term {node.term}, commit {node.commit}, {node.members}")


def _entries(entries: tuple[Entry, ...]) -> str:
    """Indices at which terms begin, with the terms."""
    if not entries:
        return "none"
    parts, term = [], -1
    for entry in entries:
        if entry.term != term:
            parts.append(f"{entry.index}/t{entry.term}")
            term = entry.term
    return f"{' '.join(parts)}..{entries[-1].index}"


def _message(message: AnyMessage) -> str:
    if isinstance(message, AppendRequest):
        return (
            f"Append t{message.term} after {message.previous_index}/t{message.previous_term} "
            f"commit {message.commit}: {_entries(message.entries)}"
        )
    return repr(message)


def _write(write: Write) -> str:
    parts = [str(write.number)]
    if write.vote is not None:
        parts.append(f"vote t{write.vote[0]} n{write.vote[1]}")
    if write.truncate_from:
        parts.append(f"truncate from {write.truncate_from}")
    if write.entries:
        parts.append(f"entries {_entries(write.entries)}")
    parts += [f"chunk {c.number} of {c.count} at {c.index}" for c in write.chunks]
    if write.truncate_until:
        parts.append(f"truncate until {write.truncate_until}")
    parts += [f"delete snapshot {index}" for index, _ in write.delete_chunks]
    if write.sync:
        parts.append("sync")
    return ", ".join(parts)


def _operation(operation: ClientOperation) -> str:
    expected = f" if {operation.expected!r}" if operation.action.value == "cas" else ""
    return f"{operation.action.value} {operation.key} {operation.value!r}{expected}"
