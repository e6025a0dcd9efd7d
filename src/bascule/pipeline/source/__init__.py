"""The Spark source: reads offset ranges of streams as rows, in batch or streaming.

    driver    options --> extents --> positions, tasks     executors   tasks --> rows --> Arrow
              (requested) (available)                                  straight from the broker

A batch read is fixed when it is planned: offsets [start, end) of each partition. A streaming query
reads each offset once, in the micro-batch of Spark's offset log, however often the batch runs.
Spark's checkpoint is the authority on positions; the node keeps none. Records that were removed are
an error that names them, unless `failOnDataLoss` is false.

The position is one JSON object. Its names are ordered, because Spark compares positions as text.
The stream's id distinguishes it from a later stream of the same name:

    {"flights": {"id": "<hex>", "0": <next offset of partition 0>, ...}, ...}

    options          the options of the source, checked
    bounds           start and end of a read: words, offsets, times
    extents          asks the node for the extents of streams
    positions        positions and ranges: encoding, checks, advance, split
    planning         from options and extents to tasks
    columns          the columns of the rows
    filters          pushed-down filters
    payloads         contents of payloads as values
    log_reader       a range of a log as Arrow batches
    latest_view      `view = latest`: the last value of each key
    archive_history  `archive`: the part of a stream that a lake table holds
    data_source      Spark's interfaces
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bascule.pipeline.source.data_source import BasculeDataSource

__all__ = ["BasculeDataSource"]


def __getattr__(name: str) -> object:
    if name == "BasculeDataSource":
        from bascule.pipeline.spark_version import require_spark

        require_spark()
        from bascule.pipeline.source.data_source import BasculeDataSource

        return BasculeDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
