"""Types shared by all jobs: faults of specs, progress, results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from bascule.errors import BasculeError, InvalidDeclaration

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, lists, and dicts with string keys."""


def refuse(faults: Iterable[str]) -> None:
    """Raises: InvalidDeclaration with all faults of a spec, if there are any."""
    found = tuple(faults)
    if found:
        raise InvalidDeclaration(found)


def fault_of(check: Callable[[], object]) -> Iterator[str]:
    """The text of the error that `check` raises, if it raises one."""
    try:
        check()
    except BasculeError as error:
        yield str(error)


class JobProgress(Protocol):
    """Receives the progress of a job. No method blocks or raises."""

    def begin(self, what: str, total: int | None) -> None:
        """A step of the job begins. `total` (mostly rows) is None if unknown."""

    def advance(self, done: int) -> None:
        """Progress within the step: absolute, and never less than before."""

    def say(self, text: str) -> None:
        """A message for the user, such as a commit or a retry."""


class _NoProgress:
    """Ignores all progress."""

    def begin(self, what: str, total: int | None) -> None:
        """Does nothing."""

    def advance(self, done: int) -> None:
        """Does nothing."""

    def say(self, text: str) -> None:
        """Does nothing."""


NO_PROGRESS: Final[JobProgress] = _NoProgress()


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report: one tuple of cells per row, in the order of `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Json, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot. The names of both axes contain their units."""

    title: str
    x_name: str
    y_name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """Counts that add up to another count, such as rows and malformed records to offsets."""

    parts: tuple[tuple[str, int], ...]
    """Name and count."""
    total: tuple[str, int]

    def __str__(self) -> str:
        parts = " + ".join(f"{count:,} {name}" for name, count in self.parts)
        name, count = self.total
        return f"{parts} = {count:,} {name}"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """When, where and by what a declared job ran. Without secrets."""

    started: str
    """Time of the start, in UTC."""
    file: str
    server: str = ""
    """HTTP address of the node; empty for a job without a node."""
    node: str = ""
    """Version and cluster of the node."""
    master: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """Version of each program and library."""
    declaration: str = ""
    """Text of the file."""
    settings: tuple[str, ...] = ()
    """Keys that were set on the command line, as `key=value`."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a completed run. A run that fails raises instead."""

    kind: str
    """archive, audit, replay, rollup or compact-lake."""
    name: str
    """Name of the pipeline."""
    ok: bool
    """False if the job completed and found a fault, such as an audit with a missing record."""
    summary: dict[str, Json] = field(default_factory=dict)
    """Values by name, with units last: `rows`, `seconds`, `rows_per_s`, `lag`."""
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()
    sum: Sum | None = None
    run: RunFacts | None = None
    """None for a job that was not declared in a file."""
