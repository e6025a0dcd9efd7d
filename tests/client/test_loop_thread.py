"""Threads that wait for the loop of a blocking client while another one closes it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from bascule.client.loop_thread import LoopThread
from bascule.errors import Closed


def test_who_waits_is_told_that_the_loop_was_stopped() -> None:
    loop, begun = LoopThread("test"), threading.Event()
    raised: list[BaseException] = []

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def run() -> None:
        try:
            loop.run(wait())
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=run, daemon=True)
    waiting.start()
    assert begun.wait(30)
    loop.stop()
    waiting.join(30)
    assert not waiting.is_alive(), "it waits for ever"
    assert [type(error) for error in raised] == [Closed]
    loop.stop()
    with pytest.raises(Closed):
        loop.run(wait())


def test_work_that_is_cancelled_otherwise_says_so() -> None:
    loop = LoopThread("test")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CancelledError):
        loop.run(cancelled())
    loop.stop()
