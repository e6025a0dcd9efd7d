"""The start or end of a read: a word, offsets or times. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from bascule.errors import ConfigError
from bascule.pipeline.source.positions import Extent

EARLIEST: Final = -2
LATEST: Final = -1
"""Placeholders for the ends of a partition, as in Kafka's JSON."""

Each: TypeAlias = Mapping[str, Mapping[int, int]]
"""Stream -> partition -> offset or Unix ms. The stream "" stands for the only stream that is
read."""

FindOffset: TypeAlias = Callable[[str, int, int], int | None]
"""Stream, partition, Unix ms -> the first offset at or after that time; None if there is none."""


@dataclass(frozen=True, slots=True)
class ReadBound:
    """One end of a read, for all partitions (`everywhere`) or for each (`each`)."""

    option: str
    """The option that set it, for errors."""
    kind: Literal["offset", "time"]
    everywhere: int | None = None
    each: Each | None = None

    def of(self, extent: Extent) -> dict[int, int]:
        """The value for each partition of a stream.

        Raises: ConfigError if it does not name exactly the stream's partitions.
        """
        if self.each is None:
            assert self.everywhere is not None
            return dict.fromkeys(extent.partitions, self.everywhere)
        chosen = self.each.get("", self.each.get(extent.stream))
        if chosen is None:
            raise ConfigError(
                f"option {self.option!r} names streams {sorted(self.each)}, "
                f"but not {extent.stream!r}, which is read too"
            )
        if set(chosen) != set(extent.partitions):
            raise ConfigError(
                f"option {self.option!r} names partitions {sorted(chosen)}: "
                f"stream {extent.stream!r} has {sorted(extent.partitions)}"
            )
        return dict(chosen)

    def value_at(self, stream: str, partition: int) -> int | None:
        """The value for a partition; None if the bound does not name it."""
        if self.each is None:
            return self.everywhere
        return self.each.get("", self.each.get(stream, {})).get(partition)


def check_order(start: ReadBound, end: ReadBound) -> None:
    """Check bounds of one kind before the streams are known: two offsets, or two times.

    Raises: ConfigError if the start of a partition is after its end.
    """
    if start.kind != end.kind:
        return
    for stream, partition in _named(start) | _named(end) | {("", 0)}:
        first, last = start.value_at(stream, partition), end.value_at(stream, partition)
        if first is not None and last is not None and min(first, last) >= 0 and first > last:
            named = _named(start) | _named(end)
            where = "" if not named else f" of partition {partition}"
            where += f" of stream {stream!r}" if stream else ""
            raise ConfigError(
                f"the read would start after its end: option {start.option!r}{where} is {first}, "
                f"and option {end.option!r} is {last}"
            )


def _named(bound: ReadBound) -> set[tuple[str, int]]:
    """The streams and partitions that a bound names."""
    return {(stream, p) for stream, chosen in (bound.each or {}).items() for p in chosen}


def resolve_bound(
    bound: ReadBound, extent: Extent, find: FindOffset, *, none_is_latest: bool
) -> dict[int, int]:
    """Resolve the bound to one offset for each partition of the stream.

    A time stands for the first record at or after it. If there is none, it is the end of the
    partition with `none_is_latest`. Raises: ConfigError otherwise.
    """
    resolved = {}
    for partition, said in bound.of(extent).items():
        earliest, latest = extent.partitions[partition]
        if bound.kind == "offset":
            resolved[partition] = {EARLIEST: earliest, LATEST: latest}.get(said, said)
            continue
        found = find(extent.stream, partition, said)
        if found is None and not none_is_latest:
            raise ConfigError(
                f"option {bound.option!r}: stream {extent.stream!r} partition {partition} has no "
                f"record at or after {said} (Unix ms); set startingOffsetsByTimestampStrategy to "
                '"latest" to start at its end in this case'
            )
        resolved[partition] = latest if found is None else min(found, latest)
    return resolved


def parse_offsets(option: str, text: str) -> ReadBound:
    """`earliest`, `latest`, `{"0": 12}` or `{"flights": {"0": 12}}`. Raises: ConfigError."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return ReadBound(option, "offset", everywhere=EARLIEST if word == "earliest" else LATEST)
    project = (
        f"option {option!r} is {text!r}: expected earliest, latest or JSON such as "
        '{"0": 12} or {"flights": {"0": 12}}, with -2 for earliest and -1 for latest'
    )
    return ReadBound(option, "offset", each=_each(text, project, least=EARLIEST))


def parse_times(option: str, text: str) -> ReadBound:
    """`{"0": <Unix ms>}` or `{"flights": {"0": <Unix ms>}}`. Raises: ConfigError."""
    project = (
        f"option {option!r} is {text!r}: expected JSON with Unix milliseconds such as "
        '{"0": 1767225600000} or {"flights": {"0": 1767225600000}}'
    )
    return ReadBound(option, "time", each=_each(text, project, least=0))


def parse_time(option: str, text: str) -> ReadBound:
    """Unix milliseconds, or ISO 8601 with a zone. Raises: ConfigError."""
    said = text.strip()
    if said.isdecimal():
        return ReadBound(option, "time", everywhere=int(said))
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            f"option {option!r} is {text!r}: expected Unix milliseconds such as 1767225600000, or "
            "a time with its zone such as 2026-01-01T00:00:00Z"
        )
    return ReadBound(option, "time", everywhere=round(moment.timestamp() * 1000))


def _each(text: str, project: str, *, least: int) -> dict[str, dict[int, int]]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(project) from error
    if not isinstance(parsed, dict) or not parsed:
        raise ConfigError(project)
    if not any(isinstance(value, dict) for value in parsed.values()):
        parsed = {"": parsed}
    return {stream: _by_partition(numbers, project, least) for stream, numbers in parsed.items()}


def _by_partition(numbers: object, project: str, least: int) -> dict[int, int]:
    if not isinstance(numbers, dict) or not numbers:
        raise ConfigError(project)
    for partition, number in numbers.items():
        if not partition.isdecimal() or type(number) is not int or number < least:
            raise ConfigError(project)
    return {int(partition): number for partition, number in numbers.items()}
