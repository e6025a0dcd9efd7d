"""Any NATS client sends a payload in chunks: nats-py to three nodes, whose leader is killed."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from crc32c import crc32c
from nats.aio.client import Client

import bascule
from bascule.wire import ack_codes
from support import http_calls
from support.clusters import RunningCluster, running_cluster
from support.processes import NatsServer

pytestmark = pytest.mark.tier3

MIB = 1 << 20
CHUNK = 512 << 10
IN_FLIGHT = 4
PIECE = random.Random(5).randbytes(CHUNK)
SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("nodes"), nats=nats_server.url) as running:
        running.nodes[1].create("models", "models.>", replicas=3)
        running.wait_in_sync("models")
        yield running


def piece(at: int) -> bytes:
    """The chunk with this number; each is another one."""
    return at.to_bytes(8, "big") + PIECE[8:]


class Sender:
    """Sends chunks as requests, a few at a time, and goes back where it is told to."""

    def __init__(self, nc: Client, subject: str, id: str) -> None:
        self.nc = nc
        self.subject = subject
        self.id = id

    async def ask(self, headers: dict[str, str], body: bytes = b"") -> dict[str, Any] | None:
        """The answer; None where none came."""
        headers = {"Bascule-Payload-Session": self.id, **headers}
        try:
            answer = await self.nc.request(self.subject, body, headers=headers, timeout=3)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            await asyncio.sleep(0.1)
            return None
        found: dict[str, Any] = json.loads(answer.data)
        return found

    async def send(self, count: int, on_sent: dict[int, Any]) -> None:
        """Send `count` chunks; before the chunk `n` call what `on_sent` has for it."""
        at = 0
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while at < count:
            assert asyncio.get_running_loop().time() < deadline
            numbers = range(at, min(at + IN_FLIGHT, count))
            for number in numbers:
                if call := on_sent.pop(number, None):
                    call()
            answers = await asyncio.gather(
                *(
                    self.ask({"Bascule-Payload-Offset": str(number * CHUNK)}, piece(number))
                    for number in numbers
                )
            )
            for answer in answers:
                if answer is None or "error" in answer:
                    if answer is not None and "next" in answer.get("payload", {}):
                        at = answer["payload"]["next"] // CHUNK
                    break
                at = max(at, answer["payload"]["next"] // CHUNK)

    async def close(self, size: int, crc: int, **headers: str) -> dict[str, Any]:
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while True:
            ack = await self.ask(
                {
                    "Bascule-Payload-Close": str(size),
                    "Bascule-Payload-CRC32C": f"{crc:08x}",
                    **{name.replace("_", "-"): value for name, value in headers.items()},
                }
            )
            if ack is not None:
                return ack
            assert asyncio.get_running_loop().time() < deadline


def checksum(count: int) -> int:
    crc = 0
    for number in range(count):
        crc = crc32c(piece(number), crc)
    return crc


def test_nats_py_sends_more_than_its_server_takes(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    count = 40
    size, crc = count * CHUNK, checksum(count)

    async def run() -> None:
        nc = await nats.connect(nats_server.url)
        sender = Sender(nc, "models.bert", "11" * 16)
        await sender.send(count, {})
        ack = await sender.close(
            size, crc, Bascule_Key="bert", Nats_Expected_Last_Sequence="0", X_Mine="yes"
        )
        assert (ack["stream"], ack["seq"], ack["replicas"]) == ("models", 1, 3)
        assert ack["payload"] == {"id": sender.id, "bytes": size, "crc32c": f"{crc:08x}"}
        again = await sender.close(size, crc)
        assert (again["offset"], again["duplicate"]) == (0, True)
        # JetStream's own publish takes both kinds of answers.
        js = nc.jetstream()
        other = {"Bascule-Payload-Session": "22" * 16}
        for number in range(3):
            offset = {"Bascule-Payload-Offset": str(number * CHUNK)}
            taken = await js.publish("models.gpt", piece(number), headers=other | offset)
            assert (taken.stream, taken.seq) == ("models", 0)
        closed = await js.publish(
            "models.gpt", headers=other | {"Bascule-Payload-Close": str(3 * CHUNK)}
        )
        assert (closed.stream, closed.seq) == ("models", 2)
        refused = Sender(nc, "models.bert", "33" * 16)
        await refused.send(1, {})
        error = await refused.close(CHUNK, checksum(1), Nats_Expected_Last_Sequence="9")
        assert error["error"]["err_code"] == ack_codes.WRONG_LAST_SEQUENCE
        await nc.close()
        servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
        async with bascule.connect(servers) as client:
            found = [message async for message in client.read("models", end="latest")]
            assert [each.subject for each in found] == ["models.bert", "models.gpt"]
            assert found[0].key == b"bert"
            assert found[0].header("X-Mine") == b"yes"
            assert found[0].payload is not None
            assert (found[0].payload.size, found[0].payload.crc) == (size, crc)
            async with found[0].open() as payload:
                assert crc32c(await payload.read()) == crc

    asyncio.run(run())


def test_what_is_sent_without_answers_is_answered_at_the_end(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    count = 20

    async def run() -> None:
        nc = await nats.connect(nats_server.url)
        id = "44" * 16
        for number in range(count):
            if number == 7:
                continue  # it is lost
            headers = {
                "Bascule-Payload-Session": id,
                "Bascule-Payload-Offset": str(number * CHUNK),
            }
            await nc.publish("models.bert", piece(number), headers=headers)
        sender = Sender(nc, "models.bert", id)
        gap = await sender.close(count * CHUNK, checksum(count))
        assert gap["error"]["err_code"] == ack_codes.PAYLOAD_GAP
        assert gap["payload"]["next"] == 7 * CHUNK
        for number in range(7, count):
            headers["Bascule-Payload-Offset"] = str(number * CHUNK)
            await nc.publish("models.bert", piece(number), headers=headers)
        ack = await sender.close(count * CHUNK, checksum(count))
        assert ack["payload"]["bytes"] == count * CHUNK
        await nc.close()

    asyncio.run(run())


def test_the_leader_is_killed_in_mid_stream(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    count = 120
    crc = checksum(count)

    async def run() -> dict[str, Any]:
        leader = await asyncio.to_thread(cluster.leader, "models")
        victim = cluster.nodes[leader]
        nc = await nats.connect(nats_server.url)
        sender = Sender(nc, "models.bert", "55" * 16)
        await sender.send(count, {50: lambda: victim.stop(signal.SIGKILL)})
        ack = await sender.close(count * CHUNK, crc)
        await nc.close()
        assert "error" not in ack, ack
        assert await asyncio.to_thread(cluster.leader, "models") != leader
        await asyncio.to_thread(victim.start)
        return ack

    ack = asyncio.run(run())
    assert ack["payload"] == {"id": "55" * 16, "bytes": count * CHUNK, "crc32c": f"{crc:08x}"}
    cluster.wait_in_sync("models")
    for node in cluster.nodes:
        directory: Path = cluster.replica(node, "models") / "payloads"
        (file,) = directory.glob(f"*{'55' * 16}*.linked")
        assert crc32c(file.read_bytes()) == crc, node
    followed = [
        http_calls.get(node.addresses["http"] + "/metrics") for node in cluster.nodes.values()
    ]
    assert any("bascule_payload_nats_chunks_total " in text for text in followed)
