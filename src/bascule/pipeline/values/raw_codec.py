"""Raw values: bytes stay unchanged."""

from __future__ import annotations

import pyarrow as pa

from bascule.pipeline.values.model import DecodedValues


class RawCodec:
    """Decodes and encodes without copying."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """Return the values. None is malformed."""
        return DecodedValues(values, pa.array([], pa.int64()), [])

    def encode(self, rows: pa.Array) -> pa.Array:
        """Return the rows."""
        return rows
