"""Batches for logs under test, and reading a log back as a consumer would."""

from __future__ import annotations

from dataclasses import dataclass, field

from bascule.errors import LogFailed
from bascule.host.api import Files
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.record.builder import build_batch
from bascule.record.header import read_header
from bascule.sim.disk import SimClock
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog

DIRECTORY = "/data/streams/orders/0"


def make_batch(
    offset: int,
    count: int = 1,
    *,
    timestamp: int = 1_000,
    size: int = 20,
    leader_epoch: int = 0,
    log_append_time: bool = True,
) -> bytes:
    """`count` records of about `size` bytes whose values name their offsets."""
    records = [
        Record(offset + n, timestamp + n * (not log_append_time), None, value_of(offset + n, size))
        for n in range(count)
    ]
    return bytes(
        build_batch(
            records,
            base_offset=offset,
            leader_epoch=leader_epoch,
            log_append_time=log_append_time,
        )
    )


def value_of(offset: int, size: int) -> bytes:
    return f"value {offset} ".encode().ljust(size, b"\2")


def append(
    log: PartitionLog,
    count: int = 1,
    *,
    timestamp: int = 1_000,
    size: int = 20,
    leader_epoch: int = 0,
    log_append_time: bool = True,
) -> bytes:
    """Append one batch at the log's end and return it."""
    batch = make_batch(
        log.end.offset, count, timestamp=timestamp, size=size, leader_epoch=leader_epoch,
        log_append_time=log_append_time,
    )  # fmt: skip
    put(log, batch)
    return batch


def put(log: PartitionLog, batch: bytes) -> LogPosition:
    return log.append(batch)


def read_batches(
    log: PartitionLog, start: int | None = None, *, bytes_max: int = 1 << 20
) -> list[bytes]:
    """Every batch from `start` (the log's start) to its end, CRC checked, in order."""
    offset = log.start_offset if start is None else start
    batches = []
    while True:
        piece = log.plan_read(offset, bytes_max=bytes_max, end=log.end)
        assert piece is not None
        if piece.length == 0:
            assert offset == log.end.offset
            return batches
        data = piece.file.read_at(piece.position, piece.length)
        assert len(data) == piece.length
        found = list(scan_batches(data, origin=piece.file.path, origin_position=piece.position))
        assert found, "a read holds at least one whole batch"
        assert found[0].header.base_offset <= offset < found[0].header.end_offset
        batches += [data[batch.start : batch.end] for batch in found]
        offset = found[-1].header.end_offset


def read_records(log: PartitionLog, start: int | None = None) -> list[Record]:
    return [record for batch in read_batches(log, start) for record in RecordBatch(batch)]


def open_log(files: Files, config: LogConfig | None = None) -> PartitionLog:
    return PartitionLog.open(files, DIRECTORY, config or LogConfig(), SimClock(5_000))


@dataclass
class Witness:
    """The batches appended to a log and those confirmed, for comparison with its contents."""

    files: Files
    config: LogConfig
    batches: list[bytes] = field(default_factory=list)
    """Batches that were appended and not lost in a crash."""
    confirmed: int = 0
    """The offset that `sync` confirmed."""
    in_doubt: bytes | None = None
    """A batch whose append failed the log. It may be in the log when that is opened again."""

    def append(self, log: PartitionLog, batch: bytes) -> None:
        """Append. After a failure that does not stop the log, the log is unchanged.

        Raises: LogFailed, OSError.
        """
        before = log.end
        try:
            put(log, batch)
        except OSError:
            assert log.failure is None
            assert log.end.offset == before.offset
            raise
        except LogFailed:
            self.in_doubt = batch
            raise
        self.batches.append(batch)

    def sync(self, log: PartitionLog) -> None:
        self.confirmed = max(self.confirmed, log.sync().offset)

    def check(self, log: PartitionLog) -> None:
        """Check that the contents are a prefix of the appended batches and include the confirmed
        ones."""
        held = read_batches(log)
        known = self.batches + ([self.in_doubt] if self.in_doubt else [])
        assert held == known[: len(held)]
        assert log.end.offset >= self.confirmed
        assert log.synced == log.end, "opening leaves nothing unsynced"
        end = read_header(held[-1]).end_offset if held else 0
        assert log.end.offset == end
        self.batches = held
        self.in_doubt = None
        self.confirmed = log.end.offset
