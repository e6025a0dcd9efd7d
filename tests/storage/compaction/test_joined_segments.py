"""Which segments one compaction run joins to one."""

from __future__ import annotations

from bascule.storage.compaction.run import CompactionConfig, Times, grouped
from bascule.storage.segment import Segment

SEGMENT_BYTES = 100


def joined(config: CompactionConfig, times: list[Times | None], *, offsets: int = 10) -> list[int]:
    """The numbers of segments that are joined, of consecutive ones with these times."""
    segments = [Segment(n * offsets, SEGMENT_BYTES, None) for n in range(len(times))]
    closed = [(segment, segment.base_offset + offsets) for segment in segments]
    known = dict(zip(segments, times, strict=True))
    return [len(group) for group in grouped(closed, config, known.__getitem__)]


def ages(*starts: int) -> list[Times | None]:
    """Times of segments of 10 ms each, which begin at `starts`."""
    return [Times(start, start + 10) for start in starts]


def test_segments_are_joined_up_to_the_limit_of_bytes_and_of_messages() -> None:
    whole = CompactionConfig(10 * SEGMENT_BYTES, 0)
    assert joined(whole, ages(*range(0, 120, 10))) == [10, 2]
    assert joined(CompactionConfig(250, 0), ages(*range(0, 60, 10))) == [2, 2, 2]
    limited = CompactionConfig(10 * SEGMENT_BYTES, 0, messages_max=30)
    assert joined(limited, ages(*range(0, 70, 10))) == [3, 3, 1]


def test_a_segment_that_is_larger_than_the_limit_stays_alone() -> None:
    assert joined(CompactionConfig(SEGMENT_BYTES - 1, 0), ages(0, 10, 20)) == [1, 1, 1]


def test_the_age_of_joined_segments_counts_from_the_first_one() -> None:
    """From one to the next they are always young enough."""
    limited = CompactionConfig(100 * SEGMENT_BYTES, 0, age_ms_max=40)
    assert joined(limited, ages(0, 10, 20, 30, 40, 50, 60)) == [3, 3, 1]


def test_an_empty_segment_has_no_age() -> None:
    limited = CompactionConfig(100 * SEGMENT_BYTES, 0, age_ms_max=40)
    assert joined(limited, [None, *ages(0), None, *ages(20, 30)]) == [4, 1]
