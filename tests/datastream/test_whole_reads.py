"""Reads of whole payloads. Their threads run when a test has them do so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, cast

import pytest

from bascule.datastream.disk import whole_reads
from bascule.datastream.disk.whole_reads import SLICE_BLOCKS, Awaiting, SharedRead, WholeReads
from bascule.errors import Broken
from bascule.storage.payloads.block_steps import Steps, WaitingSteps


class Threads:
    def __init__(self, *_: object) -> None:
        self.work: deque[Callable[[], None]] = deque()
        self.is_shut_down = False

    def submit(self, function: Callable[..., None], *args: Any) -> None:
        assert not self.is_shut_down
        self.work.append(partial(function, *args))

    def shutdown(self) -> None:
        self.is_shut_down = True
        self.run()

    def run(self, count: int = 1_000) -> None:
        while self.work and count:
            self.work.popleft()()
            count -= 1


class Reads:
    def __init__(self) -> None:
        self.short = Threads()
        self.reads = WholeReads(cast(Executor, self.short))
        self.long = cast(Threads, self.reads._threads)
        self.blocks: list[str] = []
        self.told: dict[str, object] = {}
        self.stopped: list[str] = []
        self.unwanted: set[str] = set()

    def steps(self, name: str, blocks: int) -> Steps[int]:
        try:
            for number in range(blocks):
                if number:
                    yield
                self.blocks.append(name)
        except GeneratorExit:
            self.stopped.append(name)
            raise
        return blocks

    def run(self, name: str, blocks: int) -> None:
        self.reads.run(
            self.steps(name, blocks),
            lambda result, error: self.told.update({name: error or result}),
            is_wanted=lambda: name not in self.unwanted,
        )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    monkeypatch.setattr(whole_reads, "ThreadPoolExecutor", Threads)
    return Reads()


def test_a_read_of_one_block_needs_no_turn(reads: Reads) -> None:
    reads.run("a", 1)
    assert not reads.told
    reads.short.run()
    assert reads.told == {"a": 1}
    assert not reads.long.work


def test_short_work_waits_for_one_block_of_each_read(reads: Reads) -> None:
    for name in "abcde":
        reads.run(name, 1_000)
    done: list[bool] = []
    reads.short.submit(done.append, True)
    reads.short.run()
    assert done
    assert reads.blocks == list("abcde")


def test_long_reads_take_turns(reads: Reads) -> None:
    reads.run("long", 1_000)
    reads.run("short", 1 + SLICE_BLOCKS)
    reads.short.run()
    reads.long.run(3)
    assert reads.told == {"short": 1 + SLICE_BLOCKS}
    assert reads.blocks.count("long") == 1 + 2 * SLICE_BLOCKS
    reads.long.run()
    assert reads.told["long"] == 1_000


def test_a_read_that_nobody_wants_stops_at_its_next_block(reads: Reads) -> None:
    reads.run("begun", 1_000)
    reads.short.run()
    reads.run("queued", 1_000)
    reads.unwanted.update(("begun", "queued"))
    reads.short.run()
    reads.long.run()
    assert reads.blocks == ["begun"]
    assert reads.stopped == ["begun"]
    assert all(isinstance(reads.told[name], Broken) for name in ("begun", "queued"))


def test_all_reads_stop_with_the_node(reads: Reads) -> None:
    reads.run("long", 1_000)
    reads.short.run()
    reads.run("queued", 1_000)
    reads.reads.close()
    reads.run("late", 1)
    reads.short.run()
    assert reads.blocks == ["long"]
    assert [type(reads.told[name]) for name in ("long", "queued", "late")] == [Broken] * 3
    assert not reads.short.work


def test_a_failed_read_is_told_of(reads: Reads) -> None:
    """Also where it fails by a mistake of its own: nobody waits for ever."""

    def fail(error: Exception) -> Steps[int]:
        yield
        raise error

    for error in (OSError(5, "input/output error"), TypeError()):
        found = reads.reads.future(fail(error))
        reads.short.run()
        reads.long.run()
        assert found.exception(0) is error


def test_a_future_that_is_cancelled_stops_its_read(reads: Reads) -> None:
    found, other = (reads.reads.future(reads.steps(name, 20)) for name in "ab")
    reads.short.run()
    assert found.cancel()
    reads.long.run()
    assert reads.stopped == ["a"]
    assert other.result(0) == 20


def test_reads_that_wait_for_another_one_take_no_thread(reads: Reads) -> None:
    """Those that nobody wants any more stop with the next one that waits, or at the end."""
    shared: SharedRead[int] = SharedRead()

    def run(name: str) -> None:
        def steps() -> WaitingSteps[int]:
            yield shared
            return shared.result()

        reads.reads.run(
            steps(),
            lambda result, error: reads.told.update({name: error or result}),
            is_wanted=lambda: name not in reads.unwanted,
        )
        reads.short.run()

    for name in "abcd":
        run(name)
    reads.unwanted.update("ab")
    assert not reads.long.work
    run("e")
    reads.long.run()
    assert [type(reads.told[name]) for name in "ab"] == [Broken] * 2
    assert len(reads.told) == 2
    reads.unwanted.add("c")
    shared.end(7, None)
    run("late")
    reads.long.run()
    assert isinstance(reads.told["c"], Broken)
    assert [reads.told[name] for name in ("d", "e", "late")] == [7] * 3


def test_a_read_goes_on_while_any_of_those_who_wait_wants_it() -> None:
    gone: set[str] = set()
    awaiting = Awaiting(lambda: "first" not in gone)
    awaiting.add(lambda: None, lambda: False)
    assert awaiting.is_wanted()
    gone.add("first")
    assert not awaiting.is_wanted()
    awaiting.add(lambda: None, lambda: "second" not in gone)
    assert awaiting.is_wanted()
    assert len(awaiting.calls) == 2
