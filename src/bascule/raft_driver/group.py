"""One Raft group of this node, as its user sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from bascule.errors import (
    BasculeError,
    Broken,
    CannotReplicate,
    Closed,
    Indeterminate,
    LaggingIndex,
    NotLeader,
)
from bascule.raft.effects import Answer, Apply, RaftState, ReadPolicy, RequestOutcome, Role
from bascule.raft.membership import MemberChange, Members
from bascule.raft.messages import EntryKind, RaftSnapshot
from bascule.raft.multi.multi_raft import MultiRaft
from bascule.raft.node import RaftNode
from bascule.raft.report import NodeReport
from bascule.raft.store import RaftStore
from bascule.raft_driver.observer import GroupObserver, report_changes
from bascule.raft_driver.state_machine import StateMachine
from bascule.raft_driver.ticker import Ticker

log = logging.getLogger("bascule.raft_driver")


class _Waiter:
    """A pending request other than a proposal."""

    __slots__ = ("future", "on_timeout")

    def __init__(self, future: asyncio.Future[int], on_timeout: Callable[[], BasculeError]) -> None:
        self.future = future
        self.on_timeout = on_timeout


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The answer to a proposal: its entry is committed, and applied on this node."""

    index: int
    term: int
    result: Any
    """What the state machine returned for the entry."""


class RaftGroup:
    """A member of one group: proposals, reads and changes of members.

    Methods belong to the driver's event loop. A request raises at once, or its future raises:

    * NotLeader: it has no effect and never will; ask the leader that it names.
    * CannotReplicate: it has no effect; try again later.
    * Indeterminate: it may take effect or not, now or later.
    * Broken, Closed: this node has left the group.
    """

    __slots__ = (
        "_awaiting_result", "_ended", "_last_leader", "_leader_waits", "_loop", "_multi_raft",
        "_observer", "_on_request", "_proposals", "_state", "_ticker", "_waiters", "machine",
        "node", "number", "store",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        node: RaftNode,
        store: RaftStore,
        machine: StateMachine,
        *,
        multi_raft: MultiRaft,
        ticker: Ticker,
        on_request: Callable[[], None],
        observer: GroupObserver | None = None,
    ) -> None:
        """Made by `RaftDriver.open_group`. `on_request` is called before each request to `node`, so
        that the driver calls `multi_raft.ready` soon."""
        self.number = number
        self.node = node
        self.store = store
        self.machine = machine
        self._multi_raft = multi_raft
        self._ticker = ticker
        self._on_request = on_request
        self._loop = asyncio.get_running_loop()
        self._proposals: dict[int, asyncio.Future[Committed]] = {}
        """By ticket: proposals whose entry is not committed."""
        self._awaiting_result: dict[int, asyncio.Future[Committed]] = {}
        """By index: proposals whose entry is committed and not applied here."""
        self._waiters: dict[int, _Waiter] = {}
        self._leader_waits: list[asyncio.Future[int]] = []
        self._last_leader = (0, 0)
        self._ended: BasculeError | None = None
        self._observer = observer
        self._state = node.state

    # -- state --------------------------------------------------------------------------------

    @property
    def leader(self) -> int:
        """The leader as far as known, else 0."""
        return self.node.leader

    @property
    def is_leader(self) -> bool:
        return self.node.role is Role.LEADER

    @property
    def members(self) -> Members:
        """The members in force, committed or not."""
        return self.node.members

    @property
    def state(self) -> RaftState:
        """Role, term, leader and members, as last reported to the observer."""
        return self._state

    @property
    def applied(self) -> int:
        """The index up to which the state machine has applied the log."""
        return self.node.applied

    def report(self) -> NodeReport:
        """The state of this node in the group, for people and metrics."""
        return self.node.report()

    # -- requests -----------------------------------------------------------------------------

    def campaign(self) -> None:
        """Start an election now. Useful where this node is the only voter: nobody else can lead.

        Raises: Broken, Closed.
        """
        self._open_node().campaign()

    def propose_nowait(
        self, payload: bytes, *, timeout_s: float | None = None
    ) -> asyncio.Future[Committed]:
        """Append `payload` to the log. When the entry is committed and applied, the future gets its
        index, its term, and the result of this node's state machine.

        Without `timeout_s` it waits until the outcome is known, however long that takes without a
        majority; with it, the future raises Indeterminate after that time, with the index and the
        term of the entry.

        Raises: NotLeader, CannotReplicate, LimitExceeded, Broken, Closed.
        """
        node = self._open_node()
        if timeout_s is None:
            ticket = node.propose(payload)
        else:
            ticket = node.propose(payload, deadline_ticks=self._ticker.ticks_for(timeout_s))
        # Not `loop.create_future()`: the same, in a third of the time.
        future: asyncio.Future[Committed] = asyncio.Future(loop=self._loop)
        self._proposals[ticket] = future
        return future

    async def propose(self, payload: bytes, *, timeout_s: float | None = None) -> Committed:
        """Like `propose_nowait`; returns what the future gets."""
        return await self.propose_nowait(payload, timeout_s=timeout_s)

    async def read(
        self,
        policy: ReadPolicy = ReadPolicy.LINEARIZABLE,
        *,
        min_index: int = 0,
        timeout_s: float | None = None,
    ) -> int:
        """Return when the state machine may be read on this node. The result is an index that it
        has applied.

        Raises: NotLeader unless `policy` is LOCAL; CannotReplicate if too many reads wait, or no
        majority confirmed this leader in time; LaggingIndex if the `min_index` of a LOCAL read was
        not applied in time; Broken, Closed.
        """
        # When a suspended process resumes, requests may arrive before its timer does.
        self._ticker.advance()
        node = self._open_node()
        ticks = None if timeout_s is None else self._ticker.ticks_for(timeout_s)
        ticket = node.read(policy, min_index=min_index, deadline_ticks=ticks)

        def late() -> BasculeError:
            if policy is ReadPolicy.LOCAL or node.commit < min_index:
                return LaggingIndex(min_index, node.applied)
            return CannotReplicate(f"no majority confirmed node {node.id} as leader in time")

        return await self._wait(ticket, late)

    async def barrier(self, index: int, *, timeout_s: float | None = None) -> int:
        """Return when this node, in any role, has applied `index`.

        Raises: LaggingIndex after `timeout_s`; Broken, Closed.
        """
        return await self.read(ReadPolicy.LOCAL, min_index=index, timeout_s=timeout_s)

    async def change_members(
        self,
        change: MemberChange,
        node: int,
        *,
        expected_index: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Add, promote or remove a member; returns the index of the committed change, which is the
        `index` of the new members.

        Raises: as `propose_nowait`; MembersChanged if the members in force are not those of
        `expected_index`; ConfigError if the change has no effect.
        """
        raft = self._open_node()
        ticks = None if timeout_s is None else self._ticker.ticks_for(timeout_s)
        ticket = raft.change_members(
            change, node, expected_index=expected_index, deadline_ticks=ticks
        )
        return await self._wait(ticket, lambda: Indeterminate("the change is not committed yet"))

    async def transfer(self, target: int, *, timeout_s: float | None = None) -> None:
        """Transfer leadership to `target`; return when another node leads, normally `target`.

        Raises: NotLeader, CannotReplicate, ConfigError; Indeterminate if no other node leads in
        time, by default an election timeout: this node may go on leading.
        """
        raft = self._open_node()
        ticks = None if timeout_s is None else self._ticker.ticks_for(timeout_s)
        ticket = raft.transfer(target, deadline_ticks=ticks)
        await self._wait(ticket, lambda: Indeterminate(f"node {target} does not lead yet"))

    async def wait_leader(self) -> int:
        """Return the leader when one is known. Raises: Broken, Closed."""
        self._check_open()
        if self.leader:
            return self.leader
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._leader_waits.append(future)
        return await future

    def _open_node(self) -> RaftNode:
        """The node, with its clock at the present tick, for one request."""
        self._check_open()
        self._on_request()
        return self._multi_raft.node(self.number)

    def _check_open(self) -> None:
        """Raises: Broken, Closed once this node has left the group."""
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)

    async def _wait(self, ticket: int, on_timeout: Callable[[], BasculeError]) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = _Waiter(future, on_timeout)
        return await future

    # -- from the driver ----------------------------------------------------------------------

    def on_answer(self, answer: Answer) -> None:
        ticket, outcome = answer.ticket, answer.outcome
        future = self._proposals.pop(ticket, None)
        if future is not None:
            if outcome is RequestOutcome.COMMITTED:
                self._awaiting_result[answer.index] = future
            elif not future.done():
                future.set_exception(self._error(answer))
            return
        waiter = self._waiters.pop(ticket)
        if waiter.future.done():
            return
        if outcome is RequestOutcome.COMMITTED or outcome is RequestOutcome.READABLE:
            waiter.future.set_result(answer.index)
        elif outcome is RequestOutcome.TIMED_OUT:
            waiter.future.set_exception(waiter.on_timeout())
        else:
            waiter.future.set_exception(self._error(answer))

    def _error(self, answer: Answer) -> BasculeError:
        if answer.outcome is RequestOutcome.NOT_LEADER:
            return NotLeader(answer.leader or None, term=self.node.term)
        return Indeterminate(
            "the entry was appended and is not known to be committed",
            index=answer.index,
            term=answer.term,
        )

    def restore(self, snapshot: RaftSnapshot) -> Awaitable[None] | None:
        """Pass a snapshot to the state machine; what is to be awaited before the next apply."""
        self._drop_results(snapshot.index)
        return self.machine.restore(snapshot)

    def apply(self, apply: Apply) -> None:
        """Pass entries to the state machine. The driver takes requested snapshots."""
        entries: Sequence[Any] = apply.entries
        if any(entry.kind for entry in entries):
            entries = [entry for entry in entries if entry.kind == EntryKind.NORMAL]
            if not entries:
                return
        results = self.machine.apply(entries)
        assert len(results) == len(entries), "a state machine returns a result for each entry"
        if waiting := self._awaiting_result:
            for entry, result in zip(entries, results, strict=True):
                future = waiting.pop(entry.index, None)
                if future is not None and not future.done():
                    future.set_result(Committed(entry.index, entry.term, result))

    def _drop_results(self, last: int) -> None:
        """A snapshot replaced committed entries. Only the nodes that applied them have the
        results."""
        for index in [index for index in self._awaiting_result if index <= last]:
            future = self._awaiting_result.pop(index)
            if not future.done():
                future.set_exception(
                    Indeterminate(
                        f"entry {index} is committed; a snapshot replaced its result", index=index
                    )
                )

    def on_state(self, state: RaftState) -> None:
        """Report a new state to the observer. What that raises is raised."""
        before, self._state = self._state, state
        self.notify_leader()
        if self._observer is not None:
            report_changes(self._observer, before, state)

    def notify_leader(self) -> None:
        """Complete `wait_leader` and log an event if the leader changed."""
        node = self.node
        seen = (node.term, node.leader)
        if seen == self._last_leader:
            return
        self._last_leader = seen
        if not node.leader:
            return
        log.info(
            "raft leader changed",
            extra={"group": self.number, "leader": node.leader, "term": node.term},
        )
        waits, self._leader_waits = self._leader_waits, []
        for future in waits:
            if not future.done():
                future.set_result(node.leader)

    def end(self, error: Broken | Closed) -> None:
        """Fail all pending requests with `error`, or Indeterminate where they may take effect."""
        if self._ended is not None:
            return
        self._ended = error
        text, places = str(error), self.node.proposal_places()
        unknown = [
            (future, *places.get(ticket, (0, 0))) for ticket, future in self._proposals.items()
        ]
        unknown += [(future, index, 0) for index, future in self._awaiting_result.items()]
        for proposal, index, term in unknown:
            if not proposal.done():
                proposal.set_exception(Indeterminate(text, index=index, term=term))
        for future in [w.future for w in self._waiters.values()] + self._leader_waits:
            if not future.done():
                future.set_exception(type(error)(*error.args))
        self._proposals.clear()
        self._awaiting_result.clear()
        self._waiters.clear()
        self._leader_waits.clear()

    @property
    def waiting(self) -> int:
        """Pending requests."""
        return len(self._proposals) + len(self._awaiting_result) + len(self._waiters)
