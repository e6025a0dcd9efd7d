"""Decoding v2 batches of 128 B records to Arrow columns, on one core."""

from __future__ import annotations

import statistics
import time

from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.columns import decode_batches
from bascule.record.header import stamp
from bench.harness import report, row

BATCH_RECORDS = 1_600
"""About 256 KiB: what ingest makes of one full receive."""
FETCH_BATCHES = 8


def run(*, quick: bool = False) -> None:
    records = [
        Record(i, 1_700_000_000_000, None, b"x" * 128, (("subject", b"bench.read"),))
        for i in range(BATCH_RECORDS)
    ]
    batch = build_batch(records, base_offset=0, log_append_time=True)
    data = bytearray()
    for number in range(FETCH_BATCHES):
        copy = bytearray(batch)
        stamp(copy, base_offset=number * BATCH_RECORDS, leader_epoch=0)
        data += copy
    rates = []
    for _ in range(5):
        rows = 0
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < (0.3 if quick else 1.0):
            decoded, _ = decode_batches(data)
            rows += decoded.num_rows
        rates.append(rows / (time.process_time() - cpu) / 1e6)
    measured = {
        "value": round(statistics.median(rates), 1),
        "unit": "million records per CPU second, CRC checked",
        "all": [round(rate, 1) for rate in rates],
        "bytes_per_record": round(len(data) / (FETCH_BATCHES * BATCH_RECORDS), 1),
    }
    report("decode", [row("decode to Arrow at 128 B", measured, at_least=20.0)])
