"""What nodes tell each other of the ways between them."""

from __future__ import annotations

from bascule.controller.cluster.payloads.link_exchange import LINKS, REFRESH_SECONDS, LinkExchange
from bascule.datastream.protocol.chains import NodeLink
from bascule.errors import Broken
from support.virtual_time import elapse, run_virtually

MS = 1_000_000


class World:
    """The exchanges of some nodes, which reach each other unless they are gone."""

    def __init__(self) -> None:
        self.trips: dict[int, dict[int, int]] = {}
        self.rates: dict[int, dict[int, int]] = {}
        self.gone: set[int] = set()
        self.asked: list[int] = []
        self.nodes: dict[int, LinkExchange] = {}

    def add(self, node: int, trips: dict[int, int], rates: dict[int, int]) -> None:
        self.trips[node], self.rates[node] = trips, rates
        self.nodes[node] = LinkExchange(
            node, self, lambda: self.trips[node], lambda: self.rates[node]
        )

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """See `Peers`."""
        assert kind == LINKS
        self.asked.append(node)
        if node in self.gone:
            raise Broken(f"node {node} is gone")
        return await self.nodes[node].answer(body)


def test_a_node_knows_what_others_have_measured() -> None:
    async def scene() -> None:
        world = World()
        world.add(1, {2: MS, 3: 2 * MS}, {2: 5_000_000})
        world.add(2, {3: 4 * MS}, {3: 7_000_000, 4: 1})
        world.add(3, {1: 2 * MS}, {})
        own = {(1, 2): NodeLink(MS, 5_000_000), (1, 3): NodeLink(2 * MS)}
        await elapse(1)
        assert world.nodes[1].known((1, 2, 3)) == own, "nobody waits for an answer"
        await elapse(1)
        every = {**own, (2, 3): NodeLink(4 * MS, 7_000_000), (3, 1): NodeLink(2 * MS)}
        assert world.nodes[1].known((1, 2, 3)) == every, "without node 4, which has no replica"
        assert sorted(world.asked) == [2, 3]
        world.rates[2] = {}
        world.gone.add(3)
        await elapse(REFRESH_SECONDS / 2)
        assert world.nodes[1].known((1, 2, 3)) == every
        await elapse(REFRESH_SECONDS / 2)
        assert world.nodes[1].known((1, 2, 3)) == every
        await elapse(1)
        assert world.nodes[1].known((1, 2, 3)) == {**own, (2, 3): NodeLink(4 * MS)}
        assert sorted(world.asked) == [2, 2, 3, 3], "twice a minute at most"
        await world.nodes[1].close()

    run_virtually(scene())


def test_two_nodes_ask_for_nothing() -> None:
    async def scene() -> None:
        world = World()
        world.add(1, {2: MS}, {})
        assert world.nodes[1].known((1, 2)) == {(1, 2): NodeLink(MS)}
        await elapse(1)
        assert world.asked == []

    run_virtually(scene())
