"""The controller's sessions with the nodes: it pings each, and reports one that it has lost.

A node is lost

* when its process does not run: its heartbeats say so after 0.6 s, or at once where the kernel
  refuses connections (`ProcessLoss`);
* when its event loop has not answered a ping for `SESSION_SECONDS`;
* when another process answers in its place, or it says itself that it leads nothing any more.

Durations are those of one node's own monotonic clock. Only time counts in which that node ran: a
controller that was paused, or whose event loop was busy, does not take the others for lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, TypeAlias

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.errors import BasculeError, Broken, ConnectionGone
from bascule.host.api import Clock
from bascule.host.lasting_tasks import start_lasting
from bascule.metadata.image import Image
from bascule.model import NodeRegistration

log = logging.getLogger("bascule.controller")

SESSION_SECONDS: Final = 1.5
"""For an event loop that hangs, or a network that is cut where there are no heartbeats. On a
saturated machine a loop may take half a second to answer."""
WATCH_SECONDS: Final = 0.1
"""Between two looks at the heartbeats, besides those at once after `look`."""
STEP_SECONDS_MAX: Final = 0.15
"""A look that comes later than that was late because of this node: the rest does not count."""
PING_SECONDS: Final = 0.3
"""Between two pings of a node. Heartbeats tell sooner that its process is gone."""
PING_TIMEOUT_SECONDS: Final = 0.5
"""At least. It lasts to the end of the session: an event loop without time answers late."""
LAPSE_SECONDS: Final = 3.0
"""A node that no controller has pinged for so long leads nothing, until it is elected again. This
is longer than the election of a controller takes. What it acknowledges does not depend on it: the
followers of a deposed leader follow another one, so nothing of it is committed."""
LAPSED: Final = "it heard no controller, and leads nothing"
RESTARTED: Final = "its process was started again"
FOUND_RESTARTED: Final = "its process was started again before this node was the controller"
"""Nothing to warn of: that is how all nodes look after a start of the whole cluster."""
CLOCK_DIFFERENCE_MS_MAX: Final = 1_000
"""Between the wall clocks of a node and of the controller. NTP keeps them within some 10 ms."""
PING: Final = "ping"

ProcessLoss: TypeAlias = Callable[[int, int], str]
"""Gets a node and the incarnation of its process. Returns why that does not run, else nothing."""


class Pong(msgspec.Struct, array_like=True):
    """A node's answer to a ping."""

    incarnation: int
    applied: int
    has_lapsed: bool = False
    """Whether the node has stopped leading, and has to be elected again."""
    now_ms: int = 0
    """The wall clock of the node; 0: an earlier release."""
    lacks_nats_ms: int = 0
    """For how long the node has had no NATS connection; 0: it has one, or an earlier release, which
    does not say."""


@dataclass(eq=False, slots=True)
class _Session:
    node: NodeRegistration
    pings: asyncio.Task[None] | None = None
    report: asyncio.Task[None] | None = None
    """That the node is lost; the last one."""
    heard_at: float = 0.0
    """When its last answer came, or the session began; on the loop's clock."""
    clock_differs: bool = False
    """Whether its wall clock was said to differ from that of this node."""
    lacks_nats_ms: int | None = None
    """What its last answer said of NATS; None before the first one."""

    @property
    def is_reporting(self) -> bool:
        return self.report is not None and not self.report.done()

    def end(self) -> None:
        for task in (self.pings, self.report):
            if task is not None:
                task.cancel()


class Sessions:
    """One session with each node, while this node is the controller."""

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        *,
        process_loss: ProcessLoss,
        on_lost: Callable[[NodeRegistration, str], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """`on_lost` gets the node and the reason; it is called again until the image changes."""
        self._node_id = node_id
        self._peers = peers
        self._process_loss = process_loss
        self._on_lost = on_lost
        self._clock = clock
        self._sessions: dict[int, _Session] = {}
        self._watch: asyncio.Task[None] | None = None
        self._ran = 0.0
        """Seconds in which this node ran, and had sessions."""

    def follow(self, image: Image) -> None:
        """Have a session with every node that is alive in the image, and with no other."""
        wanted = {
            node_id: node
            for node_id, node in image.nodes.items()
            if node.alive and node_id != self._node_id
        }
        for node_id, session in list(self._sessions.items()):
            if node_id not in wanted or wanted[node_id].epoch != session.node.epoch:
                del self._sessions[node_id]
                session.end()
        for node_id, node in wanted.items():
            if node_id not in self._sessions:
                now = asyncio.get_running_loop().time()
                session = self._sessions[node_id] = _Session(node, heard_at=now)
                session.pings = start_lasting(
                    f"pings of node {node_id}", partial(self._ping_always, session)
                )
        if self._watch is None and self._sessions:
            self._watch = start_lasting("sessions", self._watch_always)

    def heard_at(self, voters: Collection[int]) -> float:
        """When a majority of the voters was heard last, on the loop's clock; this node hears
        itself always. Minus infinity if so many have no session."""
        times = sorted(
            inf if voter == self._node_id else session.heard_at if session else -inf
            for voter, session in ((voter, self._sessions.get(voter)) for voter in voters)
        )
        return times[(len(times) - 1) // 2] if times else inf

    def nats_lacks(self) -> dict[int, tuple[int, int]]:
        """Node -> the epoch of its registration, and for how many ms it has had no NATS connection,
        as it has said last; 0: it has one. Without nodes that have not said it."""
        return {
            node_id: (session.node.epoch, session.lacks_nats_ms)
            for node_id, session in self._sessions.items()
            if session.lacks_nats_ms is not None
        }

    def close(self) -> None:
        """End all sessions: this node is no longer the controller."""
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def look(self) -> None:
        """Look at the heartbeats now: they may say something new."""
        for session in self._sessions.values():
            reason = self._process_loss(session.node.node_id, session.node.incarnation)
            if reason:
                self._report(session, reason)

    async def _watch_always(self) -> None:
        """Look at the heartbeats, and count the time in which this node runs."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while True:
            self.look()
            await asyncio.sleep(WATCH_SECONDS)
            now = loop.time()
            self._ran += min(now - looked, STEP_SECONDS_MAX)
            looked = now

    async def _ping_always(self, session: _Session) -> None:
        node, heard = session.node, self._ran
        was_heard = False
        while True:
            reason = ""
            try:
                left = SESSION_SECONDS - (self._ran - heard)
                asked_ms = self._clock.now_ms()
                pong = await self._ping(node.node_id, max(left, PING_TIMEOUT_SECONDS))
            except ConnectionGone as error:
                reason = str(error)
            except (BasculeError, msgspec.MsgspecError) as error:
                if self._ran - heard >= SESSION_SECONDS:
                    reason = f"no answer for {SESSION_SECONDS} s: {error}"
            else:
                session.heard_at = asyncio.get_running_loop().time()
                self._compare_clocks(session, pong.now_ms, asked_ms)
                if pong.incarnation != node.incarnation:
                    reason = RESTARTED if was_heard else FOUND_RESTARTED
                elif pong.has_lapsed:
                    reason = LAPSED
                else:
                    heard, was_heard = self._ran, True
                    session.lacks_nats_ms = pong.lacks_nats_ms
            if reason:
                self._report(session, reason)
            await asyncio.sleep(PING_SECONDS)

    async def _ping(self, node_id: int, timeout_s: float) -> Pong:
        reply = await self._peers.control(node_id, PING, b"", timeout_s=timeout_s)
        return msgspec.msgpack.decode(reply, type=Pong)

    def _compare_clocks(self, session: _Session, told_ms: int, asked_ms: int) -> None:
        """Say so where the clock of a node, which said `told_ms` after `asked_ms` here, certainly
        differs from the one of this node, and where it does no longer."""
        now_ms = self._clock.now_ms()
        ahead_ms = max(told_ms - now_ms, 0) or min(told_ms - asked_ms, 0)
        extra = {"node": session.node.node_id, "ahead_ms": ahead_ms}
        if not told_ms or now_ms < asked_ms:
            return
        if not session.clock_differs and abs(ahead_ms) > CLOCK_DIFFERENCE_MS_MAX:
            session.clock_differs = True
            log.warning("clock of a node differs from that of the controller", extra=extra)
        elif session.clock_differs and abs(ahead_ms) <= CLOCK_DIFFERENCE_MS_MAX // 2:
            session.clock_differs = False
            log.info("clock of a node agrees with that of the controller again", extra=extra)

    def _report(self, session: _Session, reason: str) -> None:
        """Report that the node is lost, unless that is under way."""
        if not session.is_reporting:
            coroutine = self._report_lost(session.node, reason)
            session.report = asyncio.get_running_loop().create_task(coroutine)

    async def _report_lost(self, node: NodeRegistration, reason: str) -> None:
        try:
            await self._on_lost(node, reason)
        except Broken as error:
            log.debug("loss of a node not committed yet", extra={"error": str(error)})
        except BasculeError as error:
            log.warning(
                "loss of a node not committed; it is tried again",
                extra={"node": node.node_id, "error": str(error)},
            )
