"""Payloads: streamed through any replica, linked by one record, read from any replica."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

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
from support.clusters import RunningCluster, running_cluster
from support.processes import BIN, Node, running_node

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
            with pytest.raises(ConfigError, match="name that of the payload"):
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
        return subprocess.run(
            [str(BIN / "bascule"), *arguments, "--server", node.addresses["http"]],
            input=data, capture_output=True, check=False, cwd=tmp_path,
        )  # fmt: skip

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
            await out.write(data[: 8 * MIB])
            while out.acknowledged < 8 * MIB:
                await asyncio.sleep(0.01)
            out.abort()
            return out.id

    async def go_on(node: Node, data: bytes, id: str) -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            async with client.open_payload("kept", payload_id=id) as out:
                assert out.resume_position == 8 * MIB
                await out.write(data)
            assert out.ack is not None
            async with client.read_payload("kept", out.ack.offset) as payload:
                assert await payload.read() == data

    data = content(9 * MIB, seed=11)
    with running_node(tmp_path) as node:
        id = asyncio.run(send(node, data))
        node.stop(signal.SIGKILL)
        node.start()
        asyncio.run(go_on(node, data, id))
