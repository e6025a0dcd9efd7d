"""A node that falls behind, a server that falls silent: noticed, counted, said."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path
from typing import Any

from bascule.ingest.nats_transport import (
    AWAY_NS_MIN,
    BACKLOG_BYTES_MIN,
    CAUGHT_UP_NS,
    Transport,
)
from support.nats_servers import configured_nats, eventually, metric
from support.processes import RawNats, running_nats, running_node

SMALL_QUEUE = 'max_pending: 2MB\nwrite_deadline: "1s"\n'
FLOOD_BYTES = 64 << 20
ENDS_MAX = 5


def flood(port: int, size: int) -> None:
    publisher = RawNats(port)
    message = b"PUB s.flood 65536\r\n" + b"x" * 65536 + b"\r\n"
    for _ in range(size // 65536):
        publisher.send(message)
    publisher.flush()
    publisher.close()


def test_a_node_dropped_as_a_slow_consumer_says_so(tmp_path: Path) -> None:
    with (
        configured_nats(tmp_path / "nats", SMALL_QUEUE) as server,
        running_node(tmp_path, nats=server.url) as node,
    ):
        node.create("s", "s.>")
        node.create("t", "t")
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        flooding = threading.Thread(target=flood, args=(server.port, FLOOD_BYTES))
        flooding.start()
        flooding.join(30)
        server_log = server.directory / "nats.log"
        eventually(lambda: "Slow Consumer" in server_log.read_text(), "the server keeps it")
        node.process.send_signal(signal.SIGCONT)
        eventually(
            lambda: metric(node, "bascule_nats_slow_consumer_disconnects_total") == 1,
            "nothing counted",
        )
        eventually(lambda: node.call("GET", "/v1/node")["ready"], "not connected again")
        text = " ".join(node.log.read_text().split())
        (line,) = [line for line in node.log.read_text().splitlines() if "node was behind" in line]
        assert " error " in line
        assert 'streams="_offsets, s, t"' in line
        assert "publish with acks" in line
        assert "nats subscriptions restored" in text
        # What was delivered before the end is stored, and what comes now as well.
        before = node.partition("s")["end_offset"]
        assert before < FLOOD_BYTES // 65536
        publisher = RawNats(server.port)
        publisher.send(b"SUB in 1\r\nPUB s.x in 1\r\nx\r\n")
        assert b'"stream":"s"' in publisher.messages()[0][1].replace(b" ", b"")
        publisher.close()


class ManualClock:
    """Time stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def now_ms(self) -> int:
        return self.now_ns // 1_000_000


class LateSocket(socket.socket):
    """A real socket whose data takes its time by the manual clock."""

    clock: ManualClock
    wait_ns = 0

    def recv_into(self, *args: Any) -> int:
        self.clock.now_ns += self.wait_ns
        return super().recv_into(*args)


def test_being_behind_is_remembered_until_a_calm_second() -> None:
    clock = ManualClock()
    here, there = socket.socketpair()
    mine = LateSocket(fileno=here.detach())
    mine.clock = clock
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    transport = Transport(mine, None, clock=clock, outgoing_bytes_max=1)
    room = memoryview(bytearray(64 << 10))

    def read(size: int) -> None:
        there.sendall(bytes(size))
        while size > 0:
            size -= transport.receive_into(room)

    with there:
        read(100_000)
        assert (transport.backlog_bytes, transport.away_ns) == (0, 0)
        # In pieces that fill the room, as what piled up in the kernel does.
        threading.Thread(target=there.sendall, args=(bytes(BACKLOG_BYTES_MIN + 1),)).start()
        received = 0
        while received < BACKLOG_BYTES_MIN + 1:
            wanted = min(len(room), BACKLOG_BYTES_MIN + 1 - received)
            while len(mine.recv(len(room), socket.MSG_PEEK)) < wanted:
                pass
            received += transport.receive_into(room)
        assert transport.backlog_bytes >= BACKLOG_BYTES_MIN
        mine.wait_ns = CAUGHT_UP_NS // 2
        read(1)
        assert transport.backlog_bytes
        read(1)
        assert transport.backlog_bytes == 0
        mine.wait_ns = 0
        clock.now_ns += AWAY_NS_MIN
        read(1)
        assert transport.away_ns == AWAY_NS_MIN
        read(1)
        assert transport.away_ns == AWAY_NS_MIN
        mine.wait_ns = CAUGHT_UP_NS
        read(1)
        assert transport.away_ns == 0
        transport.close()


def test_an_ordinary_end_is_no_slow_consumer(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path, nats=server.url) as node,
    ):
        node.create("s", "s.>")
        # A machine under load can stop the node for a second, which is then behind. Not each time.
        for number in range(1, ENDS_MAX + 1):
            flood(server.port, 1 << 20)
            node.wait_stored("s", 16 * number)
            # A burst is soon read; what was behind a second ago has nothing to do with the end.
            threading.Event().wait(1.2)
            server.stop(signal.SIGKILL)
            server.start()
            eventually(lambda: node.call("GET", "/v1/node")["ready"], "not connected again")
            assert metric(node, "bascule_nats_disconnects_total") == number
            if metric(node, "bascule_nats_slow_consumer_disconnects_total") < number:
                return
        raise AssertionError(f"{ENDS_MAX} ends, and each was taken for a slow consumer's")


def test_a_server_that_falls_silent_is_left(tmp_path: Path) -> None:
    """It still holds the connection, but answers no PING: as after a lost network."""
    with (
        running_nats(tmp_path / "one") as silent,
        running_nats(tmp_path / "two") as other,
        running_node(
            tmp_path,
            nats=f"{silent.url},{other.url}",
            environment={"BASCULE_NATS_PING_INTERVAL_MS": "300"},
        ) as node,
    ):
        node.create("s", "s.>")
        assert node.call("GET", "/v1/node")["nats_server"] == silent.url
        assert silent.process is not None
        silent.process.send_signal(signal.SIGSTOP)
        eventually(lambda: node.call("GET", "/v1/node")["nats_server"] == other.url, "it stays")
        silent.process.send_signal(signal.SIGCONT)
        assert "without a PONG" in node.log.read_text()
        publisher = RawNats(other.port)
        publisher.send(b"SUB in 1\r\nPUB s.x in 1\r\nx\r\n")
        assert b'"stream"' in publisher.messages()[0][1]
        publisher.close()
