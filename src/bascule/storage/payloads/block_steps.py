"""Reading a whole payload block by block, so that who reads may stop, or let others read first."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Reads at most one block, of up to 1 MiB, until it yields; what it returns is the result."""


def run_through(steps: Steps[T]) -> T:
    """The result of all steps. Raises: what they raise."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
