"""Payloads of records: their content in place of the value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bascule.errors import DataLoss, LimitExceeded, UnknownPayload
from bascule.pipeline.clients import client_of
from bascule.pipeline.source.columns import payloads_of

if TYPE_CHECKING:
    from bascule.pipeline.source.options import SourceOptions

INLINE_BYTES: Final = 64 << 20
"""Of the content of one batch, but for a single larger payload."""


def with_contents(
    options: SourceOptions, stream: str, partition: int, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """The rows with the content of a payload as the value of its record, where that was asked for.

    `batch` has the columns of `record.columns.SCHEMA`. It is cut where the content is more than
    INLINE_BYTES.

    Raises: LimitExceeded for a payload of more than `payloadBytesMax`; DataLoss for one that is
    gone, unless `failOnDataLoss` is off: its value is null then. Broken.
    """
    found = payloads_of(batch.column("headers")) if options.payloads == "inline" else {}
    if not found:
        yield batch
        return
    first = size = 0
    contents: dict[int, bytes | None] = {}
    for row in range(batch.num_rows):
        payload = found.get(row)
        if payload is None:
            continue
        offset = batch.column("offset")[row].as_py()
        if payload.size > options.payload_bytes_max:
            where = f"payloadBytesMax, of {stream!r}, partition {partition}, offset {offset}"
            raise LimitExceeded(where, options.payload_bytes_max, payload.size)
        if contents and size + payload.size > INLINE_BYTES:
            yield _replaced(batch, first, row, contents)
            first, size, contents = row, 0, {}
        contents[row] = _content(options, stream, partition, offset)
        size += payload.size
    yield _replaced(batch, first, batch.num_rows, contents)


def _content(options: SourceOptions, stream: str, partition: int, offset: int) -> bytes | None:
    try:
        with client_of(options.server).read_payload(stream, offset, partition=partition) as payload:
            return payload.read()
    except UnknownPayload as gone:
        if options.fail_on_data_loss:
            raise DataLoss(stream, partition, str(gone)) from gone
        return None


def _replaced(
    batch: pa.RecordBatch, first: int, end: int, contents: dict[int, bytes | None]
) -> pa.RecordBatch:
    """The rows [first, end), with these values."""
    values = batch.column("value").slice(first, end - first)
    mask = pa.array([row in contents for row in range(first, end)])
    given = pa.array([contents[row] for row in sorted(contents)], values.type)
    at = batch.schema.get_field_index("value")
    rows = batch.slice(first, end - first)
    return rows.set_column(at, batch.schema.field(at), pc.replace_with_mask(values, mask, given))
