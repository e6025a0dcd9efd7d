"""Heartbeats between processes, without messages: what they would say follows from the network.

A peer's process that is reached answers. It is silent while it is paused, cut off or without power.
Where the kernel of its machine refuses connections, it does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bascule.heartbeats.silence import LIMIT_NS_MIN
from bascule.host.api import Clock
from bascule.sim.cluster.world.loop import NS, process_now
from bascule.sim.cluster.world.network import StreamNetwork, node_at
from bascule.sim.cluster.world.sockets import SimSocket

Address = tuple[str, int]
REACHED: Final = 0
REFUSED: Final = 1
SILENT: Final = 2


class SimHeartbeats:
    """In place of `heartbeats.peer_heartbeats.PeerHeartbeats`."""

    def __init__(
        self,
        node_id: int,
        cluster: str,
        incarnation: int,
        clock: Clock,
        *,
        on_lost: Callable[[int], None],
    ) -> None:
        self.process = process_now()
        self.incarnation = incarnation
        self._board: HeartbeatBoard = self.process.machine.world.heartbeats
        self._on_lost = on_lost
        self._status: dict[int, int] = {}
        self._since_ns: dict[int, int] = {}
        self._known: dict[int, int] = {}
        """Peer -> the incarnation that has answered."""

    def start(self) -> None:
        self._board.running[self.process.machine.node] = self
        self._board.look()

    def set_peers(self, peers: Mapping[int, Address]) -> None:
        wanted = [node for node in peers if node != self.process.machine.node]
        for node in [node for node in self._status if node not in wanted]:
            del self._status[node]
            self._known.pop(node, None)
        for node in wanted:
            if node not in self._status:
                self._status[node], self._since_ns[node] = SILENT, self.process.loop.now_ns
                assert node_at(peers[node][0]) == node
        self._board.look()

    def look(self) -> None:
        """Something has changed."""
        loop, board, node = self.process.loop, self._board, self.process.machine.node
        for peer, before in list(self._status.items()):
            status, incarnation = board.status(node, peer)
            if status == REACHED:
                self._known[peer] = incarnation
            if status == before:
                continue
            self._status[peer], self._since_ns[peer] = status, loop.now_ns
            if status == REFUSED:
                loop.at_ns(loop.now_ns + NS // 1000, self.process.context, self._check, peer)
            elif status == SILENT:
                loop.at_ns(loop.now_ns + LIMIT_NS_MIN, self.process.context, self._check, peer)

    def on_resumed(self, paused_ns: int) -> None:
        """The time in which this process did not run says nothing."""
        for peer in self._since_ns:
            self._since_ns[peer] += paused_ns
            self.process.loop.at_ns(
                self._since_ns[peer] + LIMIT_NS_MIN, self.process.context, self._check, peer
            )

    def _check(self, peer: int) -> None:
        if self._reason(peer):
            self._on_lost(peer)

    def _reason(self, peer: int) -> str:
        status = self._status.get(peer, REACHED)
        if status == REFUSED:
            return f"nobody listens at node {peer}"
        silent_ns = self.process.loop.now_ns - self._since_ns.get(peer, 0)
        if status == SILENT and peer in self._known and silent_ns >= LIMIT_NS_MIN:
            return f"no heartbeat for {silent_ns / NS:.1f} s"
        return ""

    async def adopt(self, sock: SimSocket) -> None:
        """Nobody connects for heartbeats."""
        sock.close()

    def loss(self, node: int, incarnation: int) -> str:
        return self._reason(node) if self._known.get(node) == incarnation else ""

    def round_trips_ns(self) -> dict[int, int]:
        """Longer the further two numbers are apart, so that payloads prefer some nodes."""
        node = self.process.machine.node
        reached = (peer for peer, status in self._status.items() if status == REACHED)
        return {peer: abs(peer - node) * NS // 5_000 for peer in reached}

    def statistics(self) -> dict[str, Any]:
        return {"longest_ns": {}}

    async def close(self) -> None:
        if self._board.running.get(self.process.machine.node) is self:
            del self._board.running[self.process.machine.node]
        self._status.clear()
        self._board.look()


class HeartbeatBoard:
    """Which processes answer each other."""

    def __init__(self, network: StreamNetwork) -> None:
        self._network = network
        self.running: dict[int, SimHeartbeats] = {}

    def look(self) -> None:
        """Links, machines or processes have changed."""
        for each in list(self.running.values()):
            if each.process.is_dead:
                del self.running[each.process.machine.node]
        for each in list(self.running.values()):
            each.look()

    def status(self, node: int, peer: int) -> tuple[int, int]:
        """What a node sees of a peer, and the incarnation of that."""
        network = self._network
        if network.has_cuts and (network.is_cut(node, peer) or network.is_cut(peer, node)):
            return SILENT, 0
        if peer in network.powerless:
            return SILENT, 0
        found = self.running.get(peer)
        if found is None:
            return REFUSED, 0
        return (SILENT if found.process.is_paused else REACHED), found.incarnation
