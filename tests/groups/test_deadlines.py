"""The timer of all groups, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from bascule.groups.deadlines import STALL_MS, Deadlines
from support.virtual_time import VirtualTimeLoop, elapse, run_virtually

SESSION_MS = 6_000


@dataclass(eq=False)
class Session:
    """What is over `SESSION_MS` after it was heard of."""

    heard_ms: int
    due_ms: int | None = None
    ended_ms: list[int] = field(default_factory=list)


def make_deadlines() -> Deadlines[Session]:
    def on_due(session: Session, now_ms: int) -> None:
        if session.heard_ms + SESSION_MS <= now_ms:
            session.ended_ms.append(now_ms)
        else:
            deadlines.note(session, session.heard_ms + SESSION_MS)

    deadlines = Deadlines[Session](on_due, lambda _: True, lambda: 2)
    return deadlines


def note(deadlines: Deadlines[Session]) -> Session:
    session = Session(deadlines.now_ms())
    deadlines.note(session, session.heard_ms + SESSION_MS)
    return session


@pytest.mark.parametrize("stall_s", [7, 60, 86_400])
@pytest.mark.parametrize("reads_first", [True, False])
def test_nobody_is_taken_for_dead_because_the_process_was_stopped(
    stall_s: int, reads_first: bool
) -> None:
    """What was sent meanwhile is read within a moment, before or after the timer is looked at."""

    async def test() -> None:
        deadlines = make_deadlines()
        alive, silent = note(deadlines), note(deadlines)
        await elapse(2)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.stall(stall_s)
        if not reads_first:
            await elapse(0.01)
        assert not silent.ended_ms
        alive.heard_ms = deadlines.now_ms()
        assert alive.heard_ms >= 2_000, "the clock does not go back"
        await elapse((STALL_MS + 10) / 1000)
        assert silent.ended_ms == [SESSION_MS + 1]
        assert not alive.ended_ms
        # From here on the clock is as fast as any.
        before_ms = deadlines.now_ms()
        await elapse(4)
        assert deadlines.now_ms() - before_ms == pytest.approx(4_000, abs=1)
        assert not alive.ended_ms
        await elapse(2)
        assert len(alive.ended_ms) == 1

    run_virtually(test())


def test_a_timer_that_is_a_little_late_is_on_time() -> None:
    async def test() -> None:
        deadlines = make_deadlines()
        session = note(deadlines)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.stall((SESSION_MS + STALL_MS) / 1000)
        await elapse(0.001)
        assert len(session.ended_ms) == 1

    run_virtually(test())
