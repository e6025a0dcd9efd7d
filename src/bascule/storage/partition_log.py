"""One partition's log: append at the end, sync, read anywhere, survive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeVar

from bascule.errors import Closed, CorruptData, LogFailed, OffsetOutOfRange
from bascule.host.api import Buffer, Clock, File, Files
from bascule.storage.appended_batches import (
    check_replicated,
    first_header,
    mark_gaps,
    read_stamped,
    refusal,
)
from bascule.storage.compaction.clean_offset import lower_clean_offset
from bascule.storage.compaction.swaps import Swaps
from bascule.storage.epochs import EpochFile, LeaderEpochs
from bascule.storage.recovery import Recovered, recover
from bascule.storage.segment import (
    Contents,
    FileSlice,
    LogConfig,
    LogPosition,
    Segment,
    SegmentInfo,
    Stillborn,
    Tail,
    begin_segment,
    segment_path,
)
from bascule.storage.segments import SegmentGone, Segments
from bascule.storage.synced_mark import SyncedMark
from bascule.storage.truncation import reset
from bascule.storage.truncation.cut import cut_files, kept_segments, new_path, plan_cut
from bascule.storage.upkeep import Removed, Upkeep

__all__ = ["FileSlice", "LogConfig", "LogPosition", "PartitionLog", "Removed", "SegmentInfo"]

VERIFY_BYTES: Final = 8 << 20
"""Log read by one step of `verify`, so that a caller can pause between steps."""
UNGUARDED: Final[AbstractContextManager[object]] = nullcontext()
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
        guard: AbstractContextManager[object],
    ) -> None:
        """Use `open`."""
        self._files = files
        self._config = config
        self._clock = clock
        self.directory = directory
        self._segments = Segments(
            files, directory, found.segments,
            index_interval_bytes=config.index_interval_bytes,
            gaps_allowed=found.gaps_allowed, guard=guard,
        )  # fmt: skip
        contents = found.segments[-1].contents
        assert contents is not None, "recovery leaves the last segment open"
        self._active: Contents = contents
        self._tail = Tail(found.end, found.timestamp_max, contents.timestamp_max)
        self._synced = self._tail
        self._mark = SyncedMark(files, directory)
        if found.mark_is_old and found.end.offset > found.start_offset:
            self._mark.write(found.end)
            self._mark.release()
        self.cut_bytes = found.cut_bytes
        """Removed behind the last whole batch when the log was opened; never synced."""
        self._epochs = EpochFile(files, directory, found.epochs)
        self._gaps_marked = found.gaps_marked
        self.replaced = 0
        """Counts truncations and resets: odd while one is under way."""
        self._upkeep = Upkeep(
            files, directory, clock, self._segments,
            saved=found.checkpoint, start_offset=found.start_offset,
        )  # fmt: skip
        self.swaps = Swaps(files, directory, self._segments, self._upkeep)
        self._begun = contents.first_timestamp(found.end.position)
        """Timestamp of the active segment's first batch."""
        self._stopped: str | None = None
        """Why no call may go on; None while all may."""
        self._closed = False

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        config: LogConfig,
        clock: Clock,
        *,
        guard: AbstractContextManager[object] = UNGUARDED,
    ) -> PartitionLog:
        """Open the log in `directory`, creating it where there is none.

        Everything in it is on the disk when this returns: `synced` equals `end`. `guard`, a lock
        where several threads change the log, is held for a few lines at a time.

        Raises: CorruptData naming file and byte, OSError.
        """
        found = recover(
            files,
            directory,
            index_interval_bytes=config.index_interval_bytes,
            gaps_allowed=config.gaps_allowed,
        )
        return cls(files, directory, config, clock, found, guard)

    @property
    def start_offset(self) -> int:
        """The first offset readers may ask for."""
        return self._upkeep.start_offset

    @property
    def checkpointed_high_watermark(self) -> int:
        """The high watermark of the last checkpoint, within the log."""
        return max(min(self._upkeep.high_watermark, self.end.offset), self.start_offset)

    @property
    def end(self) -> LogPosition:
        """After the last appended batch."""
        return self._tail.end

    @property
    def synced(self) -> LogPosition:
        """Everything before it is on the disk."""
        return self._synced.end

    @property
    def timestamp_max(self) -> int:
        """The largest timestamp in the log, -1 while it is empty."""
        return self._tail.timestamp_max

    @property
    def active_since_ms(self) -> int:
        """Timestamp of the active segment's first batch; of no meaning while it is empty."""
        return self._begun

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epochs.epochs

    @property
    def failure(self) -> str | None:
        """Why the log stopped for good, None while it goes on."""
        return None if self._closed else self._stopped

    def size_bytes(self) -> int:
        """Bytes of all batches in the log's files, those of the first segment that lie below
        `start_offset` included."""
        return self._segments.bytes_before_last + self._tail.end.position

    def segments_info(self) -> tuple[SegmentInfo, ...]:
        """Every segment, oldest first; nothing is read for it."""
        return self._segments.infos(self._tail)

    def learn_times(self, below: int) -> None:
        """Look up the largest timestamp of each segment from the oldest on, so that
        `segments_info` knows it, up to the first segment with one of at least `below`.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        self._look(lambda _: self._segments.learn_times(self._tail, below))

    def configure(self, config: LogConfig) -> None:
        """Go on with another segment size or age; gaps, once allowed, stay so. From any thread."""
        self._segments.gaps_allowed |= config.gaps_allowed
        self._config = config

    def allow_gaps(self) -> None:
        """From now on offsets may be missing between batches: compaction begins."""
        self._segments.gaps_allowed = True

    def append(self, batch: Buffer) -> LogPosition:
        """Append one whole batch that this node stamped as the leader; return the new end.

        Its header gives base offset, end offset, leader epoch and timestamp: the base offset is
        the log's end, the leader epoch never decreases. The CRC is the caller's. One write; nothing
        is on the disk before `sync`. Rolls the segment first where its size or age asks for it.

        Raises: UnexpectedOffset, FencedEpoch where the log has a later leader epoch, CorruptData
        where the header does not describe `batch`, OSError, the log then being what it was before;
        LogFailed where it could not be brought back to that; Closed.
        """
        self.check_open()
        tail = self._tail
        size = len(batch)
        base_offset, end_offset, leader_epoch, timestamp = read_stamped(batch, size)
        if base_offset != tail.end.offset:
            raise refusal(batch, tail.end.offset, self.directory)
        if leader_epoch != self._epochs.writer:
            self._epochs.start(leader_epoch, base_offset)
        if self._is_roll_due(size, end_offset, timestamp):
            self._roll(tail)
            tail = self._tail
        position = self._write(batch, timestamp)
        self._active.note_batch(position, base_offset, timestamp)
        self._tail = tail = tail.advanced(position + size, end_offset, timestamp)
        return tail.end

    def append_as_follower(self, batches: Buffer) -> LogPosition:
        """Append whole batches, back to back, as the leader's log has them; return the new end.

        Offsets, leader epochs and times stay what they are. The first base offset is the log's end
        or, like each later one, beyond it where compaction left a gap on the leader. Every CRC is
        checked. All of them or none, in one write to one segment, which the first batch's size and
        age begin; nothing is on the disk before `sync`.

        Raises: UnexpectedOffset where a batch begins below the end of the one before it,
        UnexpectedEpoch where its leader epoch is lower, CorruptData where it is cut short or its
        bytes are wrong, OSError, the log then being what it was before; LogFailed where it could
        not be brought back to that; Closed.
        """
        self.check_open()
        data = memoryview(batches)
        size = len(data)
        if size == 0:
            return self.end
        first = first_header(data, self.directory)
        rolls = self._is_roll_due(size, first.end_offset, first.max_timestamp)
        contents, tail = self._active, self._tail
        checked = check_replicated(
            data,
            offset=tail.end.offset,
            epochs=self.epochs,
            origin=0 if rolls else tail.end.position,
            timestamp_max=-1 if rolls else contents.timestamp_max,
            next_entry_at=0 if rolls else contents.next_entry_at,
            index_interval_bytes=contents.index_interval_bytes,
            directory=self.directory,
        )
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
            self._epochs.take_back(before)
            raise
        self._active.note_checked(checked.entries, checked.timestamp_max, checked.next_entry_at)
        self._tail = self._tail.advanced(position + size, checked.end_offset, checked.timestamp_max)
        return self._tail.end

    def truncate_to(self, offset: int, epoch: int, *, high_watermark: int) -> LogPosition:
        """Cut the log so that it ends at `offset`; return its end. KIP-101, KIP-279.

        Where `offset` lies within a batch, that batch goes as a whole and the log ends at its base
        offset. Where the log ends at or before `offset`, no batch goes. Leader epochs that begin at
        the new end or later go in any case. On return all of that is on the disk, `synced` equals
        `end`, and the checkpoint's high watermark is `high_watermark`. After a crash before that
        the log ends at a batch boundary between there and where it ended.

        `epoch` is the leader epoch of the leader for whose sake the log is cut. It is a fence: no
        lower than the latest epoch of the log or than that of an earlier call, and until the log is
        closed `append` refuses batches of a lower one. `high_watermark` is the first offset that
        is not committed: nothing below it goes.

        For the appending thread, and never beside `sync`, `checkpoint`, `advance_start` or a
        replacement of segments. Readers may run beside it: the slices that they hold give the bytes
        of before, or end early. Positions beyond the new end are void.

        Raises: FencedEpoch; OffsetOutOfRange where the log would end below its start or
        `high_watermark`: `start_at` is for that; CorruptData, OSError, the log then being what it
        was before; LogFailed where a part was done: open the log again; Closed.
        """
        self.check_open()
        self._epochs.pass_fence(epoch)
        end = self.sync()
        least = max(self.start_offset, high_watermark)
        cut = None
        if least <= offset < end.offset:
            cut = self._look(lambda _: plan_cut(self._segments, offset, self._tail))
        new_end = min(offset, end.offset) if cut is None else cut.end.offset
        if new_end < least:
            raise OffsetOutOfRange(offset, least, end.offset)
        if cut is None:
            self._epochs.save(self.epochs.before(new_end))
            return end
        self.swaps.settle_doubt()
        lower_clean_offset(self._files, self.directory, new_end)
        self._upkeep.save_truncated(cut.tail, high_watermark=high_watermark)
        self._mark.lower(cut.end)
        file = self._files.open(new_path(self.directory, new_end), create=True)
        try:
            later = [s.base_offset for s in self._segments.all if s.base_offset > cut.end[1]]
            with self._replacing():
                self._epochs.save(self.epochs.before(new_end))
                kept = kept_segments(self._segments, cut)
                self._begin_again(kept, file, new_end, cut.tail.timestamp_max)
                cut_files(self._files, self.directory, cut, later)
                self._active.file = self._files.open(segment_path(self.directory, new_end))
        except OSError as error:
            cause = f"truncation to offset {new_end} failed: {error}"
            raise self._stop(cause) from error
        return self.end

    def start_at(self, offset: int, epoch: int) -> LogPosition:
        """Throw the whole log away and begin an empty one at `offset`; return its end.

        For a replica whose log ends below its leader's start. On return that is on the disk: start,
        end, `synced` and the checkpoint's high watermark are `offset`, and there is no leader
        epoch. After a crash before that it is the log of before or the empty one. `epoch`, threads
        and readers: as for `truncate_to`.

        Raises: FencedEpoch, OSError, the log then being what it was before; LogFailed where it is
        not known which it is: open the log again; Closed.
        """
        self.check_open()
        self._epochs.pass_fence(epoch)
        checkpoint = reset.empty_log(offset, now_ms=self._clock.now_ms())
        file = self._files.open(new_path(self.directory, offset), create=True)
        try:
            reset.commit(self._files, self.directory, checkpoint)
        except OSError as error:
            try:
                reset.undo(self._files, self.directory)
            except OSError as second:
                cause = f"reset to offset {offset} failed ({error}) and its undoing ({second})"
                raise self._stop(cause) from error
            raise
        try:
            with self._replacing():
                self._begin_again((), file, offset, -1)
                self._epochs.reset()
                self._upkeep.reset(checkpoint)
                reset.finish(self._files, self.directory)
                self._active.file = self._files.open(segment_path(self.directory, offset))
        except OSError as error:
            raise self._stop(f"reset to offset {offset} failed: {error}") from error
        self._gaps_marked = False
        self._segments.gaps_allowed = self._config.gaps_allowed
        self.swaps.reset()
        self._mark.release()
        return self.end

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        """Segments are replaced within: `replaced` is odd meanwhile, and another number after."""
        self.replaced += 1
        yield
        self.replaced += 1

    def _begin_again(
        self, kept: Sequence[Segment], file: File, offset: int, timestamp_max: int
    ) -> None:
        """Let readers and appends see `kept` and a new segment behind it, all of it synced."""
        contents = Contents(file, self._config.index_interval_bytes)
        self._segments.end_at(kept, Segment(offset, 0, contents))
        self._active = contents
        self._synced = self._tail = Tail(LogPosition(offset, offset, 0), timestamp_max, -1)

    def _is_roll_due(self, size: int, end_offset: int, timestamp: int) -> bool:
        """Whether `size` bytes up to `end_offset` go to a new segment."""
        end, config = self._tail.end, self._config
        return end.position > 0 and (
            end.position + size > config.segment_bytes_max
            or end_offset - end.segment_base > config.segment_messages_max
            or timestamp - self._begun >= config.segment_age_ms_max
        )

    def _write(self, data: Buffer, timestamp: int) -> int:
        """Write batches at the end, the first with `timestamp`; return the position they are at.

        Raises: OSError, LogFailed.
        """
        position = self._tail.end.position
        if position == 0:
            self._begun = timestamp
        try:
            self._active.file.append(data)
        except OSError as error:
            self._take_back(self._active.file, position, error)
            raise
        return position

    def roll(self) -> LogPosition:
        """End the active segment now, whatever its size and age; return the log's end.

        Called by the appending thread. An empty active segment stays.

        Raises: OSError, the log then being what it was before; CorruptData, LogFailed, Closed.
        """
        self.check_open()
        return self.end if self.end.position == 0 else self._roll(self._tail)

    def _roll(self, tail: Tail) -> LogPosition:
        """Start a new segment at the end. Neither is synced here: `sync` does both, in order."""
        end = tail.end
        try:
            contents = begin_segment(
                self._files, self.directory, end.offset, self._config.index_interval_bytes
            )
        except Stillborn as error:
            raise self._stop(str(error)) from error
        self._segments.roll(end.position, Segment(end.offset, 0, contents))
        self._active = contents
        rolled = LogPosition(end.offset, end.offset, 0)
        self._tail = Tail(rolled, tail.timestamp_max, -1)
        return rolled

    def _take_back(self, file: File, position: int, error: OSError) -> None:
        """Remove what a failed append left behind. Raises: LogFailed where that fails, too."""
        try:
            file.truncate(position)
        except OSError as second:
            cause = f"append failed ({error}) and could not be taken back ({second})"
            raise self._stop(cause) from error

    def _stop(self, cause: str) -> LogFailed:
        self._stopped = cause
        return LogFailed(self.directory, cause)

    def check_open(self) -> None:
        """Raises: LogFailed, Closed where no call may go on."""
        if self._stopped is None:
            return
        if self._closed:
            raise Closed(f"log {self.directory} is closed")
        raise LogFailed(self.directory, self._stopped)

    def sync(self) -> LogPosition:
        """Put everything appended before the call on the disk; return up to where that is.

        Raises: LogFailed, also by every later call, Closed.
        """
        self.check_open()
        tail, synced = self._tail, self._synced
        if tail.end == synced.end:
            return synced.end
        try:
            self._segments.sync(synced.end, tail.end)
        except OSError as error:
            raise self._stop(f"sync failed: {error}") from error
        self._mark.write(tail.end)
        self._synced = tail
        return tail.end

    def plan_read(
        self, offset: int, *, bytes_max: int, end: LogPosition, nowait: bool = False
    ) -> FileSlice | None:
        """Plan a read from `offset`: bytes of one segment, to be sent or read by the caller.

        The slice starts at the batch that holds `offset`, so possibly below it, and ends after
        `bytes_max` bytes, at `end` or with its segment, whichever comes first; it may end inside a
        batch but never inside its first one. It is empty at `end`. With `nowait`, None where the
        disk would have to be asked: repeat on a thread.

        Raises: OffsetOutOfRange, CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        replaced = self.replaced
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
            if not self._was_replaced_since(replaced):
                raise
        raise OffsetOutOfRange(offset, self.start_offset, self.end.offset)

    def find_timestamp(self, timestamp: int, *, end: LogPosition) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record below `end` of at least `timestamp`, in ms.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        return self._look(
            lambda start: self._segments.first_at(timestamp, start_offset=start, end=end)
        )

    def find_timestamp_max(self, *, end: LogPosition) -> tuple[int, int] | None:
        """(offset, timestamp) of the first of the latest records below `end`; None: no record.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        self.check_open()
        return self._look(lambda start: self._segments.last_peak(start_offset=start, end=end))

    def _look(self, look: Callable[[int], _Found]) -> _Found:
        """Look something up from the log's start on, again where segments go meanwhile."""
        while True:
            replaced = self.replaced
            try:
                return look(self.start_offset)
            except SegmentGone:
                continue
            except (CorruptData, FileNotFoundError):
                if not self._was_replaced_since(replaced):
                    raise
                self.check_open()

    def _was_replaced_since(self, replaced: int) -> bool:
        """Whether what was read since may have been the end of a file that was cut."""
        return replaced % 2 == 1 or self.replaced != replaced

    def epoch_end(self, epoch: int, *, end: LogPosition) -> tuple[int, int]:
        """(largest epoch up to `epoch`, the offset it ends at), (-1, -1) where none is: KIP-101."""
        return self.epochs.end_of(epoch, end_offset=end.offset)

    def verify(self, start: LogPosition | None = None) -> LogPosition | None:
        """Check some synced batches from `start` (the beginning) on, every byte with its CRC.

        Returns where to go on, None when everything synced has been checked. One call reads about
        8 MiB, and always at least one batch.

        Raises: CorruptData naming file and byte, LogFailed, Closed, OSError.
        """
        self.check_open()
        return self._look(
            lambda _: self._segments.verify(
                start, synced=self._synced.end, epochs=self.epochs, bytes_max=VERIFY_BYTES
            )
        )

    def checkpoint(self, *, high_watermark: int) -> None:
        """Bring index files and checkpoint file up to what is synced; recovery starts there.

        Does nothing where nothing has changed. Never beside `advance_start` or another checkpoint.

        Raises: OSError, the log going on with its older checkpoint; LogFailed, Closed.
        """
        self.check_open()
        self._upkeep.save(self._synced, high_watermark=high_watermark, clean=False)
        self._mark.release()
        if self.swaps.is_settled:
            self._segments.put_away(self._synced.end)

    def advance_start(self, offset: int, *, high_watermark: int) -> Removed:
        """Let the log begin at `offset`, or at what is synced and committed where that is less.

        On return the new start is on the disk, and the files of whole segments below it are gone;
        after a crash before that, the log begins where it began or there. Never goes back. Readers
        keep the slices they hold. Never beside `checkpoint` or another `advance_start`.

        Raises: OSError, where the log begins as before or the rest of the files goes with the next
        call; LogFailed, Closed.
        """
        self.check_open()
        return self._upkeep.advance_start(offset, self._synced, high_watermark=high_watermark)

    def close(self, *, high_watermark: int | None = None) -> None:
        """Sync, write a checkpoint that says so, and let go of the files. Twice is harmless.

        `high_watermark` goes into the checkpoint; without it, the last checkpoint's does. A log
        that has stopped is let go of as it is.

        Raises: LogFailed, OSError; the log is closed even so.
        """
        if self._closed:
            return
        try:
            if self._stopped is None:
                self.sync()
                if high_watermark is None:
                    high_watermark = self.checkpointed_high_watermark
                self._upkeep.save(self._synced, high_watermark=high_watermark, clean=True)
        finally:
            self._closed = True
            self._stopped = "closed"
