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

Nothing here imports pyspark before `BasculeDataSource` is asked for; it comes with the extra
`spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bascule.pipeline.source import BasculeDataSource

__all__ = ["BasculeDataSource"]


def __getattr__(name: str) -> object:
    if name == "BasculeDataSource":
        from bascule.pipeline.source import BasculeDataSource

        return BasculeDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
