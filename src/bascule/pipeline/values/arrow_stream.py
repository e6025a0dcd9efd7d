"""Arrow: each value is an IPC stream of one batch with one row of the declared columns."""

from __future__ import annotations

import pyarrow as pa

from bascule.pipeline.values.model import Decoded
from bascule.pipeline.values.records import MALFORMED, Rows


class ArrowDecoder:
    """Decodes streams whose columns have the declared names and types, in the declared order."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._schema = pa.schema([field.with_nullable(True) for field in kind])

    def decode(self, values: pa.Array) -> Decoded:
        """See `ValueDecoder`."""
        rows = Rows(self._kind, len(values))
        for number, value in enumerate(values):
            if not value.is_valid:
                continue
            try:
                rows.add(self._row(value.as_buffer()), [number])
            except (*MALFORMED, MemoryError) as error:
                rows.add_bad(number, error)
        return rows.finish()

    def _row(self, value: pa.Buffer) -> pa.StructArray:
        with pa.ipc.open_stream(value) as reader:
            found = pa.schema([field.with_nullable(True) for field in reader.schema])
            if not found.equals(self._schema):
                raise ValueError(f"columns are {_shown(found)}, declared {_shown(self._schema)}")
            batches = list(reader)
        count = sum(batch.num_rows for batch in batches)
        if len(batches) != 1 or count != 1:
            raise ValueError(f"expected one batch of one row, found {len(batches)} of {count} rows")
        batch = batches[0]
        batch.validate(full=True)
        columns = [column.cast(f.type) for column, f in zip(batch.columns, self._kind, strict=True)]
        for column, field in zip(columns, self._kind, strict=True):
            if column.null_count and not field.nullable:
                raise ValueError(f"column {field.name!r} is null")
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
