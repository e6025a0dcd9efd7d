"""A node's restart after kill -9, with 100 GiB in 1,000 streams.

A real node creates the streams. Their records are then appended by the log's own code, through
files that leave holes where a batch holds zeros: each batch of 1 MiB costs the disk 8 KiB, while
sizes, indexes, checkpoints and CRCs are what they would be. A real node starts on that, every
stream gets messages that no checkpoint covers, and it is killed while more of them come. What is
measured is the next start: from the command to the ready file, which is written once every log is
open, every stream is subscribed and both listeners are open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from pathlib import Path

from bascule.host.api import Buffer
from bascule.host.real import RealClock, RealFile, RealFiles
from bascule.model import StreamConfig
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from bench.harness import (
    Node,
    confirm,
    nats_connection,
    nats_server,
    node,
    report,
    row,
    work_directory,
)

STREAMS = 1_000
STREAM_BYTES = (100 << 30) // STREAMS
SEGMENT_BYTES = 16 << 20
BATCH_BYTES = 1 << 20
EDGE_BYTES = 4096
"""Written at either end of a large append: more than a header and what follows a value."""
TAIL_MESSAGES = 50
"""Of 1 KiB, to each stream before the kill, beside those that come during it."""
ROUNDS = 3
START_SECONDS_MAX = 5.0


class SparseFile(RealFile):
    """Leaves a hole between the ends of a large append; the caller knows that zeros are there."""

    __slots__ = ()

    def append(self, *data: Buffer) -> None:
        (batch,) = data
        if len(batch) <= 2 * EDGE_BYTES:
            super().append(batch)
            return
        view = memoryview(batch)
        super().append(view[:EDGE_BYTES])
        self.truncate(self.size() + len(batch) - 2 * EDGE_BYTES)
        super().append(view[-EDGE_BYTES:])


class SparseFiles(RealFiles):
    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        opened = super().open(path, create=create, write=write)
        return SparseFile(os.dup(opened.fileno()), path) if path.endswith(".log") else opened


def lay_out(directory: str, config: StreamConfig, size: int) -> None:
    """Fill one partition's log with records of zeros up to `size` bytes, and checkpoint it."""
    clock = RealClock()
    log = PartitionLog.open(SparseFiles(), directory, log_config(config), clock)
    batch = build_batch(
        [Record(0, clock.now_ms(), None, bytes(BATCH_BYTES - 200))], base_offset=0, leader_epoch=0
    )
    for offset in range(-(-size // len(batch))):
        batch[:8] = offset.to_bytes(8, "big")
        log.append(batch)
    log.sync()
    log.checkpoint(high_watermark=log.end.offset)
    log.close()


def publish(port: int, streams: int, messages: int) -> None:
    """`messages` of 1 KiB to each stream, without acks."""
    with contextlib.closing(nats_connection(port)) as sock:
        payload = b"x" * 1_024
        for _ in range(messages):
            sock.sendall(
                b"".join(
                    b"PUB restart.%d %d\r\n%s\r\n" % (n, len(payload), payload)
                    for n in range(streams)
                )
            )
        confirm(sock)


def kill(running: Node) -> None:
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(30)


def run(*, quick: bool = False) -> None:
    streams = 100 if quick else STREAMS
    with work_directory() as directory, nats_server(directory) as nats:
        config = StreamConfig(subject="-", segment_bytes_max=SEGMENT_BYTES)
        with node(directory, nats=nats.url) as running:
            for number in range(streams):
                running.create(
                    f"stream-{number}", f"restart.{number}", segment_bytes_max=SEGMENT_BYTES
                )
        began = time.monotonic()
        for number in range(streams):
            path = directory / "data" / "streams" / f"stream-{number}" / "0"
            lay_out(str(path), config, STREAM_BYTES)
        print(f"    laid out in {time.monotonic() - began:.0f} s", flush=True)
        seconds = [restart(directory, nats.url, nats.port, streams) for _ in range(ROUNDS)]
        held = sum(file.stat().st_size for file in (directory / "data").rglob("*.log"))
    measured = {
        "value": round(statistics.median(seconds), 2),
        "rounds": [round(value, 2) for value in seconds],
        "streams": streams,
        "gib": round(held / (1 << 30), 1),
        "sparse": True,
    }
    report(
        "restart",
        [row(f"restart after kill -9, {streams} streams, s", measured, at_most=START_SECONDS_MAX)],
    )


def restart(directory: Path, url: str, port: int, streams: int) -> float:
    """Start, take messages, kill in the middle of more; seconds that the next start takes."""
    with node(directory, nats=url) as running:
        before = {f"stream-{n}": running.partition(f"stream-{n}") for n in (0, streams - 1)}
        publish(port, streams, TAIL_MESSAGES)
        for name, info in before.items():
            running.wait_stored(name, info["high_watermark"] + TAIL_MESSAGES)
        publish(port, streams, 5)
        kill(running)
    (directory / "ready.json").unlink()
    began = time.monotonic()
    with node(directory, nats=url) as running:
        taken = time.monotonic() - began
        for name, info in before.items():
            held = running.partition(name)
            assert held["failure"] is None, held
            assert held["high_watermark"] >= info["high_watermark"] + TAIL_MESSAGES, held
    (directory / "ready.json").unlink(missing_ok=True)
    return taken
