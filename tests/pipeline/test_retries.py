"""Patience with a node that is away: how long, at which pace, and what the log says."""

from __future__ import annotations

import logging

import pytest

from bascule.errors import Broken, UnknownStream
from bascule.pipeline import retries
from bascule.pipeline.retries import (
    LOG_PREFIX,
    PAUSE_S_MAX,
    RETRY_TIMEOUT_MS,
    Retries,
    with_retries,
)


class Time:
    """A clock that only waiting advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def failing_until(time: Time, end_s: float, timeout_ms: int) -> Retries:
    attempts = Retries(timeout_ms, time.clock, time.wait)
    while time.now < end_s:
        attempts.failed(Broken("no node at http://h:1"))
    attempts.succeeded()
    return attempts


def test_pauses_grow_up_to_a_limit() -> None:
    time = Time()
    failing_until(time, 60, 120_000)
    assert time.pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(time.pauses) == PAUSE_S_MAX
    assert sorted(time.pauses) == time.pauses


def test_the_error_is_raised_when_the_time_is_over() -> None:
    time = Time()
    with pytest.raises(Broken, match="no node at"):
        failing_until(time, 1e9, 30_000)
    assert time.now == pytest.approx(30)
    with pytest.raises(Broken):
        Retries(0, time.clock, time.wait).failed(Broken("x"))


def test_a_success_gives_the_whole_time_again() -> None:
    time = Time()
    attempts = failing_until(time, 25, 30_000)
    began = time.now
    while time.now < began + 25:
        attempts.failed(Broken("again"))
    assert time.pauses.count(0.1) == 2


def test_the_log_says_when_it_begins_every_ten_seconds_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    with caplog.at_level(logging.WARNING, retries.__name__):
        failing_until(time, 34, 120_000)
    lines = [record.getMessage().removeprefix(LOG_PREFIX) for record in caplog.records]
    assert lines[0] == "no node at http://h:1; retrying for up to 2 min"
    assert [line.split(" of ")[0] for line in lines[1:-1]] == [
        "retrying for 11 s", "retrying for 21 s", "retrying for 31 s",
    ]  # fmt: skip
    assert lines[-1] == "continuing after 36 s"


def test_nothing_is_said_of_what_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert with_retries(lambda: 7) == 7
    assert caplog.records == []


def test_only_what_broke_is_tried_again() -> None:
    asked = []

    def refuse() -> None:
        asked.append(1)
        raise UnknownStream("s")

    with pytest.raises(UnknownStream):
        with_retries(refuse)
    assert len(asked) == 1
    answers = iter([Broken("away"), Broken("away"), 7])

    def answer() -> int:
        found = next(answers)
        if isinstance(found, Broken):
            raise found
        return found

    assert with_retries(answer, timeout_ms=RETRY_TIMEOUT_MS) == 7
