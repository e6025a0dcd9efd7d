"""The last offset of each key."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ConfigError
from bascule.model import KeyFrom, PartitionBy, StreamConfig
from bascule.pipeline.source import latest_view
from bascule.pipeline.source.latest_view import check_keyed, last_offsets

records = st.lists(
    st.tuples(st.none() | st.sampled_from([b"a", b"b", b"c", b""]), st.none() | st.just(b"v"))
)


@given(records, st.integers(1, 7))
def test_the_last_value_of_each_key(
    said: list[tuple[bytes | None, bytes | None]], size: int
) -> None:
    batches = [
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(range(at, at + len(some)), pa.int64()),
                "key": pa.array([key for key, _ in some], pa.binary()),
                "value": pa.array([value for _, value in some], pa.binary()),
            }
        )
        for at in range(0, len(said), size)
        for some in [said[at : at + size]]
    ]
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, (key, value) in enumerate(said):
        if key is not None:
            last[key] = offset, value
    expected = sorted(offset for offset, value in last.values() if value is not None)
    assert last_offsets(batches).to_pylist() == expected


def test_many_records_are_reduced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_view, "FOLD_ROWS_MIN", 10)
    folded: list[int] = []
    fold = latest_view._fold

    def counting(state: pa.Table | None, pending: list[pa.RecordBatch]) -> pa.Table | None:
        folded.append(len(pending))
        return fold(state, pending)

    monkeypatch.setattr(latest_view, "_fold", counting)
    batches = (
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(range(at, at + 5), pa.int64()),
                "key": pa.array([b"%d" % (n % 40) for n in range(at, at + 5)], pa.binary()),
                "value": pa.array([b"v"] * 5, pa.binary()),
            }
        )
        for at in range(0, 400, 5)
    )
    assert last_offsets(batches).to_pylist() == list(range(360, 400))
    assert 5 < len(folded) < 20


def test_a_key_must_have_one_partition() -> None:
    def config(partitions: int, by: PartitionBy, key: KeyFrom = KeyFrom.HEADER) -> StreamConfig:
        return StreamConfig(subject="s", partitions=partitions, partition_by=by, key_from=key)

    check_keyed("s", config(1, PartitionBy.GROUP))
    check_keyed("s", config(3, PartitionBy.KEY))
    check_keyed("s", config(3, PartitionBy.SUBJECT, KeyFrom.SUBJECT))
    check_keyed("s", config(3, PartitionBy.MAPPING, KeyFrom.SUBJECT))
    for refused in (config(3, PartitionBy.GROUP), config(3, PartitionBy.SUBJECT)):
        with pytest.raises(ConfigError, match="partition_by = key"):
            check_keyed("s", refused)
