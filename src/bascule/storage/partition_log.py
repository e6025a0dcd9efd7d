"""One partition's log: append at the end, sync, read anywhere, survive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

from bascule.errors import Closed, FencedEpoch, LogFailed, OffsetOutOfRange
from bascule.host.api import Buffer, Clock, File, Files
from bascule.storage.appended_batches import read_stamped, refusal
from bascule.storage.compaction.swaps import Swaps
from bascule.storage.epochs import LeaderEpochs, save_epochs
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
)
from bascule.storage.segments import SegmentGone, Segments
from bascule.storage.synced_mark import SyncedMark
from bascule.storage.upkeep import Removed, Upkeep

__all__ = ["FileSlice", "LogConfig", "LogPosition", "PartitionLog", "Removed", "SegmentInfo"]

VERIFY_BYTES: Final = 8 << 20
"""Log read by one step of `verify`, so that a caller can pause between steps."""
NO_EPOCH: Final = -2
"""No batch has this leader epoch."""
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
        self._epochs = found.epochs
        self._epochs_on_disk: LeaderEpochs | None = found.epochs
        """None while a failed write leaves it open which epochs are in the file."""
        self._leader_epoch = NO_EPOCH
        """The leader epoch that may append without another look; NO_EPOCH where none may."""
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
        return self._epochs

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
        if leader_epoch != self._leader_epoch:
            self._start_epoch(leader_epoch, base_offset)
        if self._is_roll_due(size, end_offset, timestamp):
            self._roll(tail)
            tail = self._tail
        position = self._write(batch, timestamp)
        self._active.note_batch(position, base_offset, timestamp)
        self._tail = tail = tail.advanced(position + size, end_offset, timestamp)
        return tail.end

    def _start_epoch(self, number: int, start: int) -> None:
        """Put a leader epoch on the disk before its first batch. Raises: FencedEpoch, OSError."""
        latest = self._epochs.latest
        if number < latest:
            raise FencedEpoch(number, latest)
        epochs = self._epochs if number == latest else self._epochs.started(number, start)
        self._save_epochs(epochs)
        self._leader_epoch = number

    def _save_epochs(self, epochs: LeaderEpochs) -> None:
        """Put the leader epochs on the disk, unless they are there. Raises: OSError."""
        if epochs != self._epochs_on_disk:
            self._epochs_on_disk, self._leader_epoch = None, NO_EPOCH
            save_epochs(self._files, self.directory, epochs)
            self._epochs_on_disk = epochs
        self._epochs = epochs

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
        if not self.start_offset <= offset <= end.offset:
            raise OffsetOutOfRange(offset, self.start_offset, end.offset)
        try:
            return self._segments.slice(
                offset, bytes_max=bytes_max, end=end, epochs=self._epochs, nowait=nowait
            )
        except SegmentGone:
            raise OffsetOutOfRange(offset, self.start_offset, end.offset) from None

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
            try:
                return look(self.start_offset)
            except SegmentGone:
                continue

    def epoch_end(self, epoch: int, *, end: LogPosition) -> tuple[int, int]:
        """(largest epoch up to `epoch`, the offset it ends at), (-1, -1) where none is: KIP-101."""
        return self._epochs.end_of(epoch, end_offset=end.offset)

    def verify(self, start: LogPosition | None = None) -> LogPosition | None:
        """Check some synced batches from `start` (the beginning) on, every byte with its CRC.

        Returns where to go on, None when everything synced has been checked. One call reads about
        8 MiB, and always at least one batch.

        Raises: CorruptData naming file and byte, LogFailed, Closed, OSError.
        """
        self.check_open()
        return self._look(
            lambda _: self._segments.verify(
                start, synced=self._synced.end, epochs=self._epochs, bytes_max=VERIFY_BYTES
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
