"""Acked messages survive kill -9, restarts of the NATS server and an orderly stop."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.record.batch import Record, RecordBatch, scan_batches
from support.processes import WAIT_SECONDS_MAX, Node, RawNats, running_nats, running_node

ROUNDS = 4


def stored(node: Node, name: str) -> list[Record]:
    """Every record on the disk, read from the segments while nobody writes them."""
    found: list[Record] = []
    for path in sorted((node.directory / "data" / "streams" / name / "0").glob("*.log")):
        data = path.read_bytes()
        for batch in scan_batches(data, origin=str(path)):
            found.extend(RecordBatch(memoryview(data)[batch.start : batch.end]))
    return found


class AckedPublisher(threading.Thread):
    """Publishes numbered messages with a window of unanswered ones; remembers every ack."""

    def __init__(self, port: int, subject: str, *, first: int, window: int = 500) -> None:
        super().__init__(daemon=True)
        self.nats = RawNats(port)
        self.nats.socket.settimeout(0.2)
        self.subject = subject
        self.next = first
        self.window = window
        self.acked: dict[int, int] = {}
        """Message number -> offset."""
        self.refused: list[dict[str, object]] = []
        self.stopping = threading.Event()
        self.open = 0

    def run(self) -> None:
        inbox = f"_INBOX.{random.Random().getrandbits(60):x}"
        self.nats.send(f"SUB {inbox}.* 1\r\n".encode())
        try:
            while not self.stopping.is_set():
                if self.open < self.window:
                    count = min(self.window - self.open, 50)
                    self.nats.send(b"".join(self._publication(inbox) for _ in range(count)))
                    self.open += count
                self._take_acks()
        except (ConnectionResetError, BrokenPipeError):
            pass  # The NATS server went; the test has it so.

    def _publication(self, inbox: str) -> bytes:
        payload = b"message %d" % self.next
        line = f"PUB {self.subject} {inbox}.{self.next} {len(payload)}\r\n".encode()
        self.next += 1
        return line + payload + b"\r\n"

    def _take_acks(self) -> None:
        try:
            messages = self.nats.messages()
        except TimeoutError:
            # The node is away: what was open stays unanswered.
            self.open = 0
            return
        for subject, payload in messages:
            ack = json.loads(payload)
            self.open = max(0, self.open - 1)
            if "error" in ack:
                self.refused.append(ack)
            else:
                assert ack["seq"] == ack["offset"] + 1
                assert ack["synced"] is True
                self.acked[int(subject.rsplit(b".", 1)[1])] = ack["offset"]

    def finish(self) -> None:
        self.stopping.set()
        self.join(20)
        self.nats.close()


@pytest.fixture
def nats_port(tmp_path: Path) -> Iterator[int]:
    with running_nats(tmp_path / "nats") as server:
        yield server.port


def check_acked(node: Node, name: str, acked: dict[int, int]) -> None:
    records = stored(node, name)
    assert [r.offset for r in records] == list(range(len(records)))
    for number, offset in acked.items():
        assert offset < len(records), f"acked offset {offset} is gone; {len(records)} are there"
        assert records[offset].value == b"message %d" % number


def test_kill_9_under_load_loses_nothing_acked(tmp_path: Path, nats_port: int) -> None:
    dice = random.Random(7)
    acked: dict[int, int] = {}
    node = Node(tmp_path, nats=f"nats://127.0.0.1:{nats_port}")
    node.start()
    node.create("s", "s.>", segment_bytes_max=200_000)
    first = 0
    for _ in range(ROUNDS):
        publisher = AckedPublisher(nats_port, "s.x", first=first)
        before = len(acked)
        publisher.start()
        while len(publisher.acked) < 300:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.3))
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
        publisher.finish()
        acked.update(publisher.acked)
        first = publisher.next
        assert len(acked) > before
        check_acked_prefix = len(acked)
        node.start()
        found = node.partition("s")
        assert found["failure"] is None
        assert found["high_watermark"] > max(acked.values())
        assert check_acked_prefix == len(acked)
    assert node.stop() == 0
    check_acked(node, "s", acked)


def test_the_embedded_server_dies_with_a_killed_node(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    port = int(node.addresses["nats"].rsplit(":", 1)[1])
    RawNats(port).close()
    node.stop(signal.SIGKILL)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            RawNats(port).close()
        except OSError:
            break
        time.sleep(0.05)
    with pytest.raises(OSError):
        RawNats(port)


def test_a_stop_drains_what_was_published(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    node.create("s", "s")
    nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
    nats.send(b"".join(b"PUB s 6\r\n%06d\r\n" % n for n in range(20_000)))
    nats.flush()
    assert node.stop() == 0
    records = stored(node, "s")
    assert [r.value for r in records] == [b"%06d" % n for n in range(20_000)]
    log = node.log.read_text()
    assert "Traceback" not in log
    node.start()
    assert node.partition("s")["high_watermark"] == 20_000
    assert node.stop() == 0


class BackgroundNode(Node):
    """A node started as a shell starts the background jobs of a script: with SIGINT ignored."""

    def command(self, ready: Path) -> list[str]:
        return ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *super().command(ready)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_background_job_stops_in_order_on_either_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    node = BackgroundNode(tmp_path)
    node.start()
    assert node.stop(number) == 0
    assert "stopped" in node.log.read_text()


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_other_sync_policies_ack_what_they_promise(tmp_path: Path, sync: str) -> None:
    with running_node(tmp_path) as node:
        node.create("s", "s", sync=sync, sync_interval_ms=50)
        nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
        nats.send(b"SUB in 1\r\nPUB s in 1\r\nx\r\n")
        ((_, payload),) = nats.messages()
        assert json.loads(payload) == {
            "stream": "s", "seq": 1, "partition": 0, "offset": 0, "replicas": 1, "synced": False,
        }  # fmt: skip
        if sync == "interval":
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while node.partition("s")["synced_offset"] < 1:
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_a_restarted_nats_server_is_found_again_under_load(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_node(tmp_path, nats=server.url) as node:
        node.create("s", "s.>")
        acked: dict[int, int] = {}
        first = 0
        for number in (signal.SIGTERM, signal.SIGKILL, None):
            publisher = AckedPublisher(server.port, "s.x", first=first)
            publisher.start()
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while len(publisher.acked) < 300:
                assert time.monotonic() < deadline, node.log.read_text()
                time.sleep(0.01)
            if number is not None:
                server.stop(number)
                publisher.join(20)
                server.start()
            else:
                publisher.finish()
            acked.update(publisher.acked)
            first = publisher.next
        assert node.call("GET", "/v1/node")["ready"] is True
        # What was delivered before a server went is stored; its ack may be lost with the server.
        node.stop()
        check_acked(node, "s", acked)
        text = node.log.read_text()
        assert "nats disconnected" in text
        assert "nats subscriptions restored" in text


def test_a_second_node_on_the_directory_is_refused(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        second = Node(tmp_path / "second")
        second.directory.mkdir()
        (second.directory / "data").symlink_to(tmp_path / "data")
        second.spawn(second.directory / "ready.json")
        assert second.process is not None
        assert second.process.wait(WAIT_SECONDS_MAX) != 0
        text = second.log.read_text()
        assert str(node.addresses["pid"]) in text
        assert "in use" in text


def test_a_corrupt_stream_stops_alone(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        for name in ("bad", "good"):
            node.create(name, name)
        nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
        for _ in range(3):
            nats.send(b"PUB bad 100\r\n%s\r\nPUB good 1\r\nx\r\n" % (b"y" * 100))
            nats.flush()
            time.sleep(0.05)
        node.wait_stored("bad", 3)
    (path,) = (tmp_path / "data/streams/bad/0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    with running_node(tmp_path) as node:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while node.partition("bad")["failure"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        failure = node.partition("bad")["failure"]
        assert path.name in failure
        assert "byte" in failure
        nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
        nats.send(b"SUB in 1\r\nPUB bad in 1\r\nx\r\nPUB good in 1\r\nx\r\n")
        answers = [json.loads(p) for _, p in nats.messages()]
        while len(answers) < 2:
            answers += [json.loads(p) for _, p in nats.messages()]
        refused = next(a for a in answers if a["stream"] == "bad")
        assert refused["error"]["code"] == 503
        assert refused["error"]["description"] == (
            "message was not stored: partition 0 has stopped: damaged data"
        )
        assert next(a for a in answers if a["stream"] == "good")["offset"] == 3
        # The first batch is damaged, so nothing can be kept; the files are.
        asked = {"accept_loss": True}
        (repaired,) = node.call("POST", "/v1/streams/bad/repair", asked)["partitions"]
        assert (repaired["failure"], repaired["end_offset"]) == (None, 3)
        assert (Path(repaired["moved_to"]) / path.name).read_bytes() == bytes(data)
        nats.send(b"PUB bad in 1\r\nx\r\n")
        answers = []
        while not answers:
            answers = [json.loads(p) for _, p in nats.messages()]
        assert answers[0]["offset"] == 3
