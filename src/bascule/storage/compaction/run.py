"""One compaction run of one log: map the dirty part, rewrite segments, store the clean offset."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.record.header import HEADER_BYTES, read_header
from bascule.storage.compaction import replacement_manifest
from bascule.storage.compaction.batch_filter import NO_OFFSET_MAX, BatchFilter
from bascule.storage.compaction.clean_offset import (
    CleanOffset,
    has_gaps,
    read_clean_offset,
    write_clean_offset,
)
from bascule.storage.compaction.keys.key_map import KeyMap
from bascule.storage.compaction.segment_writer import SegmentWriter
from bascule.storage.compaction.windows import Window, windows
from bascule.storage.index.header_checks import check_batch_headers
from bascule.storage.index.segment_lookup import locate_batch
from bascule.storage.partition_log import PartitionLog
from bascule.storage.segment import INDEX_INTERVAL_BYTES, Contents, Segment
from bascule.storage.segments import SegmentGone

MAP_BYTES_MAX: Final = 512 << 20
Closed: TypeAlias = tuple[Segment, int]
"""A closed segment and its end offset."""
UNLOCKED: Final[AbstractContextManager[object]] = nullcontext()
ALLOWED: Final[AbstractContextManager[bool]] = nullcontext(True)


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """The settings of one run."""

    segment_bytes_max: int
    tombstone_retention_ms: int
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    map_bytes_max: int = MAP_BYTES_MAX
    messages_max: int = 0
    """The most offsets of segments that are joined to one; 0: no limit."""
    age_ms_max: int = 0
    """Segments are joined whose records are younger than that when the last one comes; 0: all."""


class Times(NamedTuple):
    """Timestamps of a segment."""

    oldest: int
    """The largest one of the first batch."""
    newest: int


@dataclass(slots=True)
class CompactionProgress:
    """What a run has done so far."""

    bytes_read: int = 0
    bytes_written: int = 0
    bytes_removed: int = 0
    """Decrease of the log's size."""
    records_removed: int = 0
    segments_removed: int = 0
    """Decrease of the number of segments."""
    keys: int = 0
    """Keys of the dirty part."""
    map_bytes: int = 0
    map_is_full: bool = False
    """Whether the map had no room for the whole dirty part. The next run continues there."""
    clean_offset: int = 0


class _Outdated(Exception):
    """The log was truncated or reset during the run, or its tombstones are needed again. The run
    ends. Never leaves this module."""


class Compaction:
    """One run; `steps` does the work. One run of a log at a time, on one thread at a time."""

    def __init__(
        self,
        files: Files,
        log: PartitionLog,
        config: CompactionConfig,
        *,
        end_offset: int,
        now_ms: int,
        secret: bytes,
        lock: AbstractContextManager[object] = UNLOCKED,
        tombstones_end: int = NO_OFFSET_MAX,
        committed_end: int = NO_OFFSET_MAX,
        removal: AbstractContextManager[bool] = ALLOWED,
        truncation_version: int | None = None,
    ) -> None:
        """Compact up to `end_offset`, the end of one of the log's closed segments.

        `secret` is 16 random bytes. `lock` is held while files are renamed. It must exclude
        checkpoints and other removals of segments. Tombstones from `tombstones_end` on stay. So do
        those of the batch after which nothing is synced, and of the one that ends at
        `committed_end`: what follows that may be lost, and no copy reaches the end of a log that
        ends with removed records. `removal` is entered while segments are replaced, and says
        whether the others may still go. `truncation_version` is the log's from before all that was
        asked for, by default that of now: nothing of it is true of a log that was truncated or
        reset since.
        """
        self._files = files
        self._log = log
        self._config = config
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._secret = secret
        self._lock = lock
        self._tombstones_end = tombstones_end
        self._committed_end = committed_end
        self._removal = removal
        if truncation_version is None:
            truncation_version = log.truncation_version
        self._truncation_version = truncation_version
        self.done = CompactionProgress()

    def steps(self) -> Generator[int, None, None]:
        """Do the work in steps of about 1 MiB; yields the bytes that each step read and wrote.

        The caller may stop after any step. It loses only the work since the last segment
        replacement. The run ends early if the log is truncated or reset meanwhile, or `removal`
        forbids it.

        Raises: CorruptData naming file and byte, OSError, LogFailed, Closed. Completed replacements
        remain. The next run completes or undoes an incomplete one.
        """
        try:
            yield from self._steps()
        except _Outdated:
            self._discard()
        except CorruptData:
            if self._log.truncation_version == self._truncation_version:
                raise
            self._discard()

    def _steps(self) -> Generator[int, None, None]:
        log, files = self._log, self._files
        with self._lock:
            log.check_open()
            log.replacement.recover()
            self._check_log()
            log.replacement.cleaning_end = max(log.replacement.cleaning_end, self._end_offset)
            clean = read_clean_offset(files, log.directory)
            log.replacement.lack_tombstones(0, log_end=log.end.offset)
            if not has_gaps(files, log.directory):
                write_clean_offset(files, log.directory, clean)
            log.allow_gaps()
        start = max(clean.offset, log.start_offset)
        closed = log.replacement.closed_segments()
        # The log start or the clean offset may lie within a segment, which is read from below it.
        lowest = min((s.base_offset for s, end in closed if end > start), default=start)
        keys = KeyMap(
            bytes_max=self._config.map_bytes_max,
            secret=self._secret,
            records_max=max(self._end_offset - lowest, 0),
        )
        end = yield from self._map(keys, start)
        batch_filter = BatchFilter(
            keys,
            end_offset=end,
            start_offset=log.start_offset,
            now_ms=self._now_ms,
            tombstone_retention_ms=self._config.tombstone_retention_ms,
            tail=min(self._committed_end, log.synced.offset),
            tombstones_end=self._tombstones_end,
        )
        below = [(s, stop) for s, stop in log.replacement.closed_segments() if s.base_offset < end]
        for group in grouped(below, self._config, self._times):
            yield from self._replace(group, batch_filter)
        self.done.clean_offset = end
        with self._lock:
            self._check_log()
            write_clean_offset(files, log.directory, CleanOffset(end, batch_filter.horizon_ms))

    def _times(self, segment: Segment) -> Times | None:
        """The times of a closed segment; None if it is empty, or gone. Raises: CorruptData,
        OSError."""
        if not segment.size:
            return None
        try:
            contents = self._log.replacement.open(segment)
        except SegmentGone:
            return None
        first = read_header(contents.file.read_at(0, HEADER_BYTES))
        return Times(first.max_timestamp, contents.timestamp_max)

    def _map(self, keys: KeyMap, start: int) -> Generator[int, None, int]:
        """Add the dirty part to the map; returns the offset up to which it was added."""
        log, done = self._log, self.done
        end = start
        for segment, segment_end in log.replacement.closed_segments():
            if segment_end <= start or segment.base_offset >= self._end_offset:
                continue
            try:
                contents = log.replacement.open(segment)
            except SegmentGone:
                continue  # Retention removed the segment.
            for window in self._read(segment, contents, segment_end, from_offset=start):
                reached = keys.add(window, origin=contents.file.path)
                done.bytes_read += reached
                done.keys, done.map_bytes = keys.keys, keys.size_bytes
                if reached < window.end:
                    done.map_is_full = True
                    return max(end, read_header(window.data, reached).base_offset)
                end = max(end, window.end_offset)
                yield reached
            end = max(end, segment_end)
        return end

    def _read(
        self, segment: Segment, contents: Contents, end_offset: int, *, from_offset: int = 0
    ) -> Iterator[Window]:
        """The windows of a segment, from the batch that contains an offset, or follows it."""
        position, offset = 0, segment.base_offset
        if from_offset > offset:
            location = locate_batch(contents, from_offset, segment.size, nowait=False)
            assert location is not None, "only nowait finds nothing"
            position = location.position
            if position < segment.size:
                offset = read_header(contents.file.read_at(position, HEADER_BYTES)).base_offset
            if not segment.verified:
                check_batch_headers(
                    contents.file, contents.offsets, start=position,
                    end=min(position + 1, segment.size), limit=segment.size,
                    base_offset=segment.base_offset, end_offset=end_offset,
                    epochs=self._log.epochs, gaps_allowed=True,
                )  # fmt: skip
        return windows(
            contents,
            start=position,
            end=segment.size,
            offset=offset,
            end_offset=end_offset,
            epochs=self._log.epochs,
            trust=segment.trust,
        )

    def _replace(self, group: list[Closed], batch_filter: BatchFilter) -> Iterator[int]:
        """Replace consecutive segments by one new segment, if that removes anything."""
        replacement = self._log.replacement
        while group:
            try:
                added = yield from self._rewrite(group, batch_filter)
                if added is not None:
                    removed = [segment for segment, _ in group]
                    self._commit_replacement(removed, added, batch_filter.tombstones_removed_end)
                return
            except SegmentGone:
                # Retention removed some of the segments. Compact the others.
                group = [closed for closed in group if replacement.holds(closed[0])]
            finally:
                self.done.records_removed = batch_filter.records_removed

    def _rewrite(
        self, group: list[Closed], batch_filter: BatchFilter
    ) -> Generator[int, None, Segment | None]:
        """Write the records to keep of some segments to a new segment.

        None if it is one segment and all of its records are kept.
        """
        log, done = self._log, self.done
        writer: SegmentWriter | None = None
        changed = batch_filter.batches_changed
        complete = False
        try:
            if len(group) > 1:
                writer = self._segment_writer(group[0][0])
            for segment, segment_end in group:
                contents = log.replacement.open(segment)
                for window in self._read(segment, contents, segment_end):
                    before = done.bytes_written
                    writer = self._filter(window, batch_filter, writer, contents, segment, changed)
                    done.bytes_read += window.end
                    yield window.end + done.bytes_written - before
            added = None if writer is None else writer.complete()
            complete = True
            return added
        finally:
            if not complete:
                self._discard()

    def _filter(
        self,
        window: Window,
        batch_filter: BatchFilter,
        writer: SegmentWriter | None,
        contents: Contents,
        segment: Segment,
        changed: int,
    ) -> SegmentWriter | None:
        """Write the records to keep of a window. A writer is created at the first change."""
        origin = contents.file.path
        if writer is None:
            pieces: list[bytes] = []
            batch_filter.apply(window, lambda piece: pieces.append(bytes(piece)), origin=origin)
            if batch_filter.batches_changed == changed:
                return None
            writer = self._segment_writer(segment)
            writer.copy(contents.file, window.position)
            for piece in pieces:
                writer.write(piece)
            self.done.bytes_written += writer.size
            return writer
        size = writer.size
        batch_filter.apply(window, writer.write, origin=origin)
        self.done.bytes_written += writer.size - size
        return writer

    def _segment_writer(self, segment: Segment) -> SegmentWriter:
        return SegmentWriter(
            self._files,
            self._log.directory,
            segment.base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
        )

    def _commit_replacement(
        self, group: list[Segment], added: Segment, tombstones_end: int
    ) -> None:
        with self._lock, self._removal as is_allowed:
            self._check_log()
            if not is_allowed:
                raise _Outdated
            log = self._log
            log.replacement.lack_tombstones(tombstones_end, log_end=log.end.offset)
            try:
                log.replacement.replace(group, added)
            except SegmentGone:
                self._discard()
                raise
        # Where records only get a delete horizon, the segment becomes a little larger.
        smaller_by = sum(segment.size for segment in group) - added.size
        self.done.bytes_removed += max(smaller_by, 0)
        self.done.segments_removed += len(group) - 1

    def _check_log(self) -> None:
        """Raises: LogFailed, Closed; _Outdated if the map may contain truncated records."""
        self._log.check_open()
        if self._log.truncation_version != self._truncation_version:
            raise _Outdated

    def _discard(self) -> None:
        """Remove the unused new files. The next run removes those that remain after an error."""
        try:
            replacement_manifest.discard(self._files, self._log.directory)
        except OSError:
            pass


def grouped(
    segments: Iterable[Closed], config: CompactionConfig, times: Callable[[Segment], Times | None]
) -> Iterator[list[Closed]]:
    """Groups of consecutive segments that may be joined. A larger segment is alone.

    Retention removes whole segments: one that had grown from old ones with each run would end with
    young records at all times, and none of it would ever expire. `times` is called with a limit of
    age only.
    """
    group: list[Closed] = []
    size, since = 0, None
    for closed in segments:
        segment, end = closed
        found = times(segment) if config.age_ms_max else None
        if group and (
            size + segment.size > config.segment_bytes_max
            or 0 < config.messages_max < end - group[0][0].base_offset
            or (found and since is not None and found.newest - since >= config.age_ms_max)
        ):
            yield group
            group, size, since = [], 0, None
        group.append(closed)
        size += segment.size
        if since is None and found is not None:
            since = found.oldest
    if group:
        yield group
