"""Progress of the stages: bars in a terminal, lines anywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

SECONDS_BETWEEN_LINES: Final = 10.0


class BarDisplay:
    """A progress bar for each stage."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )

    @contextmanager
    def stage(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        task = self._progress.add_task(what, total=total)
        yield lambda done: self._progress.update(task, completed=done)
        completed = total if total is not None else 1
        self._progress.update(task, total=completed, completed=completed)

    def stop(self) -> None:
        self._progress.stop()

    def __enter__(self) -> BarDisplay:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


class LineDisplay:
    """A line when a stage begins, one every 10 s, and one when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        done, started, ended = 0, time.monotonic(), threading.Event()
        of_total = "" if total is None else f" of {total:,}"

        def set_done(count: int) -> None:
            nonlocal done
            done = count

        def report() -> None:
            while not ended.wait(SECONDS_BETWEEN_LINES):
                count = "" if total is None else f" {done:,}{of_total}"
                self._print(f"  {what}{count}, {time.monotonic() - started:.0f} s")

        self._print(f"{what} ...")
        reporter = threading.Thread(target=report, daemon=True)
        reporter.start()
        try:
            yield set_done
        finally:
            ended.set()
            reporter.join()
        count = "" if total is None else f" {total:,}"
        self._print(f"{what}{count}: done in {time.monotonic() - started:.1f} s")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False)

    def stop(self) -> None:
        pass

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        pass
