"""One machine through its lives: the driver of a node, under virtual time.

It does what a driver owes: sends at once, hands writes to the disk in order, sends the rest and
says so when they are done, applies one batch at a time, and hands every answer to whoever asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bascule.errors import LogFailed
from bascule.raft.effects import (
    Answer,
    Apply,
    ApplyDone,
    ReadPolicy,
    RequestOutcome,
    Write,
    WriteDone,
)
from bascule.raft.membership import MemberChange
from bascule.raft.messages import AnyMessage, EntryKind
from bascule.raft.node import RaftNode
from bascule.raft.testing.memory_store import MemoryStore
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.loop import OperationKind
from bascule.sim.raft.disk_queue import DiskQueue
from bascule.sim.raft.state import CommandResult, KeyValues

if TYPE_CHECKING:
    from bascule.sim.raft.cluster import Cluster

NEVER: Final = 1 << 62

AnswerCallback: TypeAlias = "Callable[[SimMember, Answer, CommandResult | None, Any], None]"
"""Who is told of an answer, with the effect of a proposal where it was applied here, and what was
given along with the question."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MachineTimings:
    """How a machine behaves, drawn for each; times in microseconds."""

    tick: int
    """Length of a tick on its clock."""
    busy: int = 0
    """It looks at what its node wants done so long after an input, with all that came meanwhile."""
    apply: int = 0
    """The state machine takes so long for a batch."""


class SimMember:
    """One member: its store, which outlives it, and its node while it runs."""

    __slots__ = (
        "_awaited", "_backlog", "_cluster", "_looking", "_origin", "_scheduled", "_ticked",
        "_tickets", "disk_queue", "id", "life", "machine", "node", "paused", "state", "store",
        "tick", "wrecked",
    )  # fmt: skip

    def __init__(
        self, cluster: Cluster, number: int, store: MemoryStore, machine: MachineTimings
    ) -> None:
        self._cluster = cluster
        self.id = number
        self.store = store
        self.machine = machine
        self.tick = machine.tick
        self.disk_queue = DiskQueue(cluster.loop, cluster.prng, cluster.plan.disk, store, self)
        self.node: RaftNode | None = None
        """None while the machine is down."""
        self.state = KeyValues(cluster.plan.chunk_bytes)
        self.life = 0
        self.paused = False
        self.wrecked = False
        """Its disk is destroyed: it never comes back."""
        self._backlog: list[tuple[OperationKind, Any, Any]] = []
        self._tickets: dict[int, tuple[AnswerCallback, Any]] = {}
        self._awaited: dict[int, tuple[AnswerCallback, Any, Answer]] = {}
        """By index: committed proposals that are not applied yet."""
        self._looking = False
        self._origin = 0
        self._ticked = 0
        self._scheduled = NEVER

    # -- lives --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life with what the store has."""
        cluster = self._cluster
        restored = self.store.load()
        self.node = node = RaftNode(self.id, cluster.plan.config, restored, cluster.node_random())
        self.state = KeyValues(cluster.plan.chunk_bytes)
        self.paused = self._looking = False
        self._origin, self._ticked, self._scheduled = cluster.loop.now, 0, NEVER
        cluster.checkers.on_start(node, restored)
        self._look()

    def crash(self) -> None:
        """Stop without a word; what the disk was not asked to keep is kept by dice."""
        assert self.node is not None
        self.node = None
        self.life += 1
        self.disk_queue.reset()
        self._backlog.clear()
        self._tickets.clear()
        self._awaited.clear()
        self.store.crash(self._cluster.prng)
        self._cluster.checkers.on_crash(self.id)

    def pause(self) -> None:
        """Take nothing in and do nothing, while the clock goes on."""
        self.paused = True

    def resume(self, *, clock_first: bool) -> None:
        """Go on with all that came meanwhile, having looked at the clock first or not."""
        self.paused = False
        if self.node is None:
            return
        backlog, self._backlog = self._backlog, []
        if clock_first:
            self._catch_up()
        for action, first, second in backlog:
            action(first, second)
        if self.node is not None:
            self._catch_up()
            self._look()

    # -- the clock ----------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Tell the node how many ticks have passed."""
        ticks = (self._cluster.loop.now - self._origin) // self.tick - self._ticked
        if ticks > 0:
            self._ticked += ticks
            self.node.tick(ticks)  # type: ignore[union-attr]  # called of a running node only

    def set_tick(self, tick: int) -> None:
        """A tick takes so long from now on."""
        if self.node is not None:
            self._catch_up()
        self._origin, self._ticked, self.tick = self._cluster.loop.now, 0, tick
        self._scheduled = NEVER
        if self.node is not None:
            self._look()

    def jump(self, ticks: int) -> None:
        """The clock leaps ahead."""
        if self.node is not None and not self.paused:
            self._catch_up()
            self.node.tick(ticks)
            self._look()

    def _schedule(self, node: RaftNode) -> None:
        due = node.due()
        if due is None:
            return
        when = self._origin + (self._ticked + (due or 1)) * self.tick
        if when < self._scheduled:
            # One that is due earlier stays: it finds nothing to do and asks again.
            self._scheduled = when
            loop = self._cluster.loop
            loop.at(max(loop.now, when), self.on_tick, self.life, when)

    def on_tick(self, life: int, when: int) -> None:
        if life != self.life or when != self._scheduled:
            return
        self._scheduled = NEVER
        if not self.paused:
            self._catch_up()
            self._look()

    # -- inputs -------------------------------------------------------------------------------

    def on_message(self, message: AnyMessage, _: None = None) -> None:
        node = self.node
        if node is None:
            return
        if self.paused:
            self._backlog.append((self.on_message, message, None))
            return
        self._catch_up()
        node.step(message)
        self._cluster.checkers.on_step(node, message)
        if self.machine.busy:
            self._look_later(node)
        else:
            self._look()

    def propose(
        self, payload: bytes, deadline: int | None, told: AnswerCallback, context: Any
    ) -> None:
        """Raises: NotLeader, CannotReplicate, LimitExceeded."""
        node = self.running()
        ticket = node.propose(payload, deadline_ticks=deadline)
        self._cluster.checkers.on_propose(node, ticket, payload)
        self._asked(ticket, told, context)

    def read(
        self,
        policy: ReadPolicy,
        min_index: int,
        deadline: int | None,
        told: AnswerCallback,
        context: Any,
    ) -> None:
        """Raises: NotLeader, CannotReplicate."""
        node = self.running()
        ticket = node.read(policy, min_index=min_index, deadline_ticks=deadline)
        self._cluster.checkers.on_read(node, ticket, policy, min_index)
        self._asked(ticket, told, context)

    def change_members(
        self,
        change: MemberChange,
        target: int,
        expected: int | None,
        deadline: int | None,
        told: AnswerCallback,
        context: Any,
    ) -> None:
        """Raises: NotLeader, CannotReplicate, MembersChanged."""
        node = self.running()
        ticket = node.change_members(
            change, target, expected_index=expected, deadline_ticks=deadline
        )
        self._cluster.checkers.on_change(node, ticket, change, target)
        self._asked(ticket, told, context)

    def transfer(
        self, target: int, deadline: int | None, told: AnswerCallback, context: Any
    ) -> None:
        """Raises: NotLeader, CannotReplicate."""
        self._asked(self.running().transfer(target, deadline_ticks=deadline), told, context)

    def campaign(self) -> None:
        self.running().campaign()
        self._look()

    def running(self) -> RaftNode:
        """The node of a machine that is up and not paused, at its present time."""
        assert self.node is not None
        assert not self.paused
        self._catch_up()
        return self.node

    @property
    def is_up(self) -> bool:
        return self.node is not None and not self.paused

    @property
    def waiting(self) -> int:
        """Questions that this life has not answered."""
        return len(self._tickets)

    def _asked(self, ticket: int, told: AnswerCallback, context: Any) -> None:
        if ticket in self._tickets:
            raise InvariantBroken("tickets", f"node {self.id} gave ticket {ticket} twice")
        self._tickets[ticket] = (told, context)
        if self.machine.busy:
            self._look_later(self.running())
        else:
            self._look()

    # -- what the node wants done -------------------------------------------------------------

    def _look_later(self, node: RaftNode) -> None:
        self._cluster.checkers.observe(node)
        if not self._looking:
            self._looking = True
            self._cluster.loop.after(self.machine.busy, self.on_look, self.life)

    def on_look(self, life: int, _: None) -> None:
        if life != self.life:
            return
        if self.paused:
            self._backlog.append((self.on_look, life, None))
            return
        self._look()

    def _look(self) -> None:
        """Carry out what the node wants, and arrange for its next tick."""
        self._looking = False
        node, life, checkers = self.node, self.life, self._cluster.checkers
        assert node is not None
        ready = node.ready()
        while ready is not None:
            checkers.on_ready(node, ready)
            if ready.send:
                self._cluster.send(self.id, ready.send)
            if ready.write is not None:
                self.disk_queue.ask(ready.write)
                if life != self.life:
                    return  # the disk failed, and the machine stopped
            for answer in ready.answers:
                self._answer(answer)
            if ready.apply is None:
                break
            if self.machine.apply:
                self._cluster.loop.after(self.machine.apply, self.on_applied, life, ready.apply)
                break
            node.advance(self._apply(ready.apply))
            ready = node.ready()
        else:
            checkers.observe(node)
        self._schedule(node)

    def _answer(self, answer: Answer) -> None:
        asked = self._tickets.pop(answer.ticket, None)
        if asked is None:
            raise InvariantBroken(
                "tickets", f"node {self.id} answered ticket {answer.ticket} again, or unasked"
            )
        told, context = asked
        if answer.outcome is RequestOutcome.COMMITTED and answer.index > self.state.applied:
            self._awaited[answer.index] = (told, context, answer)
        else:
            told(self, answer, None, context)

    def on_applied(self, life: int, apply: Apply) -> None:
        """The state machine's time for a batch is over."""
        if life != self.life or self.node is None:
            return
        if self.paused:
            self._backlog.append((self.on_applied, life, apply))
            return
        self._catch_up()
        self.node.advance(self._apply(apply))
        self._look()

    def _apply(self, apply: Apply) -> ApplyDone:
        state, awaited = self.state, self._awaited
        if apply.restore is not None:
            state.restore(apply.restore.chunks)
        for entry in apply.entries:
            effect = state.apply(entry.payload) if entry.kind == EntryKind.NORMAL else None
            state.applied = entry.index
            if awaited and (asked := awaited.pop(entry.index, None)) is not None:
                asked[0](self, asked[2], effect, asked[1])
        state.applied = apply.last
        for index in [index for index in awaited if index <= apply.last]:
            told, context, answer = awaited.pop(index)
            told(self, answer, None, context)  # a snapshot brought it: its effect is not known
        chunks = state.take_snapshot() if apply.take_snapshot else None
        self._cluster.checkers.on_apply(self.id, apply)
        return ApplyDone(apply.last, chunks)

    # -- the disk -----------------------------------------------------------------------------

    def on_durable(self, writes: list[Write]) -> None:
        for write in writes:
            self._cluster.checkers.on_written(self.id, write)

    def on_written(self, writes: list[Write]) -> None:
        if self.paused:
            self._backlog.append((self._on_written_late, self.life, writes))
            return
        node = self.node
        assert node is not None
        self._catch_up()
        for write in writes:
            if write.then_send:
                self._cluster.send(self.id, write.then_send)
        node.advance(WriteDone(writes[-1].number))
        self._look()

    def _on_written_late(self, life: int, writes: list[Write]) -> None:
        if life == self.life:
            self.on_written(writes)

    def on_disk_failed(self, error: LogFailed) -> None:
        """The node stops for good; the machine may start anew later."""
        self._cluster.on_disk_failed(self, error)
