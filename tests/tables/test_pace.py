"""When a table applies what is committed. The pause is an hour, or nearly nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bascule.tables.pace import UNAWAITED_SECONDS_MIN, Pace
from support.metadata_groups import some_turns, turn


class Applier:
    """Counts how often the pace lets a table apply."""

    def __init__(self) -> None:
        self.is_watched = False
        self.pace = Pace(lambda: self.is_watched)
        self.times = 0

        self.watchers: set[Callable[[], None]] = set()
        """Of the partition."""
        self.pace.follow(self.watchers)

    async def run(self) -> None:
        while True:
            await self.pace.wait()
            self.times += 1
            self.pace.follow(self.watchers)


def run(test: Callable[[Applier], Awaitable[None]]) -> None:
    async def run_test() -> None:
        applier = Applier()
        task = asyncio.create_task(applier.run())
        await some_turns()
        try:
            await test(applier)
        finally:
            task.cancel()
            applier.pace.close()

    asyncio.run(run_test())


@pytest.fixture(autouse=True)
def _long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the end of a pause."""
    assert UNAWAITED_SECONDS_MIN > 0
    monkeypatch.setattr("bascule.tables.pace.UNAWAITED_SECONDS_MIN", 3_600.0)


def test_the_first_commit_after_a_pause_is_applied_at_once() -> None:
    async def test(applier: Applier) -> None:
        applier.pace.on_committed()
        await some_turns()
        assert applier.times == 1
        applier.pace.on_committed()
        applier.pace.on_committed()
        await some_turns()
        assert applier.times == 1, "nobody waits: it is applied with what comes later"

    run(test)


def test_what_waits_is_applied_when_the_pause_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(applier: Applier) -> None:
        applier.pace.on_committed()
        await some_turns()
        began = asyncio.get_running_loop().time()
        monkeypatch.setattr("bascule.tables.pace.UNAWAITED_SECONDS_MIN", 0.001)
        applier.pace.on_committed()
        while applier.times < 2:
            await turn()
        assert asyncio.get_running_loop().time() - began < 3_600

    run(test)


def test_who_waits_has_it_applied_now_and_at_once_later() -> None:
    async def test(applier: Applier) -> None:
        for _ in range(2):
            applier.pace.on_committed()
            await some_turns()
        assert applier.times == 1
        with applier.pace.awaited():
            await some_turns()
            assert applier.times == 2
            applier.pace.on_committed()
            await some_turns()
            assert applier.times == 3
        applier.pace.on_committed()
        await some_turns()
        assert applier.times == 3, "nobody waits any more"

    run(test)


def test_a_watched_table_applies_each_commit_at_once() -> None:
    async def test(applier: Applier) -> None:
        applier.is_watched = True
        for number in range(3):
            applier.pace.on_committed()
            await some_turns()
            assert applier.times == number + 1

    run(test)


def test_no_commit_is_told_of_while_the_next_transaction_has_its_time() -> None:
    async def test(applier: Applier) -> None:
        pace = applier.pace
        pace.on_committed()
        await some_turns()
        assert applier.watchers == {pace.on_committed}
        pace.on_committed()
        assert not applier.watchers
        with pace.awaited():
            await some_turns()
            assert applier.watchers == {pace.on_committed}, "somebody waits for the next one"
            pace.on_committed()
            assert applier.watchers == {pace.on_committed}
        pace.close()
        assert not applier.watchers

    run(test)


def test_the_end_of_a_pause_comes_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody was in a hurry before it came."""

    async def test(applier: Applier) -> None:
        applier.pace.on_committed()
        await some_turns()
        applier.pace.on_committed()
        applier.pace.hurry()
        await some_turns()
        assert applier.times == 2
        assert applier.pace._timer is None
        monkeypatch.setattr("bascule.tables.pace.UNAWAITED_SECONDS_MIN", 0.001)
        for times in (3, 4, 5):
            applier.pace.on_committed()
            async with asyncio.timeout(30):
                while applier.times < times:
                    await turn()

    run(test)
