"""What a checker is told, and the fan-out that tells only those who listen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol

from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, Apply, ReadPolicy, Ready, Role, Write
from bascule.raft.membership import MemberChange, Members
from bascule.raft.messages import AnyMessage, Entry, RaftMessage, RaftSnapshot
from bascule.raft.store import PersistentState
from bascule.sim.checkers.history import ClientOperation, OperationResult


class InvariantBroken(AssertionError):
    """What must always hold does not. `name` is that of the invariant."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class LogView(Protocol):
    """What checkers look at in a node's log."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def snapshot(self) -> RaftSnapshot | None: ...
    @property
    def snapshot_index(self) -> int: ...
    @property
    def snapshot_term(self) -> int: ...
    def term_at(self, index: int, /) -> int | None: ...
    def entry(self, index: int, /) -> Entry: ...
    def __len__(self) -> int: ...


class NodeView(Protocol):
    """What checkers look at in a node."""

    @property
    def id(self) -> int: ...
    @property
    def config(self) -> RaftConfig: ...
    @property
    def term(self) -> int: ...
    @property
    def voted_for(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def commit(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def members(self) -> Members: ...
    @property
    def log(self) -> LogView: ...


class Checker:
    """Watches one invariant. Override what is needed: only overridden methods are ever called.

    The simulator tells the first group of methods; the second `Checkers` finds out by itself.
    """

    name: ClassVar[str]
    """As in docs/invariants.md."""
    steps: ClassVar[tuple[type[RaftMessage], ...]] = ()
    """The messages `on_step` is for; none named: all."""
    sends: ClassVar[tuple[type[RaftMessage], ...]] = ()
    """The messages `on_send` is for; none named: all."""

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        """`node` begins to live on what its store `restored`, at first and after each crash."""

    def on_crash(self, node_id: int) -> None:
        """The node is gone with everything in its memory."""

    def on_ready(self, node: NodeView, ready: Ready) -> None:
        """The node handed over `ready`; it is as it was right after that."""

    def on_step(self, node: NodeView, message: AnyMessage) -> None:
        """The node was given `message`."""

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        """`message` left the node, at once or after its write."""

    def on_written(self, node_id: int, write: Write) -> None:
        """`write` is done: on the disk where it has `sync`, and then all before it too."""

    def on_apply(self, node_id: int, apply: Apply) -> None:
        """The state machine of the node did `apply`."""

    def on_propose(self, node: NodeView, ticket: int, payload: bytes) -> None:
        """The node took `payload`, which nobody ever proposes again, and gave `ticket`."""

    def on_change(self, node: NodeView, ticket: int, change: MemberChange, target: int) -> None:
        """The node took a change of the members and gave `ticket`."""

    def on_read(self, node: NodeView, ticket: int, policy: ReadPolicy, min_index: int) -> None:
        """The node took a read and gave `ticket`."""

    def on_invoke(self, operation: ClientOperation) -> None:
        """A client began an operation."""

    def on_return(self, operation: ClientOperation, result: OperationResult) -> None:
        """A client's operation came back."""

    def at_end(self, nodes: Mapping[int, NodeView]) -> None:
        """The run is over; `nodes` are those alive."""

    def on_role(self, node: NodeView) -> None:
        """The node's role or term is another than before."""

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        """The node's commit index was `before`, also where it fell. `as_leader`: it was the leader
        of its term then."""

    def on_write(self, node: NodeView, write: Write) -> None:
        """A `Ready` of the node held `write`; the disk has not seen it yet."""

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        """A `Ready` of the node held `answer`."""


class ObservedState:
    """A node's state as it was when it was last looked at."""

    __slots__ = ("commit", "role", "term")

    def __init__(self, commit: int, term: int) -> None:
        self.commit = commit
        self.term = term
        self.role = Role.FOLLOWER


class Checkers:
    """All checkers of a run, told in the order in which they were given.

    Its methods are those of the first group of `Checker`. After each input to a node the simulator
    calls `on_ready`, or `observe` where `ready()` gave None.
    """

    def __init__(self, checkers: Iterable[Checker]) -> None:
        self.checkers = tuple(checkers)
        self._seen: dict[int, ObservedState] = {}
        self.on_invoke = self._both("on_invoke")
        self.on_return = self._both("on_return")
        self.on_written = self._both("on_written")
        self.on_apply = self._both("on_apply")
        self.on_propose = self._both("on_propose")
        self.on_change = self._both("on_change")
        self.on_read = self._both("on_read")
        self.at_end = self._both("at_end")
        self.on_crash = self._both("on_crash")
        self._start = self._methods("on_start")
        self._ready = self._methods("on_ready")
        self._role = self._methods("on_role")
        self._commit = self._methods("on_commit")
        self._write = self._methods("on_write")
        self._answer = self._methods("on_answer")
        self._steps: dict[type, tuple[Callable[..., None], ...]] = {}
        self._sends: dict[type, tuple[Callable[..., None], ...]] = {}

    def _listeners(self, name: str) -> list[Checker]:
        return [c for c in self.checkers if getattr(type(c), name) is not getattr(Checker, name)]

    def _methods(self, name: str) -> tuple[Callable[..., None], ...]:
        return tuple(getattr(checker, name) for checker in self._listeners(name))

    def _both(self, name: str) -> Callable[..., None]:
        """One call for all who listen: nothing, the method itself, or a loop."""
        methods = self._methods(name)
        if len(methods) == 1:
            return methods[0]

        def tell(*event: Any) -> None:
            for method in methods:
                method(*event)

        return tell

    def _interested(self, name: str, kinds: str, message: type) -> tuple[Callable[..., None], ...]:
        return tuple(
            getattr(checker, name)
            for checker in self._listeners(name)
            if not (wanted := getattr(checker, kinds)) or message in wanted
        )

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._seen[node.id] = ObservedState(node.commit, node.term)
        for method in self._start:
            method(node, restored)
        self.observe(node)

    def on_step(self, node: NodeView, message: AnyMessage) -> None:
        methods = self._steps.get(kind := type(message))
        if methods is None:
            methods = self._steps[kind] = self._interested("on_step", "steps", kind)
        for method in methods:
            method(node, message)

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        methods = self._sends.get(kind := type(message))
        if methods is None:
            methods = self._sends[kind] = self._interested("on_send", "sends", kind)
        for method in methods:
            method(node_id, message)

    def on_ready(self, node: NodeView, ready: Ready) -> None:
        self.observe(node)
        if (write := ready.write) is not None:
            for method in self._write:
                method(node, write)
        for answer in ready.answers:
            for method in self._answer:
                method(node, answer)
        for method in self._ready:
            method(node, ready)

    def observe(self, node: NodeView) -> None:
        """Look whether role, term or commit index of the node changed."""
        seen = self._seen[node.id]
        commit, term, role = node.commit, node.term, node.role
        if commit == seen.commit and term == seen.term and role is seen.role:
            return
        before = seen.commit
        # It may have committed its own removal, and lead no more.
        led = seen.role is Role.LEADER and term == seen.term
        changed = term != seen.term or role is not seen.role
        seen.commit, seen.term, seen.role = commit, term, role
        if changed:
            for method in self._role:
                method(node)
        if commit != before:
            for method in self._commit:
                method(node, before, led)
