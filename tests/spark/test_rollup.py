"""Rollups on a real Spark: windows, lateness, repetition, and what the listener sees."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from bascule.client import SyncClient
from bascule.errors import ConfigError
from bascule.pipeline.jobs.model import NO_PROGRESS, JobResult
from bascule.pipeline.jobs.rollup.spec import RollupSpec, Watermark
from bascule.pipeline.jobs.tables import TableSpec
from support.processes import Node

pytestmark = pytest.mark.tier3
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

BY_MINUTE = """
SELECT window.start AS window_start, kind, count(*) AS n, sum(amount) AS total
FROM (SELECT *, get_json_object(CAST(value AS string), '$.kind') AS kind,
             CAST(get_json_object(CAST(value AS string), '$.amount') AS bigint) AS amount
      FROM records)
GROUP BY window(event_time, '1 minute'), kind
"""
EVENT_TIME = "CAST(get_json_object(CAST(value AS string), '$.at') AS timestamp)"


def publish(client: SyncClient, stream: str, events: list[tuple[int, str, int]]) -> None:
    """(Minute of an hour, kind, amount)."""
    client.publish_many(
        (
            f"{stream}.{kind}",
            json.dumps(
                {"at": f"2026-01-01T12:{minute:02d}:30Z", "kind": kind, "amount": amount}
            ).encode(),
        )
        for minute, kind, amount in events
    )


def spec_of(node: Node, stream: str, folder: Path, **changed: Any) -> RollupSpec:
    spec = RollupSpec(
        name=stream.replace("_", "-"),
        source={
            "server": node.addresses["http"], "stream": stream, "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "40",
        },
        checkpoint=str(folder / "checkpoint"),
        sql=BY_MINUTE,
        watermark=Watermark(column="event_time", delay="2 minutes", expression=EVENT_TIME),
        table=TableSpec(format="parquet", location=str(folder / "table")),
    )  # fmt: skip
    return msgspec.structs.replace(spec, **changed)


def wait_until(holds: Callable[[], bool]) -> None:
    """Spark tells its listeners in time, not at once."""
    for _ in range(200):
        if holds():
            return
        Event().wait(0.05)
    raise AssertionError("not within 10 s")


def roll_up(spark: Any, spec: RollupSpec) -> JobResult:
    from bascule.pipeline.jobs.rollup.run import run

    return run(spark, spec, NO_PROGRESS)


def rows_of(spec: RollupSpec) -> list[dict[str, Any]]:
    """What the table holds, read without Spark."""
    import pyarrow as pa

    from bascule.pipeline import lake

    assert spec.table is not None
    table = lake.open_table(spec.table.address())
    snapshot = table.snapshot()
    if snapshot is None:
        return []
    batches = list(lake.read_files(table.files(snapshot), table.schema))
    return list(pa.Table.from_batches(batches, table.schema).to_pylist())


def counts(rows: list[dict[str, Any]]) -> dict[tuple[int, str], tuple[int, int]]:
    found = {(row["window_start"].minute, row["kind"]): (row["n"], row["total"]) for row in rows}
    assert len(found) == len(rows), "a window is in the table twice"
    return found


def test_rollup_appends_each_window_once(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """Over two runs: state and watermark come from the checkpoint."""
    spec = spec_of(node, stream, tmp_path)
    publish(client, stream, [(minute, kind, minute) for minute in range(10) for kind in "ab" * 5])
    first = roll_up(spark, spec)
    assert first.ok
    assert first.summary["rows"] == 100
    closed = counts(rows_of(spec))
    assert {minute for minute, _ in closed} == set(range(7)), "the watermark is 12:07:30"
    publish(client, stream, [(30, "a", 1)])
    second = roll_up(spark, spec)
    assert second.summary["rows"] == 1
    found = counts(rows_of(spec))
    assert found == {(minute, kind): (5, 5 * minute) for minute in range(10) for kind in "ab"}, (
        "what was open at the end of the first run is closed by the second"
    )


def test_late_rows_are_dropped_and_counted(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    from prometheus_client import CollectorRegistry

    from bascule.pipeline.listener import watch

    spec = spec_of(node, stream, tmp_path)
    registry = CollectorRegistry()
    listener = watch(spark, prometheus_port=0, registry=registry)
    try:
        publish(client, stream, [(minute, "a", 1) for minute in range(40)])
        roll_up(spark, spec)
        publish(client, stream, [(1, "a", 1), (2, "b", 1), (39, "a", 1), (3, "a", 1)])
        result = roll_up(spark, spec)
        assert result.summary["late_rows"] == 3, "rows older than the watermark"
        wait_until(lambda: listener.queries()[0].rows == 44)
        assert [(lag.stream, lag.partition, lag.position, lag.lag) for lag in listener.lag()] == [
            (stream, 0, 44, 0)
        ]
        labels = {"query": spec.name}
        value = registry.get_sample_value
        assert value("bascule_pipeline_late_rows_total", labels) == 3
        assert value("bascule_pipeline_rows_total", labels) == 44
        page = urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics").read().decode()
        assert f'bascule_pipeline_late_rows_total{{query="{spec.name}"}} 3.0' in page
        assert f"{spec.name}: 44 rows" in str(listener)
    finally:
        listener.close()


@pytest.mark.long
def test_update_mode_keeps_versions(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """The greatest batch of a window is its last count."""
    spec = spec_of(node, stream, tmp_path, mode="update")
    publish(client, stream, [(minute % 3, "a", 1) for minute in range(90)])
    roll_up(spark, spec)
    latest: dict[int, dict[str, Any]] = {}
    for row in sorted(rows_of(spec), key=lambda row: row["batch"]):
        latest[row["window_start"].minute] = row
    assert {minute: row["n"] for minute, row in latest.items()} == {0: 30, 1: 30, 2: 30}
    assert len({row["batch"] for row in rows_of(spec)}) >= 3, "40 records a batch"


def test_a_batch_that_is_repeated_is_in_the_table_once(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """As after a crash between the table's commit and Spark's: the commit log lost its end."""
    spec = spec_of(node, stream, tmp_path)
    publish(client, stream, [(minute, "a", 1) for minute in range(40)])
    roll_up(spark, spec)
    before = counts(rows_of(spec))
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    assert len(commits) >= 2
    for batch in commits[-2:]:
        batch.unlink()
        (batch.parent / f".{batch.name}.crc").unlink(missing_ok=True)
    roll_up(spark, spec)
    assert counts(rows_of(spec)) == before


@pytest.mark.long
def test_rollup_to_a_stream(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """Rows go out as JSON, on the subject that the SQL made; the WITH of the user is kept."""
    client.create_stream("counts_of_rollup", "counts_of_rollup.>")
    sql = f"WITH counted AS ({BY_MINUTE}) SELECT concat('counts_of_rollup.', kind) AS subject, "
    spec = spec_of(
        node,
        stream,
        tmp_path,
        sql=sql + "n, total FROM counted",
        table=None,
        sink={"stream": "counts_of_rollup"},
    )
    publish(client, stream, [(minute, kind, minute) for minute in range(10) for kind in "ab"])
    roll_up(spark, spec)
    messages = [
        (message.subject, json.loads(message.value))
        for message in client.read("counts_of_rollup", start="earliest", follow=False)
    ]
    assert sorted(messages, key=str) == sorted(
        ((f"counts_of_rollup.{kind}", {"n": 1, "total": minute})
         for minute in range(7) for kind in "ab"), key=str,
    )  # fmt: skip


@pytest.mark.long
def test_an_event_time_that_is_no_column(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    spec = spec_of(node, stream, tmp_path, watermark=Watermark(column="sent", delay="1 minute"))
    with pytest.raises(ConfigError, match=r"'sent' is not a column of the stream"):
        roll_up(spark, spec)
