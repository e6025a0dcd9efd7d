"""Spark on Bascule: streams as frames, frames as streams, and jobs between streams and lake tables.

    from bascule.pipeline import BasculeDataSource

    spark.dataSource.register(BasculeDataSource)
    flights = spark.readStream.format("bascule").option("stream", "flights").load()

All of it is a client like any other: it reads through the client listener, publishes over NATS and
asks the HTTP door. Spark plans, spreads, retries and keeps checkpoints; nothing here does it again.

    source       streams as rows; one view of history and tail       `format("bascule")`, reading
    sink         rows as messages, each once                         `format("bascule")`, writing
    values       what the bytes of a value mean: columns of types
    lake         Iceberg, Delta and Parquet tables that know their offsets; no Spark in it
    lake_sink    any frame into a lake table                         `format("bascule_lake")`
    jobs         archive, audit, replay, rollup, compact-lake        `format("bascule_archive")`
    declare      all of these from one TOML file; report: a page about a run; sdp: as Spark's
                 Declarative Pipelines
    listener     lag and rates of any query, for people and Prometheus

Where Bascule is installed Spark finds the source by itself (`pyspark_bascule`), if its Python
workers run the same Python: set `PYSPARK_PYTHON` to `sys.executable`.

Nothing here imports pyspark before one of the names is asked for; it comes with the extra `spark`,
what lake tables and typed values need with the extra `pipelines`.
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
    "watch": "listener",
}
_JOBS: Final = {
    "archive": "jobs.archive",
    "audit": "jobs.audit",
    "compact_lake": "jobs.compact_lake",
    "replay": "jobs.replay",
    "rollup": "jobs.rollup",
}
"""Each is `run` of its package."""


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"bascule.pipeline.{_HOMES[name]}"), name)
    if name in _JOBS:
        return import_module(f"bascule.pipeline.{_JOBS[name]}.run").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
