"""Merges the batches of several partitions by timestamp.

Each round takes from every partition the records up to the earliest of the partitions' last
timestamps, and sorts them: no later batch can hold an earlier record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc


def merged_by_time(readers: Mapping[int, Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The rows of `readers` in the order of their timestamps. The rows of a reader keep their
    order: a row with an earlier timestamp than the row before it counts with that one's."""
    open_readers = dict(readers)
    held: dict[int, pa.RecordBatch] = {}
    while True:
        for number in [n for n in open_readers if n not in held]:
            batch = next(open_readers[number], None)
            if batch is None:
                del open_readers[number]
            else:
                held[number] = batch
        if not held:
            return
        bound = min((pc.max(_times(held[n])).as_py() for n in open_readers), default=None)
        taken = []
        for number, batch in list(held.items()):
            size = batch.num_rows if bound is None else _rows_until(batch, bound)
            taken.append(batch.slice(0, size))
            if size == batch.num_rows:
                del held[number]
            else:
                held[number] = batch.slice(size)
        yield from _sorted([batch for batch in taken if batch.num_rows])


def _times(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("timestamp").view(pa.int64())


def _rows_until(batch: pa.RecordBatch, bound: int) -> int:
    """The number of rows before the first that is later than `bound`."""
    later: int = pc.index(pc.greater(_times(batch), bound), value=True).as_py()
    return batch.num_rows if later < 0 else later


def _sorted(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
        return
    times = pa.concat_arrays([pc.cumulative_max(_times(batch)) for batch in batches])
    # The sort is stable: equal times stay in the order of partitions and offsets.
    yield from pa.Table.from_batches(batches).take(pc.sort_indices(times)).to_batches()
