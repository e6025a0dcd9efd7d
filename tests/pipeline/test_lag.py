"""Lag, late rows and rates from the progress that Spark reports."""

from __future__ import annotations

import json
from typing import Any

from bascule.pipeline.lag import POINTS_MAX, Lags, late_rows_of, offsets_of
from bascule.pipeline.query_report import series_of, table_of


def progress(batch: int, end: int, latest: int | None, **more: Any) -> dict[str, Any]:
    """Of one query over partition 0 of `flights`, in Spark's form."""
    source = {
        "endOffset": json.dumps({"flights": {"id": "ab", "0": end, "1": 7}}),
        "latestOffset": None if latest is None else json.dumps(
            {"flights": {"id": "ab", "0": latest, "1": 7}}
        ),
    }  # fmt: skip
    return {
        "id": "q", "runId": "r", "name": "by-hour",
        "timestamp": f"2026-01-01T12:00:{batch:02d}.000Z",
        "batchId": batch, "batchDuration": 500, "numInputRows": 100, "sources": [source],
        "stateOperators": [], "sink": {"numOutputRows": 3}, **more,
    }  # fmt: skip


def test_a_query_replaces_an_earlier_one_of_its_name() -> None:
    lags = Lags()
    lags.on_progress(progress(0, end=100, latest=450))
    lags.on_terminated("q", None)
    lags.on_progress(progress(0, end=7, latest=7, id="other", name="other"))
    lags.on_progress(progress(0, end=300, latest=450, id="again"))
    assert [(state.query, state.rows) for state in lags.states()] == [
        ("other", 100),
        ("by-hour", 100),
    ]
    keys = [(lag.query, lag.stream, lag.partition) for lag in lags.partitions()]
    assert len(keys) == len(set(keys)) == 4


def test_lag_is_what_lies_between_the_batch_and_the_end() -> None:
    lags = Lags()
    state = lags.on_progress(progress(0, end=100, latest=450))
    assert state.lag == 350
    found = [(p.query, p.stream, p.partition, p.position, p.end, p.lag) for p in lags.partitions()]
    assert found == [("by-hour", "flights", 0, 100, 450, 350), ("by-hour", "flights", 1, 7, 7, 0)]
    state = lags.on_progress(progress(1, end=450, latest=450))
    assert state.lag == 0
    assert (state.rows, state.rows_written, state.batches) == (200, 6, 2)
    assert state.latest is not None
    assert state.latest.rows_per_s == 200.0


def test_without_a_latest_offset_there_is_no_lag() -> None:
    assert Lags().on_progress(progress(0, end=100, latest=None)).lag == 0


def test_late_rows_are_summed_over_operators_and_batches() -> None:
    lags = Lags()
    operators = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}, {}]
    for batch in range(2):
        state = lags.on_progress(progress(batch, 1, 1, stateOperators=operators))
    assert state.late_rows == 6
    assert late_rows_of({"stateOperators": [{"numRowsDroppedByWatermark": -1}]}) == 0


def test_offsets_of_other_sources_are_none() -> None:
    assert offsets_of('{"id": "ab", "0": 5, "again": 1}') == {("", 0): 5}
    for text in ("12", "no JSON", '{"topic": 3}', "[]", None, '{"a": {"id": "x", "0": null}}'):
        assert offsets_of(text) == {}


def test_a_long_run_keeps_a_bounded_series() -> None:
    lags = Lags()
    for batch in range(3 * POINTS_MAX):
        state = lags.on_progress(progress(batch % 60, batch, batch))
    assert len(state.points) <= POINTS_MAX
    assert state.batches == 3 * POINTS_MAX


def test_a_query_that_ended_says_so() -> None:
    lags = Lags()
    lags.on_progress(progress(0, 1, 1))
    lags.on_terminated("q", "it broke")
    lags.on_terminated("never seen", None)
    [state] = lags.states()
    assert not state.active
    assert state.failure == "it broke"


def test_series_and_tables_of_a_query() -> None:
    lags = Lags()
    for batch in range(3):
        state = lags.on_progress(progress(batch, 100 * batch, 200))
    throughput, lag, batches = series_of(state)
    assert throughput.points == ((0.0, 200.0), (1.0, 200.0), (2.0, 200.0))
    assert [y for _, y in lag.points] == [200.0, 100.0, 0.0]
    assert batches.y_name == "seconds"
    [table] = table_of([state])
    assert table.rows == (("flights", 0, 200, 200, 0), ("flights", 1, 7, 7, 0))
