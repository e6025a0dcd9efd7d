"""A real file system that fills up: errors while it is full, service as before once it is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.record.batch import RecordBatch, scan_batches
from support.processes import Node, RawNats
from support.raw_client import RawClient, read_all

SIZE = "12m"
BODY = b"%06d " + b"x" * 10_000


def can_mount() -> bool:
    """Whether an unprivileged namespace with a file system of its own can be made here."""
    if shutil.which("unshare") is None:
        return False
    script = f"mount -t tmpfs -o size={SIZE} none /mnt"
    tried = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False)
    return tried.returncode == 0


pytestmark = pytest.mark.skipif(
    not can_mount(), reason="no user and mount namespaces here (unshare -rm), so no small disk"
)


class SmallDisk(Node):
    """A node whose data directory is a tmpfs of its own, seen from here through /proc."""

    def command(self, ready: Path) -> list[str]:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        mount = f"mount -t tmpfs -o size={SIZE} none '{data}'"
        return [
            "unshare",
            "-rm",
            "sh",
            "-c",
            f'{mount} && exec "$@"',
            "sh",
            *super().command(ready),
        ]

    @property
    def data(self) -> Path:
        return Path(f"/proc/{self.addresses['pid']}/root{self.directory}/data")

    def fill(self) -> Path:
        """Leave not one byte free."""
        ballast = self.data / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\1" * size)
                except OSError:
                    continue
        return ballast


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


def values(node: Node, end: int) -> list[bytes | None]:
    host, port = node.addresses["client"].rsplit(":", 1)
    with RawClient(host, int(port)) as client:
        data = memoryview(read_all(client, end, name="s"))
    return [r.value for b in scan_batches(data) for r in RecordBatch(data[b.start : b.end])]


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
                assert "No space left on device" in error["description"]
        kept += [BODY % n for n in taken]
        assert values(node, len(kept)) == kept, "reads go on, and nothing acked is harmed"
        assert node.partition("s")["failure"] is None
        ballast.unlink()
        start = 2_000 + round_ * 50
        again = publish(nats, range(start, start + 50))
        assert [a.get("offset") for a in again] == list(range(len(kept), len(kept) + 50))
        kept += [BODY % n for n in range(start, start + 50)]
        assert values(node, len(kept)) == kept
    deadline = time.monotonic() + 20
    while not node.call("GET", "/v1/node")["ready"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    text = node.log.read_text()
    assert "append failed" in text
    assert "Traceback" not in text


def refusal(node: Node, method: str, path: str, body: object = None) -> str:
    """What the node answers to a request that it must refuse."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        node.call(method, path, body)
    assert caught.value.code == 500
    (body_text,) = caught.value.__notes__
    return str(json.loads(body_text)["error"]["message"])


def test_a_deletion_that_cannot_be_stored_changes_nothing(node: SmallDisk) -> None:
    """The image is written first, so a full disk leaves stream and image as they were."""
    node.create("s", "s")
    nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
    nats.send(b"SUB in.* 1\r\n")
    publish(nats, range(20))
    ballast = node.fill()
    first = refusal(node, "DELETE", "/v1/streams/s")
    assert "OSError" in first
    assert refusal(node, "DELETE", "/v1/streams/s") == first
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
