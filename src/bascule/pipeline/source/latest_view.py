"""`view = latest`: the last value of each key of a stream at an offset.

The read passes over the log twice. The first pass keeps one offset per key, so memory depends on
the number of keys. The second pass returns the records at these offsets, in order. If compaction
removes one of them in between, the read ends with an error.

    offset   0   1   2   3   4   5           latest at 6: offsets 3, 5
    key      a   b   a   a   c   b           c was deleted: its last record has no value
    value    1   1   2   3   -   2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bascule.errors import ConfigError, DataLoss
from bascule.model import KeyFrom, PartitionBy
from bascule.pipeline.source.columns import RowProjector
from bascule.pipeline.source.filters import ALL, Predicate
from bascule.pipeline.source.log_reader import ReadOptions, arrow_slices, fetched_batches
from bascule.pipeline.source.payloads import with_contents
from bascule.pipeline.source.positions import Range

if TYPE_CHECKING:
    from bascule.model import StreamConfig
    from bascule.pipeline.source.options import SourceOptions

FOLD_ROWS_MIN: Final = 1 << 20
"""Records between two reductions, and at least as many as there are keys. So the total cost is
linear."""


def check_keyed(stream: str, config: StreamConfig) -> None:
    """Raises: ConfigError if records of one key may be in several partitions."""
    by_key = config.partition_by is PartitionBy.KEY or (
        config.partition_by in (PartitionBy.SUBJECT, PartitionBy.MAPPING)
        and config.key_from is KeyFrom.SUBJECT
    )
    if config.partitions > 1 and not by_key:
        raise ConfigError(
            f'view "latest" of stream {stream!r}: its {config.partitions} partitions are chosen by '
            f"{config.partition_by.value}, so the records of one key may be in several, without an "
            "order among them; this view needs partition_by = key"
        )


def latest_rows(
    options: SourceOptions, wanted: Range, predicate: Predicate = ALL
) -> Iterator[pa.RecordBatch]:
    """The last record of each key in the range, if it has a value. Records without a key are left
    out.

    Raises: DataLoss if compaction removed one of them during the read.
    """
    how = ReadOptions(options.server, options.fail_on_data_loss, options.retry_timeout_ms)
    last = last_offsets(fetched_batches(how, wanted))
    if not len(last):
        return
    projector = RowProjector(options, wanted.stream)
    found = 0
    for batch in fetched_batches(how, wanted):
        kept = batch.filter(pc.is_in(batch.column("offset"), value_set=last))
        found += kept.num_rows
        mask = predicate.mask(kept)
        if mask is not None:
            kept = kept.filter(mask)
        for rows in with_contents(options, wanted.stream, wanted.partition, kept):
            if rows.num_rows:
                yield from arrow_slices(projector.project(rows))
    if found != len(last):
        raise DataLoss(
            wanted.stream,
            wanted.partition,
            f"compaction removed {len(last) - found} of {len(last)} last values during the read, "
            "because newer ones were stored; read again",
        )


def last_offsets(batches: Iterable[pa.RecordBatch]) -> pa.Array:
    """Ascending offsets of the last record of each key, without records that have no value."""
    state: pa.Table | None = None
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(_marked(batch))
        rows += batch.num_rows
        if rows >= max(FOLD_ROWS_MIN, 0 if state is None else state.num_rows):
            state, rows = _fold(state, pending), 0
            pending.clear()
    state = _fold(state, pending)
    if state is None:
        return pa.array([], pa.int64())
    marks = state.column("mark").combine_chunks()
    alive = marks.filter(pc.equal(pc.bit_wise_and(marks, 1), 1))
    offsets = pc.shift_right(alive, 1)
    return offsets.take(pc.array_sort_indices(offsets))


def _marked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Key and mark of each record with a key. A mark is twice the offset, plus one if the record
    has a value. So the greatest mark of a key belongs to its last record and tells whether it has a
    value."""
    offsets, keys, values = (batch.column(name) for name in ("offset", "key", "value"))
    marks = pc.add(pc.shift_left(offsets, 1), pc.is_valid(values).cast(pa.int64()))
    # Arrow's plain binary columns have 32-bit offsets, which are too small for all keys.
    marked = pa.RecordBatch.from_arrays([keys.cast(pa.large_binary()), marks], ["key", "mark"])
    return marked.filter(keys.is_valid())


def _fold(state: pa.Table | None, pending: list[pa.RecordBatch]) -> pa.Table | None:
    if not pending:
        return state
    table = pa.Table.from_batches(pending)
    if state is not None:
        table = pa.concat_tables([state, table])
    folded = table.group_by("key").aggregate([("mark", "max")])
    return folded.rename_columns({"mark_max": "mark"}).select(["key", "mark"])
