"""Load of messages without ids while leaders change, and what of it was stored."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from support.processes import RawNats

PAUSE_SECONDS = 0.002
"""Between two bursts of messages."""


@dataclass
class Outcome:
    """What became of the messages of one load. Messages are numbers from 0 on."""

    sent: int
    acked: dict[int, int]
    """Message -> the offset in its first ack."""
    stored: Counter[int]
    offsets: dict[int, list[int]]
    """Message -> where it is stored."""
    asked: int
    in_order: bool
    """Whether the log has the messages in the order of their publication."""

    @property
    def lost(self) -> list[int]:
        return [number for number in range(self.sent) if not self.stored[number]]

    @property
    def doubled(self) -> list[int]:
        return [number for number, count in self.stored.items() if count > 1]

    @property
    def unanswered(self) -> int:
        """Messages that asked for an ack and got none."""
        return self.asked - len(self.acked)

    @property
    def untrue(self) -> list[int]:
        """Acked messages that are not stored at the offset that their ack names."""
        return [n for n, offset in self.acked.items() if offset not in self.offsets.get(n, ())]


@dataclass
class HandoverLoad:
    """Publishes numbered messages, every `ack_every`-th with a reply subject, until stopped."""

    port: int
    subject: str
    burst: int = 10
    ack_every: int = 3
    sent: int = 0
    asked: int = 0
    """How many of all that were sent have a reply subject; known at the end."""
    acked: dict[int, int] = field(default_factory=dict)
    errors: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._publisher = RawNats(self.port)
        self._acks = RawNats(self.port)
        self._inbox = f"_INBOX.load{id(self)}"
        self._acks.send(f"SUB {self._inbox}.* 1\r\n".encode())
        self._acks.flush()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, daemon=True),
            threading.Thread(target=self._receive, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        while not self._stopping.is_set():
            operations = []
            for number in range(self.sent, self.sent + self.burst):
                reply = "" if number % self.ack_every else f" {self._inbox}.{number}"
                payload = b"%d" % number
                head = f"PUB {self.subject}{reply} {len(payload)}\r\n".encode()
                operations.append(head + payload + b"\r\n")
            self._publisher.send(b"".join(operations))
            self.sent += self.burst
            self._stopping.wait(PAUSE_SECONDS)

    def _receive(self) -> None:
        while True:
            try:
                found = self._acks.messages()
            except OSError:
                return
            for subject, payload in found:
                number = int(subject.rpartition(b".")[2])
                answer = json.loads(payload)
                if "error" in answer:
                    self.errors.append(answer["error"])
                else:
                    self.acked.setdefault(number, answer["offset"])

    def stop(self) -> int:
        """Publish no more; return how many messages were sent, all of which the server has."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._threads[0].join()
            self._publisher.flush()
            self._publisher.close()
        self.asked = len(range(0, self.sent, self.ack_every))
        return self.sent

    def outcome(self, stored: Iterable[tuple[int, bytes]]) -> Outcome:
        """Compare with the records (offset, value) of the stream. Ends the connection."""
        self._acks.close()
        offsets: dict[int, list[int]] = {}
        numbers = []
        for offset, value in stored:
            numbers.append(int(value))
            offsets.setdefault(numbers[-1], []).append(offset)
        counts = Counter({number: len(found) for number, found in offsets.items()})
        in_order = numbers == sorted(numbers)
        return Outcome(self.sent, dict(self.acked), counts, offsets, self.asked, in_order)
