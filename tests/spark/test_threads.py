"""Several jobs in one Spark application: in threads, and in sessions of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bascule.client import SyncClient
from bascule.pipeline import active_session
from bascule.pipeline.jobs.rollup.run import run as rollup
from bascule.pipeline.jobs.rollup.spec import RollupSpec
from bascule.pipeline.jobs.tables import TableSpec
from support.lake_jobs import World
from support.processes import Node

pytestmark = [pytest.mark.tier3, pytest.mark.timeout(500)]


@pytest.mark.long
def test_archives_run_in_other_threads_and_sessions(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """One after the other: Spark gives each Python planner ten seconds to start."""
    second = spark.newSession()
    with ThreadPoolExecutor(1) as threads:
        for number, session in enumerate((spark, second)):
            name = f"{stream}_{number}"
            client.create_stream(name, f"{name}.>", sync="interval")
            world = World(session, node, client, name, tmp_path / str(number))
            world.fill(100)
            assert threads.submit(world.archive).result().summary["rows"] == 100
            world.fill(5, first=100)
            assert world.archive().summary["rows"] == 5, "in the thread of the first session"


@pytest.mark.long
def test_a_rollup_and_a_sink_run_in_a_thread(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    client.publish_many((f"{stream}.a", b"%d" % n) for n in range(50))
    server = node.addresses["http"]
    source = {"server": server, "stream": stream, "startingOffsets": "earliest"}
    spec = RollupSpec(
        name=f"rollup-{stream}",
        source=source,
        checkpoint=str(tmp_path / "rollup"),
        sql="SELECT subject, count(*) AS n FROM records GROUP BY subject",
        mode="update",
        table=TableSpec(location=str(tmp_path / "table")),
    )

    def copy() -> None:
        rows = spark.readStream.format("bascule").options(**source).load()
        copied = rows.selectExpr(f"'{stream}.b' AS subject", "value")
        writer = copied.writeStream.format("bascule").options(
            server=server, stream=stream, checkpointLocation=str(tmp_path / "copy")
        )
        with active_session(spark):
            query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(rollup, spark, spec).result().summary["rows"] == 50
        threads.submit(copy).result()
    assert client.stream(stream).partitions[0].high_watermark == 100


def test_the_active_session_of_a_thread_is_put_back(spark: Any) -> None:
    second = spark.newSession()

    def active() -> Any:
        """The session of this thread, as Java knows it; None without one."""
        found = spark._jvm.org.apache.spark.sql.SparkSession.getActiveSession()
        return found.get() if found.isDefined() else None

    with active_session(spark):
        with active_session(second):
            assert active().equals(second._jsparkSession)
        assert active().equals(spark._jsparkSession)

    def elsewhere() -> tuple[bool, bool]:
        before = active() is None
        with active_session(second):
            assert active().equals(second._jsparkSession)
        return before, active() is None

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(elsewhere).result() == (True, True)
