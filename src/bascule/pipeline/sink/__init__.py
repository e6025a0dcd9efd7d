"""Publishes frames to streams: `df.write.format("bascule")`, `df.writeStream.format("bascule")`.

    query = (
        counts.selectExpr("concat('counts.', carrier) AS subject", "to_json(struct(*)) AS value")
        .writeStream.format("bascule")
        .options(stream="counts", checkpointLocation="...")
        .start()
    )

Each task publishes its rows in Arrow columns over the NATS connection of its executor process. It
ends when every row is acked, so a batch that Spark counts as done is stored as the acks state. If
the stream has a dedupe window, a row of a repeated batch, task or attempt is stored once, because
its message id is the same each time:

    <query id or id of the write> . <batch> . <partition> . <row> . <checksum of the row>

    options          the sink's options
    columns          which columns of a frame are published
    dedupe_coverage  whether a stream remembers message ids for long enough
    error_hints      hints for errors that end a write
    writer           Spark's writers

The sink never creates or changes a stream and never removes messages: acked rows of a failed write
stay in the stream. Rows of one task keep their order within a subject, except for messages that
were sent again. Tasks run in parallel.

Memory holds only the rows without ack. Only `writer` imports pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from bascule.pipeline.sink.writer import BasculeStreamWriter, BasculeWriter

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BasculeWriter:
    """Create the writer of one `df.write`, on the driver.

    Raises: ConfigError, InvalidName, ColumnMismatch, UnknownStream, Broken, DedupeTooSmall.
    """
    from bascule.pipeline.sink.writer import BasculeWriter

    return BasculeWriter.plan(options, schema, overwrite=overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> BasculeStreamWriter:
    """Create the writer of one micro-batch, on the driver. Spark calls it twice per batch. Raises:
    as above."""
    from bascule.pipeline.sink.writer import BasculeStreamWriter

    return BasculeStreamWriter.plan(options, schema, overwrite=overwrite)
