"""Payloads in simulated clusters, and the sockets on which they are streamed."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
from crc32c import crc32c

from bascule.record.payload_links import Payload
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.installation import installed
from bascule.sim.cluster.payloads.drawn import SHARE, draw_payloads
from bascule.sim.cluster.payloads.history import PayloadHistory, SentPayload
from bascule.sim.cluster.plan import ClusterFault, ClusterPlan, draw_plan
from bascule.sim.cluster.run import ClusterOptions, run_seed
from bascule.sim.cluster.simulation import make_prng
from bascule.sim.cluster.streams import StreamTrait
from bascule.sim.cluster.trace import ClusterTrace
from bascule.sim.cluster.world.loop import NS, ClusterLoop
from bascule.sim.cluster.world.network import host_of
from bascule.sim.cluster.world.process import SimProcess
from bascule.sim.cluster.world.sockets import SEND_BYTES, ListeningSocket, SimSocket
from bascule.sim.cluster.world.streaming import SimSelector, StreamSocketModule

pytestmark = pytest.mark.tier2

LOSSES = "kill,power loss,loss of a leader,pause,split,full disk,stalled disk"


@pytest.mark.parametrize(
    ("traits", "faults"),
    [
        ("payloads", LOSSES),
        ("payloads", "loss of a receiver"),
        ("payloads", "failed renames,kill,loss of a leader"),
        ("payloads", "purge,power loss,move of replicas,bit flips"),
        ("payloads,limited", "kill,outage"),
        ("payloads,compacted", "kill,outage"),
    ],
)
def test_payloads_outlive_faults(traits: str, faults: str) -> None:
    options = ClusterOptions(seconds=6, streams=1, groups=0, traits=traits, faults=faults)
    result = run_seed(1, options)
    assert result.payloads > 0
    assert result.payloads_read > 0


def plan_of(seed: int) -> ClusterPlan:
    return draw_plan(seed, make_prng(seed))


def test_a_share_of_the_seeds_has_payloads_and_is_the_same_otherwise() -> None:
    found = 0
    for seed in range(300):
        plan = plan_of(seed)
        with_payloads = draw_payloads(plan)
        found += with_payloads.payload_clients > 0
        has = [StreamTrait.PAYLOADS in each.traits for each in with_payloads.streams]
        assert sum(has) == (with_payloads.payload_clients > 0)
        streams = tuple(
            replace(each, traits=each.traits - {StreamTrait.PAYLOADS})
            for each in with_payloads.streams
        )
        faults = dict(with_payloads.faults)
        faults.pop(ClusterFault.RECEIVER, None)
        assert replace(with_payloads, streams=streams, payload_clients=0, faults=faults) == plan
    assert 0.7 * SHARE < found / 300 < 1.3 * SHARE
    assert draw_payloads(plan, faults=("kill",)) is plan
    assert draw_payloads(plan, traits=("compacted",)) is plan


def test_each_content_of_an_id_is_known_by_size_and_checksum() -> None:
    history = PayloadHistory()
    first, second = (history.begin("ab" * 16, "s0", 5_000, None) for _ in range(2))
    assert (first.edition, second.edition) == (0, 1)
    assert first.content == SentPayload("ab" * 16, "s1", 5_000).content
    assert first.content[:9] != second.content[:9]
    assert first.crc == crc32c(first.content)
    assert history.others(first) == [second]
    for each in (first, second):
        assert history.sent(Payload("ab" * 16, 5_000, each.crc)) is each
    assert history.sent(Payload("ab" * 16, 4_999, first.crc)) is None
    assert history.latest("s0") == [second, first]
    second.offset = 7
    assert history.latest("s0") == [first]


class Pair:
    """A connection between two processes, of which the first one has dialled."""

    def __init__(self) -> None:
        plan = plan_of(1)
        prng = make_prng(1)
        self.loop = ClusterLoop(prng)  # type: ignore[abstract]
        self.world = ClusterEnvironment(plan, prng, self.loop, ClusterTrace(self.loop))
        self.log: list[object] = []
        self.tasks: list[asyncio.Task[None]] = []

    def run(self, near: Callable[[Pair], None], far: Callable[[Pair], None]) -> None:
        """Run each on a thread of a process of its own."""
        with installed(self.loop):
            try:
                for node, function in ((1, far), (2, near)):
                    process = SimProcess(self.loop, _Host(self.world, node), 1)
                    process.context.run(
                        process.start_thread, lambda function=function: function(self), "thread"
                    )
                self.loop.run_for(60 * NS)
            finally:
                self.loop.close()


class _Host:
    def __init__(self, world: ClusterEnvironment, node: int) -> None:
        self.world, self.node, self.host = world, node, host_of(node)


ADDRESS = (host_of(1), 9092)


def accept(pair: Pair) -> SimSocket:
    """Wait for a connection."""
    listener = ListeningSocket(pair.world.network.layer, ADDRESS)
    pair.world.network.layer.register(listener)
    listener.listen(1)
    while not listener.waiting:
        pause(0.001)
    return listener.accept()[0]


def pause(seconds: float) -> None:
    SimSelector().select(seconds)


def dial() -> SimSocket:
    """Connect as the reactor does."""
    sock = StreamSocketModule.socket(socket.AF_INET, socket.SOCK_STREAM)
    selector = SimSelector()
    assert not sock.is_writable
    sock.connect_ex(ADDRESS)
    selector.register(sock, selectors.EVENT_WRITE, "data")
    ((key, events),) = selector.select(30)
    assert (key.data, events) == ("data", selectors.EVENT_WRITE)
    selector.unregister(sock)
    return sock


def test_a_bounded_socket_takes_what_the_other_side_reads() -> None:
    data = bytes(range(256)) * 400

    def near(pair: Pair) -> None:
        sock, selector, at = dial(), SimSelector(), 0
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        selector.register(sock, selectors.EVENT_WRITE, None)
        while at < len(data):
            try:
                at += sock.send(data[at:])
            except BlockingIOError:
                pair.log.append("full")
                selector.select()
        sock.close()

    def far(pair: Pair) -> None:
        sock, selector, got = accept(pair), SimSelector(), bytearray()
        selector.register(sock, selectors.EVENT_READ, None)
        room = bytearray(5_000)
        pause(5)
        assert len(sock.received) == SEND_BYTES, "nothing was read so far"
        while True:
            selector.select()
            count = sock.recv_into(memoryview(room))
            if not count:
                break
            got += room[:count]
        assert bytes(got) == data
        pair.log.append("all")

    pair = Pair()
    pair.run(near, far)
    assert pair.log.count("full") >= len(data) // SEND_BYTES
    assert pair.log[-1] == "all"


def test_who_waits_for_room_is_woken_where_the_socket_is_shut() -> None:
    """As a writer that takes a silent node for lost."""

    async def send(pair: Pair, sock: SimSocket) -> None:
        with pytest.raises(BrokenPipeError):
            await sock.send_all(bytes(2 * SEND_BYTES))
        pair.log.append("woken")

    def near(pair: Pair) -> None:
        sock = dial()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        pair.tasks.append(pair.loop.create_task(send(pair, sock)))
        pause(5)
        sock.shutdown(socket.SHUT_RDWR)

    pair = Pair()
    pair.run(near, lambda pair: accept(pair) and pause(30))
    assert pair.log == ["woken"]


def test_a_connection_that_nobody_takes_is_refused() -> None:
    def near(pair: Pair) -> None:
        pair.log.append(dial().getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    pair = Pair()
    pair.run(near, lambda _: None)
    assert pair.log == [111]


def test_a_closed_peer_is_seen_with_the_second_send() -> None:
    """As by a kernel, which answers the first one with a reset."""

    def near(pair: Pair) -> None:
        sock = dial()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        pause(5)
        sock.send(b"lost")
        with pytest.raises(OSError, match=r"pipe|reset"):
            sock.send(b"refused")
        pair.log.append("seen")

    pair = Pair()
    pair.run(near, lambda pair: accept(pair).close())
    assert pair.log == ["seen"]


def test_a_socket_is_handed_on_with_what_has_come() -> None:
    def near(pair: Pair) -> None:
        dial().send(b"one two")

    def far(pair: Pair) -> None:
        first = accept(pair)
        pause(5)
        assert first.recv(3) == b"one"
        second = first.dup()
        first.close()
        assert second.recv(9) == b" two"
        pair.log.append("handed on")

    pair = Pair()
    pair.run(near, far)
    assert pair.log == ["handed on"]
