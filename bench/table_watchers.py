"""10,000 watchers of one node, as key-value clients make them: CPU of the node, and lag.

1,000 changes a second go to 100 keys, and each watcher sees one of these: 100 watchers see each
change. All watchers deliver to one connection, whose process takes the time on arrival, so that the
lag has the way through NATS and the client in it. A change is acknowledged once it is synced.
"""

from __future__ import annotations

import json
import socket
import time
from array import array
from typing import Final

from bascule.wire import _hot as wire_hot
from bench.harness import nats_connection, node, report, row, work_directory

WATCHERS: Final = 10_000
KEYS: Final = 100
RATE: Final = 1_000
SECONDS: Final = 20.0
IDLE_SECONDS: Final = 5.0
LAG_MS_MAX: Final = 250.0
MESSAGES: Final = 4_096
INBOX: Final = "bench.answers"
_BODY_BYTES_MAX: Final = 1 << 20
_LINE_BYTES_MAX: Final = 1 << 16


class Reader:
    """Reads what the NATS server delivers."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        self._positions = array("i", bytes(4 * wire_hot.MESSAGE_FIELDS * MESSAGES))
        self._state = array("q", [0] * 4)
        self.answers: list[bytes] = []
        self.lags_ns: list[int] = []

    def read(self, seconds: float) -> bool:
        """Read once; false if nothing came for `seconds`."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            data = self._rest + self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        now, at = time.time_ns(), 0
        while True:
            count = wire_hot.parse_messages(
                data, at, len(data), _BODY_BYTES_MAX, _LINE_BYTES_MAX, self._positions, self._state
            )
            self._take(data, count, now)
            at = self._state[0]
            if self._state[1] == wire_hot.CONTROL_LINE:
                if data[at : at + 4] == b"PING":
                    self._socket.sendall(b"PONG\r\n")
                at = self._state[2] + 2
            elif self._state[1] == wire_hot.NEED_DATA:
                break
        self._rest = data[at:]
        return True

    def _take(self, data: bytes, count: int, now: int) -> None:
        fields = wire_hot.MESSAGE_FIELDS
        for slot in range(0, fields * count, fields):
            sid, headers = self._positions[slot], self._positions[slot + 5]
            at, size = self._positions[slot + 6 : slot + 8]
            body = data[at + headers : at + size]
            if sid == 1:
                self.answers.append(body)
            elif body:
                self.lags_ns.append(now - int(body))


def _publish(subject: str, body: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), INBOX.encode(), len(body), body)


def _change(connection: socket.socket, reader: Reader, seconds: float) -> int:
    """Change keys at RATE; return how many changes were made."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        out = b""
        while sent < passed * RATE:
            out += _publish(f"$KV.watched.k{sent % KEYS}", b"%d" % time.time_ns())
            sent += 1
        connection.sendall(out)
        reader.read(0.001)
    return sent


def run(*, quick: bool = False) -> None:
    watchers, seconds = (1_000, SECONDS / 4) if quick else (WATCHERS, SECONDS)
    with work_directory() as directory, node(directory) as running:
        connection = nats_connection(running.port)
        connection.sendall(b"SUB %b 1\r\nSUB watch.* 2\r\n" % INBOX.encode())
        reader = Reader(connection)
        connection.sendall(_publish("$JS.API.STREAM.CREATE.KV_watched", b"{}"))
        while not reader.answers:
            reader.read(1)
        empty = running.resident_mb()
        for number in range(watchers):
            config = {
                "deliver_subject": f"watch.{number}",
                "deliver_policy": "new",
                "filter_subject": f"$KV.watched.k{number % KEYS}",
            }
            subject = f"$JS.API.CONSUMER.CREATE.KV_watched.c{number}"
            connection.sendall(_publish(subject, json.dumps({"config": config}).encode()))
            while len(reader.answers) < number - 200:
                reader.read(1)
        while len(reader.answers) < watchers + 1:
            reader.read(1)
        refused = [body for body in reader.answers if b'"error"' in body]
        assert not refused, refused[0]
        held = running.resident_mb() - empty
        before = running.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        idle = (running.cpu_seconds() - before) / IDLE_SECONDS
        _change(connection, reader, 1)
        while reader.read(1):
            pass
        reader.lags_ns.clear()
        before = running.cpu_seconds()
        sent = _change(connection, reader, seconds)
        while reader.read(1):
            pass
        busy = (running.cpu_seconds() - before) / seconds
        lags = sorted(reader.lags_ns)
        expected = sent * watchers // KEYS
    report(
        "table_watchers",
        [
            row(
                f"lag of {watchers} watchers, {RATE} changes/s to {KEYS} keys, p99, ms",
                {
                    "value": round(lags[len(lags) * 99 // 100] / 1e6, 1),
                    "p50_ms": round(lags[len(lags) // 2] / 1e6, 1),
                    "delivered": len(lags),
                    "expected": expected,
                    "cpu_cores": round(busy, 3),
                    "cpu_cores_idle": round(idle, 3),
                    "kb_per_watcher": round(held * 1_000 / watchers, 1),
                },
                at_most=LAG_MS_MAX,
            )
        ],
    )
