"""A real file system that fills up: errors while it is full, service as before once it is not."""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.record.batch import RecordBatch, scan_batches
from support.processes import WAIT_SECONDS_MAX, Node, RawNats
from support.raw_client import RawClient, read_all
from support.small_disk import DiskFullBefore, SmallDisk, can_mount

BODY = b"%06d " + b"x" * 10_000
GIVEN_BACK, HELD = "the reserve is given back", "disk reserve is held again"
REASONS = ("No space left on device", "the disk is full")
"""Of the file system, or of a node that keeps what room there is for what makes more."""

pytestmark = pytest.mark.skipif(
    not can_mount(), reason="no user and mount namespaces here (unshare -rm), so no small disk"
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallDisk]:
    running = SmallDisk(tmp_path)
    running.start()
    yield running
    running.stop()


def publish(nats: RawNats, numbers: range) -> list[dict[str, object]]:
    """Publish, and wait for the answer to each."""
    for n in numbers:
        body = BODY % n
        nats.send(b"PUB s in.%d %d\r\n%s\r\n" % (n, len(body), body))
    answers: dict[int, dict[str, object]] = {}
    while len(answers) < len(numbers):
        for subject, payload in nats.messages():
            answers[int(subject.split(b".")[1])] = json.loads(payload)
    return [answers[n] for n in numbers]


def values(node: Node, end: int, *, start: int = 0) -> list[bytes | None]:
    host, port = node.addresses["client"].rsplit(":", 1)
    with RawClient(host, int(port)) as client:
        data = memoryview(read_all(client, end, name="s", start=start))
    return [
        r.value
        for b in scan_batches(data)
        for r in RecordBatch(data[b.start : b.end])
        if r.offset >= start
    ]


def test_a_full_disk_refuses_and_then_takes_again(node: SmallDisk) -> None:
    node.create("s", "s", segment_bytes_max=1 << 20)
    nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
    nats.send(b"SUB in.* 1\r\n")
    first = publish(nats, range(300))
    assert [a["offset"] for a in first] == list(range(300))
    kept = [BODY % n for n in range(300)]
    for round_ in range(3):
        ballast = node.fill()
        refused = publish(nats, range(1_000, 1_300))
        taken = [n for n, a in zip(range(1_000, 1_300), refused, strict=True) if "error" not in a]
        assert len(taken) < 300, "the disk is full"
        for answer in refused:
            if "error" in answer:
                error = answer["error"]
                assert isinstance(error, dict)
                assert (error["code"], error["err_code"]) == (503, 10077)
                assert any(each in error["description"] for each in REASONS), error
        kept += [BODY % n for n in taken]
        assert values(node, len(kept)) == kept, "reads go on, and nothing acked is harmed"
        assert node.partition("s")["failure"] is None
        ballast.unlink()
        wait_reserve_held(node)
        start = 2_000 + round_ * 50
        again = publish(nats, range(start, start + 50))
        assert [a.get("offset") for a in again] == list(range(len(kept), len(kept) + 50))
        kept += [BODY % n for n in range(start, start + 50)]
        assert values(node, len(kept)) == kept
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not node.call("GET", "/v1/node")["ready"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    text = node.log.read_text()
    assert "append failed" in text
    assert "Traceback" not in text


def refusal(node: Node, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and message with which the node refuses a request."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        node.call(method, path, body)
    (body_text,) = caught.value.__notes__
    return caught.value.code, str(json.loads(body_text)["error"]["message"])


def connect(node: Node) -> RawNats:
    nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
    nats.send(b"SUB in.* 1\r\n")
    return nats


def wait_reserve_held(node: SmallDisk) -> None:
    """Until the reserve is held, if something needed it: a node writes by itself now and then."""
    deadline = time.monotonic() + 60
    while (text := node.log.read_text()).count(GIVEN_BACK) > text.count(HELD):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_makes_room_works_on_a_full_disk(node: SmallDisk) -> None:
    for name in ("s", "t", "u"):
        node.create(name, name, segment_bytes_max=1 << 20)
    nats = connect(node)
    publish(nats, range(300))
    ballast = node.fill()
    code, message = refusal(node, "POST", "/v1/streams", {"name": "v", "subject": "v"})
    assert code == 507
    assert re.search(r"no space left on the disk of .*: \d+ bytes are free; purge or", message)
    disk = next(p for p in node.call("GET", "/readyz")["parts"] if p["part"] == "disk")
    assert disk["state"] == "degraded"
    assert re.search(r"\d+ of \d+ bytes are free", disk["reason"])

    assert node.call("POST", "/v1/streams/t/pause", {})["paused"]
    (error,) = [answer["error"] for answer in publish(nats, range(300, 301))]
    assert isinstance(error, dict)
    assert error["err_code"] == 10077
    assert error["description"] == "message was not stored: the disk is full"
    assert node.call("PATCH", "/v1/streams/s", {"retention_messages_max": 50_000})
    purged = node.call("POST", "/v1/streams/s/purge", {"to_offset": 100})
    assert purged["partitions"][0]["start_offset"] == 100
    node.call("DELETE", "/v1/streams/u")
    assert not (node.data / "streams" / "u").exists()
    assert values(node, 300, start=100) == [BODY % n for n in range(100, 300)]

    ballast.unlink()
    wait_reserve_held(node)
    assert publish(nats, range(301, 302))[0]["offset"] == 300
    text = node.log.read_text()
    assert GIVEN_BACK in text
    assert HELD in text
    assert "Traceback" not in text


def test_a_deletion_that_cannot_be_stored_changes_nothing(node: SmallDisk) -> None:
    """Without a reserve. The image is written first, so stream and image stay as they were."""
    node.stop()
    node.options = ("--config", str(node.directory / "no-reserve.toml"))
    (node.directory / "no-reserve.toml").write_text("[limits]\ndisk_reserve_bytes = 0\n")
    node.start()
    node.create("s", "s")
    nats = connect(node)
    publish(nats, range(20))
    ballast = node.fill()
    code, first = refusal(node, "DELETE", "/v1/streams/s")
    assert code == 507
    assert refusal(node, "DELETE", "/v1/streams/s") == (507, first)
    assert node.partition("s")["failure"] is None
    assert values(node, 20) == [BODY % n for n in range(20)]
    ballast.unlink()
    publish(nats, range(20, 40))
    assert len(values(node, 40)) == 40
    node.call("DELETE", "/v1/streams/s")
    assert not (node.data / "streams" / "s").exists()
    created = node.create("s", "s")
    assert created["partitions"][0]["end_offset"] == 0
    assert publish(nats, range(40, 41))[0]["offset"] == 0


def on_a_full_disk(directory: Path, *, reserve: bool) -> DiskFullBefore:
    """A node, not started yet, with a stream `s` of 20 messages on a disk that is full now."""
    (directory / "before").mkdir()
    before = Node(directory / "before")
    before.start()
    before.create("s", "s", retention_messages_max=50_000)
    publish(connect(before), range(20))
    before.stop()
    if not reserve:
        (before.directory / "data" / "reserve").unlink()
    node = DiskFullBefore(directory)
    node.kept = before.directory / "data"
    return node


def test_a_node_starts_on_a_full_disk_with_its_reserve(tmp_path: Path) -> None:
    node = on_a_full_disk(tmp_path, reserve=True)
    node.start()
    try:
        assert values(node, 20) == [BODY % n for n in range(20)]
        (error,) = [answer["error"] for answer in publish(connect(node), range(20, 21))]
        assert isinstance(error, dict)
        assert error["description"] == "message was not stored: the disk is full"
        purged = node.call("POST", "/v1/streams/s/purge", {"to_offset": 10})
        assert purged["partitions"][0]["start_offset"] == 10
        (node.data / "ballast").unlink()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while HELD not in node.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert publish(connect(node), range(20, 21))[0]["offset"] == 20
    finally:
        node.stop()


def test_without_a_reserve_it_says_how_much_it_needs(tmp_path: Path) -> None:
    node = on_a_full_disk(tmp_path, reserve=False)
    wanted = r"no space left on the disk of .*: \d+ bytes are free; free at least 1048576 bytes"
    with pytest.raises(AssertionError, match=wanted):
        node.start()
