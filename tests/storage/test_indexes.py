"""Sparse indexes and their files, leader epochs, the checkpoint, and scans of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.record.header import HEADER_BYTES, stamp
from bascule.sim.disk import SimFile, SimFiles
from bascule.storage.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    replace_file,
)
from bascule.storage.epochs import Epoch, LeaderEpochs, decode_epochs, encode_epochs
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.sparse_index import Covered
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.scan import find_batch, scan_batches, walk_headers
from bascule.storage.segment import base_offset_of, segment_path
from support.stored_batches import make_batch

STEPS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=60)


def pairs_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    pairs, key, value = [], 0, 0
    for more, further in steps:
        key, value = key + more, value + further
        pairs.append((key, value))
    return pairs


@given(STEPS, st.integers(-5, 4_000))
def test_offset_index_finds_the_entry_at_or_below(steps: list[tuple[int, int]], key: int) -> None:
    pairs = [(k + n, v) for n, (k, v) in enumerate(pairs_of(steps))]
    index = OffsetIndex()
    for pair in pairs:
        index.add(*pair)
    below = [pair for pair in pairs if pair[0] <= key]
    expected = (below[-1][1], below[-1][0] == key) if below else (0, False)
    assert index.entry_at(key) == expected
    assert index.entry_after(key) == next((v for _, v in pairs if v > key), None)
    assert index.count_below(key) == sum(v < key for _, v in pairs)


@given(STEPS, st.integers(-5, 4_000))
def test_time_index_finds_the_entry_below(steps: list[tuple[int, int]], key: int) -> None:
    pairs = pairs_of(steps)
    index = TimeIndex()
    for pair in pairs:
        index.add(*pair)
    assert index.offset_before(key) == next((v for k, v in reversed(pairs) if k < key), None)
    before = [(k, v) for k, v in pairs if v < key]
    assert index.entry_before(key) == (before[-1] if before else (-1, None))


@given(STEPS, st.integers(0, 60))
def test_index_files_read_back(steps: list[tuple[int, int]], cut: int) -> None:
    pairs = pairs_of(steps)
    cut = min(cut, len(pairs))
    index = OffsetIndex()
    for pair in pairs:
        index.add(*pair)
    covered = [Covered(1_000, 100, 5), Covered(2_000, 200, 7)]
    data = index.encode_header(9)
    data += index.encode_block(covered[0], start=0, end=cut)
    whole = data + index.encode_block(covered[1], start=cut, end=len(pairs))
    found = OffsetIndex.decode(whole, path="f", base_offset=9)
    assert (found.pairs.entries(), found.covered, found.damage) == (pairs, covered[1], None)
    torn = OffsetIndex.decode(whole[:-1], path="f", base_offset=9)
    assert (torn.pairs.entries(), torn.covered) == (pairs[:cut], covered[0])
    assert torn.damage is not None
    assert torn.damage.at >= len(data)
    other = OffsetIndex.decode(whole, path="f", base_offset=8)
    assert (len(other.pairs), other.covered) == (0, Covered(0, 8, -1))
    assert TimeIndex.decode(whole, path="f", base_offset=9).damage is not None


def test_index_entries_must_rise() -> None:
    for pairs in ([(5, 10), (4, 20)], [(5, 10), (6, 10)]):
        index = OffsetIndex()
        for pair in pairs:
            index.add(*pair)
        data = index.encode_header(0) + index.encode_block(Covered(99, 9, 1), start=0, end=2)
        found = OffsetIndex.decode(data, path="f", base_offset=0)
        assert found.damage is not None
        assert "an entry above" in found.damage.expected
        assert len(found.pairs) == 0


def test_index_coverage_must_rise() -> None:
    index = OffsetIndex()
    data = index.encode_header(0)
    data += index.encode_block(Covered(99, 9, 1), start=0, end=0)
    data += index.encode_block(Covered(98, 9, 1), start=0, end=0)
    found = OffsetIndex.decode(data, path="f", base_offset=0)
    assert found.covered == Covered(99, 9, 1)
    assert found.damage is not None


def test_a_reader_keeps_its_view_while_the_index_grows() -> None:
    index = OffsetIndex()
    for n in range(100):
        index.add(n, n * 10)
        assert index.entry_at(n) == (n * 10, True)
        assert len(index) == n + 1
        assert index.last_value() == n * 10


def test_epochs_follow_kip_101() -> None:
    epochs = LeaderEpochs().with_epoch(2, 0).with_epoch(5, 10).with_epoch(6, 30)
    ends = {n: epochs.end_of(n, end_offset=40) for n in (1, 2, 4, 5, 6, 99)}
    assert ends == {1: (-1, -1), 2: (2, 10), 4: (2, 10), 5: (5, 30), 6: (6, 40), 99: (6, 40)}
    assert epochs.end_of(5, end_offset=20) == (5, 20)
    assert [epochs.at(offset) for offset in (-1, 0, 9, 10, 29, 30, 99)] == [-1, 2, 2, 5, 5, 6, 6]
    assert epochs.latest == 6


def test_an_epoch_without_batches_is_dropped() -> None:
    epochs = LeaderEpochs().with_epoch(1, 0).with_epoch(2, 10).with_epoch(3, 10)
    assert epochs.entries == (Epoch(1, 0), Epoch(3, 10))
    assert epochs.up_to(9).entries == (Epoch(1, 0),)
    assert epochs.up_to(10) == epochs
    assert epochs.before(10) == epochs.up_to(9)


def test_epoch_files_read_back_or_say_what_is_wrong() -> None:
    epochs = LeaderEpochs().with_epoch(1, 0).with_epoch(2, 10)
    data = encode_epochs(epochs)
    assert decode_epochs(data, path="f") == epochs
    assert decode_epochs(encode_epochs(LeaderEpochs()), path="f") == LeaderEpochs()
    for at in range(len(data)):
        with pytest.raises(CorruptData):
            decode_epochs(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], path="f")
        with pytest.raises(CorruptData):
            decode_epochs(data[:at], path="f")
    falling = LeaderEpochs((Epoch(2, 0), Epoch(1, 5)))
    with pytest.raises(CorruptData, match="an epoch after"):
        decode_epochs(encode_epochs(falling), path="f")


def test_checkpoint_files_read_back_or_say_what_is_wrong() -> None:
    checkpoint = Checkpoint(True, 1, 2, 3, 4, 5, 6, 7)
    data = encode_checkpoint(checkpoint)
    assert decode_checkpoint(data, path="f") == checkpoint
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert decode_checkpoint(flipped, path="f") == checkpoint, "the record is there twice"
        if at < len(data) // 2:
            with pytest.raises(CorruptData):
                decode_checkpoint(data[:at], path="f")
            with pytest.raises(CorruptData) as caught:
                decode_checkpoint(2 * flipped[: len(data) // 2], path="f")
            assert caught.value.at <= at


def test_a_replaced_file_is_the_old_or_the_new_one() -> None:
    seen = set()
    for seed in range(200):
        files = SimFiles(RealRandom(seed))
        files.make_dirs("/d")
        replace_file(files, "/d/f", b"old" * 5_000)
        files.fail(1 + seed % 7, 5)
        try:
            replace_file(files, "/d/f", b"new" * 5_000)
            confirmed = True
        except OSError:
            confirmed = False
        files.crash()
        held = files.read_bytes("/d/f")
        assert held == b"new" * 5_000 or (not confirmed and held == b"old" * 5_000)
        seen.add((confirmed, held[:3]))
        replace_file(files, "/d/f", b"newest")
        assert files.read_bytes("/d/f") == b"newest"
    assert seen == {(True, b"new"), (False, b"new"), (False, b"old")}


def test_segment_names() -> None:
    assert segment_path("/d", 42) == "/d/00000000000000000042.log"
    assert base_offset_of("00000000000000000042.log") == 42
    for name in ("42.log", "00000000000000000042.index", "0000000000000000004x.log", "checkpoint",
                 "00000000000000000042.log.new", "०0000000000000000042.log"):  # fmt: skip
        assert base_offset_of(name) is None


def file_of(data: bytes) -> SimFile:
    files = SimFiles(RealRandom(1))
    file = files.open("/f", create=True)
    file.append(data)
    return file


def test_scans_and_walks_see_every_batch() -> None:
    batches = [make_batch(n * 2, 2, size=size) for n, size in enumerate((1, 3_000, 9, 1_500_000))]
    file = file_of(b"".join(batches))
    whole = [
        (at, header.base_offset) for at, header in scan_batches(file, start=0, end=file.size())
    ]
    assert [offset for _, offset in whole] == [0, 2, 4, 6]
    walked = walk_headers(file, start=0, end=file.size())
    assert [(at, header.base_offset) for at, header in walked] == whole
    third = whole[2][0]
    assert len(list(scan_batches(file, start=third, end=file.size()))) == 2


@pytest.mark.parametrize(
    ("at", "value", "named", "expected"),
    [
        (16, 1, 16, "magic 2"),
        (8, 0xFF, 8, "a batch length of at least 49 bytes"),
        (9, 0x7F, 0, "a batch of"),
        (23, 0x80, 23, "a last offset delta of at least 0"),
        (17, 0x55, 17, "the CRC of the batch"),
        (70, 0x55, 17, "the CRC of the batch"),
    ],
)
def test_scans_name_the_bad_field(at: int, value: int, named: int, expected: str) -> None:
    first = make_batch(0, 2)
    data = bytearray(first + make_batch(2, 2))
    data[len(first) + at] = value
    with pytest.raises(CorruptData) as caught:
        list(scan_batches(file_of(bytes(data)), start=0, end=len(data)))
    assert caught.value.at == len(first) + named
    assert caught.value.expected.startswith(expected)


def test_a_batch_is_found_at_any_byte() -> None:
    batch = bytearray(make_batch(0, 2))
    stamp(batch, base_offset=1_000, leader_epoch=0)
    for before in (0, 1, 61, 5_000, (1 << 20) - 30, (1 << 20) - 61, 1 << 20, (1 << 20) + 1):
        file = file_of(b"\2" * before + bytes(batch) + b"tail")
        found = find_batch(file, start=0, end=file.size(), offset=1_000, offset_max=1_000)
        assert found is not None
        assert (found[0], found[1].base_offset) == (before, 1_000)
        assert find_batch(file, start=0, end=file.size(), offset=1_001, offset_max=2_000) is None
    assert find_batch(file_of(batch[: HEADER_BYTES - 1]), start=0, end=60, offset=0,
                      offset_max=9) is None  # fmt: skip
