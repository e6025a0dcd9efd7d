"""Rows of a lake table in the order of offsets, handed out up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from bascule.errors import Broken, CorruptData


class Cursor:
    """One pass over batches whose offsets ascend."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        schema: pa.Schema,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """With `on_error` what cannot be read is told to it, and ends the rows."""
        self._batches = batches
        self._schema = schema
        self._on_error = on_error
        self._rest: pa.RecordBatch | None = None
        self._ended = False

    def until(self, bound: int) -> pa.Table:
        """All rows below `bound` that were not handed out before."""
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
        if self._rest is None and not self._ended:
            try:
                self._rest = next(self._batches, None)
            except (Broken, CorruptData, OSError) as error:
                if self._on_error is None:
                    raise
                self._on_error(error)
            self._ended = self._rest is None
        return self._rest
