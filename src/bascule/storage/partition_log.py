"""One partition's log: append at the end, sync, read anywhere, survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from bascule.errors import Closed, CorruptData, LogFailed, OffsetOutOfRange
from bascule.host.api import Buffer, Clock, File, Files
from bascule.storage import checkpoint as checkpoint_file
from bascule.storage import epochs as epochs_file
from bascule.storage.checkpoint import Checkpoint, encode_checkpoint, replace_file
from bascule.storage.epochs import LeaderEpochs, encode_epochs
from bascule.storage.recovery import Recovered, recover
from bascule.storage.segment import Contents, LogPosition, Segment, segment_path
from bascule.storage.segments import Segments, first_timestamp, whole_batch
from bascule.storage.sparse_index import Covered

__all__ = ["FileSlice", "LogConfig", "LogPosition", "PartitionLog"]

INDEX_INTERVAL_BYTES: Final = 4096
"""From Kafka's index.interval.bytes."""
VERIFY_BYTES: Final = 8 << 20
"""Log read by one step of `verify`, so that a caller can pause between steps."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How a log cuts itself into segments."""

    segment_bytes_max: int = 256 << 20
    segment_age_ms_max: int = 7 * 24 * 3_600_000
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    gaps_allowed: bool = False
    """Whether offsets may be missing between batches, as compaction leaves them."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes of one segment, ready for sendfile."""

    file: File
    position: int
    length: int


class _Tail(NamedTuple):
    """The end of the log with what is true up to there, published as one value."""

    end: LogPosition
    timestamp_max: int
    segment_timestamp_max: int


class PartitionLog:
    """See the package's docstring for threads and promises."""

    def __init__(
        self, files: Files, directory: str, config: LogConfig, clock: Clock, found: Recovered
    ) -> None:
        """Use `open`."""
        self._files = files
        self._clock = clock
        self._config = config
        self.directory = directory
        self._segments = Segments(
            files,
            directory,
            found.segments,
            index_interval_bytes=config.index_interval_bytes,
            gaps_allowed=config.gaps_allowed,
        )
        contents = found.segments[-1].contents
        assert contents is not None, "recovery leaves the last segment open"
        self._active: Contents = contents
        self._tail = _Tail(found.end, found.timestamp_max, contents.timestamp_max)
        self._synced = self._tail
        self._epochs = found.epochs
        self._leader_epoch = found.epochs.latest
        self._saved = found.checkpoint
        self._roll_at = first_timestamp(contents, found.end.position) + config.segment_age_ms_max
        self._stopped: str | None = None
        """Why no call may go on; None while all may."""
        self._closed = False
        self.start_offset = found.start_offset
        """The first offset readers may ask for."""
        known = found.start_offset if found.checkpoint is None else found.checkpoint.high_watermark
        self.checkpointed_high_watermark = max(min(known, found.end.offset), found.start_offset)
        """The high watermark of the last checkpoint, within the log."""

    @classmethod
    def open(cls, files: Files, directory: str, config: LogConfig, clock: Clock) -> PartitionLog:
        """Open the log in `directory`, creating it where there is none.

        Everything in it is on the disk when this returns: `synced` equals `end`.

        Raises: CorruptData naming file and byte, OSError.
        """
        found = recover(
            files,
            directory,
            index_interval_bytes=config.index_interval_bytes,
            gaps_allowed=config.gaps_allowed,
        )
        return cls(files, directory, config, clock, found)

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
    def epochs(self) -> LeaderEpochs:
        return self._epochs

    @property
    def failure(self) -> str | None:
        """Why the log stopped for good, None while it goes on."""
        return None if self._closed else self._stopped

    def size_bytes(self) -> int:
        """Bytes of all batches."""
        end = self._tail.end
        return sum(s.size for s in self._segments.all if s.base_offset < end.segment_base) + (
            end.position
        )

    def append(
        self,
        batch: Buffer,
        *,
        base_offset: int,
        end_offset: int,
        timestamp_max: int,
        leader_epoch: int,
    ) -> LogPosition:
        """Append one whole batch, its header stamped with these numbers; return the new end.

        `base_offset` is the present end; `leader_epoch` never falls. One write; nothing is on the
        disk before `sync`. Rolls the segment first where its size or age asks for it.

        Raises: OSError, the log then being what it was before; LogFailed where it could not be
        brought back to that; Closed.
        """
        if self._stopped is not None:
            raise self._refusal()
        tail = self._tail
        end = tail.end
        assert base_offset == end.offset, f"batch of offset {base_offset} at offset {end.offset}"
        if leader_epoch != self._leader_epoch:
            self._start_epoch(leader_epoch, base_offset)
        size = len(batch)
        position = end.position
        segment_timestamp_max = tail.segment_timestamp_max
        if position == 0:
            self._roll_at = timestamp_max + self._config.segment_age_ms_max
        elif position + size > self._config.segment_bytes_max or timestamp_max >= self._roll_at:
            end = self._roll(tail)
            position, segment_timestamp_max = 0, -1
            self._roll_at = timestamp_max + self._config.segment_age_ms_max
        active = self._active
        try:
            active.file.append(batch)
        except OSError as error:
            self._take_back(active.file, position, error)
            raise
        active.note_batch(position, base_offset, timestamp_max)
        end = LogPosition(end_offset, end.segment_base, position + size)
        self._tail = _Tail(
            end,
            max(timestamp_max, tail.timestamp_max),
            max(timestamp_max, segment_timestamp_max),
        )
        return end

    def _start_epoch(self, leader_epoch: int, base_offset: int) -> None:
        """Put a new leader epoch on the disk before its first batch: recovery relies on it."""
        epochs = self._epochs.started(leader_epoch, base_offset)
        path = f"{self.directory}/{epochs_file.FILE_NAME}"
        replace_file(self._files, path, encode_epochs(epochs))
        self._epochs = epochs
        self._leader_epoch = leader_epoch

    def _roll(self, tail: _Tail) -> LogPosition:
        """Start a new segment at the end. Neither is synced here: `sync` does both, in order."""
        end = tail.end
        path = segment_path(self.directory, end.offset)
        contents = Contents(self._files.open(path, create=True), self._config.index_interval_bytes)
        if (found := contents.file.size()) > 0:
            raise CorruptData(path, 0, "no such file", f"{found} bytes")
        self._segments.all[-1].size = end.position
        self._segments.add(Segment(end.offset, 0, contents))
        self._active = contents
        rolled = LogPosition(end.offset, end.offset, 0)
        self._tail = _Tail(rolled, tail.timestamp_max, -1)
        return rolled

    def _take_back(self, file: File, position: int, error: OSError) -> None:
        """Remove what a failed append left behind the last batch.

        Raises: LogFailed where that fails, too.
        """
        try:
            file.truncate(position)
        except OSError as second:
            cause = f"append failed ({error}) and could not be taken back ({second})"
            raise self._stop(cause) from error

    def _stop(self, cause: str) -> LogFailed:
        self._stopped = cause
        return LogFailed(self.directory, cause)

    def _refusal(self) -> LogFailed | Closed:
        if self._closed:
            return Closed(f"log {self.directory} is closed")
        return LogFailed(self.directory, str(self._stopped))

    def sync(self) -> LogPosition:
        """Put everything appended before the call on the disk; return up to where that is.

        Raises: LogFailed, also by every later call, Closed.
        """
        if self._stopped is not None:
            raise self._refusal()
        tail, synced = self._tail, self._synced
        if tail.end == synced.end:
            return synced.end
        try:
            for segment in self._segments.between(synced.end, tail.end):
                assert segment.contents is not None, "segments stay open until they are synced"
                segment.contents.file.sync()
            if tail.end.segment_base != synced.end.segment_base:
                self._files.sync_dir(self.directory)
        except OSError as error:
            raise self._stop(f"sync failed: {error}") from error
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
        if self._stopped is not None:
            raise self._refusal()
        if not self.start_offset <= offset <= end.offset:
            raise OffsetOutOfRange(offset, self.start_offset, end.offset)
        found = self._segments.find(offset, end=end, nowait=nowait)
        if found is None:
            return None
        file, place, limit = found
        length = min(bytes_max, limit - place.position)
        if place.position + length < place.end:
            whole = whole_batch(file, place.position, limit, length, nowait)
            if whole is None:
                return None
            length = whole
        return FileSlice(file, place.position, length)

    def find_timestamp(self, timestamp: int, *, end: LogPosition) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record below `end` of at least `timestamp`, in ms.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        if self._stopped is not None:
            raise self._refusal()
        return self._segments.first_at(timestamp, start_offset=self.start_offset, end=end)

    def find_timestamp_max(self, *, end: LogPosition) -> tuple[int, int] | None:
        """(offset, timestamp) of the first of the latest records below `end`; None: no record.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        if self._stopped is not None:
            raise self._refusal()
        if end.offset <= self.start_offset:
            return None
        largest = self._segments.timestamp_max(end=end)
        return self._segments.first_at(largest, start_offset=self.start_offset, end=end)

    def epoch_end(self, epoch: int, *, end: LogPosition) -> tuple[int, int]:
        """(largest epoch up to `epoch`, the offset it ends at), (-1, -1) where none is: KIP-101."""
        return self._epochs.end_of(epoch, end_offset=end.offset)

    def verify(self, start: LogPosition | None = None) -> LogPosition | None:
        """Check some synced batches from `start` (the beginning) on, every byte with its CRC.

        Returns where to go on, None when everything synced has been checked. One call reads about
        8 MiB, and always at least one batch.

        Raises: CorruptData naming file and byte, LogFailed, Closed, OSError.
        """
        if self._stopped is not None:
            raise self._refusal()
        synced = self._synced.end
        if start is None:
            base = self._segments.all[0].base_offset
            start = LogPosition(base, base, 0)
        segment, following = self._segments.at(start.segment_base)
        contents = self._segments.open(segment, following)
        limit = synced.position if segment.base_offset == synced.segment_base else segment.size
        position, offset, damage = Contents(contents.file, limit + 1).scan(
            start=start.position,
            end=limit,
            offset=start.offset,
            epochs=self._epochs,
            gaps_allowed=self._config.gaps_allowed,
            bytes_max=VERIFY_BYTES,
        )
        if damage is not None:
            raise damage
        if position < limit:
            return LogPosition(offset, segment.base_offset, position)
        if following is None or following.base_offset > synced.segment_base:
            return None
        return LogPosition(following.base_offset, following.base_offset, 0)

    def checkpoint(self, *, high_watermark: int) -> None:
        """Bring index files and checkpoint file up to what is synced; recovery starts there.

        Does nothing where nothing has changed. Runs on the syncing thread.

        Raises: OSError, the log going on with its older checkpoint; LogFailed, Closed.
        """
        if self._stopped is not None:
            raise self._refusal()
        self._save(high_watermark, clean=False)
        self._segments.put_away(self._synced.end)

    def _save(self, high_watermark: int, *, clean: bool) -> None:
        synced = self._synced
        end = synced.end
        segments = self._segments.all
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            contents = segment.contents
            if contents is None or segment.base_offset > end.segment_base:
                continue
            if segment.base_offset == end.segment_base:
                covered = Covered(end.position, end.offset, synced.segment_timestamp_max)
            else:
                assert following is not None, "the segment synced last is not the first"
                covered = Covered(segment.size, following.base_offset, contents.timestamp_max)
            if not contents.is_saved(covered.position):
                final = segment.base_offset < end.segment_base
                contents.save_indexes(
                    self._files, self.directory, segment.base_offset, covered, sync=final or clean
                )
        saved = Checkpoint(
            clean, high_watermark, end.offset, end.segment_base, end.position,
            self.start_offset, synced.timestamp_max, self._clock.now_ms(),
        )  # fmt: skip
        if self._saved is not None and self._saved._replace(written_ms=saved.written_ms) == saved:
            return
        path = f"{self.directory}/{checkpoint_file.FILE_NAME}"
        replace_file(self._files, path, encode_checkpoint(saved))
        self._saved = saved
        self.checkpointed_high_watermark = high_watermark

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
                self._save(high_watermark, clean=True)
        finally:
            self._closed = True
            self._stopped = "closed"
