"""The scrubber: what it reads, in which order, and what it remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub import ScrubbedLog, Scrubber, ScrubLimits, ScrubState, schedule, scrubber
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage import partition_log
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from support.metadata_groups import until
from support.replicas import lead_alone
from support.stored_batches import append

CONFIG = StreamConfig(subject="s", segment_bytes_max=2_000)
PERIOD_MS = 10_000


class ScrubberUnderTest:
    def __init__(self, files: SimFiles | None = None, count: int = 2) -> None:
        self.files = files or SimFiles(RealRandom(1))
        self.clock = SimClock(100_000)
        self.partitions = Partitions()
        self.damage: list[str] = []
        self.partitions.bind(asyncio.get_running_loop())
        self.partitions.on_damaged = lambda p, error: self.damage.append(str(error))
        self.every = [self.add(f"s{number}") for number in range(count)]
        self.scrubber = Scrubber(
            self.partitions,
            files=self.files,
            data_directory="/data",
            clock=self.clock,
            limits=ScrubLimits(PERIOD_MS, 0),
            random=RealRandom(2),
        )
        self.done: list[str] = []
        self.scrubber.on_done = lambda p, _: self.done.append(p.definition.name)

    def add(self, name: str) -> Partition:
        directory = f"/data/streams/{name}/0"
        is_new = not self.files.exists(directory)
        log = PartitionLog.open(self.files, directory, log_config(CONFIG), self.clock)
        if is_new:
            for _ in range(30):
                append(log, 3, size=100)
            log.sync()
        definition = StreamDefinition(name, name.encode().ljust(16), 0, CONFIG)
        partition = Partition(
            definition, 0, log=log, failure=None, clock=self.clock,
            on_changed=lambda _: None, hash_key=HashKey(bytes(16)),
        )  # fmt: skip
        self.partitions.add((lead_alone(partition),))
        return partition

    def known(self, number: int) -> ScrubbedLog:
        return self.scrubber.known(self.every[number])

    async def all(self) -> None:
        while await self.scrubber.tick():
            pass

    async def period(self) -> None:
        """Let a period pass, and read what is due then."""
        await self.all()
        self.clock.ms += PERIOD_MS
        await self.all()


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_each_log_is_read_once_a_period() -> None:
    async def scene() -> None:
        tested = ScrubberUnderTest()
        await tested.all()
        assert tested.done == [], "a new log has its time within the next period"
        await tested.period()
        assert sorted(tested.done) == ["s0", "s1"]
        report = tested.known(0).report
        assert report is not None
        assert (report.state, report.records) == (ScrubState.OK, 90)
        assert report.bytes == report.bytes_total == tested.scrubber.counts.bytes // 2
        await tested.all()
        assert tested.scrubber.counts.last_pass_ms == tested.clock.ms
        assert len(tested.done) == 2
        await tested.period()
        assert len(tested.done) == 4
        await tested.scrubber.close()

    play(scene)


def test_a_clock_that_is_set_back_does_not_hold_scrubs_up() -> None:
    async def scene() -> None:
        tested = ScrubberUnderTest()
        await tested.period()
        assert len(tested.done) == 2
        tested.clock.ms -= 5 * PERIOD_MS
        await tested.all()
        assert len(tested.done) == 4, "whenever they were read before"
        await tested.period()
        assert len(tested.done) == 6
        await tested.scrubber.close()

    play(scene)


def test_the_time_of_a_log_within_the_period_is_its_own_and_that_of_its_replicas() -> None:
    async def scene() -> None:
        found = list[dict[str, int]]()
        for began_ms in (100_000, 101_234):
            tested = ScrubberUnderTest(count=20)
            tested.clock.ms = began_ms
            times = dict[str, int]()
            await tested.all()
            for now_ms in range(110_000, 120_000, 100):
                tested.clock.ms = now_ms
                tested.done.clear()
                await tested.all()
                times |= dict.fromkeys(tested.done, now_ms % PERIOD_MS)
            found.append(times)
            await tested.scrubber.close()
        assert found[0] == found[1], "whenever each node has seen the log first"
        assert len(found[0]) == 20
        assert len(set(found[0].values())) > 10

    play(scene)


def test_a_look_takes_a_part_of_many_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "LOOKS_MAX", 2)

    async def scene() -> None:
        tested = ScrubberUnderTest(count=5)
        for _ in range(3):
            await tested.scrubber.tick()
        tested.clock.ms += PERIOD_MS
        reads = [await tested.scrubber.tick() for _ in range(7)]
        assert sorted(tested.done) == ["s0", "s1", "s2", "s3", "s4"]
        assert reads.count(True) == 5
        await tested.scrubber.close()

    play(scene)


def test_digests_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "DIGESTS_BYTES_MAX", 40)

    async def scene() -> None:
        tested = ScrubberUnderTest(count=4)
        for number in (2, 0, 1, 3, 1):
            tested.scrubber.request(tested.every[number], f"asked {number}", 60)
            await tested.scrubber.tick()
        kept = [number for number in range(4) if tested.known(number).digests is not None]
        assert kept == [1, 3], "16 bytes each, those read last"
        await tested.scrubber.close()

    play(scene)


def test_what_is_known_of_a_deleted_log_is_forgotten() -> None:
    async def scene() -> None:
        tested = ScrubberUnderTest()
        await tested.period()
        tested.partitions.remove(tested.every[0].definition)
        await tested.period()
        assert [name for name, _ in tested.scrubber._logs] == [b"s1".ljust(16)]
        assert len(tested.scrubber._digested) == 1
        await tested.scrubber.close()

    play(scene)


def test_damage_is_found_and_told() -> None:
    async def scene() -> None:
        tested = ScrubberUnderTest()
        directory = "/data/streams/s0/0"
        name = next(n for n in tested.files.list_dir(directory) if n.endswith(".log"))
        tested.files.open(f"{directory}/{name}").write_at(500, b"?")
        await tested.period()
        await until(lambda: tested.damage)
        report = tested.known(0).report
        assert report is not None
        assert report.state is ScrubState.CORRUPT
        assert name in report.found
        assert tested.damage == [report.found]
        assert tested.done == ["s1"]
        assert tested.scrubber.counts.damaged == 1
        await tested.scrubber.close()

    play(scene)


def test_a_request_comes_first_and_has_its_own_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "VERIFY_BYTES", 1_000)

    async def scene() -> None:
        tested = ScrubberUnderTest()
        tested.scrubber.request(tested.every[1], "asked", 60)
        tested.scrubber.request(tested.every[1], "asked", 60)
        report = tested.known(1).report
        assert report is not None
        assert (report.id, report.state) == ("asked", ScrubState.WAITING)
        await tested.scrubber.tick()
        assert tested.done == ["s1"]
        assert report.state is ScrubState.OK
        digests = tested.known(1).digests
        assert digests is not None
        assert (digests.limit, sum(digests.covered)) == (60, 60)
        await tested.scrubber.close()

    play(scene)


def test_a_pass_is_over_once_its_digests_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a replica that differs counts as equal for who asks in between."""

    async def scene() -> None:
        tested = ScrubberUnderTest()
        seen: list[ScrubState] = []

        def look(self: Scrubber, *, is_due: bool = False) -> None:
            """On the thread, after the last read."""
            known = tested.known(1)
            assert known.digests is None
            if known.report is not None:
                seen.append(known.report.state)

        monkeypatch.setattr(Scrubber, "_save", look)
        tested.scrubber.request(tested.every[1], "asked", 60)
        await tested.scrubber.tick()
        assert seen
        assert set(seen) == {ScrubState.RUNNING}
        assert tested.known(1).digests is not None
        await tested.scrubber.close()

    play(scene)


def test_a_pass_goes_on_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "VERIFY_BYTES", 1_000)
    monkeypatch.setattr(scrubber, "TICK_SECONDS", 0.01)

    async def scene() -> None:
        tested = ScrubberUnderTest(count=1)
        running = asyncio.create_task(tested.scrubber.run())
        await until(lambda: tested.scrubber._schedule.progress)
        tested.clock.ms += PERIOD_MS
        await until(lambda: tested.scrubber.counts.bytes)
        tested.scrubber._stopping.set()
        running.cancel()
        await tested.scrubber.close()
        (progress,) = tested.scrubber._schedule.progress.values()
        if progress.next is None:
            return  # it had read everything by then
        again = ScrubberUnderTest(tested.files, count=1)
        again.clock.ms = tested.clock.ms
        running = asyncio.create_task(again.scrubber.run())
        await until(lambda: again.done)
        running.cancel()
        total = again.every[0].log
        assert total is not None
        assert 0 < again.scrubber.counts.bytes < total.size_bytes()
        assert again.known(0).digests is None, "a part of the log was read by another process"
        await again.scrubber.close()

    play(scene)


def test_a_failed_partition_is_corrupt_for_who_asks() -> None:
    async def scene() -> None:
        tested = ScrubberUnderTest()
        tested.every[0].fail(str(CorruptData("f", 1, "a", "b")), is_damage=True)
        tested.scrubber.request(tested.every[0], "asked", 60)
        await tested.scrubber.tick()
        report = tested.known(0).report
        assert report is not None
        assert report.state is ScrubState.CORRUPT
        await tested.scrubber.close()

    play(scene)
