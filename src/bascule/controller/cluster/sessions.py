"""The controller's sessions with the nodes: it pings each, and reports one that it has lost.

A node is lost when it has not answered for `SESSION_SECONDS`, when another process answers in its
place, or at once when the kernel says that its process is gone: the connection ended and a new one
is refused. Durations are measured on the controller's own clock, and begin anew with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.errors import BasculeError, Broken, ConnectionGone
from bascule.metadata.image import Image
from bascule.model import NodeRegistration

log = logging.getLogger("bascule.controller")

SESSION_SECONDS: Final = 1.5
PING_SECONDS: Final = 0.1
"""Between two pings of a node."""
PING_TIMEOUT_SECONDS: Final = 0.5
LAPSE_SECONDS: Final = 3.0
"""A node that no controller has pinged for so long leads nothing, until it is elected again. This
is longer than the election of a controller takes. What it acknowledges does not depend on it: the
followers of a deposed leader follow another one, so nothing of it is committed."""
LAPSED: Final = "it heard no controller, and leads nothing"
PING: Final = "ping"


class Pong(msgspec.Struct, array_like=True):
    """A node's answer to a ping."""

    incarnation: int
    applied: int
    has_lapsed: bool = False
    """Whether the node has stopped leading, and has to be elected again."""


class Sessions:
    """One task for each node, while this node is the controller."""

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        *,
        on_lost: Callable[[NodeRegistration, str], Awaitable[None]],
    ) -> None:
        """`on_lost` gets the node and the reason; it is called again until the image changes."""
        self._node_id = node_id
        self._peers = peers
        self._on_lost = on_lost
        self._tasks: dict[int, tuple[int, asyncio.Task[None]]] = {}
        """Node id -> the epoch of its registration, and the task that pings it."""

    def follow(self, image: Image) -> None:
        """Have a session with every node that is alive in the image, and with no other."""
        wanted = {
            node_id: node
            for node_id, node in image.nodes.items()
            if node.alive and node_id != self._node_id
        }
        for node_id, (epoch, _) in list(self._tasks.items()):
            if node_id not in wanted or wanted[node_id].epoch != epoch:
                self._end(node_id)
        for node_id, node in wanted.items():
            if node_id not in self._tasks:
                task = asyncio.get_running_loop().create_task(self._run(node))
                self._tasks[node_id] = node.epoch, task

    def close(self) -> None:
        """End all sessions: this node is no longer the controller."""
        for node_id in list(self._tasks):
            self._end(node_id)

    def _end(self, node_id: int) -> None:
        _, task = self._tasks.pop(node_id)
        task.cancel()

    async def _run(self, node: NodeRegistration) -> None:
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            asked = loop.time()
            reason = ""
            try:
                pong = await self._ping(node.node_id)
            except ConnectionGone as error:
                reason = str(error)
            except (BasculeError, msgspec.MsgspecError) as error:
                if loop.time() - heard > SESSION_SECONDS:
                    reason = f"no answer for {SESSION_SECONDS} s: {error}"
            else:
                if pong.incarnation != node.incarnation:
                    reason = "its process was started again"
                elif pong.has_lapsed:
                    reason = LAPSED
                else:
                    heard = asked
            if reason:
                await self._report(node, reason)
            await asyncio.sleep(PING_SECONDS)

    async def _ping(self, node_id: int) -> Pong:
        reply = await self._peers.control(node_id, PING, b"", timeout_s=PING_TIMEOUT_SECONDS)
        return msgspec.msgpack.decode(reply, type=Pong)

    async def _report(self, node: NodeRegistration, reason: str) -> None:
        try:
            await self._on_lost(node, reason)
        except Broken as error:
            log.debug("loss of a node not committed yet", extra={"error": str(error)})
        except BasculeError as error:
            log.warning(
                "loss of a node not committed; it is tried again",
                extra={"node": node.node_id, "error": str(error)},
            )
