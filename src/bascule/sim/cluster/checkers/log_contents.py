"""Reads the logs of simulated nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

from bascule.record.batch import RecordBatch, scan_batches
from bascule.record.header import BatchHeader
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.world.disk import MachineFiles

Key = tuple[str, int]
"""Stream and partition."""
READABLE: Final = "logs are read"
READ_BYTES: Final = 1 << 20
MSG_ID: Final = "Nats-Msg-Id"


class StoredBatch(NamedTuple):
    """A batch of a log. Its header has the CRC of its records."""

    header: BatchHeader
    data: bytes


class StoredRecord(NamedTuple):
    """A record of a log."""

    offset: int
    id: str
    key: bytes | None
    body: bytes | None


def key_of(partition: Partition) -> Key:
    """Its stream and number."""
    return partition.definition.name, partition.index


view_of: Final = attrgetter(
    "state", "leader_epoch", "failure", "commitment.role", "commitment.replication",
    "commitment.watermark.offset", "log", "log._maintenance.start_offset", "log._tail.end",
    "log._synced.end", "log._epochs.epochs", "log.partial_copy._mark",
)  # fmt: skip
"""What the checkers look at of a replica, but for the contents of its log. Most of the time of a
look is spent here, so it names the attributes behind the properties of the log."""


def batches_of(
    partition: Partition, files: MachineFiles, start: int, end: int, *, nowait: bool = False
) -> Iterator[StoredBatch]:
    """The batches of a log from the one with offset `start` up to `end`.

    With `nowait` they end before a segment whose file is not there: while a log is compacted, its
    files and what the node knows of them may differ.
    """
    log = partition.log
    assert log is not None
    segments = _Segments(files, log.directory)
    at = start
    while at < end:
        piece = log.plan_read(at, bytes_max=READ_BYTES, end=log.end, nowait=True)
        if piece is None:
            # The segment is not open: a process would have a thread open it.
            path = segments.path_of(at)
            try:
                data, position = files.read_bytes(path), 0
            except FileNotFoundError:
                if nowait:
                    return
                raise
        else:
            path, position = piece.file.path, piece.position
            found = piece.file.read_at_nowait(position, piece.length)
            assert found is not None, "the page cache of a simulation has everything"
            data = found
        before = at
        for batch in scan_batches(data, origin=path, origin_position=position):
            if batch.header.end_offset > at:
                yield StoredBatch(batch.header, data[batch.start : batch.end])
                at = batch.header.end_offset
            if at >= end:
                return
        if at == before:
            # Compaction may have removed everything behind this offset from the segment.
            later = segments.base_behind(at)
            if not log.gaps_allowed or later is None:
                raise InvariantBroken(READABLE, f"{path} has nothing at offset {at}")
            at = later


class _Segments:
    """The segments of a log at one moment. The directory is read when it is needed, and once: a log
    may have thousands of them."""

    def __init__(self, files: MachineFiles, directory: str) -> None:
        self._files, self._directory = files, directory

    @cached_property
    def _bases(self) -> list[int]:
        """Their first offsets, ascending."""
        names = self._files.list_dir(self._directory)
        return [int(name[:20]) for name in names if name.endswith(".log")]

    def path_of(self, offset: int) -> str:
        """The file of the segment that has an offset, or of the last one before it."""
        base = self._bases[bisect_right(self._bases, offset) - 1]
        return f"{self._directory}/{base:020d}.log"

    def base_behind(self, offset: int) -> int | None:
        """The first offset of the next segment; None behind the last one."""
        at = bisect_right(self._bases, offset)
        return self._bases[at] if at < len(self._bases) else None


def records_of(batch: StoredBatch) -> Iterator[StoredRecord]:
    """The records of a batch."""
    for record in RecordBatch(batch.data):
        headers = dict(record.headers)
        id = headers.get(MSG_ID) or b""
        yield StoredRecord(record.offset, id.decode(), record.key, record.value)
