"""Payloads: streamed through any replica, linked by one record, read from any replica."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from crc32c import crc32c

import bascule
from bascule.errors import (
    ConfigError,
    InvalidRoute,
    PayloadDamaged,
    PublishRejected,
    UnknownPayload,
    UnknownStream,
)
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import encode_data_head, encode_message
from bascule.wire.datastream.messages import ClosePayload, OpenPayload, StreamHello
from support import commands
from support.clusters import RunningCluster, running_cluster
from support.processes import Node, running_node

MIB = 1 << 20


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("payloads")) as node:
        yield node


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("payload-cluster")) as cluster:
        yield cluster


def linked(directory: Path) -> list[Path]:
    return sorted(directory.glob("payloads/*.linked"))


def test_a_payload_is_written_and_read(node: Node) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream("models", "models.>")
            data = content(5 * MIB + 123)
            seen: list[int] = []
            async with client.open_payload(
                "models", subject="models.resnet", key="resnet",
                headers={"Kind": "weights"}, on_progress=seen.append,
            ) as out:  # fmt: skip
                for at in range(0, len(data), 300_000):
                    await out.write(data[at : at + 300_000])
            ack = out.ack
            assert ack is not None
            assert (ack.stream, ack.offset, ack.seq, ack.partition) == ("models", 0, 1, 0)
            assert (ack.payload_bytes, ack.payload_crc32c) == (len(data), crc32c(data))
            assert seen[-1] == len(data)
            assert seen == sorted(seen)
            messages = [message async for message in client.read("models")]
            (message,) = messages
            assert (message.key, message.value, message.subject) == (
                b"resnet", b"", "models.resnet",
            )  # fmt: skip
            assert message.header("Kind") == b"weights"
            assert message.header("Bascule-Payload-Id") == out.id.encode()
            assert message.header("Bascule-Payload-Bytes") == b"%d" % len(data)
            assert message.header("Bascule-Payload-CRC32C") == b"%08x" % crc32c(data)
            async with client.read_payload("models", ack.offset) as payload:
                assert payload.size == len(data)
                assert await payload.read() == data
            async with client.read_payload("models", 0, start=1000, end=2_000_000) as payload:
                assert await payload.read() == data[1000:2_000_000]

    asyncio.run(test())


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1])
def test_payloads_of_any_size(node: Node, size: int) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            name = f"sizes{size}"
            await client.create_stream(name, name)
            data = content(size)
            async with client.open_payload(name) as out:
                await out.write(data)
            assert out.ack is not None
            async with client.read_payload(name, out.ack.offset) as payload:
                assert await payload.read() == data

    asyncio.run(test())


def test_what_is_asked_wrong_is_refused(node: Node) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream("wrong", "wrong.*")
            with pytest.raises(UnknownStream):
                await client.open_payload("nothing").__aenter__()
            with pytest.raises(ConfigError, match="name that of the payload as its subject"):
                await client.open_payload("wrong").__aenter__()
            with pytest.raises(ConfigError, match="not one of stream"):
                await client.open_payload("wrong", subject="other.a").__aenter__()
            with pytest.raises(InvalidRoute, match="topology"):
                await client.open_payload("wrong", subject="wrong.a", topology="x").__aenter__()
            with pytest.raises(InvalidRoute, match="no replica"):
                await client.open_payload("wrong", subject="wrong.a", route={1: [9]}).__aenter__()
            with pytest.raises(ConfigError, match="Bascule's own"):
                await client.open_payload(
                    "wrong", subject="wrong.a", headers={"Bascule-Payload-Id": "x"}
                ).__aenter__()
            with pytest.raises(UnknownPayload):
                await client.read_payload("wrong", 0).__aenter__()
            with pytest.raises(PublishRejected, match="wrong last sequence"):
                async with client.open_payload(
                    "wrong", subject="wrong.a", headers={"Nats-Expected-Last-Sequence": "7"}
                ) as out:
                    await out.write(b"x")

    asyncio.run(test())


def test_a_payload_is_on_every_replica(cluster: RunningCluster) -> None:
    async def test() -> None:
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            await client.create_stream("all", "all", replicas=3)
            data = content(20 * MIB, seed=3)
            for topology in ("auto", "star", "chain", "tree"):
                async with client.open_payload("all", topology=topology) as out:
                    await out.write(data)
                assert out.ack is not None
                assert out.ack.replicas == 3
                assert topology in out.why or topology == "auto", out.why
            digest = hashlib.sha256(data).digest()
            for number in cluster.nodes:
                for _ in range(200):
                    files = linked(cluster.replica(number, "all"))
                    if len(files) == 4:
                        break
                    await asyncio.sleep(0.05)
                assert len(files) == 4
                for file in files:
                    assert hashlib.sha256(file.read_bytes()).digest() == digest

    asyncio.run(test())


def test_another_content_under_one_id_is_refused(node: Node) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream("resumed", "resumed")
            data = content(6 * MIB, seed=4)
            first = client.open_payload("resumed")
            await first.__aenter__()
            await first.write(data[: 4 * MIB])
            while first.acknowledged < 4 * MIB:
                await asyncio.sleep(0.01)
            first.abort()
            with pytest.raises(PayloadDamaged):
                async with client.open_payload("resumed", payload_id=first.id) as out:
                    await out.write(b"x" + data[1:])
            async with client.open_payload("resumed", payload_id=first.id) as out:
                assert out.resume_position >= 4 * MIB
                await out.write(data)
            assert out.ack is not None
            async with client.read_payload("resumed", out.ack.offset) as payload:
                assert await payload.read() == data
            async with client.open_payload("resumed", payload_id=first.id) as again:
                await again.write(data)
            assert again.ack is not None
            assert again.ack.offset == out.ack.offset, "a payload has one record"

    asyncio.run(test())


def test_the_first_node_is_killed(cluster: RunningCluster) -> None:
    async def test() -> None:
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            await client.create_stream("killed", "killed", replicas=3)
            data = content(64 * MIB, seed=5)
            async with client.open_payload("killed", topology="chain") as out:
                await out.write(data[: 32 * MIB])
                first = out.route[0][0]
                cluster.nodes[first].stop(signal.SIGKILL)
                began = time.monotonic()
                await out.write(data[32 * MIB :])
                assert out.route[0][0] != first
                assert time.monotonic() - began < 30
            cluster.nodes[first].start()
            assert out.ack is not None
            async with client.read_payload("killed", out.ack.offset) as payload:
                assert await payload.read() == data
        cluster.wait_in_sync("killed")
        digest = hashlib.sha256(data).digest()
        for number in cluster.nodes:
            (file,) = linked(cluster.replica(number, "killed"))
            assert hashlib.sha256(file.read_bytes()).digest() == digest

    asyncio.run(test())


def test_a_payload_goes_with_its_record(node: Node) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream("purged", "purged")
            for seed in range(3):
                async with client.open_payload("purged") as out:
                    await out.write(content(100_000, seed))
            directory = node.directory / "data/streams/purged/0"
            assert len(linked(directory)) == 3
            await client.purge_stream("purged", to_offset=2)
            for _ in range(600):
                if len(linked(directory)) == 1:
                    break
                await asyncio.sleep(0.05)
            (left,) = linked(directory)
            assert left.name.startswith(f"{2:020d}-")

    asyncio.run(test())


def test_the_commands(node: Node, tmp_path: Path) -> None:
    def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        server = node.addresses["http"]
        return commands.run(*arguments, "--server", server, input=data, cwd=tmp_path)

    data = content(3 * MIB + 7, seed=9)
    (tmp_path / "weights.bin").write_bytes(data)
    assert run("stream", "create", "files", "--subject", "files.>").returncode == 0
    sent = run("put", "files", "weights.bin", "--subject", "files.{name}", "--json", "-k", "{name}")
    assert sent.returncode == 0, sent.stderr
    ack = json.loads(sent.stdout)
    assert (ack["offset"], ack["payload_bytes"]) == (0, len(data))
    assert ack["payload_crc32c"] == f"{crc32c(data):08x}"
    assert run("put", "files", "-", "--subject", "files.in", data=b"hello").returncode == 0
    assert run("get", "files", "1", "-o", "-").stdout == b"hello"
    assert run("get", "files", "0").returncode == 0
    assert (tmp_path / "files-0-0").read_bytes() == data
    (tmp_path / "again.part").write_bytes(data[:MIB])
    gone_on = run("get", "files", "0", "-o", "again")
    assert b"going on behind 1,048,576 bytes" in gone_on.stderr
    assert (tmp_path / "again").read_bytes() == data
    (tmp_path / "bad.part").write_bytes(b"x" * MIB)
    damaged = run("get", "files", "0", "-o", "bad")
    assert (damaged.returncode, b"checksum" in damaged.stderr) == (6, True)
    assert not (tmp_path / "bad").exists()
    assert run("get", "files", "0", "-o", "bad").returncode == 0
    part = run("get", "files", "0", "--bytes", "10-20", "-o", "-")
    assert part.stdout == data[10:20]
    for wrong, code in (
        (("get", "files", "7"), 3), (("get", "nothing", "0"), 3),
        (("get", "files", "0", "--bytes", "9-3"), 2), (("put", "files", "weights.bin"), 2),
        (("put", "files", str(tmp_path), "--subject", "files.a"), 2),
        (("put", "files", "-", "--subject", "files.a", "--resume", "0" * 32), 2),
    ):  # fmt: skip
        refused = run(*wrong)
        assert (refused.returncode, refused.stdout) == (code, b""), wrong
        assert refused.stderr.startswith(b"error: "), wrong


def test_compaction_removes_payloads(node: Node) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream(
                "latest", "latest", cleanup=["compact"], segment_age_ms_max=1_000,
                dirty_percent_min=0, dedupe_window_ms=0,
            )  # fmt: skip
            for seed in range(6):
                async with client.open_payload("latest", key="k" if seed < 5 else "other") as out:
                    await out.write(content(50_000, seed))
            await asyncio.sleep(1.1)  # the segment ends by its age
            async with client.open_payload("latest", key="end") as out:
                await out.write(b"end")
            directory = node.directory / "data/streams/latest/0"
            left: list[int] = []
            for _ in range(1200):
                left = [int(file.name[:20]) for file in linked(directory)]
                if left[:2] == [4, 5]:
                    break
                await asyncio.sleep(0.05)
            assert left[:2] == [4, 5]
            for offset, seed in ((4, 4), (5, 5)):
                async with client.read_payload("latest", offset) as payload:
                    assert await payload.read() == content(50_000, seed)

    asyncio.run(test())


def test_a_restart_keeps_what_was_received(tmp_path: Path) -> None:
    async def send(node: Node, data: bytes) -> str:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream("kept", "kept")
            out = client.open_payload("kept")
            await out.__aenter__()
            await out.write(data[: 24 * MIB])
            while out.acknowledged < 24 * MIB:
                await asyncio.sleep(0.01)
            out.abort()
            return out.id

    async def go_on(node: Node, data: bytes, id: str) -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            async with client.open_payload("kept", payload_id=id) as out:
                assert out.resume_position == 24 * MIB
                await out.write(data)
            assert out.ack is not None
            async with client.read_payload("kept", out.ack.offset) as payload:
                assert await payload.read() == data

    data = content(26 * MIB, seed=11)
    with running_node(tmp_path) as node:
        id = asyncio.run(send(node, data))
        node.stop(signal.SIGKILL)
        node.start()
        asyncio.run(go_on(node, data, id))


def test_http_reads_payloads_and_ranges(cluster: RunningCluster) -> None:
    data = content(3 * MIB, seed=12)

    async def send() -> None:
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            await client.create_stream("served", "served", replicas=2)
            async with client.open_payload("served") as out:
                await out.write(data)

    asyncio.run(send())
    redirected = 0
    with httpx.Client(follow_redirects=True) as http:
        for node in cluster.alive():
            url = f"{node.addresses['http']}/v1/streams/served/partitions/0/payloads/0"
            whole = http.get(url)
            redirected += len(whole.history)
            assert whole.content == data
            assert whole.headers["bascule-payload-crc32c"] == f"{crc32c(data):08x}"
            part = http.get(url, headers={"Range": "bytes=1000-1999"})
            assert (part.status_code, part.content) == (206, data[1000:2000])
            assert part.headers["content-range"] == f"bytes 1000-1999/{len(data)}"
            last = http.get(url, headers={"Range": "bytes=-5"})
            assert last.content == data[-5:]
            none = http.get(url, headers={"Range": f"bytes={len(data)}-"})
            assert none.status_code == 416
            known = http.get(url, headers={"If-None-Match": whole.headers["etag"]})
            assert (known.status_code, known.content) == (304, b"")
            for asked in ({}, {"Range": "bytes=1000-1999"}, {"Range": f"bytes={len(data)}-"}):
                head = http.head(url, headers=asked)
                assert (head.status_code, head.content) == (200, b""), "only GET has ranges"
                assert head.headers["content-length"] == str(len(data))
                assert "content-range" not in head.headers
            for wrong, status in (
                ("0/payloads/1", 404),
                ("7/payloads/0", 404),
                ("0/payloads/x", 400),
            ):
                answer = http.get(url.replace("0/payloads/0", wrong))
                assert answer.status_code == status, answer.text
    assert redirected == 1


@pytest.mark.parametrize("victim", ["successor", "last", "leader"])
def test_a_node_of_the_tree_is_killed(cluster: RunningCluster, victim: str) -> None:
    name = f"tree-{victim}"
    data = content(48 * MIB, seed=20)

    async def test() -> None:
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            await client.create_stream(name, name, replicas=3)
            leader = await asyncio.to_thread(cluster.leader, name)
            async with client.open_payload(name, topology="chain") as out:
                await out.write(data[: 24 * MIB])
                chain = [out.route[0][0], *(after[0] for _, after in out.route)]
                lost = {"successor": chain[1], "last": chain[2], "leader": leader}[victim]
                cluster.nodes[lost].stop(signal.SIGKILL)
                await out.write(data[24 * MIB :])
            ack = out.ack
            assert ack is not None
            async with client.read_payload(name, ack.offset) as payload:
                assert await payload.read() == data
            cluster.nodes[lost].start()
        messages = 0
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            async for _ in client.read(name):
                messages += 1
        assert messages == 1, "a payload has one record"

    asyncio.run(test())
    cluster.wait_in_sync(name)
    digest = hashlib.sha256(data).digest()
    for number in cluster.nodes:
        (file,) = linked(cluster.replica(number, name))
        assert hashlib.sha256(file.read_bytes()).digest() == digest


class Hostile:
    """A client of the data streaming protocol that does what it likes."""

    def __init__(self, node: Node) -> None:
        host, _, port = node.addresses["client"].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def answers(self) -> list[int]:
        """The kinds of all frames until the node closes the connection."""
        found, data = [], b""
        while True:
            try:
                part = self.socket.recv(1 << 16)
            except ConnectionError:
                break
            if not part:
                break
            data += part
        while len(data) >= 5:
            found.append(data[4])
            data = data[4 + int.from_bytes(data[:4], "big") :]
        self.socket.close()
        return found


def test_a_hostile_client_costs_only_itself(node: Node) -> None:
    hello = encode_message(frames.HELLO, StreamHello())

    def opening(number: int) -> bytes:
        return encode_message(frames.OPEN, OpenPayload(f"{number:032x}", "target"))

    wrong_packets = {
        "gap": encode_data_head(5, 3, crc32c(b"abc")) + b"abc",
        "checksum": encode_data_head(0, 3, 7) + b"abc",
        "claimed length": (1 << 30).to_bytes(4, "big") + bytes([frames.DATA]) + bytes(13),
        "close with more": encode_message(frames.CLOSE, ClosePayload(10, 0)),
        "close with another checksum": encode_data_head(0, 3, crc32c(b"abc")) + b"abc"
        + encode_message(frames.CLOSE, ClosePayload(3, 1)),
        "kind": b"\0\0\0\2\xdf\0",
        "malformed": b"\0\0\0\3\xd1\0\xc1",
        "large frame": b"\x7f\xff\xff\xff\xd1\0",
    }  # fmt: skip

    async def prepare() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream("target", "target")

    asyncio.run(prepare())
    for number, (what, packet) in enumerate(wrong_packets.items()):
        client = Hostile(node)
        client.send(hello, opening(number), packet)
        assert client.answers()[-1] == frames.FAILED, what
    before_hello = Hostile(node)
    before_hello.send(opening(99))
    assert before_hello.answers() == [frames.FAILED]
    abandoned = [Hostile(node) for _ in range(300)]
    for number, client in enumerate(abandoned):
        client.send(hello, opening(1_000 + number), encode_data_head(0, 1 << 20, 0), bytes(1_000))

    async def use() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            data = content(2 * MIB, seed=30)
            async with client.open_payload("target") as out:
                await out.write(data)
            assert out.ack is not None
            assert out.ack.offset == 0, "nothing of a hostile client is in the log"
            async with client.read_payload("target", 0) as payload:
                assert await payload.read() == data

    asyncio.run(use())
    for client in abandoned:
        client.socket.close()


def test_many_payloads_at_once(cluster: RunningCluster) -> None:
    async def test() -> None:
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            await client.create_stream("many", "many", replicas=3)

            async def send(number: int) -> int:
                data = content(200_000 + number, seed=number)
                async with client.open_payload("many") as out:
                    for at in range(0, len(data), 70_000):
                        await out.write(data[at : at + 70_000])
                assert out.ack is not None
                return out.ack.offset

            offsets = await asyncio.gather(*(send(number) for number in range(200)))
            assert sorted(offsets) == list(range(200))
            for number in (0, 57, 199):
                async with client.read_payload("many", offsets[number]) as payload:
                    assert await payload.read() == content(200_000 + number, seed=number)

    asyncio.run(test())


def test_a_payload_that_no_replica_has_stops_no_copy(cluster: RunningCluster) -> None:
    """As after files were removed by hand: the record is copied, and readers get an error."""
    data = content(MIB, seed=40)

    async def send() -> None:
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            await client.create_stream("lost", "lost", replicas=2)
            for _ in range(2):
                async with client.open_payload("lost") as out:
                    await out.write(data)

    asyncio.run(send())
    cluster.wait_in_sync("lost")
    before = cluster.partition("lost")["replicas"]
    new = next(number for number in cluster.nodes if number not in before)
    for number in before:
        node = cluster.nodes[number]
        node.stop()
        linked(cluster.replica(number, "lost"))[0].unlink()
        node.start()
    cluster.wait_in_sync("lost")
    replicas = [new, before[0]]
    cluster.nodes[new].call("POST", "/v1/streams/lost/reassign", {"replicas": replicas})
    cluster.wait_moved("lost")
    assert sorted(cluster.partition("lost")["replicas"]) == sorted(replicas)

    async def read() -> None:
        async with bascule.connect(cluster.alive()[0].addresses["http"]) as client:
            assert len([message async for message in client.read("lost")]) == 2
            with pytest.raises(UnknownPayload):
                await client.read_payload("lost", 0, timeout=5).__aenter__()
            async with client.read_payload("lost", 1) as payload:
                assert await payload.read() == data

    asyncio.run(read())
    (file,) = linked(cluster.replica(new, "lost"))
    assert file.read_bytes() == data


def test_a_node_that_was_replaced_takes_nothing_back(node: Node) -> None:
    """A first node that its client has left may still run. It must not end what the next sends."""

    async def prepare() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_stream("fenced", "fenced")

    asyncio.run(prepare())
    name = node.call("GET", "/v1/cluster")["name"]
    cluster_id = node.call("GET", "/v1/node")["cluster_id"]
    data = content(1_000)

    def opened_by(number: int, attempt: int) -> Hostile:
        hello = encode_message(
            frames.HELLO, StreamHello(cluster=name, cluster_id=cluster_id, node=number)
        )
        opening = OpenPayload("f" * 32, "fenced", 0, attempt=attempt)
        found = Hostile(node)
        found.send(hello, encode_message(frames.OPEN, opening))
        return found

    left, taken = opened_by(7, 2), opened_by(8, 3)
    assert left.answers() == [frames.HELLO, frames.OPENED, frames.ACK, frames.FAILED]
    late = opened_by(7, 2)
    assert late.answers() == [frames.HELLO, frames.FAILED]
    taken.send(
        encode_data_head(0, len(data), crc32c(data)), data,
        encode_message(frames.CLOSE, ClosePayload(len(data), crc32c(data))),
    )  # fmt: skip
    answered, part = b"", b"\0"
    while part and frames.CLOSED not in answered:
        part = taken.socket.recv(4096)
        answered += part
    assert part, "the node closed the connection"
    taken.socket.close()
    foreign = Hostile(node)
    foreign.send(encode_message(frames.HELLO, StreamHello(cluster="other", node=7)))
    assert foreign.answers() == [frames.FAILED]
