"""Arrow values: each is an IPC stream of one batch with one row of the declared columns.

[schema message] [batch message, 1 row] [end of stream, or nothing]
"""

from __future__ import annotations

import struct

import pyarrow as pa

from bascule.pipeline.values.model import DecodedValues
from bascule.pipeline.values.record_decoder import MALFORMED, DecodedRows


class ArrowDecoder:
    """Decodes streams whose columns have the declared names and types, in the declared order.

    Compressed batches are refused, because their unpacked size is unbounded.
    """

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._schema = pa.schema([field.with_nullable(True) for field in kind])
        self._required = [n for n, field in enumerate(kind) if not field.nullable]
        self._known = b""
        """Metadata of the last valid schema message. Most streams repeat it."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder`."""
        rows = DecodedRows(self._kind, len(values))
        batches, numbers = [], []
        for number, value in enumerate(values):
            if not value.is_valid:
                continue
            try:
                batches.append(self._batch(value.as_buffer()))
            except (*MALFORMED, OSError, MemoryError) as error:
                rows.add_bad(number, error)
            else:
                numbers.append(number)
        if batches:
            table = pa.Table.from_batches(batches, self._schema)
            columns = [column.combine_chunks() for column in table.columns]
            rows.add(pa.StructArray.from_arrays(columns, fields=list(self._kind)), numbers)
        return rows.finish()

    def _batch(self, value: pa.Buffer) -> pa.RecordBatch:
        """The only batch of a value. Raises: one of MALFORMED, OSError, MemoryError."""
        messages = list(pa.ipc.MessageReader.open_stream(value))
        kinds = [message.type for message in messages]
        if kinds != ["schema", "record batch"]:  # reading another as one of them ends the process
            found = ", ".join(kinds) or "no message"
            raise ValueError(f"expected an Arrow stream of schema, record batch, found {found}")
        self._check_schema(messages[0])
        if _is_compressed(messages[1].metadata.to_pybytes()):
            raise ValueError("expected no compression of the record batch")
        batch = pa.ipc.read_record_batch(messages[1], self._schema)
        if batch.num_rows != 1:
            raise ValueError(f"expected one row, found {batch.num_rows}")
        batch.validate(full=True)
        for number in self._required:
            if batch.column(number).null_count:
                raise ValueError(f"column {self._kind[number].name!r} is null")
        return batch

    def _check_schema(self, message: pa.Message) -> None:
        """Check that types are equal. Nullability and the names of list items do not change the
        layout of a batch."""
        metadata = message.metadata.to_pybytes()
        if metadata == self._known:
            return
        found = pa.ipc.read_schema(message)
        plain = pa.schema([field.with_nullable(True) for field in found])
        if not plain.equals(self._schema):
            raise ValueError(f"columns are {_shown(found)}, declared {_shown(self._schema)}")
        self._known = metadata


def _is_compressed(metadata: bytes) -> bool:
    """Whether the record batch of a message (a flatbuffer verified by Arrow) is compressed.

    The third field of a Message is its header. The fourth field of a RecordBatch is its
    compression.
    """
    message = _field(metadata, struct.unpack_from("<I", metadata)[0], 2)
    if message is None:
        raise ValueError("expected a record batch in the message, found none")
    header = message + struct.unpack_from("<I", metadata, message)[0]
    return _field(metadata, header, 3) is not None


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """Position of a field of a flatbuffer table; None if the field is absent."""
    slots = table - struct.unpack_from("<i", buffer, table)[0]
    if slots < 0:
        raise ValueError("a table of the message begins before it")
    if struct.unpack_from("<H", buffer, slots)[0] < 6 + 2 * number:
        return None
    at = struct.unpack_from("<H", buffer, slots + 4 + 2 * number)[0]
    return table + at if at else None


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
