"""Merging the batches of partitions by timestamp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bascule.client.stream_reader.time_merge import merged_by_time
from bascule.record.columns import SCHEMA

Times = Sequence[Sequence[int]]
"""The timestamps of a partition, batch by batch."""


def batches_of(partition: int, times: Times) -> Iterator[pa.RecordBatch]:
    offset = 0
    for batch in times:
        rows = [
            {
                "offset": offset + n, "partition": partition, "timestamp": time, "key": None,
                "value": b"%d" % time, "subject": "s", "headers": [],
            }
            for n, time in enumerate(batch)
        ]  # fmt: skip
        offset += len(batch)
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def merged(partitions: Sequence[Times]) -> list[tuple[int, int, int]]:
    """(timestamp, partition, offset) of each row."""
    readers = {number: batches_of(number, times) for number, times in enumerate(partitions)}
    found = []
    for batch in merged_by_time(readers):
        assert batch.schema == SCHEMA
        assert batch.num_rows
        rows = batch.to_pylist()
        assert all(row["value"] == b"%d" % _micros(row["timestamp"]) for row in rows)
        found += [(_micros(r["timestamp"]), r["partition"], r["offset"]) for r in rows]
    return found


def _micros(time: object) -> int:
    return pa.scalar(time, SCHEMA.field("timestamp").type).value


def test_partitions_are_interleaved_across_batches() -> None:
    assert merged([[[1, 4], [4, 9]], [[2, 3, 5]], [], [[6], [7]]]) == [
        (1, 0, 0), (2, 1, 0), (3, 1, 1), (4, 0, 1), (4, 0, 2), (5, 1, 2), (6, 3, 0), (7, 3, 1),
        (9, 0, 3),
    ]  # fmt: skip


def test_a_partition_keeps_its_order_if_its_times_go_back() -> None:
    found = merged([[[5, 1, 6]], [[2, 7]]])
    assert [row[2] for row in found if row[1] == 0] == [0, 1, 2]
    assert found == [(2, 1, 0), (5, 0, 0), (1, 0, 1), (6, 0, 2), (7, 1, 1)]


TIMES = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), max_size=4)


@given(st.lists(TIMES, max_size=5))
def test_every_row_comes_once_and_in_order(partitions: list[list[list[int]]]) -> None:
    rising = []
    for times in partitions:
        values = iter(sorted(time for batch in times for time in batch))
        rising.append([[next(values) for _ in batch] for batch in times])
    found = merged(rising)
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    expected = [
        (number, offset)
        for number, times in enumerate(rising)
        for offset in range(sum(map(len, times)))
    ]
    assert sorted((partition, offset) for _, partition, offset in found) == expected
    for number in range(len(rising)):
        offsets = [offset for _, partition, offset in found if partition == number]
        assert offsets == sorted(offsets)
