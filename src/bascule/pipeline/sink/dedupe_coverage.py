"""Whether a stream remembers message ids for as long as a retry may need them. Pure.

A micro-batch that is repeated after a crash stores nothing twice as long as the stream still knows
the ids of the first attempt when they come again: at worst the time between is what the batch took,
and what Spark took to come back. And the ids of a batch must all be known at once, in each
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bascule.model import PartitionBy, StreamConfig

RESTART_MS: Final = 30_000
"""Allowed for a crash to be noticed and Spark to start again: it takes 15 to 20 s on two cores."""
ROOM: Final = 4
"""Times the rows seen that are advised: more may come, and other publishers have ids too."""


@dataclass(frozen=True, slots=True)
class DedupeCoverage:
    """What a stream remembers of message ids, in each partition."""

    stream: str
    ms_max: int
    """How long; 0: not at all."""
    messages_max: int
    """How many."""
    partitions: int = 1
    is_scattered: bool = False
    """NATS picks the partition of each message at random, that of a repetition too."""

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
        """Why a repetition is not known at all."""
        if self.is_scattered:
            return (
                f"stream {self.stream!r} has {self.partitions} partitions with partition_by = "
                "group: NATS may hand a repeated row to another partition, which does not know "
                "its id; a stream for a sink has one partition, or partition_by subject or key"
            )
        if self.ms_max and self.messages_max:
            return None
        return (
            f"stream {self.stream!r} remembers no message ids (its dedupe window is off): a batch "
            f"that is repeated stores its rows again; `bascule stream alter {self.stream} "
            "--dedupe-window 10m --dedupe-messages 1000000` turns it on"
        )

    def why_too_short(self, duration_ms: int) -> str | None:
        """Why ids of a batch that takes so long would not all be known to a repetition."""
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
        """Why a batch with so many rows in a partition (None: in all) would not be known whole."""
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
    """What a repetition of a batch would store twice; empty: nothing.

    `spans` are (stream, partition, rows) of all its tasks; streams without a window are not known.
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
