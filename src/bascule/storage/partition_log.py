"""One partition's log: append, sync, read, truncate and maintain it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, Self, TypeVar

from bascule.errors import Closed, CorruptData, LogFailed, OffsetOutOfRange
from bascule.host.api import Buffer, Clock, File, Files
from bascule.storage.appended_batches import (
    append_error,
    check_replicated,
    mark_gaps,
    read_first_header,
    read_stamped,
)
from bascule.storage.compaction.clean_offset import lower_clean_offset
from bascule.storage.compaction.segment_replacement import SegmentReplacement
from bascule.storage.epochs import NO_EPOCHS, EpochFile, LeaderEpochs
from bascule.storage.maintenance import LogMaintenance, RemovedSegments, never
from bascule.storage.recovery import Recovered, recover
from bascule.storage.segment import (
    Contents,
    FileSlice,
    LogConfig,
    LogPosition,
    Observer,
    PartialSegment,
    Segment,
    SegmentInfo,
    Tail,
    create_segment,
)
from bascule.storage.segments import SegmentGone, Segments
from bascule.storage.synced_mark import SyncedMark
from bascule.storage.truncation import reset
from bascule.storage.truncation.partial_copy import PartialCopy
from bascule.storage.truncation.running_truncation import MakeLock, RunningTruncation
from bascule.storage.truncation.truncation_plan import (
    kept_segments,
    new_segment_path,
    plan_truncation,
    truncate_files,
)

__all__ = ["FileSlice", "LogConfig", "LogPosition", "PartitionLog", "SegmentInfo"]

VERIFY_BYTES: Final = 8 << 20
"""Bytes read by one step of `verify`, so that a caller can pause between steps."""
_Found = TypeVar("_Found")


class PartitionLog:
    """See the package's docstring for threads and promises."""

    def __init__(
        self,
        files: Files,
        directory: str,
        config: LogConfig,
        clock: Clock,
        found: Recovered,
        make_lock: MakeLock,
    ) -> None:
        """Use `open`."""
        self._files = files
        self.config = config
        self._clock = clock
        self.directory = directory
        self._segments = Segments(
            files, directory, found.segments,
            index_interval_bytes=config.index_interval_bytes,
            gaps_allowed=found.gaps_allowed, guard=make_lock(),
        )  # fmt: skip
        contents = found.segments[-1].contents
        assert contents is not None, "recovery leaves the last segment open"
        self._active: Contents = contents
        self._tail = Tail(found.end, found.timestamp_max, contents.timestamp_max)
        self._synced = self._tail
        self._synced_mark = SyncedMark(files, directory)
        self.partial_copy = PartialCopy(files, directory)
        if found.mark_is_stale and found.end.offset > found.start_offset:
            self._synced_mark.write(found.end)
            self._synced_mark.release()
        self.truncated_bytes = found.truncated_bytes
        """Bytes of a torn tail that opening removed; they were never synced."""
        self._epochs = EpochFile(files, directory, found.epochs)
        self._gaps_marked, self._names_are_synced = found.gaps_marked, found.names_are_synced
        self._truncation = RunningTruncation(make_lock())
        self._maintenance = LogMaintenance(
            files, directory, clock, self._segments,
            saved=found.checkpoint, start_offset=found.start_offset,
        )  # fmt: skip
        self.replacement = SegmentReplacement(files, directory, self._segments, self._maintenance)
        self._active_since_ms = contents.first_timestamp(found.end.position)
        """Timestamp of the active segment's first batch."""
        self._stop_reason: str | None = None
        """Why every call fails; None while the log works."""
        self._closed = False

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        config: LogConfig,
        clock: Clock,
        *,
        make_lock: MakeLock = nullcontext,
    ) -> Self:
        """Open the log in `directory`; create it if there is none.

        On return everything in the log is synced: `synced` equals `end`. `make_lock` is needed if
        several threads use the log; see the package's docstring for its locks.

        Raises: CorruptData naming file and byte, OSError.
        """
        found = recover(
            files, directory,
            index_interval_bytes=config.index_interval_bytes, gaps_allowed=config.gaps_allowed,
        )  # fmt: skip
        return cls(files, directory, config, clock, found, make_lock)

    @property
    def truncation_version(self) -> int:
        """Increases at the start and at the end of each truncation or reset: odd during one."""
        return self._truncation.version

    @property
    def start_offset(self) -> int:
        """The first offset that readers may request."""
        return self._maintenance.start_offset

    @property
    def checkpointed_high_watermark(self) -> int:
        """The high watermark of the last checkpoint, limited to the log's start and end."""
        return max(min(self._maintenance.high_watermark, self.end.offset), self.start_offset)

    @property
    def end(self) -> LogPosition:
        """The position after the last appended batch."""
        return self._tail.end

    @property
    def synced(self) -> LogPosition:
        """The position up to which the log is synced."""
        return self._synced.end

    @property
    def timestamp_max(self) -> int:
        """The largest timestamp in the log, -1 if it is empty."""
        return self._tail.timestamp_max

    @property
    def active_since_ms(self) -> int:
        """Timestamp of the active segment's first batch; without meaning if it is empty."""
        return self._active_since_ms

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epochs.epochs

    @property
    def gaps_allowed(self) -> bool:
        """Whether offsets may be missing between batches."""
        return self._segments.gaps_allowed

    @property
    def failure(self) -> str | None:
        """Why the log stopped permanently, None while it works."""
        return None if self._closed else self._stop_reason

    def size_bytes(self) -> int:
        """Bytes of all batches in the log's files; a part of them may lie below `start_offset`."""
        return self._segments.bytes_before_last + self._tail.end.position

    def bytes_from(self, offset: int) -> int:
        """About how many of them are of records from `offset` on. Reads no file."""
        return self._segments.bytes_from(offset, self._tail.end)

    def segments_info(self) -> tuple[SegmentInfo, ...]:
        """The state of every segment, oldest first. Reads no file."""
        return self._segments.infos(self._tail)

    def load_timestamps(self, below: int) -> None:
        """Load the largest timestamps of segments for `segments_info`, oldest segment first.

        Stops at the first segment whose largest timestamp is at least `below`.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        self._retry_lookup(lambda _: self._segments.load_timestamps(self._tail, below))

    def configure(self, config: LogConfig) -> None:
        """Change segment size and age. Gaps stay allowed if they were. Any thread may call it."""
        self._segments.gaps_allowed |= config.gaps_allowed
        self.config = config

    def allow_gaps(self) -> None:
        """Allow missing offsets between batches from now on, because compaction begins."""
        self._segments.gaps_allowed = True

    def append(self, batch: Buffer) -> LogPosition:
        """Append one whole batch that this node stamped as the leader; return the new end.

        Base offset, end offset, leader epoch and timestamp are read from its header. The base
        offset must be the log's end, and leader epochs must not decrease. The CRC is not checked.
        The batch takes one write and is not durable before `sync`. Rolls the segment first if its
        size or age requires it.

        Raises: UnexpectedOffset; FencedEpoch if the log has a later leader epoch; CorruptData if
        the header does not describe `batch`; OSError. The log is then unchanged. LogFailed if the
        failed write could not be undone; Closed.
        """
        self.check_open()
        tail = self._tail
        size = len(batch)
        base_offset, end_offset, leader_epoch, timestamp = read_stamped(batch, size)
        if base_offset != tail.end.offset:
            raise append_error(batch, tail.end.offset, self.directory)
        if leader_epoch != self._epochs.appending_epoch:
            self._epochs.start(leader_epoch, base_offset)
        if self._is_roll_due(size, end_offset, timestamp):
            self._roll(tail)
            tail = self._tail
        position = self._write(batch, timestamp)
        self._active.index_batch(position, base_offset, timestamp)
        self._tail = tail = tail.advanced(position + size, end_offset, timestamp)
        return tail.end

    def append_as_follower(
        self, batches: Buffer, *, gaps_allowed: bool = True, told: LeaderEpochs = NO_EPOCHS
    ) -> LogPosition:
        """Append whole batches, back to back, as they are in the leader's log; return the new end.

        Offsets, leader epochs and times stay unchanged. Each base offset is the end of the batch
        before it, or above it if compaction left a gap on the leader (`gaps_allowed` of its log,
        with the epochs `told`). Checks every CRC. Appends all batches or none, with one write to
        one segment; size, first end offset and first timestamp decide whether it is rolled first.
        The batches are not durable before `sync`.

        Raises: UnexpectedOffset if a batch begins below the end of the one before it;
        UnexpectedEpoch if its leader epoch is lower; CorruptData if it is incomplete or damaged;
        OSError. The log is then unchanged. LogFailed if the failed write could not be undone;
        Closed.
        """
        self.check_open()
        data, size = memoryview(batches), len(batches)
        if not size:
            return self.end
        first = read_first_header(data, self.directory)
        rolls = self._is_roll_due(size, first.end_offset, first.max_timestamp)
        contents, tail = self._active, self._tail
        checked = check_replicated(
            data, offset=tail.end.offset, epochs=self.epochs, told=told, gaps_allowed=gaps_allowed,
            origin=0 if rolls else tail.end.position, directory=self.directory,
            timestamp_max=-1 if rolls else contents.timestamp_max,
            next_entry_at=0 if rolls else contents.next_entry_at,
            index_interval_bytes=contents.index_interval_bytes,
        )  # fmt: skip
        if checked.has_gaps and not self._gaps_marked:
            mark_gaps(self._files, self.directory)
            self._gaps_marked = True
            self.allow_gaps()
        before = self.epochs
        self._epochs.save(checked.epochs)
        try:
            if rolls:
                self._roll(tail)
            position = self._write(data, first.max_timestamp)
        except (OSError, CorruptData, LogFailed):
            self._epochs.revert(before)
            raise
        self._active.index_checked_batches(
            checked.entries, checked.timestamp_max, checked.next_entry_at
        )
        self._tail = self._tail.advanced(position + size, checked.end_offset, checked.timestamp_max)
        return self._tail.end

    def truncate_to(self, offset: int, epoch: int, *, high_watermark: int) -> LogPosition:
        """Truncate the log so that it ends at `offset`; return its end. KIP-101, KIP-279.

        If `offset` lies within a batch, the whole batch is removed and the log ends at its base
        offset. If the log ends at or before `offset`, no batch is removed. Leader epochs that begin
        at the new end or later are always removed. On return the change is synced, `synced` equals
        `end`, and the checkpoint's high watermark is `high_watermark`. After a crash before the
        return, the log ends at a batch boundary between the new and the former end.

        `epoch` is the leader epoch of the current leader. It must not be lower than the latest
        epoch of the log or the epoch of an earlier call. It is a fence: until the log is closed,
        `append` refuses batches of lower epochs. `high_watermark` is the first uncommitted offset.
        No batch below it is removed.

        For the appending thread only. Must not run concurrently with `sync`, `checkpoint`,
        `advance_start` or a segment replacement. Readers may run concurrently: their slices give
        the old bytes or end early. Positions beyond the new end become invalid.

        Raises: FencedEpoch; OffsetOutOfRange if the log would end below its start or below
        `high_watermark` (call `start_at` instead); CorruptData; OSError. The log is then unchanged.
        LogFailed if a part is done (open the log again); Closed.
        """
        self.check_open()
        self._epochs.fence(epoch)
        end, offset_min = self.sync(), max(self.start_offset, high_watermark)
        look = partial(plan_truncation, self._segments, offset, self._tail, self.epochs)
        plan = self._retry_lookup(lambda _: look()) if offset_min <= offset < end.offset else None
        new_end = min(offset, end.offset) if plan is None else plan.end.offset
        if new_end < offset_min:
            raise OffsetOutOfRange(offset, offset_min, end.offset)
        if plan is None:
            self._epochs.save(self.epochs.before(new_end))
            return end
        self.replacement.recover_if_failed()
        lower_clean_offset(self._files, self.directory, new_end)
        self._maintenance.save_truncated(plan.tail, high_watermark=high_watermark)
        self._synced_mark.lower(plan.end)
        file = self._files.open(new_segment_path(self.directory, new_end), create=True)
        try:
            later = [s.base_offset for s in self._segments.all if s.base_offset > plan.end[1]]
            with self._truncation.begun():
                self._epochs.save(self.epochs.before(new_end))
                kept = kept_segments(self._segments, plan)
                self._publish_segments(kept, file, new_end, plan.tail.timestamp_max)
                truncate_files(self._files, self.directory, plan, later)
                self._segments.reopen_last()
        except OSError as error:
            cause = f"truncation to offset {new_end} failed: {error}"
            raise self._fail(cause) from error
        return self.end

    def start_at(self, offset: int, epoch: int) -> LogPosition:
        """Replace the whole log by an empty one that starts at `offset`; return its end.

        For a replica whose log ends below its leader's log start. On return the change is synced:
        start, end, `synced` and the checkpoint's high watermark are `offset`, and there is no
        leader epoch. After a crash before the return, the log is the former one or the empty one.
        For `epoch`, threads and readers see `truncate_to`.

        Raises: FencedEpoch, OSError. The log is then unchanged. LogFailed if it is unknown whether
        the log was replaced (open it again); Closed.
        """
        self.check_open()
        self._epochs.fence(epoch)
        checkpoint = reset.empty_log(offset, now_ms=self._clock.now_ms())
        file = self._files.open(new_segment_path(self.directory, offset), create=True)
        try:
            reset.commit(self._files, self.directory, checkpoint)
        except OSError as error:
            try:
                reset.undo(self._files, self.directory)
            except OSError as second:
                cause = f"reset to offset {offset} failed ({error}), undoing it failed ({second})"
                raise self._fail(cause) from error
            raise
        try:
            with self._truncation.begun():
                self._publish_segments((), file, offset, -1)
                self._epochs.reset()
                self._maintenance.reset(checkpoint)
                reset.finish(self._files, self.directory)
                self._segments.reopen_last()
        except OSError as error:
            raise self._fail(f"reset to offset {offset} failed: {error}") from error
        self._gaps_marked = False
        self._segments.gaps_allowed = self.config.gaps_allowed
        self.replacement.reset()
        self._synced_mark.release()
        return self.end

    def _publish_segments(
        self, kept: Sequence[Segment], file: File, offset: int, timestamp_max: int
    ) -> None:
        """Publish the segments `kept` and a new active segment. Everything in them is synced."""
        contents = Contents(file, self.config.index_interval_bytes)
        self._segments.truncate(kept, Segment(offset, 0, contents))
        self._active = contents
        self._synced = self._tail = Tail(LogPosition(offset, offset, 0), timestamp_max, -1)

    def _is_roll_due(self, size: int, end_offset: int, timestamp: int) -> bool:
        """Whether `size` bytes that end at `end_offset` must go to a new segment."""
        age_ms = timestamp - self._active_since_ms
        return self.config.is_roll_due(self._tail.end, size, end_offset, age_ms)

    def _write(self, data: Buffer, timestamp: int) -> int:
        """Write batches, the first with `timestamp`; return where. Raises: OSError, LogFailed."""
        position = self._tail.end.position
        if position == 0:
            self._active_since_ms = timestamp
        try:
            self._active.file.append(data)
        except OSError as error:
            self._undo_write(self._active.file, position, error)
            raise
        return position

    def roll(self) -> LogPosition:
        """Close the active segment and start a new one; return the log's end.

        For the appending thread only. Does nothing if the active segment is empty.

        Raises: OSError, the log then being unchanged; CorruptData, LogFailed, Closed.
        """
        self.check_open()
        return self.end if self.end.position == 0 else self._roll(self._tail)

    def _roll(self, tail: Tail) -> LogPosition:
        """Start a new segment at the end. Syncs neither segment; `sync` does, in order."""
        end = tail.end
        try:
            contents = create_segment(
                self._files, self.directory, end.offset, self.config.index_interval_bytes
            )
        except PartialSegment as error:
            raise self._fail(str(error)) from error
        self._segments.roll(end.position, Segment(end.offset, 0, contents))
        self._active = contents
        rolled = LogPosition(end.offset, end.offset, 0)
        self._tail = Tail(rolled, tail.timestamp_max, -1)
        return rolled

    def _undo_write(self, file: File, position: int, error: OSError) -> None:
        """Remove the bytes of a failed write. Raises: LogFailed if that fails, too."""
        try:
            file.truncate(position)
        except OSError as second:
            cause = f"append failed ({error}), undoing it failed ({second})"
            raise self._fail(cause) from error

    def _fail(self, cause: str) -> LogFailed:
        self._stop_reason = cause
        return LogFailed(self.directory, cause)

    def check_open(self) -> None:
        """Raises: LogFailed if the log has stopped, Closed if it is closed."""
        if self._stop_reason is None:
            return
        if self._closed:
            raise Closed(f"log {self.directory} is closed")
        raise LogFailed(self.directory, self._stop_reason)

    def sync(self, on_file: Callable[[], object] = never) -> LogPosition:
        """Sync everything appended before the call; return the end of it. Calls `on_file` after
        each of its segments, of which there may be many.

        Raises: LogFailed, Closed. After LogFailed every later call fails, too.
        """
        self.check_open()
        tail, synced = self._tail, self._synced
        if tail.end == synced.end:
            return synced.end
        try:
            self._segments.sync(synced.end, tail.end, not self._names_are_synced, on_file)
        except OSError as error:
            raise self._fail(f"sync failed: {error}") from error
        self._synced_mark.write(tail.end)
        self._synced, self._names_are_synced = tail, True
        return tail.end

    def plan_read(
        self, offset: int, *, bytes_max: int, end: LogPosition, nowait: bool = False
    ) -> FileSlice | None:
        """Plan a read from `offset`: a range of one segment, which the caller sends or reads.

        The slice starts at the batch that contains `offset`, so possibly below it. It ends after
        `bytes_max` bytes, at `end` or at the end of its segment, whichever is first. It contains
        its first batch as a whole. Where `bytes_max` cuts it, it ends at the last batch boundary
        that the index knows, or within a later batch if it knows none. It is empty if `offset` is
        `end`. With `nowait`, returns None if the call would wait for the disk: repeat it on a
        thread.

        Raises: OffsetOutOfRange, CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        replaced = self.truncation_version
        end = min(end, self._tail.end)
        if not self.start_offset <= offset <= end.offset:
            raise OffsetOutOfRange(offset, self.start_offset, end.offset)
        try:
            return self._segments.slice(
                offset, bytes_max=bytes_max, end=end, epochs=self.epochs, nowait=nowait
            )
        except SegmentGone:
            pass
        except (CorruptData, FileNotFoundError):
            if not self._truncation.has_changed_since(replaced):
                raise
        raise OffsetOutOfRange(offset, self.start_offset, self.end.offset)

    def find_timestamp(self, timestamp: int, *, end: LogPosition) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record below `end` with at least `timestamp`, in ms.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        find = self._segments.find_timestamp
        return self._retry_lookup(lambda start: find(timestamp, start_offset=start, end=end))

    def find_timestamp_max(self, *, end: LogPosition) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp below `end`, or None.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        find = self._segments.find_timestamp_max
        return self._retry_lookup(lambda start: find(start_offset=start, end=end))

    def _retry_lookup(self, look: Callable[[int], _Found]) -> _Found:
        """Call `look` with the log start; repeat it if segments were removed concurrently."""
        while True:
            replaced = self.truncation_version
            try:
                return look(self.start_offset)
            except SegmentGone:
                continue
            except (CorruptData, FileNotFoundError):
                if not self._truncation.has_changed_since(replaced):
                    raise
                self._truncation.wait()
                self.check_open()

    def epoch_end(self, epoch: int, *, end: LogPosition) -> tuple[int, int]:
        """(largest epoch up to `epoch`, its end offset), (-1, -1) if there is none. KIP-101."""
        return self.epochs.end_of(epoch, end_offset=end.offset)

    def verify(
        self, start: LogPosition | None = None, observe: Observer | None = None
    ) -> LogPosition | None:
        """Check every byte of some synced batches from `start` (default: the beginning) on.

        Returns where the next call continues, None after everything synced was checked. One call
        reads about 8 MiB, and at least one batch. `observe`: see `Contents.scan`.

        Raises: CorruptData naming file and byte, LogFailed, Closed, OSError.
        """
        self.check_open()
        check = partial(self._segments.verify, start, bytes_max=VERIFY_BYTES, observe=observe)
        return self._retry_lookup(lambda _: check(synced=self._synced.end, epochs=self.epochs))

    def checkpoint(self, *, high_watermark: int, breaks_off: Callable[[], bool] = never) -> bool:
        """Write index files and a checkpoint up to the synced end, unless nothing has changed.
        Recovery starts there.

        `breaks_off` is called after each segment with new index files. Where it says True, the call
        ends, and the next one goes on. Returns whether the checkpoint is written. Must not run
        concurrently with `advance_start` or another checkpoint.

        Raises: OSError, the older checkpoint then being in use; LogFailed, Closed.
        """
        self.check_open()
        self._synced_mark.release()  # first: the checkpoint needs a descriptor, too
        synced, save = self._synced, partial(self._maintenance.save, breaks_off=breaks_off)
        if not save(synced, high_watermark=high_watermark, clean=False):
            return False
        if self.replacement.names_are_final:
            self._segments.unload_unused(synced.end)
        return True

    def advance_start(self, offset: int, *, high_watermark: int) -> RemovedSegments:
        """Advance the log start to `offset`, but at most to the synced and committed end.

        On return the new start is synced, and the files of whole segments below it are removed.
        After a crash before the return, the start is the old or the new one. The start never goes
        back. Readers keep the slices that they hold. Must not run concurrently with `checkpoint` or
        another `advance_start`.

        Raises: OSError. Either the start is unchanged, or the next call removes the remaining
        files. LogFailed, Closed.
        """
        self.check_open()
        return self._maintenance.advance_start(offset, self._synced, high_watermark=high_watermark)

    def close(self, *, high_watermark: int | None = None, writes_checkpoint: bool = True) -> None:
        """Sync, write a clean checkpoint, and close the log. Idempotent.

        The checkpoint gets `high_watermark`, or that of the last one, from which a log without
        `writes_checkpoint` is recovered. A log that has stopped gets neither sync nor checkpoint.

        Raises: LogFailed, OSError. The log is closed in any case.
        """
        if self._closed:
            return
        try:
            if self._stop_reason is None:
                self.sync()
                if high_watermark is None:
                    high_watermark = self.checkpointed_high_watermark
                if writes_checkpoint:
                    self._maintenance.save(self._synced, high_watermark=high_watermark, clean=True)
        finally:
            self._closed = True
            self._stop_reason = "closed"

    def abandon(self) -> None:
        """Close the log without sync and checkpoint: its files are to be removed. Idempotent."""
        self._closed = True
        self._stop_reason = "closed"
