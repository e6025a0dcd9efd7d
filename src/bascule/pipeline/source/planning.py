"""Plans tasks from options: asks for the extents, resolves start and end, cuts ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.clients import client_of
from bascule.pipeline.retries import with_retries
from bascule.pipeline.source.archive_history import ArchiveFiles, ArchiveHistory, history_rows
from bascule.pipeline.source.bounds import ReadBound, parse_offsets, resolve_bound
from bascule.pipeline.source.extents import extent_client_of
from bascule.pipeline.source.filters import Interval, Predicate
from bascule.pipeline.source.latest_view import check_keyed, latest_rows
from bascule.pipeline.source.log_reader import log_rows
from bascule.pipeline.source.options import SourceOptions
from bascule.pipeline.source.positions import (
    RECORDS_PER_TASK_MAX,
    Extent,
    Position,
    Positions,
    Range,
    check_available,
    split_ranges,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.model import StreamInfo


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The work of one Spark task: a range of a log, or of the files of a lake table."""

    range: Range
    files: ArchiveFiles | None = None
    """The files to read; None: read from the log."""

    @classmethod
    def nothing(cls) -> ReadTask:
        return cls(Range("", 0, 0, 0))


def run_task(
    options: SourceOptions, task: ReadTask, predicate: Predicate
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task as Arrow batches in Spark's schema."""
    if not task.range.records:
        return iter(())
    if options.view == "latest":
        return latest_rows(options, task.range, predicate)
    if task.files is not None:
        return history_rows(options, task.range, task.files, predicate)
    return log_rows(options, task.range, predicate)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The extents of the selected streams at one moment, archives included, and the plans made from
    them."""

    options: SourceOptions
    extents: dict[str, Extent]
    histories: dict[str, ArchiveHistory]

    @classmethod
    def now(cls, options: SourceOptions, *, history: bool = True) -> ReadPlan:
        """Ask the node and, with `history`, the archive if there is one.

        Raises: UnknownStream, Broken; DataLoss for a gap between the two.
        """
        found = extent_client_of(options.server).extents(
            options.selection, retry_timeout_ms=options.retry_timeout_ms
        )
        extents = {extent.stream: extent for extent in found}
        histories = {}
        if history and options.archive is not None:
            for stream in extents:
                histories[stream] = ArchiveHistory.of(options.archive, stream, options.values)
                extents[stream] = histories[stream].extended(extents[stream])
        return cls(options, extents, histories)

    def ids(self) -> dict[str, str]:
        return {stream: extent.id for stream, extent in self.extents.items()}

    def latest(self) -> dict[str, dict[int, int]]:
        return {stream: extent.latest() for stream, extent in self.extents.items()}

    def resolved(self, bound: ReadBound) -> dict[str, dict[int, int]]:
        """Resolve a bound to an offset for each partition. Raises: ConfigError."""
        starts = bound.option.startswith("starting")
        none_is_latest = not starts or self.options.late_start_is_latest
        return {
            stream: resolve_bound(bound, extent, self.find_offset, none_is_latest=none_is_latest)
            for stream, extent in self.extents.items()
        }

    def find_offset(self, stream: str, partition: int, time_ms: int) -> int | None:
        """The first offset at or after a Unix time, in archive or log; None if there is none."""
        options = self.options
        in_log = extent_client_of(options.server).find_offset(
            stream, partition, time_ms, retry_timeout_ms=options.retry_timeout_ms
        )
        found = [in_log]
        history = self.histories.get(stream)
        if history is not None:
            found.append(history.find_offset(partition, time_ms))
        return min((offset for offset in found if offset is not None), default=None)

    def initial(self) -> Positions:
        """The start of a new streaming query. The default is the end of the streams."""
        bound = self.options.starting or parse_offsets("startingOffsets", "latest")
        starts = self.resolved(bound)
        wanted = {s: Position(self.extents[s].id, starts[s]) for s in starts}
        held = self.held(wanted)
        return {s: Position(self.extents[s].id, held[s]) for s in held}

    def held(self, positions: Positions) -> dict[str, dict[int, int]]:
        """The positions, checked against the extents.

        Raises: ConfigError for positions of other streams than those that are read; DataLoss.
        """
        loss = self.options.fail_on_data_loss
        selection = self.options.selection
        others = [stream for stream in positions if not selection.includes(stream)]
        # Without failOnDataLoss a query may drop some of its streams, but not all of them.
        if others and (loss or len(others) == len(positions)):
            raise ConfigError(
                f"the checkpoint is of another query: it holds a position in stream {others[0]!r}, "
                f"and this query reads {selection}; a query on other streams needs a new "
                "checkpoint location"
            )
        for stream in positions:
            if stream not in self.extents and loss:
                raise DataLoss(stream, None, "it was deleted since the checkpoint")
        return {
            stream: check_available(extent, positions.get(stream), fail_on_data_loss=loss)
            for stream, extent in self.extents.items()
        }

    def is_past_history(self, offsets: Mapping[str, Mapping[int, int]]) -> bool:
        """Whether nothing at or after `offsets` is read from an archive."""
        return all(
            offsets[stream].get(partition, 0) >= end
            for stream, history in self.histories.items()
            for partition, (_, end) in history.committed.items()
        )

    def reaches(self, ends: Positions) -> bool:
        """Whether this plan contains every stream and partition up to `ends`."""
        return all(
            stream in self.extents
            and self.extents[stream].id == end.id
            and all(
                self.extents[stream].partitions.get(p, (0, -1))[1] >= offset
                for p, offset in end.offsets.items()
            )
            for stream, end in ends.items()
        )

    def tasks(self, starts: Positions, ends: Positions) -> list[ReadTask]:
        """Tasks for exactly [starts, ends). Raises: DataLoss if a part of it was removed."""
        held = self.held(starts)
        if not self.reaches(ends) and self.options.fail_on_data_loss:
            short = next(s for s in ends if not self.reaches({s: ends[s]}))
            raise DataLoss(short, None, f"it no longer reaches offsets {dict(ends[short].offsets)}")
        ranges = []
        for stream in sorted(set(ends) & set(self.extents)):
            latest = self.extents[stream].latest()
            for p, end in sorted(ends[stream].offsets.items()):
                if p in latest:
                    id = self.extents[stream].id
                    ranges.append(Range(stream, p, held[stream][p], min(end, latest[p]), id))
        return self.split_ranges(ranges)

    def split_ranges(self, ranges: Iterable[Range]) -> list[ReadTask]:
        """Cut ranges at the end of the lake table, and into tasks."""
        options = self.options
        if options.view == "latest":
            return [ReadTask(r) for r in ranges if r.records]
        logs, lakes = [], []
        for wanted in ranges:
            history = self.histories.get(wanted.stream)
            before, after = (wanted, wanted) if history is None else history.cut(wanted)
            logs.append(after)
            if history is not None and before.records:
                lakes.append(before)
        cuts = {
            "pieces_min": options.partitions_min,
            "records_max": options.records_per_task_max or RECORDS_PER_TASK_MAX,
        }
        tasks = [
            ReadTask(r, files=self.histories[r.stream].files.overlapping(r))
            for r in split_ranges(lakes, **cuts)
        ]
        return tasks + [ReadTask(r) for r in split_ranges(logs, **cuts)]


def plan_batch_read(options: SourceOptions, predicate: Predicate) -> list[ReadTask]:
    """The tasks of a batch read: the range of the options without what `predicate` excludes.

    Raises: DataLoss if a part of it was removed; ConfigError.
    """
    plan = ReadPlan.now(options)
    starts = plan.resolved(options.starting or parse_offsets("startingOffsets", "earliest"))
    ends = plan.resolved(options.ending or parse_offsets("endingOffsets", "latest"))
    _check_order(plan, starts, ends)
    ids, latest = plan.ids(), plan.latest()
    held = plan.held({s: Position(ids[s], starts[s]) for s in starts})
    ranges = []
    for stream in sorted(ends):
        if options.view == "latest":
            info = with_retries(
                partial(_stream_info, options.server, stream), timeout_ms=options.retry_timeout_ms
            )
            check_keyed(stream, info.definition.config)
        for partition, end in sorted(ends[stream].items()):
            if end > latest[stream][partition] and options.fail_on_data_loss:
                raise DataLoss(
                    stream,
                    partition,
                    f"endingOffsets is {end}, the partition ends at {latest[stream][partition]}",
                )
            end = min(end, latest[stream][partition])
            ranges.append(Range(stream, partition, held[stream][partition], end, ids[stream]))
    if options.view == "latest":
        return plan.split_ranges(ranges)
    return plan.split_ranges(_narrowed(plan, ranges, predicate))


def _stream_info(server: str, stream: str) -> StreamInfo:
    return client_of(server).stream(stream)


def _check_order(
    plan: ReadPlan, starts: dict[str, dict[int, int]], ends: dict[str, dict[int, int]]
) -> None:
    """Refuse a read whose start is after its end.

    Raises: ConfigError; DataLoss if the read begins with the earliest record and retention has
    removed everything before the end.
    """
    options = plan.options
    for stream, extent in plan.extents.items():
        for partition, (earliest, _) in extent.partitions.items():
            start, end = starts[stream][partition], ends[stream][partition]
            if start <= end or options.ending is None:
                # A start after the latest offset is refused where positions are checked.
                continue
            if start > earliest:
                starting = (
                    "startingOffsets" if options.starting is None else options.starting.option
                )
                raise ConfigError(
                    f"the read would start after its end: stream {stream!r} partition {partition} "
                    f"starts at offset {start} (option {starting!r}) and ends at offset {end} "
                    f"(option {options.ending.option!r})"
                )
            if options.fail_on_data_loss:
                raise DataLoss(
                    stream,
                    partition,
                    f"the read ends at offset {end}, the log starts at {earliest}",
                )


def _narrowed(plan: ReadPlan, ranges: list[Range], predicate: Predicate) -> Iterator[Range]:
    """Narrow the ranges to the query's filters."""
    for wanted in ranges:
        if predicate.streams is not None and wanted.stream not in predicate.streams:
            continue
        if wanted.partition not in predicate.partitions:
            continue
        offsets = Interval(wanted.start, wanted.end) & predicate.offsets
        offsets &= _offsets_of_times(plan, wanted, predicate)
        yield replace(wanted, start=offsets.start, end=max(offsets.start, offsets.end))


def _offsets_of_times(plan: ReadPlan, wanted: Range, predicate: Predicate) -> Interval:
    """The offsets of the wanted times. Timestamps never decrease within a partition."""
    interval = Interval()
    if not predicate.has_times or not wanted.records:
        return interval
    first, last = predicate.times_ms.start, predicate.times_ms.end
    if first > 0:
        found = plan.find_offset(wanted.stream, wanted.partition, first)
        interval &= Interval(wanted.end if found is None else found)
    if 0 < last < Interval().end:
        found = plan.find_offset(wanted.stream, wanted.partition, last)
        if found is not None:
            interval &= Interval(end=found)
    return interval
