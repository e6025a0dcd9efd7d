"""One run over one log: map the dirty part, rewrite what lies below, note how far it is clean."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeAlias

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.record.header import HEADER_BYTES, read_header
from bascule.storage.compaction import swap
from bascule.storage.compaction.clean_offset import (
    CleanOffset,
    has_gaps,
    read_clean_offset,
    write_clean_offset,
)
from bascule.storage.compaction.filter import BatchFilter
from bascule.storage.compaction.keys.key_map import KeyMap
from bascule.storage.compaction.output import Output
from bascule.storage.compaction.windows import Window, windows
from bascule.storage.index.segment_lookup import locate
from bascule.storage.partition_log import PartitionLog
from bascule.storage.segment import INDEX_INTERVAL_BYTES, Contents, Segment
from bascule.storage.segments import SegmentGone

MAP_BYTES_MAX: Final = 512 << 20
Closed: TypeAlias = tuple[Segment, int]
"""A segment that is no longer written, and the offset it ends at."""
UNLOCKED: Final[AbstractContextManager[object]] = nullcontext()


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """What one run may take and has to keep."""

    segment_bytes_max: int
    tombstone_retention_ms: int
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    map_bytes_max: int = MAP_BYTES_MAX


@dataclass(slots=True)
class Compacted:
    """What a run did so far."""

    bytes_read: int = 0
    bytes_written: int = 0
    bytes_removed: int = 0
    """By which the log became smaller."""
    records_removed: int = 0
    segments_removed: int = 0
    """By which they became fewer."""
    keys: int = 0
    """Keys of the dirty part."""
    map_bytes: int = 0
    map_is_full: bool = False
    """The map had no room for the whole dirty part; the next run goes on there."""
    clean_offset: int = 0


class _Replaced(Exception):
    """The log was truncated or reset meanwhile; the run ends. Never leaves this module."""


class Compaction:
    """One run; `steps` does the work. One thread at a time, and one run of a log at a time."""

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
    ) -> None:
        """Clean up to `end_offset`, the end of one of the log's closed segments.

        `secret` is 16 random bytes. `lock` is held while files get other names: nothing else may
        write a checkpoint or remove segments meanwhile.
        """
        self._files = files
        self._log = log
        self._config = config
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._secret = secret
        self._lock = lock
        self._replaced = log.replaced
        self.done = Compacted()

    def steps(self) -> Generator[int, None, None]:
        """Do the work in steps of about a MiB; yields the bytes that each read and wrote.

        May be left off after any of them: nothing is lost but the work since the last swap. A run
        ends early where the log is truncated or reset beside it.

        Raises: CorruptData naming file and byte, OSError, LogFailed, Closed. Swaps that were
        complete stay so, and the next run settles what is not.
        """
        try:
            yield from self._steps()
        except _Replaced:
            self._discard()
        except CorruptData:
            if self._log.replaced == self._replaced:
                raise
            self._discard()

    def _steps(self) -> Generator[int, None, None]:
        log, files = self._log, self._files
        with self._lock:
            log.check_open()
            self._replaced = log.replaced
            log.swaps.settle()
            clean = read_clean_offset(files, log.directory)
            if not has_gaps(files, log.directory):
                write_clean_offset(files, log.directory, clean)
            log.allow_gaps()
        start = max(clean.offset, log.start_offset)
        closed = log.swaps.closed_segments()
        # A log may start, or be clean up to, the middle of a segment: what is read begins below.
        lowest = min((s.base_offset for s, end in closed if end > start), default=start)
        keys = KeyMap(
            bytes_max=self._config.map_bytes_max,
            secret=self._secret,
            records_max=max(self._end_offset - lowest, 0),
        )
        end = yield from self._map(keys, start)
        survivors = BatchFilter(
            keys,
            end_offset=end,
            start_offset=log.start_offset,
            now_ms=self._now_ms,
            tombstone_retention_ms=self._config.tombstone_retention_ms,
            tail=log.end.offset if log.end.position == 0 else None,
        )
        below = [(s, stop) for s, stop in log.swaps.closed_segments() if s.base_offset < end]
        for group in grouped(below, self._config.segment_bytes_max):
            yield from self._replace(group, survivors)
        self.done.clean_offset = end
        with self._lock:
            self._check_log()
            write_clean_offset(files, log.directory, CleanOffset(end, survivors.horizon_ms))

    def _map(self, keys: KeyMap, start: int) -> Generator[int, None, int]:
        """Take the dirty part into the map; returns the offset up to where it is there."""
        log, done = self._log, self.done
        end = start
        for segment, segment_end in log.swaps.closed_segments():
            if segment_end <= start or segment.base_offset >= self._end_offset:
                continue
            try:
                contents = log.swaps.open(segment)
            except SegmentGone:
                continue  # Retention has passed by.
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
        """The windows of a segment from the batch on that holds an offset, or follows it."""
        position, offset = 0, segment.base_offset
        if from_offset > offset:
            place = locate(contents, from_offset, segment.size, nowait=False)
            assert place is not None, "only nowait finds nothing"
            position = place.position
            if position < segment.size:
                offset = read_header(contents.file.read_at(position, HEADER_BYTES)).base_offset
        return windows(
            contents,
            start=position,
            end=segment.size,
            offset=offset,
            end_offset=end_offset,
            epochs=self._log.epochs,
            vouched=segment.vouched,
        )

    def _replace(self, group: list[Closed], survivors: BatchFilter) -> Iterator[int]:
        """Put one new segment in the place of some, where anything in them goes."""
        swaps = self._log.swaps
        while group:
            try:
                added = yield from self._rewrite(group, survivors)
                if added is not None:
                    self._swap([segment for segment, _ in group], added)
                return
            except SegmentGone:
                # Retention took some meanwhile; the others are still to be cleaned.
                group = [closed for closed in group if swaps.holds(closed[0])]
            finally:
                self.done.records_removed = survivors.records_removed

    def _rewrite(
        self, group: list[Closed], survivors: BatchFilter
    ) -> Generator[int, None, Segment | None]:
        """Write what stays of some segments beside them; None where that is all of one segment."""
        log, done = self._log, self.done
        output: Output | None = None
        changed = survivors.batches_changed
        complete = False
        try:
            if len(group) > 1:
                output = self._output(group[0][0])
            for segment, segment_end in group:
                contents = log.swaps.open(segment)
                for window in self._read(segment, contents, segment_end):
                    before = done.bytes_written
                    output = self._filter(window, survivors, output, contents, segment, changed)
                    done.bytes_read += window.end
                    yield window.end + done.bytes_written - before
            added = None if output is None else output.complete()
            complete = True
            return added
        finally:
            if not complete:
                self._discard()

    def _filter(
        self,
        window: Window,
        survivors: BatchFilter,
        output: Output | None,
        contents: Contents,
        segment: Segment,
        changed: int,
    ) -> Output | None:
        """Write what stays of a window. While everything does, there is no output yet."""
        origin = contents.file.path
        if output is None:
            pieces: list[bytes] = []
            survivors.apply(window, lambda piece: pieces.append(bytes(piece)), origin=origin)
            if survivors.batches_changed == changed:
                return None
            output = self._output(segment)
            output.copy(contents.file, window.position)
            for piece in pieces:
                output.write(piece)
            self.done.bytes_written += output.size
            return output
        size = output.size
        survivors.apply(window, output.write, origin=origin)
        self.done.bytes_written += output.size - size
        return output

    def _output(self, segment: Segment) -> Output:
        return Output(
            self._files,
            self._log.directory,
            segment.base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
        )

    def _swap(self, group: list[Segment], added: Segment) -> None:
        with self._lock:
            self._check_log()
            try:
                self._log.swaps.replace(group, added)
            except SegmentGone:
                self._discard()
                raise
        self.done.bytes_removed += sum(segment.size for segment in group) - added.size
        self.done.segments_removed += len(group) - 1

    def _check_log(self) -> None:
        """Raises: LogFailed, Closed; _Replaced where the map may hold keys that were cut off."""
        self._log.check_open()
        if self._log.replaced != self._replaced:
            raise _Replaced

    def _discard(self) -> None:
        """Remove what was written in vain; what that leaves behind, the next run does away with."""
        try:
            swap.discard(self._files, self._log.directory)
        except OSError:
            pass


def grouped(segments: Iterable[Closed], bytes_max: int) -> Iterator[list[Closed]]:
    """Neighbours that together have at most `bytes_max` bytes; a larger one stays alone."""
    group: list[Closed] = []
    size = 0
    for closed in segments:
        segment, _ = closed
        if group and size + segment.size > bytes_max:
            yield group
            group, size = [], 0
        group.append(closed)
        size += segment.size
    if group:
        yield group
