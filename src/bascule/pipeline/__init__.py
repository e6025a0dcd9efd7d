"""Spark on Bascule: streams as frames, frames as streams, and jobs between streams and lake tables.

    from bascule.pipeline import BasculeDataSource

    spark.dataSource.register(BasculeDataSource)
    flights = spark.readStream.format("bascule").option("stream", "flights").load()

The package is a client of the node. It reads through the client listener, publishes over NATS and
administers streams over HTTP. Spark plans tasks, schedules and retries them, and keeps checkpoints.
This package does none of that.

    source       streams as rows; a lake table and its stream as one frame  `format("bascule")`
    sink         rows as messages, with message ids for deduplication       `format("bascule")`
    values       decodes value bytes into typed columns
    lake         Iceberg, Delta and Parquet tables that record their offsets; without Spark
    lake_sink    writes any frame to a lake table                           `format("bascule_lake")`
    jobs         archive, audit, replay, rollup, compact-lake
    declare      declares a job in a TOML file; report: HTML report of a run; sdp: runs a declared
                 job as a project of Spark Declarative Pipelines
    listener     lag and rates of streaming queries, as text and as Prometheus metrics
    clients      one client per server and process
    session      Spark sessions: a local one, and the active one

Smaller parts: option_parsing, trigger, query_report, worker_errors, spark_version, demo_query.

Spark finds the source by itself (`pyspark_bascule`) where Bascule is installed and the Python
workers run the same Python. Set `PYSPARK_PYTHON` to `sys.executable`.

The package imports pyspark only when one of its names is used. It needs Spark 4.3. The extra
`spark` installs pyspark. Older versions of Spark read streams over their Kafka connector
(docs/pipelines/kafka-connector.md).
The extra `pipelines` also installs the libraries for lake tables and typed values.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bascule.pipeline.jobs.archive.run import run as archive
    from bascule.pipeline.jobs.archive.spec import ArchiveSpec
    from bascule.pipeline.jobs.audit.run import run as audit
    from bascule.pipeline.jobs.audit.spec import AuditSpec
    from bascule.pipeline.jobs.compact_lake.run import run as compact_lake
    from bascule.pipeline.jobs.compact_lake.spec import CompactLakeSpec
    from bascule.pipeline.jobs.replay.run import run as replay
    from bascule.pipeline.jobs.replay.spec import ReplaySpec
    from bascule.pipeline.jobs.rollup.run import run as rollup
    from bascule.pipeline.jobs.rollup.spec import RollupSpec
    from bascule.pipeline.jobs.tables import TableSpec
    from bascule.pipeline.lake_sink import LakeDataSource
    from bascule.pipeline.listener import LagListener, watch
    from bascule.pipeline.session import active_session
    from bascule.pipeline.source import BasculeDataSource

__all__ = [
    "ArchiveSpec",
    "AuditSpec",
    "BasculeDataSource",
    "CompactLakeSpec",
    "LagListener",
    "LakeDataSource",
    "ReplaySpec",
    "RollupSpec",
    "TableSpec",
    "active_session",
    "archive",
    "audit",
    "compact_lake",
    "replay",
    "rollup",
    "watch",
]

_HOMES: Final = {
    "ArchiveSpec": "jobs.archive.spec",
    "AuditSpec": "jobs.audit.spec",
    "BasculeDataSource": "source",
    "CompactLakeSpec": "jobs.compact_lake.spec",
    "LagListener": "listener",
    "LakeDataSource": "lake_sink",
    "ReplaySpec": "jobs.replay.spec",
    "RollupSpec": "jobs.rollup.spec",
    "TableSpec": "jobs.tables",
    "active_session": "session",
    "watch": "listener",
}
_JOBS: Final = {
    "archive": "jobs.archive",
    "audit": "jobs.audit",
    "compact_lake": "jobs.compact_lake",
    "replay": "jobs.replay",
    "rollup": "jobs.rollup",
}
"""Each value is a package; its function `run` is exported under the key."""


_WITHOUT_SPARK: Final = frozenset(name for name in _HOMES if name.endswith("Spec"))


def __getattr__(name: str) -> object:
    if name in {*_HOMES, *_JOBS} - _WITHOUT_SPARK:
        from bascule.pipeline.spark_version import require_spark

        require_spark()
    if name in _HOMES:
        return getattr(import_module(f"bascule.pipeline.{_HOMES[name]}"), name)
    if name in _JOBS:
        return import_module(f"bascule.pipeline.{_JOBS[name]}.run").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
