"""The steps of one payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from bascule.datastream.disk.paced_thread import PacedThread
from bascule.datastream.disk.pacing import STEP_BYTES
from bascule.datastream.disk.write_back import BLOCK_BYTES, WriteBack
from bascule.datastream.transport.reactor import Reactor
from bascule.host.api import File


class Threads:
    """Steps are done when they are asked for. The thread of the reactor is this one."""

    def __init__(self) -> None:
        self.step_bytes = STEP_BYTES
        self.steps: list[tuple[Callable[[], None], int, Callable[[], bool]]] = []
        self.written: list[tuple[int, int]] = []
        self.ended: list[OSError | None] = []
        self.error: OSError | None = None

    def submit(self, step: Callable[[], None], size: int, *, is_wanted: Callable[[], bool]) -> None:
        self.steps.append((step, size, is_wanted))

    def do(self) -> None:
        step, _, is_wanted = self.steps.pop(0)
        assert is_wanted()
        step()

    def call(self, function: Callable[[], Any]) -> bool:
        function()
        return True

    def write_back(self, start: int, end: int) -> None:
        if self.error is not None:
            raise self.error
        self.written.append((start, end))


def begun(start: int = 0) -> tuple[Threads, WriteBack, File]:
    threads = Threads()
    reactor, thread = cast(Reactor, threads), cast(PacedThread, threads)
    steps = WriteBack(reactor, thread, on_step=threads.ended.append, start=start)
    return threads, steps, cast(File, threads)


def test_steps_come_one_after_the_other_and_end_with_a_block() -> None:
    threads, steps, file = begun(start=5)
    steps.advance(file, STEP_BYTES + 4)
    assert not threads.steps
    assert steps.unwritten(STEP_BYTES + 4) == 0
    end = 3 * STEP_BYTES
    for _ in range(2):
        steps.advance(file, end)
    assert len(threads.steps) == 1
    assert steps.unwritten(end) == end - 5
    assert steps.unwritten(6) == 1, "a step is under way"
    threads.do()
    assert threads.written == [(5, STEP_BYTES)]
    assert steps.position == STEP_BYTES
    assert threads.ended == [None]
    threads.step_bytes = BLOCK_BYTES
    steps.advance(file, end)
    threads.do()
    assert threads.written[-1] == (STEP_BYTES, STEP_BYTES + BLOCK_BYTES)
    assert steps.unwritten(steps.position + STEP_BYTES) == STEP_BYTES
    assert steps.unwritten(steps.position + STEP_BYTES - 1) == 0


def test_a_step_that_fails_has_written_nothing() -> None:
    threads, steps, file = begun()
    threads.error = OSError(5, "input/output error")
    steps.advance(file, STEP_BYTES)
    threads.do()
    assert steps.position == 0
    assert threads.ended == [threads.error]
    steps.advance(file, STEP_BYTES)
    assert threads.steps, "another one may begin"


def test_a_step_of_before_the_file_was_begun_anew_does_not_count() -> None:
    """The bytes that it has written are written again, and in memory only then."""
    threads, steps, file = begun()
    steps.advance(file, 2 * STEP_BYTES)
    threads.do()
    steps.advance(file, 2 * STEP_BYTES)
    steps.begin_anew()
    assert steps.unwritten(STEP_BYTES // 2) == STEP_BYTES // 2, "the step is still under way"
    steps.advance(file, STEP_BYTES)
    assert len(threads.steps) == 1
    threads.do()
    assert steps.position == 0
    steps.advance(file, STEP_BYTES)
    threads.do()
    assert threads.written[-1] == (0, STEP_BYTES)
    assert steps.position == STEP_BYTES


def test_a_step_of_a_payload_that_has_ended_is_not_wanted() -> None:
    threads, steps, file = begun()
    steps.advance(file, STEP_BYTES)
    _, size, is_wanted = threads.steps[0]
    assert size == STEP_BYTES
    assert is_wanted()
    steps.close()
    assert not is_wanted()
