"""What nodes have measured of the ways between them, for routes of payloads.

Each node knows its round trips to others, from heartbeats, and the rates at which it could forward
payloads. A node that plans routes asks the others for theirs, at most twice a minute, and only
while payloads come. A route is planned with what is known: nobody waits for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.datastream.protocol.chains import Links, NodeLink
from bascule.errors import BasculeError

LINKS: Final = "payload-links"
"""The kind of control request for what a node has measured."""
REFRESH_SECONDS: Final = 30.0
ANSWER_SECONDS_MAX: Final = 2.0
NODES_MAX: Final = 1_000
"""Of an answer."""

_decode = msgspec.msgpack.Decoder(dict[int, tuple[int, int]]).decode


class LinkExchange:
    """`own` and `known` may be called by any thread; the rest belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        round_trips_ns: Callable[[], Mapping[int, int]],
        rates: Callable[[], Mapping[int, int]],
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._round_trips_ns = round_trips_ns
        self._rates = rates
        self._loop = asyncio.get_running_loop()
        self._others: dict[int, dict[int, tuple[int, int]]] = {}
        """What each other node has answered."""
        self._asked_at: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def own(self) -> dict[int, tuple[int, int]]:
        """Node -> round trip in ns and bytes a second; -1: not known."""
        trips, rates = self._round_trips_ns(), dict(self._rates())
        return {node: (trips.get(node, -1), rates.get(node, -1)) for node in {*trips, *rates}}

    def known(self, nodes: Collection[int]) -> Links:
        """What is known of the ways between these nodes. Asks for more, for the next time."""
        if len(nodes) > 2:  # otherwise there is nothing to choose
            self._loop.call_soon_threadsafe(self._refresh, tuple(nodes))
        found: dict[tuple[int, int], NodeLink] = {}
        for node in nodes:
            measured = self.own() if node == self._node_id else self._others.get(node, {})
            for other, link in measured.items():
                if other in nodes:
                    found[node, other] = NodeLink(*link)
        return found

    async def answer(self, body: bytes) -> bytes:
        """Answer another node."""
        return msgspec.msgpack.encode(self.own())

    async def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refresh(self, nodes: Collection[int]) -> None:
        now = self._loop.time()
        for node in nodes:
            asked_at = self._asked_at.get(node)
            if node == self._node_id or (asked_at and now - asked_at < REFRESH_SECONDS):
                continue
            self._asked_at[node] = now
            task = asyncio.create_task(self._ask(node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, node: int) -> None:
        try:
            answer = await self._peers.control(node, LINKS, b"", timeout_s=ANSWER_SECONDS_MAX)
            found = _decode(answer)
        except (BasculeError, msgspec.MsgspecError):
            self._others.pop(node, None)  # it is gone, or has an earlier release
            return
        if len(found) <= NODES_MAX:
            self._others[node] = found
