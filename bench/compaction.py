"""Key compaction of a large log against a plain sequential read and write of the same bytes.

The log is built as ingest builds it: batches of 1,000 records of mixed sizes with a key each, drawn
evenly from about a tenth as many keys. The plain side reads every segment and writes what it read
into one file, synced. Both begin with nothing of the log in the page cache, and neither reads
while the other does. Compaction reads everything twice and checks every CRC three times.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.record.builder import encode_record
from bascule.record.header import HEADER_BYTES, seal
from bascule.storage.compaction.run import Compaction, CompactionConfig
from bascule.storage.partition_log import LogConfig, PartitionLog
from bench.harness import in_child, reap, report, row, work_directory

BATCH_RECORDS = 1_000
VALUE_BYTES = (20, 32, 40, 48, 56, 80, 100, 136)
"""Sizes of values, an eighth of the records each: about 107 bytes a record with all around."""
KEY_PREFIX = b"customer-key-"
KEYS = 10_027_008
"""153 * 2^16 at full size: what the last three bytes of a key can be."""
PIECE_BYTES = 1 << 20
SEGMENT_BYTES = 256 << 20
MAP_BYTES = 512 << 20


class Template:
    """A batch whose keys can be written anew column by column, in C."""

    def __init__(self, sizes: list[int]) -> None:
        self.batch = bytearray(HEADER_BYTES)
        self.runs: list[tuple[int, int, int, int]] = []
        """First key's varying bytes, distance, first record, records: of one size each."""
        delta = 0
        for size in sizes:
            for _ in range(BATCH_RECORDS // len(sizes)):
                # One byte more where the offset delta takes one less: all of a run are as long.
                value = random.randbytes(size + (delta < 64))
                at = len(self.batch)
                self.batch += encode_record(
                    KEY_PREFIX + b"\0\0\0", value, [("subject", b"customers")], offset_delta=delta
                )
                self._place(at, len(self.batch) - at, delta)
                delta += 1

    def _place(self, at: int, size: int, record: int) -> None:
        key_at = self.batch.index(KEY_PREFIX, at) + len(KEY_PREFIX)
        if self.runs:
            first, distance, start, count = self.runs[-1]
            if distance == size and first + count * distance == key_at:
                self.runs[-1] = (first, distance, start, count + 1)
                return
        self.runs.append((key_at, size, record, 1))

    def filled(self, columns: list[bytes], base_offset: int, now_ms: int) -> bytearray:
        batch = self.batch
        for first, distance, start, count in self.runs:
            end = first + (count - 1) * distance + 1
            for byte, column in enumerate(columns):
                batch[first + byte : end + byte : distance] = column[start : start + count]
        seal(
            batch, record_count=BATCH_RECORDS, base_timestamp=now_ms, max_timestamp=now_ms,
            base_offset=base_offset,
        )  # fmt: skip
        return batch


def build(directory: Path, bytes_total: int, keys: int) -> PartitionLog:
    random.seed(1)
    templates = [Template(random.sample(VALUE_BYTES, len(VALUE_BYTES))) for _ in range(16)]
    first = bytes(n % (keys >> 16) for n in range(256))
    config = LogConfig(segment_bytes_max=SEGMENT_BYTES)
    log = PartitionLog.open(RealFiles(), str(directory), config, RealClock())
    offset = written = 0
    while written < bytes_total:
        high, middle, low = (random.randbytes(BATCH_RECORDS) for _ in range(3))
        columns = [high.translate(first), middle, low]
        batch = random.choice(templates).filled(columns, offset, 1_700_000_000_000 + offset)
        end = offset + BATCH_RECORDS
        log.append(batch)
        offset, written = end, written + len(batch)
    log.roll()
    log.sync()
    log.checkpoint(high_watermark=offset)
    return log


def forget(directory: Path) -> None:
    """Take every file of a directory out of the page cache."""
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def pieces(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.glob("*.log")):
        with path.open("rb", buffering=0) as source:
            while piece := source.read(PIECE_BYTES):
                yield piece


def read_plainly(directory: Path) -> float:
    forget(directory)
    start = time.perf_counter()
    for _ in pieces(directory):
        pass
    return time.perf_counter() - start


def copy_plainly(directory: Path, target: Path) -> float:
    forget(directory)
    start = time.perf_counter()
    with target.open("wb", buffering=0) as out:
        for piece in pieces(directory):
            out.write(piece)
        os.fdatasync(out.fileno())
    seconds = time.perf_counter() - start
    target.unlink()
    return seconds


def compact(directory: Path, log: PartitionLog) -> dict[str, Any]:
    forget(directory)
    start, cpu = time.perf_counter(), time.process_time()
    run = Compaction(
        RealFiles(),
        log,
        CompactionConfig(
            segment_bytes_max=SEGMENT_BYTES, tombstone_retention_ms=1_000, map_bytes_max=MAP_BYTES
        ),
        end_offset=log.end.offset,
        now_ms=RealClock().now_ms(),
        secret=RealRandom().bytes(16),
    )
    mapped = 0.0
    for _ in run.steps():
        if run.done.bytes_written == 0 and run.done.bytes_removed == 0:
            mapped = time.perf_counter() - start
    done = run.done
    peak = next(
        int(line.split()[1]) << 10
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return {
        "seconds": time.perf_counter() - start,
        "seconds_map": round(mapped, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "peak_bytes": peak,
        "keys": done.keys,
        "map_bytes": done.map_bytes,
        "bytes_read": done.bytes_read,
        "bytes_written": done.bytes_written,
        "records_removed": done.records_removed,
    }


def run(*, quick: bool) -> None:
    bytes_total, keys = (1 << 30, KEYS // 9) if quick else (10 << 30, KEYS)
    with work_directory() as work:
        directory, result = work / "log", work / "result.json"
        directory.mkdir()

        def measure() -> None:
            log = build(directory, bytes_total, keys)
            size, records = log.size_bytes(), log.end.offset
            plain = {
                "plain_seconds": copy_plainly(directory, work / "copy"),
                "read_alone_seconds": read_plainly(directory),
            }
            found = compact(directory, log)
            result.write_text(json.dumps({**found, **plain, "bytes": size, "records": records}))

        # A process of its own, so that its peak is the compaction's alone.
        reap(in_child(measure))
        found = json.loads(result.read_text())
    seconds, size = found.pop("seconds"), found["bytes"]
    ratio = {
        "ratio": round(found["plain_seconds"] / seconds, 3),
        "mb_per_second": round(size / seconds / 1e6, 1),
        "plain_mb_per_second": round(size / found["plain_seconds"] / 1e6, 1),
        "seconds": round(seconds, 2),
        "over_reading_alone": round(found["read_alone_seconds"] / seconds, 3),
        **found,
    }
    peak = {"value": found["peak_bytes"], "per_key": round(found["map_bytes"] / found["keys"], 1)}
    report(
        "compaction",
        [
            row("compaction, MB/s read, over a plain read and write", ratio, at_least=0.4),
            row("peak memory of the process, bytes", peak, at_most=1 << 30),
        ],
    )
