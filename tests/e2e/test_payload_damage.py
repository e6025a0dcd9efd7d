"""Damaged files of payloads: readers get the right bytes, and the file is fetched again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import bascule
from bascule.errors import PayloadDamaged
from support.clusters import RunningCluster, running_cluster
from support.processes import running_node

MIB = 1 << 20
SIZE = 5 * MIB + 77


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(SIZE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("payload-damage")) as cluster:
        yield cluster


def send(http: str, name: str, data: bytes, replicas: int) -> None:
    async def test() -> None:
        async with bascule.connect(http) as client:
            await client.create_stream(name, name, replicas=replicas)
            async with client.open_payload(name) as out:
                await out.write(data)

    asyncio.run(test())


def linked(directory: Path) -> Path:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := list(directory.glob("payloads/*.linked")):
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"{directory}: no linked payload")


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


def wait_content(file: Path, data: bytes) -> None:
    deadline = time.monotonic() + 30
    while not file.exists() or file.read_bytes() != data:
        assert time.monotonic() < deadline, f"{file} is not repaired"
        time.sleep(0.05)


def read(http: str, name: str, *, start: int = 0, end: int | None = None) -> bytes:
    async def test() -> bytes:
        async with (
            bascule.connect(http) as client,
            client.read_payload(name, 0, start=start, end=end, timeout=10) as payload,
        ):
            return await payload.read()

    return asyncio.run(test())


@pytest.mark.parametrize("keeps_sums", [True, False])
def test_readers_never_get_damaged_bytes(cluster: RunningCluster, keeps_sums: bool) -> None:
    """Also where the file has no checksums of its blocks, as those of older nodes."""
    name, data = f"read-{keeps_sums}", content(1)
    http = cluster.alive()[0].addresses["http"]
    send(http, name, data, 3)
    files = {number: linked(cluster.replica(number, name)) for number in cluster.nodes}
    at = 3 * MIB + 5
    for part in ((at - 10, at + 10), (at, None), (0, None)):
        for number, file in files.items():
            if number != 3:
                if not keeps_sums:
                    for sums in file.parent.glob("*.sums"):
                        sums.unlink()
                flip(file, at)
        start, end = part
        assert read(http, name, start=start, end=end) == data[start:end]
        if part == (0, None):
            for file in files.values():
                if file.read_bytes() != data:  # not all have been asked
                    flip(file, at)
        else:
            for number, file in files.items():
                if file.read_bytes() != data:
                    damaged = f"{cluster.nodes[number].addresses['http']}/v1/streams/{name}"
                    with contextlib.suppress(httpx.RemoteProtocolError):  # it ends short
                        httpx.get(f"{damaged}/partitions/0/payloads/0", follow_redirects=True)
                wait_content(file, data)


def test_http_never_sends_damaged_bytes(cluster: RunningCluster) -> None:
    name, data = "http-damage", content(2)
    send(cluster.alive()[0].addresses["http"], name, data, 3)
    for number, node in cluster.nodes.items():
        file = linked(cluster.replica(number, name))
        flip(file, 2 * MIB + 1)
        url = f"{node.addresses['http']}/v1/streams/{name}/partitions/0/payloads/0"
        wanted = {"Range": f"bytes={2 * MIB}-{2 * MIB + 9}"}
        answer = httpx.get(url, headers=wanted, follow_redirects=True, timeout=30)
        assert (answer.status_code, answer.content) == (206, data[2 * MIB : 2 * MIB + 10])
        wait_content(file, data)
        good = {"Range": "bytes=0-9"}
        assert httpx.get(url, headers=good, timeout=30).content == data[:10]


def test_http_ends_short_where_a_whole_file_was_not_compared(tmp_path: Path) -> None:
    """A file without checksums of its blocks is compared with its last piece, which is not sent."""
    name, data = "short", content(8)
    with running_node(tmp_path) as node:
        http = node.addresses["http"]
        send(http, name, data, 1)
        file = linked(node.directory / "data/streams" / name / "0")
        wait_content(file, data)
        for sums in file.parent.glob("*.sums"):
            sums.unlink()
        flip(file, 7)
        url = f"{http}/v1/streams/{name}/partitions/0/payloads/0"
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(url, timeout=30)


@pytest.mark.parametrize("door", ["client", "http"])
def test_readers_have_a_file_that_is_gone_fetched_again(cluster: RunningCluster, door: str) -> None:
    name, data = f"gone-{door}", content(6)
    http = cluster.alive()[0].addresses["http"]
    send(http, name, data, 3)
    cluster.wait_in_sync(name)
    victim = cluster.leader(name)
    file = linked(cluster.replica(victim, name))
    file.unlink()
    if door == "client":
        assert read(cluster.nodes[victim].addresses["http"], name) == data
    else:
        url = f"{cluster.nodes[victim].addresses['http']}/v1/streams/{name}/partitions/0/payloads/0"
        answer = httpx.get(url, follow_redirects=True, timeout=30)
        assert (answer.status_code, answer.content) == (200, data)
    wait_content(file, data)


@pytest.mark.parametrize("damage", ["byte", "cut", "gone"])
def test_the_scrubber_reads_payloads(cluster: RunningCluster, damage: str) -> None:
    name, data = f"scrub-{damage}", content(3)
    http = cluster.alive()[0].addresses["http"]
    send(http, name, data, 3)
    cluster.wait_in_sync(name)
    victim = cluster.leader(name)
    node, file = cluster.nodes[victim], linked(cluster.replica(victim, name))
    if damage == "byte":
        flip(file, 4 * MIB)
    elif damage == "cut":
        with file.open("r+b") as opened:
            opened.truncate(2 * MIB + 3)
    else:
        file.unlink()
    node.call("POST", f"/v1/streams/{name}/scrub")
    wait_content(file, data)
    found = node.call("GET", f"/v1/streams/{name}/scrub")
    rows = {row["node"]: row for row in found["replicas"]}
    assert rows[victim]["result"] == "corrupt"
    assert "payload" in rows[victim]["found"]
    metrics = httpx.get(f"{node.addresses['http']}/metrics").text
    lines = [line for line in metrics.splitlines() if line.startswith("bascule_payload_repaired")]
    assert lines
    assert float(lines[0].split()[-1]) >= 1


def test_a_new_replica_takes_good_bytes(cluster: RunningCluster) -> None:
    """The leader's file is damaged, and has no checksums: the next one is asked from byte 0."""
    name, data = "moved", content(4)
    http = cluster.alive()[0].addresses["http"]
    send(http, name, data, 2)
    cluster.wait_in_sync(name)
    before, leader = cluster.partition(name)["replicas"], cluster.leader(name)
    new = next(number for number in cluster.nodes if number not in before)
    file = linked(cluster.replica(leader, name))
    for sums in file.parent.glob("*.sums"):
        sums.unlink()
    flip(file, MIB + 1)
    replicas = {"replicas": [leader, new]}
    cluster.nodes[new].call("POST", f"/v1/streams/{name}/reassign", replicas)
    wait_content(linked(cluster.replica(new, name)), data)
    wait_content(file, data)


def test_damage_without_another_replica_is_an_error(tmp_path: Path) -> None:
    data = content(5)
    with running_node(tmp_path) as node:
        send(node.addresses["http"], "alone", data, 1)
        directory = node.directory / "data/streams/alone/0"
        file = linked(directory)
        flip(file, 10)
        with pytest.raises(PayloadDamaged):
            read(node.addresses["http"], "alone", start=5, end=15)
        assert read(node.addresses["http"], "alone", start=MIB, end=MIB + 9) == data[MIB : MIB + 9]
        url = f"{node.addresses['http']}/v1/streams/alone/partitions/0/payloads/0"
        answer = httpx.get(url, headers={"Range": "bytes=0-20"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "payload_damaged")
        flip(file, 10)
        assert read(node.addresses["http"], "alone", start=5, end=15) == data[5:15]


@pytest.mark.parametrize("size", [1_000, SIZE])
@pytest.mark.parametrize("change", [3, -3])
def test_a_file_of_another_size_is_not_taken_for_the_payload(
    cluster: RunningCluster, size: int, change: int
) -> None:
    """A node that starts knows the sizes of files only; the record knows that of the payload."""
    name, data = f"size-{size}-{change}", content(9)[:size]
    send(cluster.alive()[0].addresses["http"], name, data, 3)
    cluster.wait_in_sync(name)
    victim = cluster.leader(name)
    file = linked(cluster.replica(victim, name))

    def ask(method: str, part: str | None) -> tuple[int, str | None, str, bytes]:
        """Of the node after a start with the changed file."""
        cluster.nodes[victim].stop()
        with file.open("r+b") as opened:
            opened.truncate(size + change)
        cluster.start(victim)
        cluster.wait_in_sync(name)
        url = f"{cluster.nodes[victim].addresses['http']}/v1/streams/{name}/partitions/0/payloads/0"
        answer = httpx.request(method, url, headers={"Range": part} if part else {}, timeout=30)
        wait_content(file, data)
        found = answer.headers
        return (
            answer.status_code,
            found.get("content-range"),
            found["content-length"],
            answer.content,
        )

    assert ask("HEAD", None) == (200, None, str(size), b"")
    ends = (size - 2, size - 1)
    expected = 206, f"bytes {ends[0]}-{ends[1]}/{size}", "2", data[-2:]
    assert ask("GET", "bytes=-2") == expected


def test_what_no_replica_has_is_an_error_before_the_head(cluster: RunningCluster) -> None:
    name, data = "nowhere", content(10)
    send(cluster.alive()[0].addresses["http"], name, data, 3)
    cluster.wait_in_sync(name)
    for number in cluster.nodes:
        linked(cluster.replica(number, name)).unlink()

    def refusals() -> set[tuple[int, str]]:
        found = set()
        for node in cluster.alive():
            url = f"{node.addresses['http']}/v1/streams/{name}/partitions/0/payloads/0"
            part = {"Range": "bytes=7-"}
            answer = httpx.get(url, headers=part, follow_redirects=True, timeout=60)
            found.add((answer.status_code, answer.json()["error"]["code"]))
        return found

    assert refusals() == {(503, "unavailable")}
    for number in cluster.nodes:  # now they know that it is gone
        cluster.nodes[number].stop()
        cluster.start(number)
    cluster.wait_in_sync(name)
    assert refusals() <= {(503, "unavailable"), (404, "unknown_payload")}


@pytest.mark.parametrize("door", ["client", "http"])
def test_a_leader_without_the_file_says_not_that_there_is_none(
    cluster: RunningCluster, door: str
) -> None:
    """It has just started, so that it knows that the file is gone."""
    name, data = f"leader-{door}", content(11)
    send(cluster.alive()[0].addresses["http"], name, data, 3)
    cluster.wait_in_sync(name)
    victim = cluster.leader(name)
    file = linked(cluster.replica(victim, name))
    cluster.nodes[victim].stop()
    file.unlink()
    cluster.start(victim)
    cluster.wait_in_sync(name)
    cluster.nodes[victim].call("POST", f"/v1/streams/{name}/elect-leader", {"node": victim})
    url = cluster.nodes[victim].addresses["http"]
    if door == "client":
        assert read(url, name, start=7) == data[7:]
    else:
        url += f"/v1/streams/{name}/partitions/0/payloads/0"
        answer = httpx.get(url, headers={"Range": "bytes=7-"}, timeout=30)
        assert (answer.status_code, answer.content) == (206, data[7:])
    wait_content(file, data)
