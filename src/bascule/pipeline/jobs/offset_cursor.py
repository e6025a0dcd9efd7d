"""Reads rows of a lake table in offset order, up to a given offset at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


class OffsetCursor:
    """One pass over batches with ascending offsets."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self._rest: pa.RecordBatch | None = None

    def until(self, bound: int) -> pa.Table:
        """Return all rows with offsets below `bound` that were not returned before."""
        taken = []
        while (rest := self._next()) is not None:
            offsets = rest.column("offset").to_numpy()
            count = int(offsets.searchsorted(bound))
            if count:
                taken.append(rest.slice(0, count))
            if count < len(offsets):
                self._rest = rest.slice(count)
                break
            self._rest = None
        return pa.Table.from_batches(taken, self._schema)

    def _next(self) -> pa.RecordBatch | None:
        if self._rest is None:
            self._rest = next(self._batches, None)
        return self._rest
