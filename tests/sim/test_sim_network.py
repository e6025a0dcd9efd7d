"""What connections of simulated processes bring, and when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bascule.sim.cluster.simulation import make_prng
from bascule.sim.cluster.world.loop import NS, PROCESS, ClusterLoop
from bascule.sim.cluster.world.network import ConnectionEnd, LinkConditions, StreamNetwork, host_of
from bascule.sim.cluster.world.process import SimProcess


class Connection:
    """One from node 1 to node 2, and what the process of node 2 gets of it."""

    def __init__(self) -> None:
        prng = make_prng(1)
        self.loop = ClusterLoop(prng)  # type: ignore[abstract]
        self.network = StreamNetwork(self.loop, prng, LinkConditions())
        near, far = (SimProcess(self.loop, SimpleNamespace(node=node), 1) for node in (1, 2))
        self.process = far
        self.near = ConnectionEnd(self.network, near, (host_of(2), 9092))
        self.far = ConnectionEnd(self.network, far, (host_of(1), 40_000))
        self.near.peer, self.far.peer = self.far, self.near
        self.far.on_data = self._on_data
        self.far.on_end = lambda: self.got.append((PROCESS.get(), b"end"))
        self.got: list[tuple[object, bytes]] = []

    def _on_data(self, data: bytes) -> None:
        self.got.append((PROCESS.get(), data))

    def all_of(self, *expected: bytes) -> bool:
        """Whether the process got these, in its own context."""
        return self.got == [(self.process, data) for data in expected]


@pytest.fixture
def connection() -> Connection:
    return Connection()


def test_what_is_sent_comes_in_order_to_the_process_of_the_other_end(
    connection: Connection,
) -> None:
    for data in (b"1", b"2", b"3"):
        connection.near.send(data)
    connection.near.close()
    connection.loop.run_for(NS)
    assert connection.all_of(b"1", b"2", b"3", b"end")


def test_what_comes_at_the_end_of_a_pause_does_not_overtake_what_came_in_it(
    connection: Connection,
) -> None:
    process, near, loop = connection.process, connection.near, connection.loop
    process.is_paused = True
    near.send(b"1")
    near.send(b"2")
    loop.run_for(NS)
    assert connection.all_of()
    process.is_paused = False
    loop.release(process)
    near.deliver(b"3")
    assert connection.all_of()
    loop.run_for(0)
    assert connection.all_of(b"1", b"2", b"3")
    near.deliver(b"4")
    assert connection.all_of(b"1", b"2", b"3", b"4")


def test_what_comes_over_a_cut_link_comes_after_the_cut(connection: Connection) -> None:
    connection.network.cut([(1, 2)])
    connection.near.send(b"1")
    connection.loop.run_for(NS)
    assert connection.all_of()
    connection.network.restore()
    connection.near.send(b"2")
    connection.loop.run_for(NS)
    assert connection.all_of(b"1", b"2")


def test_a_link_is_cut_as_long_as_one_cut_has_not_ended(connection: Connection) -> None:
    connection.network.cut([(1, 2), (2, 1)])
    connection.network.restore([(2, 1)])
    connection.near.send(b"1")
    connection.loop.run_for(NS)
    assert connection.all_of()
