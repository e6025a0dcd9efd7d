"""Calls a function at an interval, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class PeriodicCall:
    """Calls `call` every `interval_s` seconds from `__enter__` to `__exit__`.

    The first call comes after one interval. After `__exit__` no call runs. An exception in a call
    ends the calls.
    """

    def __init__(self, call: Callable[[], object], interval_s: float) -> None:
        self._call = call
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def _repeat(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._call()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
