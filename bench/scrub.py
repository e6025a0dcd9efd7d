"""Scrubbing a log against plain reading with CRC32C of the same bytes, in one thread each.

The log is built as ingest builds it: batches of 100 records of some 100 bytes, which is small; the
work is by batch. The plain side reads each segment in pieces of a MiB and computes one CRC of each.
The scrubber checks each batch and makes the digests of ranges. Rounds of both take turns, with
everything in the page cache, so that neither waits for the disk.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from crc32c import crc32c

from bascule.host.real import RealClock, RealFiles
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.scrub import RangeDigests
from bench.harness import report, row, work_directory

BYTES = 4 << 30
SEGMENT_BYTES = 256 << 20
BATCH_RECORDS = 100
VALUE = b"x" * 90
PIECE_BYTES = 1 << 20
ROUNDS = 5
SHARE_MIN = 0.5


def build(directory: Path, bytes_total: int) -> PartitionLog:
    log = PartitionLog.open(
        RealFiles(), str(directory), LogConfig(segment_bytes_max=SEGMENT_BYTES), RealClock()
    )
    records = [Record(n, 1_700_000_000_000, b"key", VALUE) for n in range(BATCH_RECORDS)]
    batch = build_batch(records, base_offset=0, leader_epoch=0)
    for number in range(bytes_total // len(batch)):
        batch[:8] = (number * BATCH_RECORDS).to_bytes(8, "big")
        log.append(batch)
    log.sync()
    return log


def read_plainly(directory: Path) -> float:
    start = time.perf_counter()
    for path in sorted(directory.glob("*.log")):
        with path.open("rb", buffering=0) as source:
            while piece := source.read(PIECE_BYTES):
                crc32c(piece)
    return time.perf_counter() - start


def scrub(log: PartitionLog) -> float:
    start = time.perf_counter()
    digests = RangeDigests(log.start_offset, log.end.offset)
    at = log.verify(None, digests.add)
    while at is not None:
        at = log.verify(at, digests.add)
    digests.ranges()
    seconds = time.perf_counter() - start
    assert digests.records == log.end.offset, (digests.records, log.end.offset)
    return seconds


def run(*, quick: bool = False) -> None:
    size = BYTES // 8 if quick else BYTES
    with work_directory() as directory:
        log = build(directory, size)
        megabytes = log.size_bytes() / 1e6
        # The first pair has the files read into the page cache.
        pairs = [(read_plainly(directory), scrub(log)) for _ in range(ROUNDS + 1)][1:]
    ratio = {
        "ratio": round(statistics.median(plain / scrubbed for plain, scrubbed in pairs), 3),
        "mb_per_second": [round(megabytes / scrubbed) for _, scrubbed in pairs],
        "plain_mb_per_second": [round(megabytes / plain) for plain, _ in pairs],
        "bytes": round(megabytes * 1e6),
        "batch_records": BATCH_RECORDS,
    }
    report("scrub", [row("scrub, MB/s, over plain reading with CRC32C", ratio, at_least=SHARE_MIN)])
