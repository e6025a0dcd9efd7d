"""Both twins of the compaction passes: the hash, the map, and hostile records."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, batch_crc, check_crc, read_header
from bascule.storage.compaction import batch_filter
from bascule.storage.compaction.batch_filter import BatchFilter
from bascule.storage.compaction.keys.key_map import KeyMap, seed_words
from bascule.storage.compaction.windows import Window
from support.twins import Twin, load_twin

Hot = Callable[[str], ModuleType]
PACKAGE = "storage/compaction/keys"
KEY = bytes(range(16))
TWINS: tuple[Twin, ...] = ("compiled", "interpreted")
VECTORS = (
    "a3817f04ba25a8e66df67214c7550293",
    "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4",
)
"""SipHash-2-4-128 of the bytes 0, 1, ... n-1 for n = 0, 1, 2, from the authors' vectors."""


@pytest.mark.parametrize("length", range(len(VECTORS)))
def test_the_hash_is_siphash(hot: Hot, length: int) -> None:
    words = hot(PACKAGE).hash_key(bytes(range(length)), seed_words(KEY))
    assert b"".join(word.to_bytes(8, "little") for word in words).hex() == VECTORS[length]


@settings(max_examples=200)
@given(key=st.binary(max_size=70), secret=st.binary(min_size=16, max_size=16))
def test_twins_hash_alike(key: bytes, secret: bytes) -> None:
    compiled, interpreted = load_twin(PACKAGE, "compiled"), load_twin(PACKAGE, "interpreted")
    seed = seed_words(secret)
    assert compiled.hash_key(key, seed) == interpreted.hash_key(key, seed)


def batch_of(keys: list[bytes | None], base_offset: int = 0) -> bytes:
    records = [Record(base_offset + n, 5, key, b"value") for n, key in enumerate(keys)]
    return bytes(build_batch(records, base_offset=base_offset, log_append_time=True))


def whole(data: bytes) -> Window:
    return Window(memoryview(data), 0, len(data), 0)


def test_a_map_agrees_with_a_dict_and_keeps_its_bound() -> None:
    bytes_max = 60_000
    keys = KeyMap(bytes_max=bytes_max, secret=KEY, records_max=10_000)
    model: dict[bytes, int] = {}
    largest = before = 0
    for n in range(10_000):
        key = b"key %d" % (n * 7919 % 1_900)
        if keys.add(whole(batch_of([key, None], 2 * n)), origin="x") == 0:
            break
        model[key] = 2 * n
        if keys.size_bytes != before:
            largest = max(largest, before + keys.size_bytes)
            before = keys.size_bytes
    assert keys.is_full
    assert keys.keys == len(model) > bytes_max // 24 * 4 // 5 * 4 // 5 - 3
    assert largest <= bytes_max, "the old table and the new one together"
    assert all(keys.newest(key) == offset for key, offset in model.items())
    assert keys.newest(b"never added") is None


def test_a_map_allocates_no_more_than_the_records_need() -> None:
    keys = KeyMap(bytes_max=1 << 30, secret=KEY, records_max=1_000)
    for n in range(100):
        keys.add(whole(batch_of([b"%d" % (10 * n + m) for m in range(10)], 10 * n)), origin="x")
    assert keys.keys == 1_000
    assert keys.size_bytes <= 24 * 1_300


@settings(max_examples=150)
@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=30)), min_size=1, max_size=20),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=4),
)
def test_twins_agree_on_hostile_bytes(
    keys: list[bytes | None], flips: list[tuple[int, int]]
) -> None:
    """Both twins give the same result for any bytes, and stay within the buffers."""
    data = bytearray(batch_of([b"first"]) + batch_of(keys, 1) + batch_of([b"last"], 500))
    for at, flip in flips:
        data[at % len(data)] ^= flip
    found = [passes(twin, bytes(data)) for twin in TWINS]
    assert found[0] == found[1]


def passes(twin: Twin, data: bytes) -> list[object]:
    hot, copying = load_twin(PACKAGE, twin), load_twin("storage/compaction", twin)
    table, seed = array("Q", bytes(24 * 64)), seed_words(KEY)
    hashes, rows = array("Q", bytes(8 * hot.HASH_WORDS)), array("q", bytes(8 * hot.ROW_WORDS))
    mapped, decided = array("q", (0, 0)), array("q", (0, 0))
    actions, plans = bytearray(100), array("q", bytes(8 * 3 * 5))
    out, places = bytearray(len(data)), array("q", bytes(8 * 2 * 5))
    state = array("q", (90, 100, 1 << 60, 0, 0, 0, 0, 4, 3, 0))
    found = [
        hot.map_batches(data, len(data), table, 51, seed, hashes, rows, mapped),
        hot.plan_batches(
            data, len(data), table, seed, hashes, rows, 400, 0, actions, plans, decided
        ),
        copying.copy_batches(data, plans, decided[1], actions, out, places, state),
    ]
    kept = bytes(out[: state[5]])
    return [found, *map(list, (mapped, decided, table, actions, plans, places, state)), kept]


@settings(max_examples=100)
@given(
    numbers=st.lists(st.integers(-9, 300), min_size=6, max_size=6),
    actions=st.binary(min_size=4, max_size=4),
)
def test_twins_agree_on_invalid_plans(numbers: list[int], actions: bytes) -> None:
    data = batch_of([b"a", None, b"a"]) + batch_of([b"b"], 3)
    found = []
    for twin in TWINS:
        copying = load_twin("storage/compaction", twin)
        out, places = bytearray(len(data)), array("q", bytes(8 * 4))
        state = array("q", (90, 100, 1 << 60, 0, 0, 0, 0, 4, 3, 0))
        plans = array("q", numbers)
        good = copying.copy_batches(data, plans, 2, actions, out, places, state)
        found.append((good, bytes(out[: state[5]]), list(state), list(places)))
    assert found[0] == found[1]


def test_records_that_do_not_fill_their_batch_are_refused() -> None:
    data = bytearray(batch_of([b"a"]) + batch_of([b"b", b"c"], 1))
    second = len(batch_of([b"a"]))
    data[second + 61] += 2
    keys = KeyMap(bytes_max=10_000, secret=KEY, records_max=10)
    with pytest.raises(CorruptData) as refused:
        keys.add(whole(bytes(data)), origin="a file")
    assert (refused.value.file, refused.value.at) == ("a file", second)
    keeping = BatchFilter(keys, end_offset=9, start_offset=0, now_ms=1, tombstone_retention_ms=1)
    with pytest.raises(CorruptData) as refused:
        keeping.apply(whole(bytes(data)), lambda _: None, origin="a file")
    assert (refused.value.file, refused.value.at) == ("a file", second)


def test_batches_with_unknown_attributes_are_copied_unchanged() -> None:
    data = bytearray(batch_of([b"a", b"a"]))
    data[21] = 1
    keys = KeyMap(bytes_max=10_000, secret=KEY, records_max=10)
    keys.add(whole(bytes(data)), origin="x")
    assert keys.keys == 0
    keys.add(whole(batch_of([b"a"], 7)), origin="x")
    out: list[bytes] = []
    keeping = BatchFilter(keys, end_offset=9, start_offset=0, now_ms=1, tombstone_retention_ms=1)
    keeping.apply(whole(bytes(data)), lambda piece: out.append(bytes(piece)), origin="x")
    assert out == [bytes(data)]


def test_a_changed_batch_gets_a_new_crc_and_an_unchanged_one_is_copied() -> None:
    same, other = batch_of([b"a", None, b"b"]), batch_of([b"c", b"d", b"c"], 3)
    keys = KeyMap(bytes_max=10_000, secret=KEY, records_max=10)
    keys.add(whole(same + other), origin="x")
    out = bytearray()
    keeping = BatchFilter(keys, end_offset=9, start_offset=0, now_ms=1, tombstone_retention_ms=1)
    keeping.apply(whole(same + other), lambda piece: out.extend(piece), origin="x")
    assert out.startswith(same)
    (_, (header, start, end)) = scan_batches(out)
    assert (header.base_offset, header.end_offset, header.record_count) == (3, 6, 2)
    assert [r.offset for r in RecordBatch(bytes(out[start:end]))] == [4, 5]


def test_tombstones_stay_until_all_replicas_have_passed_them() -> None:
    """Both are over; the end of the second batch is 4."""
    data = b"".join(
        build_batch([Record(n, 1_000, key, None) for n in offsets], base_offset=offsets[0],
                    log_append_time=True)
        for offsets, key in (((0, 1), b"a"), ((2, 3), b"b"))
    )  # fmt: skip

    def cleaned(data: bytes, *, now_ms: int, end: int) -> tuple[bytes, int | None]:
        keys = KeyMap(bytes_max=10_000, secret=KEY, records_max=10)
        keys.add(whole(data), origin="x")
        keeping = BatchFilter(
            keys, end_offset=4, start_offset=0, now_ms=now_ms, tombstone_retention_ms=5,
            tombstones_end=end,
        )  # fmt: skip
        out = bytearray()
        keeping.apply(whole(data), lambda piece: out.extend(piece), origin="x")
        return bytes(out), keeping.horizon_ms

    with_horizon, _ = cleaned(data, now_ms=10, end=0)
    found = []
    for end in range(6):
        kept, horizon_ms = cleaned(with_horizon, now_ms=15, end=end)
        offsets = [
            record.offset
            for _, start, stop in scan_batches(kept)
            for record in RecordBatch(kept[start:stop])
        ]
        found.append((offsets, horizon_ms))
    assert found == [([1, 3], 15), ([1, 3], 15), ([3], 15), ([3], 15), ([], None), ([], None)]


def test_the_last_batch_of_a_log_keeps_its_tombstone() -> None:
    def cleaned(data: bytes, *, now_ms: int, tail: int | None) -> tuple[bytes, int | None]:
        keys = KeyMap(bytes_max=10_000, secret=KEY, records_max=10)
        keys.add(whole(data), origin="x")
        keeping = BatchFilter(
            keys, end_offset=1, start_offset=0, now_ms=now_ms, tombstone_retention_ms=5, tail=tail
        )
        out = bytearray()
        keeping.apply(whole(data), lambda piece: out.extend(piece), origin="x")
        return bytes(out), keeping.horizon_ms

    removal = build_batch([Record(0, 1_000, b"a", None)], base_offset=0, log_append_time=True)
    marked, horizon_ms = cleaned(bytes(removal), now_ms=1, tail=None)
    assert horizon_ms == 6
    assert cleaned(marked, now_ms=5, tail=1) == (marked, 6)
    assert cleaned(marked, now_ms=7, tail=1) == (marked, None)
    assert cleaned(marked, now_ms=7, tail=None) == (b"", None)


def old_horizon(data: bytes, horizon_ms: int) -> bytes:
    """A batch as older releases gave it a horizon: the deltas stay 0."""
    out = bytearray(data)
    out[22] |= 0x40
    out[27:35] = horizon_ms.to_bytes(8, "big")
    out[17:21] = batch_crc(out).to_bytes(4, "big")
    return bytes(out)


@pytest.mark.parametrize("twin", TWINS)
@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 40, 50, 60, 8_180, 9_000]), min_size=1, max_size=12),
    gone=st.sets(st.integers(0, 12)),
    time=st.sampled_from([0, 1_000, 1_700_000_000_000, (1 << 61) - 1]),
    retention_ms=st.sampled_from([0, 1, 86_400_000, 1 << 40]),
    old=st.booleans(),
)
def test_times_by_deltas_are_right_under_a_delete_horizon(
    twin: Twin, sizes: list[int], gone: set[int], time: int, retention_ms: int, old: bool
) -> None:
    """A reader that ignores LogAppendTime adds the delta to the base, which is the horizon."""
    records = [
        Record(n, time, b"k%d" % n, None if n == 0 else bytes(size), (("h", b"v"),))
        for n, size in enumerate(sizes)
    ]
    data = bytes(build_batch(records, base_offset=0, log_append_time=True))
    horizon_ms = time // 2 + retention_ms
    if old:
        data = old_horizon(data, horizon_ms)
    newer = [Record(n + 50, time, b"k%d" % n, b"") for n in sorted(gone - {0})]
    later = bytes(build_batch(newer, base_offset=50, log_append_time=True)) if newer else b""
    keys = KeyMap(bytes_max=10_000, secret=KEY, records_max=100)
    keys.add(whole(data + later), origin="x")

    def cleaned(batch: bytes) -> bytes:
        keeping = BatchFilter(
            keys, end_offset=50, start_offset=0, now_ms=time // 2, tail=len(sizes),
            tombstone_retention_ms=retention_ms,
        )  # fmt: skip
        out = bytearray()
        keeping.apply(whole(batch), lambda piece: out.extend(piece), origin="x")
        return bytes(out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_filter, "_hot", load_twin("storage/compaction", twin))
        out = cleaned(data)
        assert cleaned(out) == out, "another run changes nothing"
    header = read_header(out)
    assert header.total_bytes == len(out)
    assert check_crc(out)
    assert header.attributes & 0x40
    assert (header.base_timestamp, header.max_timestamp) == (horizon_ms, time)
    kept = [record for n, record in enumerate(records) if n == 0 or n not in gone]
    assert list(RecordBatch(out)) == kept
    plain = bytearray(out)
    plain[22] &= ~LOG_APPEND_TIME
    assert list(RecordBatch(bytes(plain))) == kept


@pytest.mark.parametrize("twin", TWINS)
def test_a_time_that_would_overflow_gets_no_horizon(twin: Twin) -> None:
    data = bytes(build_batch([Record(0, 1 << 62, b"a", None)], base_offset=0, log_append_time=True))
    keys = KeyMap(bytes_max=10_000, secret=KEY, records_max=10)
    keeping = BatchFilter(keys, end_offset=9, start_offset=0, now_ms=1, tombstone_retention_ms=1)
    out = bytearray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_filter, "_hot", load_twin("storage/compaction", twin))
        keeping.apply(whole(data), lambda piece: out.extend(piece), origin="x")
    assert (bytes(out), keeping.horizon_ms) == (data, None)
