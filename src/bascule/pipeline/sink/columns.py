"""Maps the columns of a frame to those of the client's columnar publishing. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from bascule.client.columnar.columns import IGNORED, check_schema
from bascule.errors import ColumnMismatch

_NAMES: Final = {
    "subject": "subject",
    "key": "key",
    "value": "value",
    "headers": "headers",
    "messageid": "message_id",
}
"""Lower-case column of a frame -> column of the client."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of a frame that are published, and their names. Picklable."""

    indexes: tuple[int, ...]
    names: tuple[str, ...]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Select the columns to publish, without copying."""
        return pa.RecordBatch.from_arrays(
            [batch.column(index) for index in self.indexes], names=list(self.names)
        )


def projection_of(
    columns: list[tuple[str, str]],
    arrow_type: Callable[[int], pa.DataType],
    *,
    fixed_subject: bool,
    headers: bool,
) -> Projection:
    """Choose among the columns of a frame, given as (name, Spark type). Case is ignored.

    With `fixed_subject` all rows have one subject and the column is not used. `headers` decides
    whether the column `headers` is published. `arrow_type` returns the type of a column by index.

    Raises: ColumnMismatch with the frame's column names.
    """
    indexes, names = [], []
    for index, (name, kind) in enumerate(columns):
        known = _NAMES.get(name.lower())
        if known is None:
            if name.lower() in IGNORED:
                continue
            raise ColumnMismatch(
                name, kind, f"none of this name, but {', '.join(_shown(n) for n in _NAMES)}"
            )
        if known in names:
            raise ColumnMismatch(name, "two of them", "one")
        if (known == "subject" and fixed_subject) or (known == "headers" and not headers):
            continue
        indexes.append(index)
        names.append(known)
    fields = [pa.field(name, arrow_type(index)) for index, name in zip(indexes, names, strict=True)]
    try:
        check_schema(pa.schema(fields), has_subject=fixed_subject)
    except ColumnMismatch as wrong:
        shown = _shown(wrong.column.replace("_", ""))
        if wrong.column not in names:
            missing = "no such column" if wrong.column != "subject" else "no such column or option"
            raise ColumnMismatch(shown, missing, wrong.expected) from None
        name, kind = columns[indexes[names.index(wrong.column)]]
        raise ColumnMismatch(name, kind, wrong.expected) from None
    return Projection(tuple(indexes), tuple(names))


def _shown(lowered: str) -> str:
    return "messageId" if lowered == "messageid" else lowered
