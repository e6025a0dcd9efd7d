"""What every job shares: how it says how far it is, and what it found. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

Json: TypeAlias = Any
"""What `json.dumps` takes: None, bool, int, float, str, lists and string-keyed dicts of these."""


class JobProgress(Protocol):
    """Who watches a job. Every method returns at once and never raises."""

    def begin(self, what: str, total: int | None) -> None:
        """A step of the job begins; `total` (rows, mostly) is None where it is not known."""

    def advance(self, done: int) -> None:
        """So much of the step is done: absolute, never less than before within one step."""

    def say(self, text: str) -> None:
        """Something worth a line, such as a commit or a retry."""


class _NoProgress:
    """Nobody watches."""

    def begin(self, what: str, total: int | None) -> None:
        """Nothing."""

    def advance(self, done: int) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


NO_PROGRESS: Final[JobProgress] = _NoProgress()


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people: one list of cells per row, in the order of `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Json, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot: `y` over `x`, both named with their units."""

    title: str
    x_name: str
    y_name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a run of a job ended; a run that could not end raises instead."""

    kind: str
    """archive, audit, replay, rollup or compact-lake."""
    name: str
    """Of the pipeline."""
    ok: bool
    """False where the job did its work and what it found is wrong: an audit with a fault."""
    summary: dict[str, Json] = field(default_factory=dict)
    """Facts by name, units last: `rows`, `seconds`, `rows_per_s`, `lag`."""
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()
