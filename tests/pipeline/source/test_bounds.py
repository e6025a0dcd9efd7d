"""Where a read starts and ends, as it may be said."""

from __future__ import annotations

import pytest

from bascule.errors import ConfigError
from bascule.pipeline.source.bounds import (
    ReadBound,
    parse_offsets,
    parse_time,
    parse_times,
    resolve_bound,
)
from bascule.pipeline.source.positions import Extent

EXTENT = Extent(stream="s", id="ab", partitions={0: (10, 100), 1: (0, 5)})
JANUARY_MS = 1_767_225_600_000


def find(stream: str, partition: int, time_ms: int) -> int | None:
    """Partition 0 has a record a second from 2026 on; partition 1 has none so late."""
    assert stream == "s"
    if partition == 1:
        return None
    return 10 + max(0, -(-(time_ms - JANUARY_MS) // 1000))


def resolved(bound: ReadBound, *, none_is_latest: bool = True) -> dict[int, int]:
    return resolve_bound(bound, EXTENT, find, none_is_latest=none_is_latest)


def test_words_and_offsets() -> None:
    assert resolved(parse_offsets("o", " Earliest ")) == {0: 10, 1: 0}
    assert resolved(parse_offsets("o", "latest")) == {0: 100, 1: 5}
    for text in ('{"0": 50, "1": -1}', '{"s": {"0": 50, "1": -1}, "t": {"0": 1}}'):
        assert resolved(parse_offsets("o", text)) == {0: 50, 1: 5}


def test_every_partition_must_be_named() -> None:
    for text in ('{"0": 50}', '{"0": 1, "1": 1, "2": 1}', '{"s": {"0": 1}}'):
        with pytest.raises(ConfigError, match=r"stream 's' has \[0, 1\]"):
            resolved(parse_offsets("startingOffsets", text))
    with pytest.raises(ConfigError, match="but not 's', which is read too"):
        resolved(parse_offsets("startingOffsets", '{"t": {"0": 1}}'))


def test_times_are_looked_up() -> None:
    for bound in (
        parse_time("t", str(JANUARY_MS + 5_000)),
        parse_time("t", "2026-01-01T00:00:05Z"),
        parse_time("t", "2026-01-01T01:00:05+01:00"),
        parse_times("t", f'{{"0": {JANUARY_MS + 5_000}, "1": 0}}'),
    ):
        assert resolved(bound) == {0: 15, 1: 5}
        with pytest.raises(ConfigError, match="has no record at or after"):
            resolved(bound, none_is_latest=False)
    assert resolved(parse_time("t", str(JANUARY_MS + 10**9))) == {0: 100, 1: 5}


@pytest.mark.parametrize("text", ["2026-01-01", "2026-01-01T00:00:00", "yesterday", "-5", "1.5"])
def test_a_time_needs_its_zone(text: str) -> None:
    with pytest.raises(ConfigError, match="expected Unix milliseconds"):
        parse_time("startingTimestamp", text)


NO_OFFSETS = (
    "12", "{}", '{"0": 1.5}', '{"x": 1}', '{"0": -3}', '{"s": 5}', '{"s": {}}', '{"0": true}',
    '{"s": {"0": 1}, "0": 2}',
)  # fmt: skip


@pytest.mark.parametrize("text", NO_OFFSETS)
def test_what_is_no_offsets(text: str) -> None:
    with pytest.raises(ConfigError, match="expected earliest, latest or JSON"):
        parse_offsets("startingOffsets", text)


def test_what_is_no_times() -> None:
    with pytest.raises(ConfigError, match="Unix milliseconds"):
        parse_times("startingOffsetsByTimestamp", '{"0": -1}')
