"""A log whose records may have payloads: what happens to records happens to their payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bascule.errors import PayloadMissing
from bascule.host.api import Buffer, Clock, File, Files
from bascule.record.batch import RecordBatch, scan_batches
from bascule.record.payload_links import PayloadLink, links_of, may_have_links
from bascule.storage.epochs import NO_EPOCHS, OFFSET_END, LeaderEpochs
from bascule.storage.maintenance import RemovedSegments, never
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog, SegmentInfo
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.recovery import Recovered
from bascule.storage.truncation.running_truncation import MakeLock

READ_BYTES: Final = 4 << 20
COMPACTED_SECONDS: Final = 10
"""Between two looks for records that compaction has removed."""


class PayloadLog(PartitionLog):
    """See the package's docstring for the promises, and `PartitionLog` for everything else."""

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
        super().__init__(files, directory, config, clock, found, make_lock)
        self.payloads = PayloadFiles(files, directory, make_lock())
        self._active_payloads = -1, -1, 0
        """The active segment, the changes of the payloads then, and the bytes of its payloads."""
        self._swept_start = -1
        self._sweep_next_ns = 0
        self._linking_from = OFFSET_END
        """The first offset of what is appended, until its payloads are linked."""
        self._relate()

    def _relate(self) -> None:
        """Link and unlink what a crash has left: checkpoints have not passed those records."""
        payloads = self.payloads
        if payloads.is_empty:
            return
        settled, end = self.checkpointed_high_watermark, self.end
        later = {link.offset: link for link in self._links(settled, end)}
        offsets = [each for each in payloads.linked_offsets() if each >= settled]
        wrong = [each for each in offsets if not self._is_at(each, later)]
        if wrong:
            payloads.unlink_from(min(wrong))
        payloads.link(later.values())

    def _is_at(self, offset: int, links: dict[int, PayloadLink]) -> bool:
        found = self.payloads.find_at(offset)
        return found is not None and offset in links and links[offset].payload == found.payload

    def _links(self, offset: int, end: LogPosition) -> list[PayloadLink]:
        """The links of the records in [offset, end). Raises: CorruptData, OSError."""
        found: list[PayloadLink] = []
        offset = max(offset, self.start_offset)
        while offset < end.offset:
            part = self.plan_read(offset, bytes_max=READ_BYTES, end=end)
            assert part is not None, "reads from the disk are allowed here"
            if part.length == 0:
                break
            data = memoryview(part.file.read_at(part.position, part.length))
            found += links_of(data, origin=part.file.path)
            offset = _end_of(data, offset)
        return found

    def append(self, batch: Buffer) -> LogPosition:
        """As `PartitionLog.append`. Raises: PayloadMissing before anything is appended."""
        if not may_have_links(batch):
            return super().append(batch)
        with self._linking(links_of(batch)):
            return super().append(batch)

    def append_as_follower(
        self, batches: Buffer, *, gaps_allowed: bool = True, told: LeaderEpochs = NO_EPOCHS
    ) -> LogPosition:
        """As `PartitionLog.append_as_follower`. Raises: PayloadMissing before that."""
        if not have_links(batches):
            return super().append_as_follower(batches, gaps_allowed=gaps_allowed, told=told)
        with self._linking(links_of(batches)):
            return super().append_as_follower(batches, gaps_allowed=gaps_allowed, told=told)

    @contextmanager
    def _linking(self, links: list[PayloadLink]) -> Iterator[None]:
        """Link payloads once their records are appended. Raises: PayloadMissing before that."""
        with self.payloads.keeping(links):
            if missing := self.payloads.missing(links):
                raise PayloadMissing(missing[0].payload.id, self.directory)
            self._linking_from = self.end.offset
            try:
                yield
                self.payloads.link(links)
            finally:
                self._linking_from = OFFSET_END

    def _settle_below(self, high_watermark: int) -> int:
        """Sync the names of payloads. The high watermark that a checkpoint may have then.

        Records are synced and committed by other threads, also before they are linked here: a
        crash would leave a checkpoint behind a record without its payload, which nobody links then.
        """
        linking_from = self._linking_from  # first: what is linked meanwhile may not be settled
        self.payloads.settle()
        return min(high_watermark, linking_from)

    def truncate_to(self, offset: int, epoch: int, *, high_watermark: int) -> LogPosition:
        """As `PartitionLog.truncate_to`; payloads of removed records are kept without a record."""
        self.payloads.settle()
        end = super().truncate_to(offset, epoch, high_watermark=high_watermark)
        self.payloads.unlink_from(end.offset)
        return end

    def start_at(self, offset: int, epoch: int) -> LogPosition:
        """As `PartitionLog.start_at`."""
        end = super().start_at(offset, epoch)
        self.payloads.unlink_from(end.offset)
        return end

    def checkpoint(self, *, high_watermark: int, breaks_off: Callable[[], bool] = never) -> bool:
        """As `PartitionLog.checkpoint`, after the names of payloads are synced."""
        below = self._settle_below(high_watermark)
        return super().checkpoint(high_watermark=below, breaks_off=breaks_off)

    def advance_start(self, offset: int, *, high_watermark: int) -> RemovedSegments:
        """As `PartitionLog.advance_start`, which writes a checkpoint."""
        below = min(max(self._settle_below(high_watermark), offset), high_watermark)
        return super().advance_start(offset, high_watermark=below)

    def close(self, *, high_watermark: int | None = None, writes_checkpoint: bool = True) -> None:
        """As `PartitionLog.close`, after the names of payloads are synced. Nobody changes payloads
        by way of this log any more."""
        try:
            if self.failure is None and writes_checkpoint:
                self.payloads.settle()
        except OSError:
            super().close(high_watermark=high_watermark, writes_checkpoint=False)
            raise
        else:
            super().close(high_watermark=high_watermark, writes_checkpoint=writes_checkpoint)
        finally:
            self.payloads.close()

    def abandon(self) -> None:
        """As `PartitionLog.abandon`."""
        super().abandon()
        self.payloads.close()

    @property
    def is_sweep_due(self) -> bool:
        """Whether `sweep` may find something."""
        is_purged = self.start_offset != self._swept_start
        if self.payloads.is_empty:
            return is_purged and self.payloads.has_lost
        if is_purged or self.payloads.has_unlinked:
            return True
        return self.gaps_allowed and self._clock.monotonic_ns() >= self._sweep_next_ns

    def sweep(self) -> int:
        """Remove the payloads of records below the log start, and of those that compaction has
        removed; return the bytes. On a thread of maintenance. Raises: CorruptData, OSError."""
        payloads, start = self.payloads, self.start_offset
        offsets = payloads.linked_offsets()
        gone = [each for each in offsets if each < start]
        now_ns = self._clock.monotonic_ns()
        if self.gaps_allowed and now_ns >= self._sweep_next_ns:
            gone += [each for each in offsets if each >= start and not self._has_record(each)]
            self._sweep_next_ns = now_ns + COMPACTED_SECONDS * 1_000_000_000
        removed = payloads.remove_linked(gone)
        payloads.forget_lost_below(start)
        self._swept_start = start
        return removed

    def size_bytes(self) -> int:
        """As `PartitionLog.size_bytes`, with the payloads of its records."""
        return super().size_bytes() + self.payloads.linked_bytes

    def sized_segments(self) -> tuple[SegmentInfo, ...]:
        """As `segments_info`, with the bytes of the payloads of their records."""
        infos = self.segments_info()
        sizes = [0] * len(infos)
        at = 0
        for offset, size in self.payloads.linked_sizes():
            while at + 1 < len(infos) and offset >= infos[at].end_offset:
                at += 1
            sizes[at] += size
        return tuple(
            info._replace(bytes=info.bytes + size) for info, size in zip(infos, sizes, strict=True)
        )

    @property
    def active_bytes(self) -> int:
        """Of the active segment and the payloads of its records."""
        base, changes = self.end.segment_base, self.payloads.changes
        known = self._active_payloads
        if known[:2] != (base, changes):
            sizes = self.payloads.linked_sizes()
            payload_bytes = sum(size for offset, size in sizes if offset >= base)
            self._active_payloads = known = base, changes, payload_bytes
        return self.end.position + known[2]

    def link_at(self, offset: int) -> PayloadLink | None:
        """What the record at an offset says of its payload; None if there is no such record, or it
        has none. Raises: CorruptData, LogFailed, Closed, OSError."""
        end = self.end
        if not self.start_offset <= offset < end.offset:
            return None
        part = self.plan_read(offset, bytes_max=1, end=end)
        assert part is not None, "reads from the disk are allowed here"
        data = memoryview(part.file.read_at(part.position, part.length))
        found = links_of(data, origin=part.file.path)
        return next((link for link in found if link.offset == offset), None)

    def named_link(self, id: str, offset: int) -> PayloadLink | None:
        """The record at an offset, if its payload has this id, and one with the id is here: maybe
        another one. May read the disk. Raises: as `link_at`."""
        found = self.payloads.find_at(offset)
        if found is not None and found.payload.id == id:
            return PayloadLink(offset, found.payload)
        link = None if self.payloads.find(id) is None else self.link_at(offset)
        return link if link is not None and link.payload.id == id else None

    def holds(self, offset: int) -> bool:
        """Whether there is a record at an offset. Raises: as `link_at`."""
        end = self.end
        if not self.start_offset <= offset < end.offset:
            return False
        part = self.plan_read(offset, bytes_max=1, end=end)
        assert part is not None, "reads from the disk are allowed here"
        data = memoryview(part.file.read_at(part.position, part.length))
        return any(
            record.offset == offset
            for _, start, stop in scan_batches(data, origin=part.file.path)
            for record in RecordBatch(data[start:stop], origin=part.file.path)
        )

    def repair(self, file: File, link: PayloadLink) -> None:
        """Put a file that has been received again in the place of a damaged or lost one.

        The caller has compared size and checksum. If the record has gone meanwhile the file is
        removed, as all are that no record names. Raises: CorruptData, OSError.
        """
        payloads = self.payloads
        if payloads.replace(file, link):
            return
        is_there = self.link_at(link.offset) == link
        payloads.finish(file, link.payload)
        if is_there:
            self._link_late(link)
            payloads.settle()

    def link_again(self, link: PayloadLink) -> None:
        """Have a payload stay as long as this record of it, too.

        Releases before this one did not note the further records of a payload. On any thread.
        Raises: as `link_at`.
        """
        payloads = self.payloads
        if payloads.find_at(link.offset) is not None or not payloads.has(link.payload):
            return
        if self.link_at(link.offset) == link:
            self._link_late(link)

    def _link_late(self, link: PayloadLink) -> None:
        """Link the payload of a record that was appended before, while others change the log."""
        payloads = self.payloads
        payloads.link([link])
        if link.offset < self.start_offset:  # it was purged meanwhile
            self._swept_start = -1
        elif self.link_at(link.offset) != link:  # it was truncated
            payloads.unlink(link)

    def _has_record(self, offset: int) -> bool:
        end = self.end
        if offset >= end.offset:
            return True
        part = self.plan_read(offset, bytes_max=1, end=end)
        assert part is not None, "reads from the disk are allowed here"
        data = memoryview(part.file.read_at(part.position, part.length))
        return any(link.offset == offset for link in links_of(data, origin=part.file.path))


def have_links(batches: Buffer) -> bool:
    """Whether a batch of whole batches, back to back, has links."""
    at, size = 0, len(batches)
    while at + 61 <= size:
        if batches[at + 21] & 0x40:
            return True
        at += 12 + int.from_bytes(batches[at + 8 : at + 12], "big")
    return False


def _end_of(batches: memoryview, offset: int) -> int:
    """The end offset of whole batches; a batch may be cut at the end of the buffer."""
    at, size, end = 0, len(batches), offset
    while at + 61 <= size:
        stop = at + 12 + int.from_bytes(batches[at + 8 : at + 12], "big")
        if stop > size:
            break
        base = int.from_bytes(batches[at : at + 8], "big")
        end = base + int.from_bytes(batches[at + 23 : at + 27], "big") + 1
        at = stop
    return end
