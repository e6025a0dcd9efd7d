"""Reading a whole payload block by block, so that who reads may stop, or let others read first."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class Awaited(Protocol):
    """A read by somebody else. Any thread may call it."""

    def on_end(self, call: Callable[[], object], is_wanted: Callable[[], bool]) -> None:
        """Call `call` once it has ended, now if it has; earlier where `is_wanted` says that nobody
        waits for that any more."""
        ...

    def wait(self) -> None:
        """Block until it has ended."""
        ...


Steps: TypeAlias = Generator[None, None, T]
"""Reads at most one block, of up to 1 MiB, until it yields; what it returns is the result."""
WaitingSteps: TypeAlias = Generator[Awaited | None, None, T]
"""Steps that may wait for another read: they yield it, and are not to go on before its end."""


def run_through(steps: WaitingSteps[T]) -> T:
    """The result of all steps. Raises: what they raise."""
    while True:
        try:
            awaited = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if awaited is not None:
            awaited.wait()
