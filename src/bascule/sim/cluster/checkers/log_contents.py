"""Reads the logs of simulated nodes."""

from __future__ import annotations

from collections.abc import Iterator
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
    at = start
    while at < end:
        piece = log.plan_read(at, bytes_max=READ_BYTES, end=log.end, nowait=True)
        if piece is None:
            # The segment is not open: a process would have a thread open it.
            path = _segment_of(files, log.directory, at)
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
            later = [base for base in _bases(files, log.directory) if base > at]
            if not log.gaps_allowed or not later:
                raise InvariantBroken(READABLE, f"{path} has nothing at offset {at}")
            at = min(later)


def _bases(files: MachineFiles, directory: str) -> list[int]:
    """The first offsets of the segments."""
    return [int(each[:20]) for each in files.list_dir(directory) if each.endswith(".log")]


def _segment_of(files: MachineFiles, directory: str, offset: int) -> str:
    base = max(base for base in _bases(files, directory) if base <= offset)
    return f"{directory}/{base:020d}.log"


def records_of(batch: StoredBatch) -> Iterator[StoredRecord]:
    """The records of a batch."""
    for record in RecordBatch(batch.data):
        headers = dict(record.headers)
        id = headers.get(MSG_ID) or b""
        yield StoredRecord(record.offset, id.decode(), record.key, record.value)
