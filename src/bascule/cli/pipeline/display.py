"""Shows a running pipeline on the terminal: a progress bar, and a table at the end."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from bascule.cli.output import err
from bascule.cli.units import count_text

if TYPE_CHECKING:
    from bascule.pipeline.declare.events import Event
    from bascule.pipeline.jobs.model import JobResult

ROWS_SHOWN: Final = 20
"""Rows of a table on the terminal. The report and --json have all rows."""


class ProgressDisplay:
    """The progress bar. It is disabled without a terminal."""

    def __init__(self, name: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._task = self._progress.add_task(f"{name}: starting Spark", total=None, figures="")
        self._name = name
        self._done = 0
        self._began = time.monotonic()
        self._lag: dict[str, Any] = {}

    def show(self, event: Event) -> None:
        match event["event"]:
            case "started":
                self._describe("preparing")
                if event.get("prometheus"):
                    self.say(f"metrics: http://127.0.0.1:{event['prometheus']}/metrics")
            case "begin":
                self._done, self._began = 0, time.monotonic()
                self._describe(str(event["what"]))
                self._progress.reset(self._task, total=event.get("total"))
                self._progress.update(self._task, total=event.get("total"))
            case "advance":
                self._done = int(event["done"])
                self._progress.update(self._task, completed=self._done, figures=self._figures())
            case "lag":
                self._lag = event
                self._progress.update(self._task, figures=self._figures())
            case "say":
                self.say(str(event["text"]))

    def say(self, text: str) -> None:
        self._progress.console.print(escape(text), style="dim")

    def _describe(self, what: str) -> None:
        self._progress.update(self._task, description=f"{self._name}: {escape(what)}")

    def _figures(self) -> str:
        parts = [f"{self._done:,} rows"]
        seconds = time.monotonic() - self._began
        if self._done and seconds > 0:
            parts.append(f"{count_text(self._done / seconds)} rows/s")
        if self._lag:
            parts.append(f"lag {count_text(self._lag['lag'])}")
            if self._lag.get("late_rows"):
                parts.append(f"late {count_text(self._lag['late_rows'])}")
        return "  ".join(parts)

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


def summary(result: JobResult) -> RenderableType:
    """The result of a run: its figures and its tables, truncated for a terminal."""
    from bascule.pipeline.report.formatting import figure, title_of

    colour, state = ("green", "done") if result.ok else ("red", "faults found")
    if result.summary.get("interrupted"):
        colour, state = "yellow", "interrupted"
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="dim")
    facts.add_column()
    for name, value in result.summary.items():
        if name != "interrupted":
            facts.add_row(escape(title_of(name)), escape(figure(name, value)))
    if result.sum is not None:
        facts.add_row("Sum", escape(str(result.sum)))
    head = f"[bold]{escape(result.name)}[/bold] {escape(result.kind)}: [{colour}]{state}[/{colour}]"
    return Group(head, facts, *(_table(table) for table in result.tables if table.rows))


def _table(source: Any) -> Table:
    from bascule.pipeline.report.formatting import figure

    more = len(source.rows) - ROWS_SHOWN
    table = Table(
        title=escape(source.title), title_justify="left", title_style="bold", box=None,
        pad_edge=False, header_style="dim", caption=f"and {more:,} more" if more > 0 else None,
    )  # fmt: skip
    for number, column in enumerate(source.columns):
        is_number = any(isinstance(row[number], int | float) for row in source.rows)
        table.add_column(escape(column), justify="right" if is_number else "left")
    for row in source.rows[:ROWS_SHOWN]:
        cells = zip(source.columns, row, strict=False)
        table.add_row(*(escape(figure(column, cell)) for column, cell in cells))
    return table
