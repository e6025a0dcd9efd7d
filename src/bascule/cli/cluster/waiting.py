"""Waiting for something that nodes do by and by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bascule.cli.output import err
from bascule.cli.units import bytes_text, counted

WAIT_SECONDS: Final = 0.2
"""Between two looks."""
STUCK_LOOKS: Final = 25
"""In turn, five seconds, before what does not move counts as stuck: leaders may change."""
LINE_SECONDS: Final = 5.0
"""Between two lines about the progress where standard error is no terminal."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left to do."""

    partitions: int
    bytes: int = 0
    instead: str = ""
    """Said instead of numbers, if it is not empty."""

    def text(self, most: int) -> str:
        """Of `most` partitions."""
        if self.instead:
            return self.instead
        left = f", {bytes_text(self.bytes)} to copy" if self.bytes else ""
        return f"moved: {most - self.partitions:,} of {counted(most, 'partition')}{left}"


class ProgressLines:
    """A line on standard error now and then."""

    def __init__(self, *, at_once: bool = False) -> None:
        """`at_once`: the first one, too; else there is none for what takes less."""
        self._said_at = float("-inf") if at_once else time.monotonic()

    def say(self, text: str) -> None:
        """Print this, unless a line was printed just now."""
        now = time.monotonic()
        if now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            err.print(text, markup=False)


def wait_while(is_under_way: Callable[[], bool]) -> None:
    """Return once it is not under way any more, or raise what the look raises."""
    while is_under_way():
        time.sleep(WAIT_SECONDS)


def wait_moved(look: Callable[[], Remaining]) -> None:
    """Return once no partition is left, or raise what the look raises. Show the progress on
    standard error: a bar on a terminal, else a line now and then."""
    left = look()
    if not left.partitions:
        return
    if err.is_terminal:
        _wait_with_bar(look, left)
    else:
        _wait_with_lines(look, left)


def _wait_with_bar(look: Callable[[], Remaining], left: Remaining) -> None:
    # Rich's bars take long to import.
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    most = left.partitions
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(left.text(most), total=most)
        while left.partitions:
            most = max(most, left.partitions)
            done = most - left.partitions
            bar.update(task, completed=done, total=most, description=left.text(most))
            time.sleep(WAIT_SECONDS)
            left = look()


def _wait_with_lines(look: Callable[[], Remaining], left: Remaining) -> None:
    most, lines = left.partitions, ProgressLines(at_once=True)
    while left.partitions:
        most = max(most, left.partitions)
        lines.say(left.text(most))
        time.sleep(WAIT_SECONDS)
        left = look()
