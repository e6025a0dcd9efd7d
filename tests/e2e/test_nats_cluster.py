"""A NATS cluster whose servers die, and one that leaves politely."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import bascule
from bascule.client import Acks
from bascule.record.batch import RecordBatch, scan_batches
from support.nats_servers import Cluster, eventually, metric
from support.processes import BIN, NatsServer, Node, RawNats, running_node

ROUNDS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    try:
        yield made
    finally:
        made.stop()


def stored_values(node: Node, name: str) -> list[bytes]:
    """Every record of the stream in order of offset, from the files."""
    found: list[bytes] = []
    for path in sorted((node.directory / "data/streams" / name / "0").glob("*.log")):
        data = path.read_bytes()
        for batch in scan_batches(data, origin=str(path)):
            assert batch.start >= 0
            for record in RecordBatch(memoryview(data)[batch.start : batch.end]):
                assert record.offset == len(found)
                found.append(record.value or b"")
    return found


LONG_LAME_DUCK = 'lame_duck_duration: "10m"\nlame_duck_grace_period: "5m"'
"""So that on a loaded machine, too, clients leave before they are sent away."""


class Publisher(threading.Thread):
    """Publishes numbered messages with acks through the Python client until told to stop."""

    def __init__(self, node: Node, nats: str) -> None:
        super().__init__(daemon=True)
        self.http = node.addresses["http"]
        self.nats = nats
        self.acked = 0
        self.stopping = threading.Event()
        self.acks: Acks | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.acks = asyncio.run(self.publish())
        except BaseException as error:
            self.error = error

    async def publish(self) -> Acks:
        async def numbers() -> AsyncIterator[tuple[str, bytes]]:
            number = 0
            while not self.stopping.is_set():
                yield "s.x", b"%d" % number
                number += 1
                if number % 50 == 0:
                    await asyncio.sleep(0.005)

        def on_progress(count: int) -> None:
            self.acked = count

        async with bascule.connect(self.http, nats=self.nats) as client:
            return await client.publish_many(
                numbers(), window=500, timeout=120, on_progress=on_progress
            )

    def wait_more(self, count: int = 300) -> None:
        aim = self.acked + count
        eventually(
            lambda: self.acked >= aim or self.error is not None,
            f"{self.acked} acked, expected {aim}",
        )  # fmt: skip
        assert self.error is None, self.error

    def finish(self) -> Acks:
        self.stopping.set()
        self.join(60)
        assert self.error is None, self.error
        assert self.acks is not None
        return self.acks


class OnceEach(threading.Thread):
    """Publishes messages that are all different and never sends one again; notes who is acked."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.acked: dict[bytes, int] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            port = self.cluster.servers[number % len(self.cluster.servers)].port
            try:
                connection = RawNats(port)
                connection.send(b"SUB in.> 1\r\n")
                while not self.stopping.is_set():
                    batch = range(number, number + 20)
                    number = batch.stop
                    connection.send(
                        b"".join(b"PUB s.o in.%d 8\r\nonce%04d\r\n" % (n, n) for n in batch)
                    )
                    for subject, payload in connection.messages():
                        answer = json.loads(payload)
                        value = b"once%04d" % int(subject.rsplit(b".", 1)[1])
                        self.acked[value] = answer["offset"]
            except OSError:
                # Its server was killed; what was not acked may or may not be stored.
                number += 20
                self.stopping.wait(0.05)


def connected_to(node: Node, cluster: Cluster) -> NatsServer:
    server: str = node.call("GET", "/v1/node")["nats_server"]
    port = int(server.rsplit(":", 1)[1])
    return next(s for s in cluster.servers if s.port == port)


def test_servers_are_killed_in_turn_under_acked_publishing(
    tmp_path: Path, cluster: Cluster
) -> None:
    """Node and publisher know one server each; the others are learned from it."""
    home = tmp_path / "node"
    with running_node(home, nats=cluster.servers[0].url) as node:
        node.create("s", "s.>")
        publisher = Publisher(node, cluster.servers[1].url)
        publisher.start()
        once_each = OnceEach(cluster)
        once_each.start()
        publisher.wait_more()
        for _ in range(ROUNDS):
            eventually(lambda: node.call("GET", "/v1/node")["ready"], "the node has no server")
            victim = connected_to(node, cluster)
            victim.stop(signal.SIGKILL)
            publisher.wait_more()
            assert connected_to(node, cluster) is not victim
            victim.start()
            publisher.wait_more(50)
        once_each.stopping.set()
        acks = publisher.finish()
        once_each.join(30)
        disconnects = metric(node, "bascule_nats_disconnects_total")
        assert disconnects >= ROUNDS
        assert metric(node, "bascule_nats_connects_total") == disconnects + 1
        node.wait_stored("s", max(acks.offsets) + 1)
        node.stop()
        values = stored_values(node, "s")
        for number, offset in enumerate(acks.offsets):
            assert values[offset] == b"%d" % number
        # The client sends again what it has no ack for, and that may be there twice.
        once = [value for value in values if value.startswith(b"once")]
        assert len(once) == len(set(once))
        assert set(values) - set(once) == {b"%d" % number for number in range(len(acks))}
        assert len(once_each.acked) > 100
        for value, offset in once_each.acked.items():
            assert values[offset] == value
        text = node.log.read_text()
        assert "Traceback" not in text


def lame_duck(server: NatsServer) -> None:
    assert server.process is not None
    subprocess.run(
        [str(BIN / "nats-server"), "--signal", f"ldm={server.process.pid}"], check=True,
        capture_output=True,
    )  # fmt: skip


def test_a_server_in_lame_duck_mode_is_left_in_time(tmp_path: Path) -> None:
    """Nothing is lost, nothing is stored twice, and no connection was cut off."""
    cluster = Cluster(tmp_path / "cluster", 2, LONG_LAME_DUCK)
    try:
        leaving, staying = cluster.servers
        with running_node(tmp_path / "node", nats=leaving.url) as node:
            node.create("s", "s.>")
            node.create("t", "t.>")
            publisher = Publisher(node, leaving.url)
            publisher.start()
            publisher.wait_more()
            lame_duck(leaving)
            eventually(lambda: connected_to(node, cluster) is staying, "the node stays")
            publisher.wait_more()
            acks = publisher.finish()
            assert leaving.process is not None
            assert leaving.process.poll() is None
            assert metric(node, "bascule_nats_moves_total") == 1
            assert metric(node, "bascule_nats_disconnects_total") == 0
            node.wait_stored("s", max(acks.offsets) + 1)
            node.stop()
            values = stored_values(node, "s")
            for number, offset in enumerate(acks.offsets):
                assert values[offset] == b"%d" % number
            assert set(values) == {b"%d" % number for number in range(len(acks))}
            assert "lame duck" in node.log.read_text()
    finally:
        cluster.stop()


def test_the_only_server_in_lame_duck_mode_is_kept_until_it_goes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", 1, LONG_LAME_DUCK)
    (server,) = cluster.servers
    try:
        with running_node(tmp_path / "node", nats=server.url) as node:
            node.create("s", "s")
            lame_duck(server)
            eventually(lambda: "lame duck" in node.log.read_text(), "no word of it")
            assert node.call("GET", "/v1/node")["ready"]
            server.stop(signal.SIGKILL)
            server.start()
            eventually(
                lambda: "nats subscriptions restored" in node.log.read_text(),
                "it did not come back",
            )
            eventually(lambda: node.call("GET", "/v1/node")["ready"], "it did not come back")
    finally:
        cluster.stop()
