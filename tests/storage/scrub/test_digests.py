"""Digests of ranges: equal for equal records, whatever the twin, the pieces and the widths."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from bascule.host.real import RealRandom
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.scrub import RangeDigests, compare
from bascule.storage.scrub.digests import RANGES_MAX, WIDTH_MIN
from support.stored_batches import DIRECTORY, make_batch

Hot = Callable[[str], ModuleType]


def batches(counts: list[int], *, start: int = 0, epoch: int = 0) -> list[bytes]:
    found = []
    for count in counts:
        found.append(make_batch(start, count, leader_epoch=epoch))
        start += count
    return found


def repeated(count: int, times: int) -> list[bytes]:
    """As `batches`, of equal records, so one batch is built: no CRC covers the base offset."""
    (batch,) = batches([count])
    return [(count * number).to_bytes(8, "big") + batch[8:] for number in range(times)]


def digests(data: list[bytes], *, start: int = 0, limit: int = 1 << 40) -> RangeDigests:
    found = RangeDigests(start, limit)
    for each in data:
        found.add(memoryview(each))
    return found


@given(counts=st.lists(st.integers(1, 3_000), min_size=1, max_size=12), pieces=st.integers(1, 5))
def test_the_pieces_in_which_a_log_is_read_do_not_matter(counts: list[int], pieces: int) -> None:
    every = batches(counts)
    joined = [b"".join(every[at : at + pieces]) for at in range(0, len(every), pieces)]
    one, other = digests(every), digests(joined)
    assert one.ranges() == other.ranges()
    assert one.records == sum(counts)
    found = compare(one.ranges(), other.ranges())
    assert (found.compared, found.differing) == (sum(counts), ())


@given(
    counts=st.lists(st.integers(1, 700), min_size=1, max_size=12),
    changed=st.integers(0, 11),
    field=st.sampled_from(["record", "epoch"]),
)
def test_one_other_batch_makes_its_range_differ(
    counts: list[int], changed: int, field: str
) -> None:
    every = batches(counts)
    row = changed % len(every)
    start = sum(counts[:row])
    if field == "record":
        other = make_batch(start, counts[row], size=21)
    else:
        other = make_batch(start, counts[row], leader_epoch=1)
    found = compare(
        digests(every).ranges(), digests([*every[:row], other, *every[row + 1 :]]).ranges()
    )
    assert [low for low, _ in found.differing] == [start // WIDTH_MIN * WIDTH_MIN]


def test_ranges_in_which_compaction_has_removed_records_are_not_compared() -> None:
    every = batches([256] * 12)
    cleaned = [every[0], *every[2:]]
    found = compare(digests(every).ranges(), digests(cleaned).ranges())
    assert (found.compared, found.differing) == (2 * WIDTH_MIN, ())


def test_wider_ranges_are_compared_with_narrower_ones() -> None:
    every = batches([300] * 60, start=5 * WIDTH_MIN)
    narrow = digests(every, start=5 * WIDTH_MIN).ranges()
    wide = narrow.widened(8 * WIDTH_MIN)
    assert wide.width == 8 * WIDTH_MIN
    found = compare(narrow, wide)
    assert found.differing == ()
    assert found.compared == 5 * WIDTH_MIN + 18_000 - 8 * WIDTH_MIN


def test_a_long_log_gets_wider_ranges(hot: Hot) -> None:
    module = hot("storage")
    width, room = WIDTH_MIN, 4
    data = b"".join(batches([512] * 16))
    sums, covered = array("Q", bytes(8 * room)), array("q", bytes(8 * room))
    state = array("q", (0, 0, 0))
    assert module.digest_batches(data, width, 0, 1 << 40, sums, covered, state) == -1
    assert state[1] == room * width
    assert list(covered) == [width] * room
    found = digests(repeated(60_000, 80))
    assert found.records == 60_000 * 80
    assert found.ranges().width * RANGES_MAX >= 60_000 * 80


def test_twins_agree(hot: Hot) -> None:
    module = hot("storage")
    data = b"".join(batches([700, 1, 2_000, 9], start=77, epoch=3))
    sums, covered = array("Q", bytes(80)), array("q", bytes(80))
    state = array("q", (0, 77, 0))
    assert module.digest_batches(data, WIDTH_MIN, 0, 2_780, sums, covered, state) == 4
    assert list(covered[:4]) == [947, 1_024, 730, 0]
    assert list(state) == [len(data), 2_787, 2_710]
    assert [hex(each) for each in sums[:3]] == GOLDEN


GOLDEN = ["0xf576d347b6e3f09f", "0x0", "0x0"]


def test_a_log_that_is_verified_gives_its_batches() -> None:
    files, clock = SimFiles(RealRandom(1)), SimClock(1_000)
    log = PartitionLog.open(files, DIRECTORY, LogConfig(segment_bytes_max=4_096), clock)
    written = batches([10] * 100)
    for each in written:
        log.append(each)
    log.sync()
    found = RangeDigests(0, 1_000)
    at = log.verify(None, found.add)
    while at is not None:
        at = log.verify(at, found.add)
    assert found.ranges() == digests(written, limit=1_000).ranges()
    assert found.records == 1_000
    assert compare(found.ranges(), digests(written).ranges()).compared == 1_000
