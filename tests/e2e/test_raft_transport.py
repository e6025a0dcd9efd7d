"""The peer listener with unknown peers, wrong messages and full queues, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.host.real import RealRandom
from bascule.raft.codec import encode
from bascule.raft.messages import AppendRequest, Entry, Heartbeat
from bascule.raft.multi.bundle import Bundle
from bascule.raft_driver.handshake import decode_hello, encode_hello, frame
from bascule.raft_driver.peer_link import Address
from bascule.raft_driver.transport import UNAUTHENTICATED_MAX, PeerTransport
from support.nats_servers import Authority

SECONDS_MAX = 120
BLUE = ClusterIdentity("blue")


def bundle(source: int, target: int, incarnation: int, *, payload: bytes = b"x") -> Bundle:
    message = AppendRequest(source, target, 1, 0, 0, 0, (Entry(1, 1, 0, payload),))
    return Bundle(source, target, incarnation, 0, 0, 0, 0, 0, 0, messages=((7, message),))


class House:
    """A transport of node `number` with what it received."""

    def __init__(
        self,
        number: int,
        *,
        queue_bytes_max: int = 1 << 20,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        identity: ClusterIdentity | None = None,
    ) -> None:
        self.received: list[Bundle] = []
        self.news = asyncio.Event()
        self.transport = PeerTransport(
            number,
            100 + number,
            cluster=identity or BLUE,
            random=RealRandom(number),
            on_bundle=self.on_bundle,
            queue_bytes_max=queue_bytes_max,
            server_tls=server_tls,
            client_tls=client_tls,
        )
        self.address: Address = ("", 0)

    def on_bundle(self, received: Bundle) -> None:
        self.received.append(received)
        self.news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not is_so():
                await asyncio.sleep(0.01)

    def is_connected(self, peer: int) -> bool:
        return self.transport.statistics().peers[peer].connected


@contextlib.asynccontextmanager
async def houses(count: int, *, queue_bytes_max: int = 1 << 20) -> AsyncIterator[list[House]]:
    found = [House(number, queue_bytes_max=queue_bytes_max) for number in range(1, count + 1)]
    for house in found:
        house.address = await house.transport.listen("127.0.0.1", 0)
    peers = {house.transport.node_id: house.address for house in found}
    for house in found:
        house.transport.set_peers(peers)
    try:
        yield found
    finally:
        for house in found:
            await house.transport.close()


def scene(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    asyncio.run(run())


def test_bundles_pass_both_ways_in_order() -> None:
    async def work() -> None:
        async with houses(2) as (one, two):
            await one.until(lambda: one.is_connected(2) and two.is_connected(1))
            for number in range(200):
                one.transport.send(bundle(1, 2, 101, payload=b"%d" % number))
            two.transport.send(bundle(2, 1, 102, payload=bytes(300_000)))
            await two.until(lambda: len(two.received) == 200)
            payloads = [got.messages[0][1].entries[0].payload for got in two.received]  # type: ignore[union-attr]
            assert payloads == [b"%d" % number for number in range(200)]
            await one.until(lambda: len(one.received) == 1)
            assert one.received[0] == bundle(2, 1, 102, payload=bytes(300_000))
            found = one.transport.statistics()
            assert found.peers[2].frames_sent == 200
            assert found.refused == 0

    scene(work)


def test_a_peer_that_comes_back_is_dialled_again_at_once() -> None:
    async def work() -> None:
        async with houses(2) as (one, two):
            await one.until(lambda: one.is_connected(2))
            await two.transport.close()
            await one.until(lambda: not one.is_connected(2))
            one.transport.send(bundle(1, 2, 101))
            assert one.transport.statistics().peers[2].frames_dropped == 1
            again = House(2)
            await again.transport.listen(*two.address)
            again.transport.set_peers({1: one.address})
            await one.until(lambda: one.is_connected(2))
            one.transport.send(bundle(1, 2, 101))
            await again.until(lambda: len(again.received) == 1)
            assert one.transport.statistics().peers[2].connections == 2
            await again.transport.close()

    scene(work)


def lies() -> list[tuple[str, bytes]]:
    hello = encode_hello(BLUE, 2, 1, 102)
    beat = bundle(2, 1, 102)
    heartbeat = Bundle(
        2, 1, 102, 0, 0, 0, 0, 0, 0, messages=((7, Heartbeat(3, 1, 1, 0, 0)),)
    )  # in the name of node 3
    damaged = bytearray(encode(beat))
    damaged[-1] ^= 1
    return [
        ("a browser", b"GET / HTTP/1.1\r\nHost: raft\r\n\r\n"),
        ("a length of 4 GiB", b"\xff\xff\xff\xff"),
        ("a hello without an end", (4_097).to_bytes(4, "big") + bytes(4_097)),
        ("another cluster", encode_hello(ClusterIdentity("red"), 2, 1, 102)),
        ("another target", encode_hello(BLUE, 2, 3, 102)),
        ("an unknown node", encode_hello(BLUE, 9, 1, 102)),
        ("bytes for a bundle", hello + frame(b"rubbish")),
        ("a damaged bundle", hello + frame(bytes(damaged))),
        ("another's bundle", hello + frame(bytes(encode(bundle(3, 1, 102))))),
        ("another start's bundle", hello + frame(bytes(encode(bundle(2, 1, 55))))),
        ("another's message", hello + frame(bytes(encode(heartbeat)))),
        ("an empty frame", hello + bytes(4)),
        ("a frame too large", hello + (1 << 31).to_bytes(4, "big")),
    ]


@pytest.mark.parametrize(("what", "said"), lies(), ids=[what for what, _ in lies()])
def test_a_lie_costs_its_connection_and_no_more(what: str, said: bytes) -> None:
    async def work() -> None:
        async with houses(3) as (one, _, three):
            await one.until(lambda: three.is_connected(1) and one.is_connected(2))
            reader, writer = await asyncio.open_connection(*one.address)
            writer.write(said)
            async with asyncio.timeout(SECONDS_MAX):
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1 << 16):
                        pass
            writer.close()
            assert not one.received, what
            assert one.transport.statistics().refused == 1
            three.transport.send(bundle(3, 1, 103))
            await one.until(lambda: len(one.received) == 1)

    scene(work)


def test_clusters_of_one_name_do_not_mix(caplog: pytest.LogCaptureFixture) -> None:
    """Node 3 of another cluster has the address of node 1 from before. Both sides say so, once."""

    async def work() -> None:
        ours, theirs = ClusterIdentity("blue", "ours"), ClusterIdentity("blue", "theirs")
        one, two = House(1, identity=ours), House(2, identity=ours)
        stray = House(3, identity=theirs)
        for house in (one, two, stray):
            house.address = await house.transport.listen("127.0.0.1", 0)
        one.transport.set_peers({2: two.address, 3: stray.address})
        two.transport.set_peers({1: one.address})
        stray.transport.set_peers({1: one.address, 2: two.address})
        try:
            await one.until(lambda: one.is_connected(2) and two.is_connected(1))
            await one.until(lambda: ours.refused >= 10 and theirs.refused >= 10)
            for house in (one, two, stray):
                assert house.transport.statistics().refused >= 2
            assert not stray.is_connected(1)
            assert not stray.is_connected(2)
            assert not one.is_connected(3)
            two.transport.send(bundle(2, 1, 102))
            await one.until(lambda: len(one.received) == 1)
        finally:
            for house in (one, two, stray):
                await house.transport.close()

    scene(work)
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert said.count(("ERROR", "peer address belongs to another cluster")) == 3
    assert said.count(("WARNING", "peer of another cluster refused")) == 2, "theirs and ours"
    text = next(str(vars(each)["error"]) for each in caplog.records if each.levelname == "ERROR")
    assert "found the id theirs, expected the id ours" in text.replace(
        "found the id ours, expected the id theirs", "found the id theirs, expected the id ours"
    )
    assert "stop the node that is at a wrong address" in text


def test_a_node_that_knows_no_id_yet_is_a_peer_until_ids_are_required() -> None:
    """A release before there were ids says none."""

    async def work() -> None:
        ours, none = ClusterIdentity("blue", "ours"), ClusterIdentity("blue")
        one, two = House(1, identity=ours), House(2, identity=none)
        for house in (one, two):
            house.address = await house.transport.listen("127.0.0.1", 0)
        one.transport.set_peers({2: two.address})
        two.transport.set_peers({1: one.address})
        try:
            await one.until(lambda: one.is_connected(2) and two.is_connected(1))
            ours.requires_ids = True
            one.transport.check_again()
            await one.until(lambda: not one.is_connected(2) and not two.is_connected(1))
            await one.until(lambda: ours.refused >= 5)
            none.id = "ours"
            await one.until(lambda: one.is_connected(2) and two.is_connected(1))
            none.id = "theirs"
            two.transport.check_again()
            await one.until(lambda: not one.is_connected(2) and not two.is_connected(1))
        finally:
            for house in (one, two):
                await house.transport.close()

    scene(work)


def test_strangers_are_few_and_leave() -> None:
    async def work() -> None:
        async with houses(2) as (one, two):
            await one.until(lambda: two.is_connected(1))
            silent = [socket.create_connection(one.address) for _ in range(UNAUTHENTICATED_MAX + 5)]
            await one.until(lambda: one.transport.statistics().refused >= 5)
            two.transport.send(bundle(2, 1, 102))
            await one.until(lambda: len(one.received) == 1)
            loop = asyncio.get_running_loop()
            # The first was let in, and is sent away because it never says who it is.
            assert await loop.run_in_executor(None, silent[0].recv, 1) == b""
            for one_socket in silent:
                one_socket.close()

    scene(work)


def test_what_a_peer_does_not_take_is_dropped_and_counted() -> None:
    async def work() -> None:
        async with houses(1, queue_bytes_max=1 << 20) as (one,):
            listener = socket.create_server(("127.0.0.1", 0))
            loop = asyncio.get_running_loop()
            one.transport.set_peers({2: listener.getsockname()[:2]})
            sock, _ = await loop.run_in_executor(None, listener.accept)
            hello = await loop.run_in_executor(None, sock.recv, 4_096)
            assert decode_hello(hello[4:]).source == 1
            sock.sendall(encode_hello(BLUE, 2, 1, 7))
            await one.until(lambda: one.is_connected(2))
            for _ in range(300):
                one.transport.send(bundle(1, 2, 101, payload=bytes(100_000)))
            found = one.transport.statistics().peers[2]
            assert found.dropping
            assert found.frames_dropped > 100
            assert found.bytes_queued < (1 << 20) + 200_000
            sock.close()
            listener.close()
            await one.until(lambda: not one.is_connected(2))

    scene(work)


def test_an_answer_from_another_node_is_no_connection() -> None:
    async def work() -> None:
        async with houses(2) as (one, two):
            three = House(3)
            three.transport.set_peers({2: one.address})
            await one.until(lambda: one.is_connected(2))
            await three.until(lambda: one.transport.statistics().refused > 0)
            assert not three.is_connected(2)
            assert one.is_connected(2)
            assert two.is_connected(1)
            await three.transport.close()

    scene(work)


def test_over_tls_only_who_has_a_certificate_gets_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")

    def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca)
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.create_default_context(cafile=authority.ca)
        for context in (server, client):
            context.load_cert_chain(certificate, key)
        return server, client

    async def work() -> None:
        server, client = contexts()
        one, two = (House(n, server_tls=server, client_tls=client) for n in (1, 2))
        without = ssl.create_default_context(cafile=authority.ca)
        three = House(3, client_tls=without)
        four = House(4)
        for house in (one, two):
            house.address = await house.transport.listen("127.0.0.1", 0)
        peers = {n: ("localhost", h.address[1]) for n, h in ((1, one), (2, two))}
        for house in (one, two):
            house.transport.set_peers({**peers, 3: ("localhost", 1), 4: ("localhost", 1)})
        for stranger in (three, four):
            stranger.transport.set_peers({1: peers[1]})
        await one.until(lambda: one.is_connected(2) and two.is_connected(1))
        for number in range(50):
            one.transport.send(bundle(1, 2, 101, payload=b"%d" % number * 10_000))
        await two.until(lambda: len(two.received) == 50)
        await asyncio.sleep(0.5)  # for the strangers to have tried
        assert not three.is_connected(1)
        assert not four.is_connected(1)
        assert one.is_connected(2)
        for house in (one, two, three, four):
            await house.transport.close()

    scene(work)
