"""Logs of records with keys, and what compaction should leave of them: worked out on dicts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bascule.host.api import Files
from bascule.model import Compression
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.record.builder import build_batch
from bascule.record.compression import compress_batch, decompress_batch
from bascule.record.header import CONTROL, LOG_APPEND_TIME, batch_crc, read_header
from bascule.storage.compaction.batch_filter import NO_OFFSET_MAX
from bascule.storage.compaction.run import Compaction, CompactionConfig, CompactionProgress
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import open_log, put

DELETE_HORIZON = 0x40
SECRET = bytes(range(16))
RETENTION_MS = 1_000


@dataclass(frozen=True)
class Stored:
    """One batch as the model knows it."""

    records: tuple[Record, ...]
    end_offset: int
    """Where it ended when it was written."""
    append_time: bool = True
    control: bool = False
    horizon_ms: int | None = None
    codec: Compression = Compression.NONE

    @property
    def base_offset(self) -> int:
        return self.records[0].offset

    def encode(self) -> bytes:
        batch = build_batch(
            self.records, base_offset=self.base_offset, log_append_time=self.append_time
        )
        out = bytearray(compress_batch(memoryview(batch), self.codec))
        out[22] |= (LOG_APPEND_TIME if self.append_time else 0) | (CONTROL if self.control else 0)
        out[17:21] = batch_crc(out).to_bytes(4, "big")
        return bytes(out)


@dataclass
class Model:
    """What a log holds. `batches` keep the base offsets they had, whatever is left of them."""

    batches: dict[int, Stored] = field(default_factory=dict)
    clean_offset: int = 0
    start_offset: int = 0

    def records(self) -> list[Record]:
        return [r for _, b in sorted(self.batches.items()) for r in b.records]

    def compact(
        self,
        end_offset: int,
        now_ms: int,
        *,
        retention_ms: int = RETENTION_MS,
        tail: int | None = None,
    ) -> None:
        """As a run up to `end_offset` does; `tail` is the log's end where nothing follows."""
        start = max(self.clean_offset, self.start_offset)
        newest: dict[bytes, int] = {}
        for _, batch in sorted(self.batches.items()):
            if start < batch.end_offset <= end_offset and not batch.control:
                newest.update({r.key: r.offset for r in batch.records if r.key is not None})
        for base in [base for base in self.batches if base < end_offset]:
            self._compact_batch(base, newest, now_ms, retention_ms, tail)
        self.clean_offset = max(end_offset, start)

    def _compact_batch(
        self,
        base: int,
        newest: dict[bytes, int],
        now_ms: int,
        retention_ms: int,
        tail: int | None,
    ) -> None:
        batch = self.batches[base]
        if batch.control:
            return
        over = (
            batch.horizon_ms is not None and now_ms >= batch.horizon_ms and batch.end_offset != tail
        )
        kept = tuple(
            r
            for r in batch.records
            if r.offset >= self.start_offset
            and (r.key is None or newest.get(r.key, -1) <= r.offset)
            and not (r.key is not None and r.value is None and over)
        )
        if not kept:
            del self.batches[base]
            return
        horizon = batch.horizon_ms
        deletes = any(r.key is not None and r.value is None for r in kept)
        if horizon is None and batch.append_time and deletes:
            horizon = now_ms + retention_ms
        self.batches[base] = replace(batch, records=kept, horizon_ms=horizon)

    def horizon_ms(self, *, now_ms: int = 0, tail: int | None = None) -> int | None:
        """The earliest horizon of a tombstone below the clean offset; not the tail's, once past."""
        horizons = [
            batch.horizon_ms
            for base, batch in self.batches.items()
            if base < self.clean_offset
            and batch.horizon_ms is not None
            and (batch.end_offset != tail or now_ms < batch.horizon_ms)
            and any(r.key is not None and r.value is None for r in batch.records)
        ]
        return min(horizons, default=None)


def tail_of(log: PartitionLog) -> int:
    """Where the synced part of the log ends: the batch that ends there keeps its tombstones."""
    return log.synced.offset


def append_keyed(
    log: PartitionLog,
    model: Model,
    pairs: list[tuple[bytes | None, bytes | None]],
    *,
    timestamp: int = 1_000,
    append_time: bool = True,
    control: bool = False,
    codec: Compression = Compression.NONE,
) -> None:
    """Append one batch of these keys and values to the log and to the model."""
    offset = log.end.offset
    records = tuple(
        Record(offset + n, timestamp, key, value, (("subject", b"s"),))
        for n, (key, value) in enumerate(pairs)
    )
    stored = Stored(records, offset + len(pairs), append_time, control, codec=codec)
    put(log, stored.encode())
    model.batches[offset] = stored


def close_segment(log: PartitionLog) -> None:
    """End the active segment and put it below the recovery point."""
    log.roll()
    log.sync()
    log.checkpoint(high_watermark=log.end.offset)


def closed_end(log: PartitionLog) -> int:
    """Where the segments end that may be compacted."""
    return max((end for _, end in log.replacement.closed_segments()), default=0)


def compaction(
    files: Files,
    log: PartitionLog,
    *,
    now_ms: int,
    end_offset: int | None = None,
    committed_end: int = NO_OFFSET_MAX,
    map_bytes_max: int = 1 << 20,
    retention_ms: int = RETENTION_MS,
    segment_bytes_max: int = 2_000,
) -> Compaction:
    config = CompactionConfig(
        segment_bytes_max=segment_bytes_max,
        tombstone_retention_ms=retention_ms,
        index_interval_bytes=200,
        map_bytes_max=map_bytes_max,
    )
    end = closed_end(log) if end_offset is None else end_offset
    return Compaction(
        files, log, config, end_offset=end, now_ms=now_ms, secret=SECRET,
        committed_end=committed_end,
    )  # fmt: skip


def compact(files: Files, log: PartitionLog, *, now_ms: int, **options: int) -> CompactionProgress:
    run = compaction(files, log, now_ms=now_ms, **options)
    for _ in run.steps():
        pass
    return run.done


CONFIG = LogConfig(segment_bytes_max=2_000, index_interval_bytes=200)


def open_keyed(files: Files) -> PartitionLog:
    return open_log(files, CONFIG)


def held_batches(log: PartitionLog) -> list[bytes]:
    """Every batch from the log's start on, as a consumer reads them: gaps are passed over."""
    offset = log.start_offset
    batches = []
    while offset < log.end.offset:
        piece = log.plan_read(offset, bytes_max=1 << 20, end=log.end)
        assert piece is not None
        if piece.length == 0:
            break
        data = piece.file.read_at(piece.position, piece.length)
        for header, start, stop in scan_batches(data):
            assert header.end_offset > offset
            batches.append(data[start:stop])
            offset = header.end_offset
    return batches


def held(log: PartitionLog) -> list[Record]:
    """Every record from the log's start on."""
    records = [record for batch in held_batches(log) for record in RecordBatch(batch)]
    return [record for record in records if record.offset >= log.start_offset]


def check(log: PartitionLog, model: Model) -> None:
    """The log holds what the model says, in batches that begin and end where they did."""
    expected = [r for r in model.records() if r.offset >= log.start_offset]
    assert held(log) == expected
    first = (expected[0].offset, 1_000) if expected else None
    assert log.find_timestamp(1_000, end=log.end) == first
    assert log.find_timestamp_max(end=log.end) == first
    for data in held_batches(log):
        header = read_header(data)
        batch = model.batches[header.base_offset]
        assert header.record_count == len(batch.records)
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        assert horizon == batch.horizon_ms
        assert header.max_timestamp == 1_000
        assert times_by_deltas(data) == {1_000}


def times_by_deltas(data: bytes) -> set[int]:
    """The timestamps of a batch for a reader that ignores LogAppendTime."""
    plain = bytearray(decompress_batch(data, origin="x"))
    plain[22] &= ~LOG_APPEND_TIME
    return {record.timestamp for record in RecordBatch(bytes(plain))}


def verify_all(log: PartitionLog) -> None:
    at = log.verify(None)
    while at is not None:
        at = log.verify(at)
