"""`SimMember`: one machine through crashes and restarts, as the driver of a node in virtual time.

It performs a driver's duties: it sends at once, passes writes to the disk in order, completes them
and sends what waited for them, applies one batch at a time, and passes each answer to its request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bascule.errors import LogFailed
from bascule.raft.effects import (
    Answer,
    Apply,
    ApplyDone,
    Completion,
    ReadPolicy,
    Ready,
    RequestOutcome,
    SnapshotTaken,
    Write,
    WriteDone,
)
from bascule.raft.membership import MemberChange
from bascule.raft.messages import AnyMessage, EntryKind
from bascule.raft.multi.bundle import Bundle
from bascule.raft.multi.multi_raft import MultiRaft
from bascule.raft.node import RaftNode
from bascule.raft.testing.memory_store import MemoryStore
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.loop import Callback
from bascule.sim.raft.disk_queue import DiskQueue
from bascule.sim.raft.environment import Environment
from bascule.sim.raft.state import CommandResult, KeyValues

NEVER: Final = 1 << 62
GROUP: Final = 1
"""Number of the group in `MultiRaft`."""

AnswerCallback: TypeAlias = "Callable[[SimMember, Answer, CommandResult | None, Any], None]"
"""Called with the member, the answer, the result of a proposal that was applied here, and the
context that was passed with the request."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MachineTimings:
    """Times of one machine, in microseconds."""

    tick: int
    """Length of a tick on its clock."""
    busy: int = 0
    """Time from an input until it processes `ready`, with all inputs that came meanwhile."""
    apply: int = 0
    """Time of the state machine for a batch."""
    drain: int = 0
    """Time until the snapshot of a frozen image is complete; 0: it is at once."""


class SimMember:
    """One member: its store, which survives crashes, and its node while it runs."""

    __slots__ = (
        "_awaited", "_backlog", "_environment", "_on_disk_failed", "_origin", "_ready_scheduled",
        "_scheduled", "_ticked", "_tickets", "disk_queue", "id", "life", "multi_raft", "node",
        "paused", "state", "store", "tick", "timings", "wrecked",
    )  # fmt: skip

    def __init__(
        self,
        environment: Environment,
        number: int,
        store: MemoryStore,
        timings: MachineTimings,
        on_disk_failed: Callable[[SimMember, LogFailed], None],
    ) -> None:
        self._environment = environment
        self._on_disk_failed = on_disk_failed
        self.id = number
        self.store = store
        self.timings = timings
        self.tick = timings.tick
        self.disk_queue = DiskQueue(
            environment.loop, environment.prng, environment.plan.disk, store, self
        )
        self.node: RaftNode | None = None
        """None while the machine is down."""
        self.multi_raft: MultiRaft | None = None
        """What runs the node, where the plan has it so."""
        self.state = KeyValues(environment.plan.chunk_bytes)
        self.life = 0
        self.paused = False
        self.wrecked = False
        """Whether its disk is destroyed; it never starts again then."""
        self._backlog: list[tuple[Callback, Any, Any]] = []
        self._tickets: dict[int, tuple[AnswerCallback, Any]] = {}
        self._awaited: dict[int, tuple[AnswerCallback, Any, Answer]] = {}
        """By index: committed proposals that are not applied yet."""
        self._ready_scheduled = False
        self._origin = 0
        self._ticked = 0
        self._scheduled = NEVER

    # -- start and crash ----------------------------------------------------------------------

    def start(self) -> None:
        """Start with the contents of the store."""
        environment = self._environment
        restored = self.store.load()
        self.node = node = RaftNode(
            self.id, environment.plan.config, restored, environment.node_random()
        )
        config = environment.plan.config
        self.multi_raft = None
        if environment.plan.by_process:
            self.multi_raft = MultiRaft(
                self.id,
                self.life + 1,
                heartbeat_ticks=config.heartbeat_ticks,
                election_ticks=config.election_ticks,
            )
            self.multi_raft.add(GROUP, node)
        self.state = KeyValues(environment.plan.chunk_bytes)
        self.paused = self._ready_scheduled = False
        self._origin, self._ticked, self._scheduled = environment.loop.now, 0, NEVER
        environment.checkers.on_start(node, restored)
        self._process_ready()

    def crash(self) -> None:
        """Crash. What was not flushed to disk is lost or kept at random."""
        assert self.node is not None
        self.node = None
        self.life += 1
        self.disk_queue.reset()
        self._backlog.clear()
        self._tickets.clear()
        self._awaited.clear()
        self.store.crash(self._environment.prng)
        self._environment.checkers.on_crash(self.id)

    def pause(self) -> None:
        """Suspend the process: handle no input, while the clock goes on."""
        self.paused = True

    def resume(self, *, clock_first: bool) -> None:
        """Handle the inputs that came meanwhile. `clock_first`: advance the clock before them."""
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
            self._process_ready()

    # -- the clock ----------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Pass the ticks since the last call to the node."""
        ticks = (self._environment.loop.now - self._origin) // self.tick - self._ticked
        if ticks > 0:
            self._ticked += ticks
            self._pass_ticks(ticks)

    def _pass_ticks(self, ticks: int) -> None:
        if self.multi_raft is not None:
            self.multi_raft.tick(ticks)
        else:
            self.node.tick(ticks)  # type: ignore[union-attr]  # called of a running node only

    def set_tick(self, tick: int) -> None:
        """Change the length of a tick."""
        if self.node is not None:
            self._catch_up()
        self._origin, self._ticked, self.tick = self._environment.loop.now, 0, tick
        self._scheduled = NEVER
        if self.node is not None:
            self._process_ready()

    def jump(self, ticks: int) -> None:
        """Make the clock jump ahead."""
        if self.node is not None and not self.paused:
            self._catch_up()
            self._pass_ticks(ticks)
            self._process_ready()

    def _schedule(self, node: RaftNode) -> None:
        due = node.due() if self.multi_raft is None else self.multi_raft.due()
        if due is None:
            return
        when = self._origin + (self._ticked + (due or 1)) * self.tick
        if when < self._scheduled:
            # An event that is scheduled earlier stays; it finds nothing due and schedules again.
            self._scheduled = when
            loop = self._environment.loop
            loop.at(max(loop.now, when), self.on_tick, self.life, when)

    def on_tick(self, life: int, when: int) -> None:
        if life != self.life or when != self._scheduled:
            return
        self._scheduled = NEVER
        if not self.paused:
            self._catch_up()
            self._process_ready()

    # -- input --------------------------------------------------------------------------------

    def on_message(self, message: AnyMessage | Bundle, _: None = None) -> None:
        node = self.node
        if node is None:
            return
        if self.paused:
            self._backlog.append((self.on_message, message, None))
            return
        self._catch_up()
        self._step(node, message)
        self._process_soon()

    def _step(self, node: RaftNode, message: AnyMessage | Bundle) -> None:
        on_step = self._environment.checkers.on_step
        if not isinstance(message, Bundle):
            node.step(message)
            on_step(node, message)
            return
        assert self.multi_raft is not None
        refused = self.multi_raft.receive(message)
        for _, error in refused:
            raise error
        for _, part in message.messages:
            on_step(node, part)

    def propose(
        self, payload: bytes, deadline: int | None, on_answer: AnswerCallback, context: Any
    ) -> None:
        """Raises: NotLeader, CannotReplicate, LimitExceeded."""
        node = self.running()
        ticket = node.propose(payload, deadline_ticks=deadline)
        self._environment.checkers.on_propose(node, ticket, payload)
        self._add_request(ticket, on_answer, context)

    def read(
        self,
        policy: ReadPolicy,
        min_index: int,
        deadline: int | None,
        on_answer: AnswerCallback,
        context: Any,
    ) -> None:
        """Raises: NotLeader, CannotReplicate."""
        node = self.running()
        ticket = node.read(policy, min_index=min_index, deadline_ticks=deadline)
        self._environment.checkers.on_read(node, ticket, policy, min_index)
        self._add_request(ticket, on_answer, context)

    def change_members(
        self,
        change: MemberChange,
        target: int,
        expected: int | None,
        deadline: int | None,
        on_answer: AnswerCallback,
        context: Any,
    ) -> None:
        """Raises: NotLeader, CannotReplicate, MembersChanged."""
        node = self.running()
        ticket = node.change_members(
            change, target, expected_index=expected, deadline_ticks=deadline
        )
        self._environment.checkers.on_change(node, ticket, change, target)
        self._add_request(ticket, on_answer, context)

    def transfer(
        self, target: int, deadline: int | None, on_answer: AnswerCallback, context: Any
    ) -> None:
        """Raises: NotLeader, CannotReplicate."""
        self._add_request(
            self.running().transfer(target, deadline_ticks=deadline), on_answer, context
        )

    def campaign(self) -> None:
        self.running().campaign()
        self._process_ready()

    def running(self) -> RaftNode:
        """The node of a machine that is up and not paused, with its clock at the present tick."""
        assert self.node is not None
        assert not self.paused
        self._catch_up()
        return self.node if self.multi_raft is None else self.multi_raft.node(GROUP)

    @property
    def is_up(self) -> bool:
        return self.node is not None and not self.paused

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._tickets)

    def _add_request(self, ticket: int, on_answer: AnswerCallback, context: Any) -> None:
        if ticket in self._tickets:
            raise InvariantBroken("tickets", f"node {self.id} returned ticket {ticket} twice")
        self._tickets[ticket] = (on_answer, context)
        if self.timings.busy:
            self._schedule_ready(self.running())
        else:
            self._process_ready()

    # -- output -------------------------------------------------------------------------------

    def _schedule_ready(self, node: RaftNode) -> None:
        self._environment.checkers.observe(node)
        if not self._ready_scheduled:
            self._ready_scheduled = True
            self._environment.loop.after(self.timings.busy, self.on_ready_due, self.life)

    def on_ready_due(self, life: int, _: None) -> None:
        if life != self.life:
            return
        if self.paused:
            self._backlog.append((self.on_ready_due, life, None))
            return
        self._process_ready()

    def _process_ready(self) -> None:
        """Carry out what the node requests, and schedule its next tick."""
        self._ready_scheduled = False
        node, life, checkers = self.node, self.life, self._environment.checkers
        assert node is not None
        ready = self._ready()
        while ready is not None:
            checkers.on_ready(node, ready)
            if ready.send:
                self._environment.send(self.id, ready.send)
            if ready.write is not None:
                self.disk_queue.submit(ready.write)
                if life != self.life:
                    return  # the disk failed and the machine crashed
            for answer in ready.answers:
                self._answer(answer)
            if ready.apply is None:
                break
            if self.timings.apply:
                self._environment.loop.after(self.timings.apply, self.on_applied, life, ready.apply)
                break
            self._advance(self._apply(ready.apply))
            ready = self._ready()
        else:
            checkers.observe(node)
        self._schedule(node)

    def _ready(self) -> Ready | None:
        """What the node requests. The bundles of `MultiRaft` are sent here."""
        if self.multi_raft is None:
            assert self.node is not None
            return self.node.ready()
        found = self.multi_raft.ready()
        if found is None:
            return None
        for bundle in found.bundles:
            self._environment.send_bundle(bundle)
        return Ready(
            write=next((write for _, write in found.writes), None),
            apply=next((apply for _, apply in found.applies), None),
            answers=tuple(answer for _, answer in found.answers),
            state=next((state for _, state in found.states), None),
        )

    def _advance(self, completion: Completion, then_send: tuple[AnyMessage, ...] = ()) -> None:
        assert self.node is not None
        if self.multi_raft is not None:
            self.multi_raft.advance(GROUP, completion, then_send)
            return
        if then_send:
            self._environment.send(self.id, then_send)
        self.node.advance(completion)

    def _answer(self, answer: Answer) -> None:
        request = self._tickets.pop(answer.ticket, None)
        if request is None:
            raise InvariantBroken(
                "tickets",
                f"node {self.id} answered ticket {answer.ticket} again, or without a request",
            )
        on_answer, context = request
        if answer.outcome is RequestOutcome.COMMITTED and answer.index > self.state.applied:
            self._awaited[answer.index] = (on_answer, context, answer)
        else:
            on_answer(self, answer, None, context)

    def on_applied(self, life: int, apply: Apply) -> None:
        """The state machine has finished a batch."""
        if life != self.life or self.node is None:
            return
        if self.paused:
            self._backlog.append((self.on_applied, life, apply))
            return
        self._catch_up()
        self._advance(self._apply(apply))
        self._process_soon()

    def _process_soon(self) -> None:
        """Process `ready` together with the inputs that come until then, as a loop's turn does."""
        if self.timings.busy:
            assert self.node is not None
            self._schedule_ready(self.node)
        else:
            self._process_ready()

    def on_drained(self, life: int, taken: SnapshotTaken) -> None:
        """The chunks of a frozen image are complete."""
        if life != self.life or self.node is None:
            return
        if self.paused:
            self._backlog.append((self.on_drained, life, taken))
            return
        self._catch_up()
        self._advance(taken)
        self._process_soon()

    def _apply(self, apply: Apply) -> ApplyDone:
        state, awaited = self.state, self._awaited
        if apply.restore is not None:
            state.restore(apply.restore.chunks)
        for entry in apply.entries:
            effect = state.apply(entry.payload) if entry.kind == EntryKind.NORMAL else None
            state.applied = entry.index
            if awaited and (request := awaited.pop(entry.index, None)) is not None:
                request[0](self, request[2], effect, request[1])
        state.applied = apply.last
        for index in [index for index in awaited if index <= apply.last]:
            on_answer, context, answer = awaited.pop(index)
            on_answer(self, answer, None, context)  # a snapshot replaced the result
        chunks = state.take_snapshot() if apply.take_snapshot else None
        self._environment.checkers.on_apply(self.id, apply)
        if chunks is not None and self.timings.drain:
            taken = SnapshotTaken(apply.last, chunks)
            self._environment.loop.after(self.timings.drain, self.on_drained, self.life, taken)
            chunks = None
        return ApplyDone(apply.last, chunks)

    # -- the disk -----------------------------------------------------------------------------

    def on_durable(self, writes: list[Write]) -> None:
        for write in writes:
            self._environment.checkers.on_written(self.id, write)

    def on_written(self, writes: list[Write]) -> None:
        if self.paused:
            self._backlog.append((self._on_written_late, self.life, writes))
            return
        assert self.node is not None
        self._catch_up()
        for write in writes:
            self._advance(WriteDone(write.number), write.then_send)
        self._process_soon()

    def _on_written_late(self, life: int, writes: list[Write]) -> None:
        if life == self.life:
            self.on_written(writes)

    def on_disk_failed(self, error: LogFailed) -> None:
        """The node stops; the machine may restart later."""
        self._on_disk_failed(self, error)
