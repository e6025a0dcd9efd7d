"""Spark on Bascule: `spark.read.format("bascule")` and `spark.readStream.format("bascule")`.

    from bascule.pipeline import BasculeDataSource

    spark.dataSource.register(BasculeDataSource)
    flights = spark.readStream.format("bascule").option("stream", "flights").load()

A source is a client like any other: it asks the node's HTTP door what a stream holds and reads
ranges of offsets through the client listener. The driver plans ranges, executors read them. The
position of record is Spark's checkpoint, never anything the node keeps:

    {"stream": "<id>", "0": <next offset of partition 0>, ...}

always in this key order, because Spark compares offsets as strings. The stream's id is in it so
that a deleted and re-created stream of the same name is not mistaken for the old one.

Where Bascule is installed Spark finds the source by itself (`pyspark_bascule`), if its Python
workers run the same Python: set `PYSPARK_PYTHON` to `sys.executable`.

Nothing here imports pyspark before one of the names is asked for; it comes with the extra `spark`.
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
    "TableSpec",
    "archive",
    "audit",
    "compact_lake",
    "replay",
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
    "TableSpec": "jobs.tables",
    "watch": "listener",
}
_JOBS: Final = ("archive", "audit", "compact_lake", "replay")
"""Each is `run` of its package in `jobs`."""


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"bascule.pipeline.{_HOMES[name]}"), name)
    if name in _JOBS:
        return import_module(f"bascule.pipeline.jobs.{name}.run").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
