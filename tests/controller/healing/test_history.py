"""How often a replica heals, over restarts and with clocks that are wrong."""

from __future__ import annotations

from bascule.controller.cluster.healing.history import (
    AHEAD_MS_MAX,
    NODE_MAX,
    PARTITION_MAX,
    PERIOD_MS,
    HealHistory,
)
from bascule.host.real import RealRandom
from bascule.sim.disk import SimClock, SimFiles


def test_the_history_has_limits_and_survives_a_restart() -> None:
    files, clock = SimFiles(RealRandom(1)), SimClock(1_000)
    files.make_dirs("/data")
    history = HealHistory(files, "/data", clock)
    key = b"s" * 16, 0
    for _ in range(PARTITION_MAX):
        assert history.why_not(key) == ""
        history.add(key)
        clock.ms += 1_000
    again = HealHistory(files, "/data", clock)
    assert "healed 3 times" in again.why_not(key)
    assert again.why_not((b"t" * 16, 0)) == ""
    for number in range(NODE_MAX):
        again.add((b"u" * 16, number))
    assert "of this node" in again.why_not((b"t" * 16, 0))
    clock.ms += PERIOD_MS
    assert again.why_not(key) == ""


def test_heals_by_a_clock_that_was_far_ahead_do_not_count() -> None:
    files, clock = SimFiles(RealRandom(1)), SimClock(1_000)
    files.make_dirs("/data")
    history = HealHistory(files, "/data", clock)
    key = b"s" * 16, 0
    clock.ms += 30 * PERIOD_MS
    for _ in range(PARTITION_MAX):
        history.add(key)
    assert "healed 3 times" in history.why_not(key)
    clock.ms -= 30 * PERIOD_MS
    assert HealHistory(files, "/data", clock).why_not(key) == ""
    assert history.why_not(key) == ""
    clock.ms += 30 * PERIOD_MS
    assert history.why_not(key) == "", "nor do they when the clock gets there"


def test_heals_count_after_a_correction_of_the_clock() -> None:
    files, clock = SimFiles(RealRandom(1)), SimClock(AHEAD_MS_MAX)
    files.make_dirs("/data")
    history = HealHistory(files, "/data", clock)
    key = b"s" * 16, 0
    for _ in range(PARTITION_MAX):
        history.add(key)
    clock.ms -= AHEAD_MS_MAX
    assert "healed 3 times" in history.why_not(key)
    clock.ms += PERIOD_MS
    assert "healed 3 times" in history.why_not(key)
    clock.ms += AHEAD_MS_MAX
    assert history.why_not(key) == ""


def test_a_damaged_history_counts_from_now_on() -> None:
    files, clock = SimFiles(RealRandom(1)), SimClock(1_000)
    files.make_dirs("/data")
    files.open("/data/heals.json", create=True).append(b"[")
    assert HealHistory(files, "/data", clock).why_not((b"s" * 16, 0)) == ""
