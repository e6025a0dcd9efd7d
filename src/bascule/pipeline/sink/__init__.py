"""Frames into streams: `df.write.format("bascule")` and `df.writeStream.format("bascule")`.

    query = (
        counts.selectExpr("concat('counts.', carrier) AS subject", "to_json(struct(*)) AS value")
        .writeStream.format("bascule")
        .options(stream="counts", checkpointLocation="...")
        .start()
    )

Each task publishes its rows over the NATS connection of its executor process, in Arrow columns, and
ends once every row is acked. What it promises: a batch that Spark counts as done is stored as the
acks of its stream say. With the stream's dedupe on, a row of a repeated batch, task or attempt is
stored once, because its message id is the same each time:

    <query id or id of the write> . <batch> . <partition> . <row> . <checksum of the row>

    options     what a user may say
    columns     which columns of a frame are published
    coverage    whether a stream remembers ids for long enough
    advice      what to do about an error
    writer      Spark's writers

It never creates a stream, never changes one, and takes nothing back: rows of a failed write that
were acked are in the stream. Within one subject the order of a task's rows holds, but for what was
sent again; tasks run side by side.

Memory holds what is without ack, whatever a task writes. Nothing here imports pyspark but `writer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from bascule.pipeline.sink.writer import BasculeStreamWriter, BasculeWriter

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BasculeWriter:
    """The writer of one `df.write`, on the driver.

    Raises: ConfigError, InvalidName, ColumnMismatch, UnknownStream, Broken, DedupeTooSmall.
    """
    from bascule.pipeline.sink.writer import BasculeWriter

    return BasculeWriter.plan(options, schema, overwrite=overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> BasculeStreamWriter:
    """The writer of one micro-batch, on the driver; Spark asks twice for each. Raises: as above."""
    from bascule.pipeline.sink.writer import BasculeStreamWriter

    return BasculeStreamWriter.plan(options, schema, overwrite=overwrite)
