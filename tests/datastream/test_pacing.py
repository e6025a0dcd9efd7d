"""The rate of payloads beside logs that are synced."""

from __future__ import annotations

import threading
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.datastream.disk import paced_thread, pacing
from bascule.datastream.disk.paced_thread import PacedThread
from bascule.datastream.disk.pacing import (
    BASELINE_PART_NS,
    BASELINE_PARTS,
    MIB,
    QUIET_NS,
    SECOND_NS,
    START,
    STEP_BYTES,
    STEP_BYTES_MIN,
    STEPS_MIN,
    SYNCS_MIN,
    TARGET_NS,
    UNWRITTEN_BYTES_MAX,
    UNWRITTEN_BYTES_MIN,
    Baseline,
    Pacing,
)
from bascule.sim.disk import SimClock

FLOOR = 8 * MIB
MS = 1_000_000
SHORT_NS, LONG_NS = 1 * MS, 1 * MS + TARGET_NS + 1


class Disk:
    """Time goes on with each sync, and payloads write whatever they may."""

    def __init__(self, floor: int = FLOOR) -> None:
        self.pacing = Pacing(floor=floor)
        self.now_ns = 10 * SECOND_NS
        self.written = 0

    def write(self) -> None:
        """All steps that may begin now, or one if there is no limit."""
        while self.pacing.wait_ns(self.now_ns) <= 0:
            size = self.pacing.step_bytes
            self.pacing.on_step(self.now_ns, size)
            self.written += size
            if not self.pacing.limit:
                return

    def sync(self, took_ns: int = SHORT_NS, *, every_ns: int = 5 * MS, writes: bool = True) -> None:
        self.now_ns += every_ns
        if writes:
            self.write()
        self.pacing.on_sync(self.now_ns, took_ns)

    def share(self) -> None:
        for _ in range(SYNCS_MIN):
            self.sync()
        assert self.pacing.limit == FLOOR * START


def test_payloads_alone_have_no_limit() -> None:
    disk = Disk()
    for _ in range(1_000):
        disk.now_ns += 5 * MS
        disk.write()
    assert disk.pacing.limit == 0
    assert disk.pacing.step_bytes == STEP_BYTES
    assert disk.pacing.unwritten_max == UNWRITTEN_BYTES_MAX


def test_the_syncs_of_their_own_records_do_not_limit_payloads() -> None:
    disk = Disk()
    for _ in range(1_000):
        disk.pacing.on_payload()
        disk.sync(LONG_NS)
        assert disk.pacing.limit == 0


def test_few_syncs_do_not_limit_payloads() -> None:
    disk = Disk()
    for _ in range(100):
        disk.sync(LONG_NS, every_ns=QUIET_NS // (SYNCS_MIN - 2))
        assert disk.pacing.limit == 0


def test_other_syncs_limit_payloads_at_once() -> None:
    disk = Disk()
    disk.share()
    assert disk.pacing.step_bytes == STEP_BYTES_MIN
    assert disk.pacing.unwritten_max == UNWRITTEN_BYTES_MIN


def test_the_rate_grows_until_a_sync_is_delayed() -> None:
    disk = Disk()
    disk.share()
    rates = [disk.pacing.limit]
    while rates[-1] < 10 * rates[0]:
        disk.sync()
        rates.append(disk.pacing.limit)
    assert rates == sorted(rates)
    while disk.pacing.limit >= rates[-1]:
        disk.sync(LONG_NS)
    assert FLOOR < disk.pacing.limit < rates[-1]
    for _ in range(2_000):
        disk.sync(LONG_NS)
    assert disk.pacing.limit == FLOOR
    before = disk.pacing.limit
    for _ in range(200):
        disk.sync()
    assert before < disk.pacing.limit <= before + 2 * pacing.INCREASE


def test_a_limit_that_is_not_reached_does_not_grow() -> None:
    disk = Disk()
    disk.share()
    for _ in range(1_000):
        disk.sync(writes=False)
    assert disk.pacing.limit == FLOOR * START


def test_delays_without_payloads_change_nothing() -> None:
    disk = Disk()
    disk.share()
    for _ in range(1_000):
        disk.sync(LONG_NS, writes=False)
    assert disk.pacing.limit == FLOOR * START


def test_the_limit_ends_with_the_syncs() -> None:
    disk = Disk()
    disk.share()
    disk.write()
    assert disk.pacing.wait_ns(disk.now_ns) > 0
    assert disk.pacing.wait_ns(disk.now_ns + QUIET_NS) <= 0
    assert disk.pacing.limit == 0


def test_a_slow_disk_has_a_target_of_its_own() -> None:
    """What takes 30 ms always takes up to 60 ms at times."""
    disk = Disk()
    for _ in range(SYNCS_MIN):
        disk.sync(30 * MS)
    for _ in range(1_000):
        disk.sync(59 * MS)
    assert disk.pacing.limit > FLOOR * START


def test_the_shortest_sync_is_forgotten_after_a_minute() -> None:
    baseline = Baseline()
    assert baseline.on_sync(0, 1 * MS) == 1 * MS
    end_ns = BASELINE_PART_NS * BASELINE_PARTS
    assert baseline.on_sync(end_ns - 1, 3 * MS) == 1 * MS
    assert baseline.on_sync(end_ns, 5 * MS) == 3 * MS
    assert baseline.on_sync(end_ns * 3, 7 * MS) == 7 * MS


def test_without_a_least_rate_there_is_no_limit() -> None:
    disk = Disk(floor=0)
    for _ in range(1_000):
        disk.sync(LONG_NS)
    assert disk.pacing.limit == 0
    assert disk.pacing.step_bytes == STEP_BYTES


@given(
    st.lists(
        st.tuples(st.integers(0, 400 * MS), st.integers(1, 100 * MS), st.booleans()), max_size=200
    )
)
def test_payloads_go_on_and_do_not_exceed_the_limit(syncs: list[tuple[int, int, bool]]) -> None:
    disk = Disk()
    for pause_ns, took_ns, is_payload in syncs:
        disk.now_ns += pause_ns
        limit, before, free_ns = disk.pacing.limit, disk.written, disk.pacing.wait_ns(disk.now_ns)
        disk.write()
        if limit and disk.pacing.limit == limit:
            assert disk.written - before <= 2 * STEP_BYTES
            assert free_ns <= STEP_BYTES * SECOND_NS // FLOOR
        if is_payload:
            disk.pacing.on_payload()
        disk.pacing.on_sync(disk.now_ns, took_ns)
        assert disk.pacing.limit == 0 or disk.pacing.limit >= FLOOR
        assert STEP_BYTES_MIN <= disk.pacing.step_bytes <= STEP_BYTES
        assert UNWRITTEN_BYTES_MIN <= disk.pacing.unwritten_max <= UNWRITTEN_BYTES_MAX


@settings(max_examples=10, deadline=None)
@given(st.integers(20, 200), st.integers(4, 20))
def test_the_rate_settles_below_what_delays_syncs(capacity_mib: int, every_ms: int) -> None:
    """A disk whose syncs take long while payloads write more than it can take."""
    disk = Disk()
    capacity = capacity_mib * MIB
    disk.share()
    rates = []
    for _ in range(20_000 // every_ms):
        is_over = disk.pacing.limit > capacity
        disk.sync(LONG_NS if is_over else SHORT_NS, every_ns=every_ms * MS)
        rates.append(disk.pacing.limit)
    settled = rates[len(rates) // 2 :]
    assert max(settled) <= capacity + pacing.INCREASE
    assert sum(settled) / len(settled) >= capacity * 0.5


def test_a_step_waits_no_longer_than_the_thread_lives() -> None:
    clock = SimClock(1_000)
    core = Pacing(floor=1)
    thread = PacedThread(clock, core)
    for _ in range(SYNCS_MIN):
        thread.on_log_synced(clock.monotonic_ns(), clock.monotonic_ns() + SHORT_NS)
    assert thread.limit() == START * STEPS_MIN * STEP_BYTES_MIN
    assert thread.unwritten_max == UNWRITTEN_BYTES_MIN
    done = threading.Semaphore(0)
    for _ in range(2):
        thread.submit(done.release, thread.step_bytes)
    assert done.acquire(timeout=20)
    assert not done.acquire(blocking=False)
    thread.close()
    assert done.acquire(timeout=20)


def test_a_step_that_nobody_wants_any_more_is_left_out() -> None:
    """Else payloads that are given up one after the other would fill the queue with open files."""
    clock = SimClock(1_000)
    thread = PacedThread(clock, Pacing(floor=FLOOR))
    for _ in range(SYNCS_MIN):
        thread.on_log_synced(clock.monotonic_ns(), clock.monotonic_ns() + SHORT_NS)
    done: list[str] = []
    reached = threading.Event()

    def is_wanted() -> bool:
        reached.set()
        return False

    thread.submit(lambda: done.append("wanted"), STEP_BYTES)
    for _ in range(100):
        thread.submit(lambda: done.append("not wanted"), STEP_BYTES, is_wanted=lambda: False)
    thread.submit(lambda: done.append("not wanted"), STEP_BYTES, is_wanted=is_wanted)
    assert reached.wait(20), "it waits for time that does not go on"
    thread.close()
    assert done == ["wanted"]
    assert thread.waited_ns == 0


def test_syncs_of_long_ago_do_not_limit_payloads() -> None:
    disk = Disk()
    disk.share()
    for _ in range(SYNCS_MIN):
        disk.sync()
    disk.now_ns += 3_600 * SECOND_NS
    assert disk.pacing.wait_ns(disk.now_ns) <= 0
    assert disk.pacing.limit == 0
    assert disk.pacing.step_bytes == STEP_BYTES


def test_records_of_payloads_may_be_synced_in_the_next_window() -> None:
    """As those of many payloads that end together."""
    disk = Disk()
    for _ in range(20):
        for _ in range(2 * SYNCS_MIN):
            disk.pacing.on_payload()
        disk.now_ns += QUIET_NS
        for _ in range(2 * SYNCS_MIN):
            disk.sync(every_ns=MS)
            assert disk.pacing.limit == 0


def test_records_that_are_synced_together_do_not_hide_other_syncs_for_long() -> None:
    disk = Disk()
    for _ in range(1_000):
        disk.pacing.on_payload()
    for _ in range(2):
        disk.now_ns += QUIET_NS
        disk.sync()
    disk.now_ns += QUIET_NS
    disk.share()


def test_the_least_rate_has_some_steps_a_second() -> None:
    disk = Disk(floor=1)
    least = STEPS_MIN * STEP_BYTES_MIN
    for _ in range(SYNCS_MIN):
        disk.sync()
    assert disk.pacing.limit == START * least
    for _ in range(2_000):
        disk.sync(LONG_NS)
    assert disk.pacing.limit == least


def test_a_step_that_waits_has_the_rate_of_now() -> None:
    disk = Disk(floor=1)
    for _ in range(SYNCS_MIN):
        disk.sync(writes=False)
    before, began_ns = disk.pacing.limit, disk.now_ns
    disk.pacing.on_step(began_ns, STEP_BYTES)
    while disk.pacing.limit == before:
        disk.sync(writes=False)
    assert disk.pacing.limit > before
    left = STEP_BYTES - (disk.now_ns - began_ns + pacing.STEP_NS) * before // SECOND_NS
    waits_for = disk.pacing.wait_ns(disk.now_ns) * disk.pacing.limit // SECOND_NS
    assert abs(waits_for - left) <= 2


def test_syncs_that_are_told_in_another_order_are_remembered_as_long() -> None:
    baseline = Baseline()
    assert baseline.on_sync(0, 1 * MS) == 1 * MS
    for _ in range(BASELINE_PARTS):
        for now_ns in (BASELINE_PART_NS, BASELINE_PART_NS - 1):
            assert baseline.on_sync(now_ns, 3 * MS) == 1 * MS


def grown(disk: Disk, rate: int) -> None:
    """No sync is delayed until the limit is at least this."""
    disk.share()
    while disk.pacing.limit < rate:
        disk.sync()


def test_one_delayed_sync_in_a_hundred_is_the_disk_s_own() -> None:
    disk = Disk()
    grown(disk, 4 * FLOOR)
    for every_ms, is_cut in ((1, False), (5, True)):
        before = disk.pacing.limit
        disk.sync(LONG_NS)
        while disk.pacing.limit == before:
            disk.sync(every_ns=every_ms * MS)
        assert (disk.pacing.limit < before) == is_cut


def test_what_payloads_have_written_is_cut_where_the_limit_is_higher() -> None:
    disk = Disk()
    grown(disk, 20 * FLOOR)
    before = disk.pacing.limit
    disk.pacing.on_step(disk.now_ns, 4 * MIB)
    while disk.pacing.limit == before:
        disk.sync(LONG_NS, writes=False)
    assert FLOOR < disk.pacing.limit < before // 4


def test_a_limit_that_is_hardly_used_does_not_grow() -> None:
    disk = Disk()
    grown(disk, 20 * FLOOR)
    before = disk.pacing.limit
    for _ in range(1_000):
        disk.pacing.on_step(disk.now_ns, 4_096)
        disk.sync(writes=False)
    assert disk.pacing.limit == before


def test_a_step_does_not_wait_for_a_limit_that_has_ended() -> None:
    disk = Disk(floor=1)
    for _ in range(SYNCS_MIN):
        disk.sync()
    for _ in range(500):
        disk.sync(LONG_NS)
    while disk.pacing.wait_ns(disk.now_ns) > 0:
        disk.now_ns += MS
    disk.pacing.on_step(disk.now_ns, STEP_BYTES)
    assert disk.pacing.wait_ns(disk.now_ns) > 3 * QUIET_NS // 2
    assert disk.pacing.wait_ns(disk.now_ns + QUIET_NS) <= 0


class Thread:
    """A thread beside logs that are synced. Time goes on where it is told to."""

    def __init__(self) -> None:
        self.clock = SimClock(1_000)
        self.paced = PacedThread(self.clock, Pacing(floor=FLOOR))
        self.sync()
        assert self.paced.limit() == START * FLOOR

    def sync(self) -> None:
        for _ in range(SYNCS_MIN):
            self.paced.on_log_synced(self.clock.monotonic_ns(), self.clock.monotonic_ns() + 1)

    def step(self) -> None:
        done = threading.Event()
        self.paced.submit(done.set, self.paced.step_bytes)
        assert done.wait(20)


def test_payloads_alone_are_as_fast_as_before_a_second_later() -> None:
    thread = Thread()
    thread.clock.ms += 3_000
    thread.step()
    assert thread.paced.step_bytes == STEP_BYTES
    assert thread.paced.unwritten_max == UNWRITTEN_BYTES_MAX
    thread.sync()
    assert thread.paced.limit() == START * FLOOR
    thread.clock.ms += 3_000
    assert thread.paced.limit() == 0
    for _ in range(SYNCS_MIN):
        thread.paced.on_payload()
    thread.sync()
    assert thread.paced.limit() == 0, "these are the syncs of their records"
    thread.paced.close()


def test_a_step_waits_for_its_time_and_no_longer_than_the_thread_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paced_thread, "QUIET_NS", 1_000)
    thread, looks, looked = Thread(), count(), threading.Event()
    thread.step()
    now_ns = thread.clock.monotonic_ns

    def look() -> int:
        if next(looks) > 20:
            looked.set()
        return now_ns()

    monkeypatch.setattr(thread.clock, "monotonic_ns", look)
    done = threading.Event()
    thread.paced.submit(done.set, STEP_BYTES_MIN)
    assert looked.wait(20)
    assert not done.is_set()
    assert thread.paced.waited_ns == 0
    thread.clock.ms += 100
    assert done.wait(20)
    thread.paced.close()
    assert thread.paced.waited_ns == SECOND_NS // 10


def test_a_thread_that_is_closed_waits_for_no_time_and_for_the_step_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paced_thread, "QUIET_NS", 3_600 * SECOND_NS)
    thread, begun, may_end = Thread(), threading.Event(), threading.Event()
    thread.step()

    def step() -> None:
        begun.set()
        assert may_end.wait(20)

    monkeypatch.setattr(thread.paced._pacing, "_free_ns", 3_600 * SECOND_NS)
    thread.paced.submit(step, STEP_BYTES_MIN)
    closing = threading.Thread(target=thread.paced.close)
    closing.start()
    assert begun.wait(20)
    closing.join(0.1)
    assert closing.is_alive()
    may_end.set()
    closing.join(20)
    assert not closing.is_alive()
