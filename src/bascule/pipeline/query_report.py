"""Tables and series for a job result, made from the progress of streaming queries. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bascule.pipeline.jobs.model import Series, Table
from bascule.pipeline.lag import Point, QueryState


def table_of(states: Sequence[QueryState]) -> tuple[Table, ...]:
    """The position of each query in each partition."""
    rows = tuple(
        (stream, partition, state.position.get((stream, partition), 0), end,
         max(0, end - state.position.get((stream, partition), 0)))
        for state in states
        for (stream, partition), end in sorted(state.end.items())
    )  # fmt: skip
    if not rows:
        return ()
    return (Table("Position", ("stream", "partition", "position", "end", "lag"), rows),)


def series_of(state: QueryState) -> tuple[Series, ...]:
    """Rows per second, lag, duration and late rows of each micro-batch, over the seconds of the
    run."""
    points = state.points
    if not points:
        return ()
    first = points[0].at_s

    def line(title: str, y_name: str, value: Callable[[Point], float]) -> Series:
        return Series(
            title, "seconds", y_name, tuple((p.at_s - first, float(value(p))) for p in points)
        )

    lines = [
        line("Throughput", "rows/s", lambda p: p.rows_per_s),
        line("Lag", "offsets", lambda p: p.lag),
        line("Micro-batches", "seconds", lambda p: p.seconds),
    ]
    if state.late_rows:
        lines.append(line("Late rows", "rows", lambda p: p.late_rows))
    return tuple(lines)
