"""Checks whether a stream remembers message ids for as long as a retry may need them. Pure.

A batch that is repeated after a crash is not stored twice if the stream still knows the ids of the
first attempt. The longest time between the two is the duration of the batch plus Spark's restart.
The stream must also remember all ids of the batch at once, in each partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bascule.model import PartitionBy, StreamConfig

RESTART_MS: Final = 30_000
"""Time to detect a crash and restart Spark, which takes 15 to 20 s on two cores."""
ROOM: Final = 4
"""Factor between the rows seen and the recommended limit, for larger batches and other
publishers."""


@dataclass(frozen=True, slots=True)
class DedupeCoverage:
    """The dedupe window of a stream, for each partition."""

    stream: str
    ms_max: int
    """Duration; 0: no deduplication."""
    messages_max: int
    """Number of ids."""
    partitions: int = 1
    is_scattered: bool = False
    """NATS picks the partition of each message at random, also for repeated messages."""

    @classmethod
    def of(cls, stream: str, config: StreamConfig) -> DedupeCoverage:
        return cls(
            stream,
            config.dedupe_window_ms,
            config.dedupe_messages_max,
            config.partitions,
            config.partitions > 1 and config.partition_by is PartitionBy.GROUP,
        )

    def why_no_dedupe(self) -> str | None:
        """Why the stream does not detect repeated rows at all; None if it does."""
        if self.is_scattered:
            return (
                f"stream {self.stream!r} has {self.partitions} partitions with partition_by = "
                "group: NATS may deliver a repeated row to another partition, which does not know "
                "its id; use one partition, or partition_by subject, key or mapping"
            )
        if self.ms_max and self.messages_max:
            return None
        return (
            f"stream {self.stream!r} has no dedupe window: a batch "
            f"that is repeated is stored again; `bascule stream alter {self.stream} "
            "--dedupe-window 10m --dedupe-messages 1000000` enables one"
        )

    def why_too_short(self, duration_ms: int) -> str | None:
        """Why the window is too short for a batch of this duration; None if it is not."""
        needed = duration_ms + RESTART_MS
        if needed <= self.ms_max:
            return None
        return (
            f"stream {self.stream!r} remembers message ids for {self.ms_max / 1_000:g} s, and a "
            f"batch of {duration_ms / 1_000:.1f} s needs {needed / 1_000:.0f} s for a repetition "
            f"to be known: `bascule stream alter {self.stream} --dedupe-window "
            f"{-(-needed // 60_000) + 1}m`, or make batches smaller (maxOffsetsPerTrigger)"
        )

    def why_too_few(self, rows: int, *, partition: int | None = None) -> str | None:
        """Why the window is too small for so many rows in a partition (None: in total); None if it
        is not."""
        places = self.messages_max * (self.partitions if partition is None else 1)
        if rows <= places:
            return None
        where = "" if partition is None else f" in partition {partition}"
        return (
            f"stream {self.stream!r} remembers {places} message ids{where}, and a batch wrote "
            f"{rows} rows there: `bascule stream alter {self.stream} --dedupe-messages "
            f"{ROOM * rows}` (an id takes 32 bytes), or make batches smaller (maxOffsetsPerTrigger)"
        )


def coverage_problems(
    windows: Mapping[str, DedupeCoverage],
    spans: Iterable[tuple[str, int, int]],
    *,
    duration_ms: int,
) -> list[str]:
    """Reasons why a repetition of a batch would store rows twice; empty if it would not.

    `spans` are (stream, partition, rows) of all tasks. Streams without an entry in `windows` are
    ignored.
    """
    rows: dict[tuple[str, int], int] = {}
    for stream, partition, count in spans:
        rows[stream, partition] = rows.get((stream, partition), 0) + count
    said: list[str] = []
    for stream in sorted({stream for stream, _ in rows} & windows.keys()):
        window = windows[stream]
        if (none := window.why_no_dedupe()) is not None:
            said.append(none)
            continue
        most, partition = max(
            (count, partition) for (name, partition), count in rows.items() if name == stream
        )
        whys = (window.why_too_short(duration_ms), window.why_too_few(most, partition=partition))
        said += [why for why in whys if why is not None]
    return said
