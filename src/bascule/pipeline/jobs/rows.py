"""Converts records of the log to rows of a lake table. The archive and the audit share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bascule.errors import ConfigError
from bascule.record.columns import HEADERS_TYPE, SCHEMA

if TYPE_CHECKING:
    from bascule.pipeline.values.spec import ValueSpec

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
MALFORMED_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("subject", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("headers", HEADERS_TYPE),
        ("reason", pa.string()),
    ]
)
RAW: Final = "raw"
"""Column of a value's bytes, beside the typed columns."""


def archive_schema(value: pa.DataType, *, raw: bool) -> pa.Schema:
    """The columns of a table with values of type `value`.

    Raises: ConfigError if `raw` is set for values that are bytes.
    """
    if raw and value == pa.binary():
        raise ConfigError("raw = true needs typed values: these values are bytes")
    fields = [field for field in MALFORMED_SCHEMA if field.name != "reason"]
    fields[1] = pa.field("value", value)
    return pa.schema([*fields, pa.field(RAW, pa.binary())] if raw else fields)


class RowBuilder:
    """Converts batches of the client (`record.columns.SCHEMA`) to rows of the tables."""

    def __init__(self, value: ValueSpec, *, raw: bool) -> None:
        self.schema = archive_schema(value.arrow_type(), raw=raw)
        self._decoder = None if value.is_raw else value.decoder()
        self._raw = raw

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Split into valid rows and malformed rows (`MALFORMED_SCHEMA`; None if there are none)."""
        columns = dict(zip(SCHEMA.names, batch.columns, strict=True))
        if self._decoder is None:
            return self._rows(columns), None
        decoded = self._decoder.decode(columns["value"])
        raw = columns["value"]
        if len(decoded.bad) == 0:
            return self._rows({**columns, "value": decoded.values, RAW: raw}), None
        parses = pc.invert(decoded.bad_mask())
        bad = {name: column.take(decoded.bad) for name, column in columns.items()}
        bad["reason"] = pa.array(decoded.reasons, pa.string())
        good = {**columns, "value": decoded.values, RAW: raw}
        good = {name: column.filter(parses) for name, column in good.items()}
        return self._rows(good), pa.record_batch(
            [bad[name] for name in MALFORMED_SCHEMA.names], schema=MALFORMED_SCHEMA
        )

    def _rows(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        return pa.record_batch([columns[name] for name in self.schema.names], schema=self.schema)
