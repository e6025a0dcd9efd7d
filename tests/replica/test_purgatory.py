"""Waiting requests: no change is missed, and closing wakes all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bascule.replica.purgatory import Purgatory


async def yield_once() -> None:
    """Let other tasks run."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn


class Watched:
    def __init__(self) -> None:
        self.watchers: set[Callable[[], None]] = set()

    def change(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()


def test_the_state_is_checked_after_the_watchers_are_registered() -> None:
    async def run() -> None:
        watched, purgatory, registered = Watched(), Purgatory(), []

        def is_ready() -> bool:
            registered.append(len(watched.watchers))
            return True

        deadline = asyncio.get_running_loop().time() + 60
        assert await purgatory.wait([watched], unless=is_ready, deadline=deadline)
        assert registered == [1]
        assert not watched.watchers
        assert len(purgatory) == 0

    asyncio.run(run())


def test_a_change_wakes_a_request_and_removes_its_watchers() -> None:
    async def run() -> None:
        watched, purgatory = [Watched(), Watched()], Purgatory()
        deadline = asyncio.get_running_loop().time() + 60
        waiting = asyncio.create_task(
            purgatory.wait(watched, unless=lambda: False, deadline=deadline)
        )
        while not watched[1].watchers:
            await yield_once()
        watched[1].change()
        assert await waiting
        assert not watched[0].watchers | watched[1].watchers

    asyncio.run(asyncio.wait_for(run(), 20))


def test_close_wakes_all_requests_and_later_ones_do_not_wait() -> None:
    async def run() -> None:
        watched, purgatory = Watched(), Purgatory()
        deadline = asyncio.get_running_loop().time() + 60
        waiting = asyncio.create_task(
            purgatory.wait([watched], unless=lambda: False, deadline=deadline)
        )
        while not len(purgatory):
            await yield_once()
        purgatory.close()
        assert not await waiting
        assert not await purgatory.wait([watched], unless=lambda: False, deadline=deadline)

    asyncio.run(asyncio.wait_for(run(), 20))
