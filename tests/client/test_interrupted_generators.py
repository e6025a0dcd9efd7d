"""Generators of the event loop, for threads that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from bascule.client.loop_thread import LoopThread, iterate


def test_an_interrupt_while_an_item_is_waited_for_ends_the_generator() -> None:
    """As Ctrl-C does, also where the generator needs the loop to end."""
    waits, has_ended = threading.Event(), threading.Event()
    loop = LoopThread("test")
    is_first, may_end = True, asyncio.Event()

    async def forever() -> AsyncGenerator[int, None]:
        try:
            waits.set()
            await asyncio.Event().wait()
            yield 1
        finally:
            await may_end.wait()
            has_ended.set()

    def end_later(turns: int) -> None:
        if turns:
            loop._loop.call_soon(end_later, turns - 1)
        else:
            may_end.set()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        nonlocal is_first
        future = asyncio.run_coroutine_threadsafe(work, loop._loop)
        if not is_first:
            # It is being closed, and ends some turns of the loop after it was cancelled.
            loop._loop.call_soon_threadsafe(end_later, 5)
            return future.result(20)
        is_first = False
        assert waits.wait(20)
        future.cancel()
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            list(iterate(run, forever()))
        assert has_ended.wait(20)
    finally:
        loop.stop()
