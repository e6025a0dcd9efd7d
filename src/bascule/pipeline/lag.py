"""Lag of streaming queries, computed from Spark's progress reports. Pure.

Spark reports each micro-batch as a JSON object. For every source it contains the end of the batch
(`endOffset`) and the end of the stream when the batch was planned (`latestOffset`). Both have the
form of the checkpoint:

    {"<stream>": {"id": "<hex>", "0": <next offset of partition 0>, ...}, ...}

The difference is the lag in offsets. In a compacted stream it is an upper bound of the number of
records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, Final

POINTS_MAX: Final = 2_000
"""Points of a series. A longer series keeps every second point, so that a run of months fits a
plot."""

Offsets = dict[tuple[str, int], int]
"""(Stream, partition) -> next offset. The stream is "" if the source does not report it."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The position and lag of one query in one partition."""

    query: str
    stream: str
    partition: int
    position: int
    """The next offset that the query reads."""
    end: int
    """End offset of the partition when the last micro-batch was planned."""

    @property
    def lag(self) -> int:
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class Point:
    """A micro-batch."""

    at_s: float
    """Unix time of its start."""
    batch: int
    rows: int
    rows_per_s: float
    seconds: float
    lag: int
    late_rows: int


@dataclass(slots=True)
class QueryState:
    """Accumulated state of one query. Only its `Lags` changes it, under its lock."""

    query: str
    """The query's name; its id if it has no name."""
    run: str
    rows: int = 0
    """Rows read since the first report seen."""
    rows_written: int = 0
    """Rows that the sink reports as written; 0 if it does not report them."""
    late_rows: int = 0
    """Rows dropped because they were older than the watermark."""
    batches: int = 0
    position: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    latest: Point | None = None
    points: list[Point] = field(default_factory=list)
    step: int = 1
    """One of so many batches is kept as a point."""
    active: bool = True
    failure: str = ""

    @property
    def lag(self) -> int:
        return sum(max(0, end - self.position.get(key, 0)) for key, end in self.end.items())


def offsets_of(text: str | Mapping[str, Any] | None) -> Offsets:
    """Parse the offsets in a checkpoint's JSON. The result is empty for JSON of another source."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(found, Mapping):
        return {}
    flat = {"": found} if "id" in found else found
    return {
        (stream, int(name)): offset
        for stream, positions in flat.items()
        if isinstance(positions, Mapping)
        for name, offset in positions.items()
        if name.isdecimal() and isinstance(offset, int)
    }


def late_rows_of(progress: Mapping[str, Any]) -> int:
    """Rows that stateful operators dropped in this batch because they were behind the watermark."""
    return sum(
        max(0, int(operator.get("numRowsDroppedByWatermark") or 0))
        for operator in progress.get("stateOperators") or ()
    )


class Lags:
    """The state of every query seen. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._states: dict[str, QueryState] = {}

    def on_progress(self, progress: Mapping[str, Any]) -> QueryState:
        """Add the report of one micro-batch and return the query's state."""
        with self._lock:
            state = self._state(progress)
            rows = int(progress.get("numInputRows") or 0)
            late = late_rows_of(progress)
            state.rows += rows
            written = int((progress.get("sink") or {}).get("numOutputRows") or 0)
            state.rows_written += max(0, written)
            state.late_rows += late
            for source in progress.get("sources") or ():
                end = offsets_of(source.get("endOffset"))
                state.position |= end
                state.end |= end | offsets_of(source.get("latestOffset"))
            seconds = float(progress.get("batchDuration") or 0) / 1_000
            state.latest = Point(
                at_s=_unix_s(progress.get("timestamp")),
                batch=int(progress.get("batchId") or 0),
                rows=rows,
                rows_per_s=rows / seconds if seconds else 0.0,
                seconds=seconds,
                lag=state.lag,
                late_rows=late,
            )
            if state.batches % state.step == 0:
                state.points.append(state.latest)
            state.batches += 1
            if len(state.points) > POINTS_MAX:
                state.points, state.step = state.points[::2], state.step * 2
            return state

    def on_terminated(self, id: str, failure: str | None) -> None:
        with self._lock:
            state = self._states.get(id)
            if state is not None:
                state.active, state.failure = False, failure or ""

    def states(self) -> list[QueryState]:
        with self._lock:
            return list(self._states.values())

    def partitions(self) -> list[PartitionLag]:
        """All partitions of all queries, sorted by name."""
        with self._lock:
            return sorted(
                (
                    PartitionLag(state.query, stream, partition, state.position.get(key, 0), end)
                    for state in self._states.values()
                    for key, end in state.end.items()
                    for stream, partition in (key,)
                ),
                key=lambda lag: (lag.query, lag.stream, lag.partition),
            )

    def _state(self, progress: Mapping[str, Any]) -> QueryState:
        id = str(progress.get("id"))
        state = self._states.get(id)
        if state is None:
            name = str(progress.get("name") or id)
            # Spark has one active query of a name. An earlier one, as of an archive without
            # checkpoint, has ended, and two of a name would be the same series of a metric.
            for other in [o for o, known in self._states.items() if known.query == name]:
                del self._states[other]
            state = self._states[id] = QueryState(query=name, run=str(progress.get("runId")))
        state.active = True
        return state


def _unix_s(timestamp: object) -> float:
    """Parse Spark's `2026-01-31T12:00:00.000Z`; 0 for other values."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return 0.0
