"""What the consumers of a run do about a client that stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from torture import readers
from torture.messages import TorturedStream
from torture.readers import Known, Reader, replace_hanging

STREAM = TorturedStream("single")


class FakeConsumer:
    """In place of the real client: the first one made hangs in its second call, others wait."""

    hanging = threading.Event()
    made: ClassVar[list[FakeConsumer]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        self.assigned: list[tuple[str, int, int]] = []
        self._hangs = not self.made
        self._calls = 0
        self.made.append(self)

    def assign(self, places: list[Any]) -> None:
        self.assigned = [(each.topic, each.partition, each.offset) for each in places]

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        self._calls += 1
        if self._calls == 1:
            return [FakeMessage(self.assigned[0][2])]
        if self._hangs:
            self.hanging.wait()
        time.sleep(0.01)
        return []

    def close(self) -> None:
        pass


class FakeMessage:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return STREAM.name

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeConsumer]]:
    monkeypatch.setattr(readers, "CALL_SECONDS_MAX", 0.2)
    monkeypatch.setattr(readers, "CLOSE_SECONDS_MAX", 0.5)
    monkeypatch.setattr("confluent_kafka.Consumer", FakeConsumer)
    FakeConsumer.hanging, FakeConsumer.made = threading.Event(), []
    yield FakeConsumer
    FakeConsumer.hanging.set()


def test_a_call_of_the_client_that_does_not_return_costs_that_consumer_alone(
    client: type[FakeConsumer],
) -> None:
    known, stopping = Known([STREAM]), threading.Event()
    running = [Reader(known, "127.0.0.1:1", "leaders", "", 1, stopping)]
    running[0].start()
    deadline = time.monotonic() + 20
    while len(client.made) == 1:
        assert time.monotonic() < deadline
        replace_hanging(running)
        time.sleep(0.01)
    stopping.set()
    running[0].join()
    assert [each.assigned for each in client.made] == [[("single", 0, 0)], [("single", 0, 1)]]
    assert known.stuck == 1


def test_a_consumer_that_hangs_when_the_run_ends_is_no_finding(client: type[FakeConsumer]) -> None:
    known, stopping = Known([STREAM]), threading.Event()
    reader = Reader(known, "127.0.0.1:1", "leaders", "", 1, stopping)
    reader.start()
    deadline = time.monotonic() + 20
    while not reader.hangs:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stopping.set()
    reader.join()
    assert known.stuck == 1
    assert not [each for each in known.findings if "does not end" in each]
