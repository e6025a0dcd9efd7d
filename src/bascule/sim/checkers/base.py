"""`Checker`: the events of a run, and `Checkers`, which passes each to those that handle it."""

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
    """An invariant does not hold; `name` is its name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class LogView(Protocol):
    """The part of a node's log that checkers use."""

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
    """The part of a node that checkers use."""

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
    def synced(self) -> int: ...
    @property
    def members(self) -> Members: ...
    @property
    def log(self) -> LogView: ...


class Checker:
    """Checks one invariant. Only overridden methods are called.

    The simulator calls the methods up to `at_end`; `Checkers` derives the events of the others.
    """

    name: ClassVar[str]
    """As in docs/invariants.md."""
    steps: ClassVar[tuple[type[RaftMessage], ...]] = ()
    """The types of messages for `on_step`; empty: all."""
    sends: ClassVar[tuple[type[RaftMessage], ...]] = ()
    """The types of messages for `on_send`; empty: all."""

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        """`node` starts with what its store `restored`, the first time or after a crash."""

    def on_crash(self, node_id: int) -> None:
        """The node crashed and lost its memory."""

    def on_ready(self, node: NodeView, ready: Ready) -> None:
        """The node returned `ready`; its state is the one right after that."""

    def on_step(self, node: NodeView, message: AnyMessage) -> None:
        """The node handled `message`."""

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        """The node sent `message`, at once or after a write."""

    def on_written(self, node_id: int, write: Write) -> None:
        """`write` is done. With `sync`, it and all earlier ones are durable."""

    def on_apply(self, node_id: int, apply: Apply) -> None:
        """The state machine of the node carried out `apply`."""

    def on_propose(self, node: NodeView, ticket: int, payload: bytes) -> None:
        """The node accepted `payload`, which is unique, and returned `ticket`."""

    def on_change(self, node: NodeView, ticket: int, change: MemberChange, target: int) -> None:
        """The node accepted a change of members and returned `ticket`."""

    def on_read(self, node: NodeView, ticket: int, policy: ReadPolicy, min_index: int) -> None:
        """The node accepted a read and returned `ticket`."""

    def on_invoke(self, operation: ClientOperation) -> None:
        """A client began an operation."""

    def on_return(self, operation: ClientOperation, result: OperationResult) -> None:
        """A client's operation ended."""

    def at_end(self, nodes: Mapping[int, NodeView]) -> None:
        """The run has ended; `nodes` are the running ones."""

    def on_role(self, node: NodeView) -> None:
        """The node's role or term changed."""

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        """The node's commit index changed from `before`. `as_leader`: the node led its term
        then."""

    def on_write(self, node: NodeView, write: Write) -> None:
        """A `Ready` of the node contained `write`, which is not done yet."""

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        """A `Ready` of the node contained `answer`."""


class ObservedState:
    """A node's state when it was last observed."""

    __slots__ = ("commit", "role", "term")

    def __init__(self, commit: int, term: int) -> None:
        self.commit = commit
        self.term = term
        self.role = Role.FOLLOWER


class Checkers:
    """All checkers of a run, called in the order in which they are given.

    Its methods are those of `Checker` up to `at_end`. After each input to a node the simulator
    calls `on_ready`, or `observe` where `ready()` gave None.
    """

    def __init__(self, checkers: Iterable[Checker]) -> None:
        self.checkers = tuple(checkers)
        self._seen: dict[int, ObservedState] = {}
        self.on_invoke = self._combined("on_invoke")
        self.on_return = self._combined("on_return")
        self.on_written = self._combined("on_written")
        self.on_apply = self._combined("on_apply")
        self.on_propose = self._combined("on_propose")
        self.on_change = self._combined("on_change")
        self.on_read = self._combined("on_read")
        self.at_end = self._combined("at_end")
        self.on_crash = self._combined("on_crash")
        self._start = self._methods("on_start")
        self._ready = self._methods("on_ready")
        self._role = self._methods("on_role")
        self._commit = self._methods("on_commit")
        self._write = self._methods("on_write")
        self._answer = self._methods("on_answer")
        self._steps: dict[type, tuple[Callable[..., None], ...]] = {}
        self._sends: dict[type, tuple[Callable[..., None], ...]] = {}

    def _overriding(self, name: str) -> list[Checker]:
        return [c for c in self.checkers if getattr(type(c), name) is not getattr(Checker, name)]

    def _methods(self, name: str) -> tuple[Callable[..., None], ...]:
        return tuple(getattr(checker, name) for checker in self._overriding(name))

    def _combined(self, name: str) -> Callable[..., None]:
        """One function for all checkers with this method: the method itself, or a loop."""
        methods = self._methods(name)
        if len(methods) == 1:
            return methods[0]

        def call_all(*event: Any) -> None:
            for method in methods:
                method(*event)

        return call_all

    def _interested(self, name: str, kinds: str, message: type) -> tuple[Callable[..., None], ...]:
        return tuple(
            getattr(checker, name)
            for checker in self._overriding(name)
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
        """Report changes of the role, term or commit index of the node."""
        seen = self._seen[node.id]
        commit, term, role = node.commit, node.term, node.role
        if commit == seen.commit and term == seen.term and role is seen.role:
            return
        before = seen.commit
        # A leader that committed its own removal no longer leads.
        led = seen.role is Role.LEADER and term == seen.term
        changed = term != seen.term or role is not seen.role
        seen.commit, seen.term, seen.role = commit, term, role
        if changed:
            for method in self._role:
                method(node)
        if commit != before:
            for method in self._commit:
                method(node, before, led)
