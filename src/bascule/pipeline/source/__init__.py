"""The source: ranges of offsets of one or many streams as rows of Spark, in batch or as they come.

    driver    options --> extents --> positions, tasks     executors   tasks --> reading --> Arrow
              (what is asked) (what is there)                        straight from the broker

What it promises. A batch read is fixed when it is planned: offsets [start, end) of each partition.
A streaming query reads each offset once, in the micro-batch that Spark's log of offsets says,
however often it is run: the position of record is Spark's checkpoint, never anything the node
keeps. What is no longer there is an error that names it, unless `failOnDataLoss` is false.

The position is one JSON object, always with its names in the same order, because Spark compares
positions as text; a stream's id tells it from another one created later under its name:

    {"flights": {"id": "<hex>", "0": <next offset of partition 0>, ...}, ...}

    options      what a user may say, checked
    bounds       where to start and to end: words, offsets, times
    extents      what streams hold now, asked of the node
    positions    positions, how they move, how they are written; ranges, and how they are cut
    planning     from options and extents to tasks
    columns      the rows' columns
    filters      what a query's WHERE leaves to be read
    reading      a task as Arrow batches
    changes      `view = latest`: the last value of each key
    history      `archive`: what a lake table holds of a stream, before the log
    data_source  Spark's interfaces
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bascule.pipeline.source.data_source import BasculeDataSource

__all__ = ["BasculeDataSource"]


def __getattr__(name: str) -> object:
    if name == "BasculeDataSource":
        from bascule.pipeline.source.data_source import BasculeDataSource

        return BasculeDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
