"""What the announcer adds to the exchange: permissions, its queue, and its log lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from bascule.announce.exchange import AnnouncingNode
from bascule.controller.announcer import HEARD_MAX, RETRY_NS, TAKEN_AT_A_TIME, Announcer
from bascule.model import StreamConfig, StreamDefinition
from bascule.sim.disk import SimClock

DEFINITIONS = {
    name: StreamDefinition(name, name.encode().rjust(16, b"0"), 0, StreamConfig(name))
    for name in (f"s{number:02}" for number in range(25))
}


class Link:
    """A NATS of two nodes, which hear each other when they next look."""

    payload_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.connected = True
        self.connects = 1
        self.refused: tuple[str | None, str | None] = (None, None)
        self.retries = 0
        self.hear: Callable[[bytes], None] = lambda _: None
        self.other: Link | None = None

    async def listen(
        self, subject: str, on_message: Callable[[bytes], None], *, bytes_max: int
    ) -> Link:
        self.hear = on_message
        return self

    def publish(self, payload: bytes) -> bool:
        if not self.connected or self.refused[1] is not None:
            return False
        other = self.other
        if other is not None and other.connected and other.refused[0] is None:
            other.hear(payload)
        return True

    def refusals(self) -> tuple[str | None, str | None]:
        return self.refused

    def retry(self) -> None:
        self.retries += 1


class Two:
    """Two nodes of two clusters, moved by hand."""

    def __init__(self) -> None:
        self.clock = SimClock(0)
        self.links = [Link(), Link()]
        self.links[0].other, self.links[1].other = self.links[1], self.links[0]
        self.nodes = [
            Announcer(AnnouncingNode(f"c{i}", 1, f"{i:016x}", 1_000), link, self.clock)
            for i, link in enumerate(self.links)
        ]

    async def start(self) -> None:
        for node in self.nodes:
            node.on_streams(DEFINITIONS)
            await node.start()
        self.run(3)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 100)):
            self.clock.ms += 10
            for node in self.nodes:
                while node._advance() == 0.0:
                    pass


def test_conflicts_are_one_line_that_names_some_of_the_streams(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        two = Two()
        await two.start()
        a, b = two.nodes
        assert len(a.conflicts()) == len(b.conflicts()) == 25
        assert a.statistics(["s00", "other"])["conflict"] == {"s00": 1, "other": 0}
        b.stop()
        two.run(0.1)
        assert not a.conflicts()

    with caplog.at_level(logging.INFO, "bascule.controller"):
        asyncio.run(scenario())
    told = [each for each in caplog.records if "same streams" in each.message]
    assert len(told) == 2
    fields = told[0].__dict__
    assert (fields["count"], fields["nodes"], told[0].levelname) == (25, "1", "WARNING")
    assert fields["streams"].startswith("s00, s01, ")
    assert fields["streams"].endswith("s19 and 5 more")
    (ended,) = [each.__dict__ for each in caplog.records if "ended" in each.message]
    assert ended["count"] == 25


def test_what_is_not_permitted_is_logged_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        two = Two()
        two.links[0].refused = ("no subscribe", None)
        await two.start()
        a, b = two.nodes
        assert (bool(a.conflicts()), bool(b.conflicts())) == (False, True)
        assert a.refusal == "no subscribe"
        two.links[0].refused = ("no subscribe", "no publish")
        sent = a.statistics([])["sent"]
        two.run(5)
        assert not b.conflicts()
        assert a.statistics([])["sent"] == sent
        for connects in (2, 3):
            two.links[0].connects = connects
            two.run(1)
        assert two.links[0].retries == 1, "soon after the first refusal, then after a pause"
        two.clock.ms += RETRY_NS // 1_000_000
        two.run(0.1)
        assert two.links[0].retries == 2
        two.links[0].refused = (None, None)
        two.run(3)
        assert a.conflicts()
        assert b.conflicts()
        assert a.refusal is None

    with caplog.at_level(logging.WARNING, "bascule.controller"):
        asyncio.run(scenario())
    told = [
        (each.__dict__["operation"], each.__dict__["error"])
        for each in caplog.records
        if "not permitted" in each.message
    ]
    assert told == [("subscribe", "no subscribe"), ("publish", "no publish")]


def test_announcements_that_the_loop_cannot_follow_are_counted_and_not_kept() -> None:
    async def scenario() -> None:
        two = Two()
        await two.start()
        a = two.nodes[0]
        a._advance()
        for _ in range(HEARD_MAX + 50):
            two.links[0].hear(b"x")
        assert a.statistics([])["refused"]["overflow"] == 50
        assert a._advance() == 0.0, "the rest is heard after other tasks of the loop"
        assert a.statistics([])["refused"]["malformed"] == TAKEN_AT_A_TIME
        two.run(0.1)
        assert a.statistics([])["refused"]["malformed"] == HEARD_MAX
        assert len(a.conflicts()) == 25

    asyncio.run(scenario())
