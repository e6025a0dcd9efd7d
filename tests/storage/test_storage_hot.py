"""Both twins of the batch checks against the interpreted path."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.record.header import HEADER_BYTES, BatchHeader, check_crc, read_header
from bascule.sim.disk import SimFiles
from bascule.storage.scan import scan_batches
from support.stored_batches import make_batch

Hot = Callable[[str], ModuleType]

FIRST_OFFSET = (1 << 40) + 5


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """A few batches, possibly with a changed byte, an offset gap, or a missing end."""
    offset, data = FIRST_OFFSET, bytearray()
    for count in draw(st.lists(st.integers(1, 4), max_size=8)):
        offset += draw(st.sampled_from((0, 0, 0, 0, 0, 3)))
        data += make_batch(
            offset,
            count,
            timestamp=draw(st.integers(-5, 1 << 45)),
            size=draw(st.sampled_from((0, 20, 300))),
            leader_epoch=draw(st.sampled_from((3, 3, 3, 3, 4))),
        )
        offset += count
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


def valid_batches(data: bytes) -> list[tuple[int, BatchHeader]]:
    """The batches that the interpreted path accepts, without checks of offsets and epochs."""
    file = SimFiles(RealRandom(1)).open("/f", create=True)
    file.append(data)
    found: list[tuple[int, BatchHeader]] = []
    try:
        found.extend(scan_batches(file, start=0, end=len(data)))
    except CorruptData:
        pass
    return found


def expected_run(
    data: bytes, origin: int, epoch: int, epoch_end: int, gaps_allowed: bool, interval: int
) -> tuple[int, list[int], list[int]]:
    """The expected result of the check, in simple Python."""
    offset, timestamp_max, entry_at, at, count = FIRST_OFFSET, -1, 0, 0, 0
    entries: list[int] = []
    for position, header in valid_batches(data):
        base = header.base_offset
        if base != offset and not (gaps_allowed and base > offset):
            break
        if epoch != -2 and (base >= epoch_end or header.leader_epoch != epoch):
            break
        if origin + position >= entry_at or base != offset:
            entries += [base, origin + position, timestamp_max]
            entry_at = origin + position + interval
        timestamp_max = max(timestamp_max, header.max_timestamp)
        offset, at, count = header.end_offset, position + header.total_bytes, count + 1
    return count, [at, offset, timestamp_max, len(entries) // 3, entry_at], entries


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=logs(),
    origin=st.sampled_from((0, 7, 1 << 33)),
    epoch=st.sampled_from((-2, 3)),
    epoch_end=st.sampled_from((FIRST_OFFSET + 5, (1 << 63) - 1)),
    gaps_allowed=st.booleans(),
    interval=st.sampled_from((1, 200, 4_096)),
)
def test_check_batches_agrees_with_the_exact_path(
    hot: Hot, data: bytes, origin: int, epoch: int, epoch_end: int, gaps_allowed: bool,
    interval: int,
) -> None:  # fmt: skip
    entries = array("q", bytes(8 * 3 * 20))
    state = array("q", (0, 0, -1, 0, 0))
    count = hot("storage").check_batches(
        memoryview(data), origin, FIRST_OFFSET, epoch, epoch_end, gaps_allowed, interval, entries,
        state,
    )  # fmt: skip
    expected = expected_run(data, origin, epoch, epoch_end, gaps_allowed, interval)
    assert (count, list(state), list(entries[: 3 * state[3]])) == expected


@pytest.mark.parametrize("room", [0, 1, 2, 5])
def test_check_batches_stops_when_entries_are_full(hot: Hot, room: int) -> None:
    data = b"".join(make_batch(FIRST_OFFSET + n) for n in range(5))
    entries = array("q", bytes(8 * 3 * room))
    state = array("q", (0, 0, -1, 0, 0))
    count = hot("storage").check_batches(
        memoryview(data), 0, FIRST_OFFSET, -2, 0, False, 1, entries, state
    )
    assert count == state[3] == room
    assert state[1] == FIRST_OFFSET + room


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=logs(), further=st.integers(-3, 40), first=st.integers(0, 3))
def test_skip_batches_skips_batches_that_end_before_the_offset(
    hot: Hot, data: bytes, further: int, first: int
) -> None:
    offset = FIRST_OFFSET + further
    start = at = first * 7
    data = bytes(start) + data
    while len(data) - at >= HEADER_BYTES:
        header = read_header(data, at)
        if header.magic != 2 or header.batch_length < 49 or header.last_offset_delta < 0:
            break
        if header.end_offset > offset:
            break
        at += header.total_bytes
    assert hot("storage").skip_batches(data, start, offset) == at


def test_negative_numbers_are_decoded(hot: Hot) -> None:
    batch = bytearray(make_batch(0, timestamp=-1_000))
    assert check_crc(batch)
    state = array("q", (0, 0, -(1 << 62), 0, 0))
    count = hot("storage").check_batches(
        memoryview(batch), 0, 0, -2, 0, False, 1, array("q", bytes(24)), state
    )
    assert (count, state[2]) == (1, -1_000)
    for at, value in ((0, 0x80), (8, 0xFF), (23, 0x80)):
        bad = bytearray(batch)
        bad[at] = value
        state = array("q", (0, 0, -1, 0, 0))
        entries = array("q", bytes(24))
        args = (memoryview(bad), 0, 0, -2, 0, False, 1, entries, state)
        assert hot("storage").check_batches(*args) == 0
