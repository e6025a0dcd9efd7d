"""How far streaming queries are, from the progress that Spark reports. Pure.

Spark reports each micro-batch as a JSON object. In it every source says where the batch ended
(`endOffset`) and where its stream ended when the batch was planned (`latestOffset`), both in the
form of the checkpoint:

    {"<stream>": {"id": "<hex>", "0": <next offset of partition 0>, ...}, ...}

Their difference is the lag, in offsets: an upper bound of records where a stream is compacted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, Final

POINTS_MAX: Final = 2_000
"""Of a series; a longer one keeps every second point, so a run of months still fits a plot."""

Offsets = dict[tuple[str, int], int]
"""(Stream, partition) -> next offset; the stream is "" where the source does not say it."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one query is in one partition."""

    query: str
    stream: str
    partition: int
    position: int
    """The next offset it will read."""
    end: int
    """Where the partition ended when the last micro-batch was planned."""

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
    """What is known of one query; changed under the lock of its `Lags` only."""

    query: str
    """Its name, or its id where it has none."""
    run: str
    rows: int = 0
    """Read since it was first seen here."""
    rows_written: int = 0
    """As the sink reports them; 0 where it does not."""
    late_rows: int = 0
    """Dropped because they were older than the watermark."""
    batches: int = 0
    position: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    latest: Point | None = None
    points: list[Point] = field(default_factory=list)
    step: int = 1
    """Every how many batches a point is kept."""
    active: bool = True
    failure: str = ""

    @property
    def lag(self) -> int:
        return sum(max(0, end - self.position.get(key, 0)) for key, end in self.end.items())


def offsets_of(text: str | Mapping[str, Any] | None) -> Offsets:
    """The offsets in a checkpoint's JSON; none in what is no offset of ours."""
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
    """Rows that state operators dropped in this batch for being behind the watermark."""
    return sum(
        max(0, int(operator.get("numRowsDroppedByWatermark") or 0))
        for operator in progress.get("stateOperators") or ()
    )


class Lags:
    """The state of every query seen; safe from all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._states: dict[str, QueryState] = {}

    def on_progress(self, progress: Mapping[str, Any]) -> QueryState:
        """Take the report of one micro-batch."""
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
        """Each partition of each query, by name."""
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
            state = self._states[id] = QueryState(query=name, run=str(progress.get("runId")))
        state.active = True
        return state


def _unix_s(timestamp: object) -> float:
    """Of Spark's `2026-01-31T12:00:00.000Z`; 0 where there is none."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return 0.0
