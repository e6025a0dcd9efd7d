"""Why records of a run were malformed: counts by reason, from the table of malformed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bascule.pipeline.jobs.model import Table
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.model import Span

if TYPE_CHECKING:
    from bascule.pipeline.lake.model import LakeTable

REASONS_MAX: Final = 20
"""Reasons that are listed. A reason may contain a part of the value, so there may be many."""
_COLUMNS: Final = pa.schema([MALFORMED_SCHEMA.field(name) for name in ("reason", "offset")])


def malformed_reasons(side: LakeTable, spans: Mapping[int, tuple[int, int]]) -> Table | None:
    """The reasons of the malformed records in [start, end) of each partition, most frequent first.

    None if there are none. Raises: Broken, OSError if files are removed meanwhile.
    """
    snapshot = side.snapshot()
    if snapshot is None:
        return None
    files = side.files(snapshot)
    counts: dict[str, int] = {}
    first: dict[str, tuple[int, int]] = {}
    for partition, (start, end) in sorted(spans.items()):
        chosen = [file for file in files if file.may_hold(Span(partition, start, end))]
        for batch in read_files(chosen, _COLUMNS, offset_start=start, offset_end=end):
            grouped = pa.Table.from_batches([batch]).group_by("reason")
            for row in grouped.aggregate([("offset", "count"), ("offset", "min")]).to_pylist():
                reason = row["reason"] or ""
                counts[reason] = counts.get(reason, 0) + row["offset_count"]
                first.setdefault(reason, (partition, row["offset_min"]))
    if not counts:
        return None
    ordered = sorted(counts, key=lambda reason: (-counts[reason], reason))
    rows: list[tuple[int | str, ...]] = [
        (counts[reason], reason, *first[reason]) for reason in ordered[:REASONS_MAX]
    ]
    if rest := ordered[REASONS_MAX:]:
        rows.append(
            (sum(counts[reason] for reason in rest), f"{len(rest):,} other reasons", "", "")
        )
    columns = ("records", "reason", "first in partition", "at offset")
    return Table("Malformed records", columns, tuple(rows))
