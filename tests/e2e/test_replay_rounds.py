"""Rounds of a replay on a real node, without Spark. `tests/spark/test_replay.py` has whole runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bascule.client import connect_sync
from bascule.pipeline.jobs.replay import run as replay_job
from bascule.pipeline.jobs.replay.spec import ReplaySpec
from bascule.pipeline.jobs.tables import TableSpec
from support.lake_rows import Lake, commit_of, records
from support.processes import running_node

NO_SPARK: Any = None
ROWS = 60


class Killed(Exception):
    """The run ended here."""


def in_order(work: Any, items: Any, *, kill_in: int, seen: list[int]) -> list[str]:
    """The rounds without Spark. The run is killed after the publishing of round `kill_in`."""
    done = [work(item) for item in items]
    seen.append(len(done))
    if len(seen) == kill_in:
        raise Killed
    return done


def test_no_attempt_publishes_twice_what_another_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake("parquet", tmp_path)
    table = lake.create(stream="flights", stream_id="ab12")
    table.commit(commit_of(table, records(0, 0, ROWS)))
    with running_node(tmp_path) as node, connect_sync(node.addresses["http"]) as client:
        node.create("again", "again", dedupe_window_ms=0)

        def run(*, rows: int, kill_in: int = 0, retries: bool = False) -> None:
            spec = ReplaySpec(
                name="r", to="again", server=node.addresses["http"], subject="again",
                table=TableSpec(location=lake.address().location),
                checkpoint=str(tmp_path / "state"), rows_per_round=rows,
            )  # fmt: skip
            seen: list[int] = []

            def on_executors(spark: Any, items: Any, work: partial[str], **_: Any) -> list[str]:
                attempted = work
                if retries:
                    for item in items:
                        work(item, attempt=0)
                    attempted = partial(work, attempt=1)
                return in_order(attempted, items, kill_in=kill_in, seen=seen)

            monkeypatch.setattr(replay_job, "run_on_executors", on_executors)
            replay_job.run(NO_SPARK, spec)

        def offsets() -> list[int]:
            return [
                int(dict(message.headers)["Bascule-Original-Offset"] or b"")
                for message in client.read("again")
            ]

        with pytest.raises(Killed):
            run(rows=30, kill_in=1)
        assert offsets() == [*range(30)]
        with pytest.raises(Killed):
            run(rows=10, kill_in=2)
        assert offsets() == [*range(30)]
        run(rows=10, retries=True)
        assert offsets() == [*range(ROWS)]
