"""What tells commits of a table apart: tokens of writers, and numbers of snapshots."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bascule.pipeline.lake import LakeCommit, commit_plan, open_table
from bascule.pipeline.lake.parquet.table import ParquetTable
from support.lake_rows import Lake, commit_of, offsets_in, records, written


def test_tokens_of_writers_of_one_batch_are_forgotten(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch write makes one each time: they would fill every snapshot."""
    monkeypatch.setattr(commit_plan, "ONCE_MAX", 3)
    table: Any = lake.create()
    writers = ["rollup", *(f"{commit_plan.ONCE}{name}" for name in "zyxwv"), "last"]
    for number, writer in enumerate(writers):
        files = tuple(written(table, records(0, number, number + 1)))
        table.commit(LakeCommit(files, token=(writer, 0)))
        if writer.endswith("v"):  # as after a commit of which the outcome is not known
            table.commit(LakeCommit((), token=(writer, 0)))
    assert sorted(offsets_in(table)[0]) == [*range(len(writers))]
    state = lake_state(table)
    assert [each for each in state if each.startswith(commit_plan.ONCE)] == writers[3:6]
    assert {"rollup", "last"} <= {*state} or lake.format == "delta"


def lake_state(table: Any) -> dict[str, int]:
    """The tokens that the newest snapshot has."""
    at = table._top() if isinstance(table, ParquetTable) else table._load()
    return dict(table._state(at).tokens or {})


def test_numbers_of_snapshots_ascend_whatever_the_clock_says(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create()
    now, numbers = time.time_ns(), []
    for hour in range(3):
        monkeypatch.setattr(time, "time_ns", lambda hour=hour: now - hour * 3_600 * 10**9)
        snapshot = table.commit(commit_of(table, records(0, 10 * hour, 10 * hour + 10)))
        numbers.append(snapshot.number)
        again = open_table(lake.address()).snapshot()
        assert again is not None
        assert again.number == snapshot.number
    assert 0 < numbers[0] < numbers[1] < numbers[2]
