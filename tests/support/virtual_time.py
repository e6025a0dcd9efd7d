"""An asyncio loop whose time passes at once: it jumps to the next timer when nothing else is due.

For code that waits on timers, and on no socket, file or thread.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen"
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`stall` lets time pass without running anything, as if the process had been stopped."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        self._jumping.now += seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a `VirtualTimeLoop` of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


async def elapse(seconds: float) -> None:
    """Let time pass, and what is due in it happen."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed
