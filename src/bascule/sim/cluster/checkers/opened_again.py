"""Opens copies of the logs at the end of a run: they are as the node has them, and finds by offset
and by time return what a walk through all batches does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bascule.host.real import RealClock, RealRandom
from bascule.record.header import HEADER_BYTES, read_header
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.log_contents import batches_of, key_of
from bascule.sim.cluster.world.disk import MachineFiles
from bascule.storage.epochs import Epoch
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config

SAME: Final = "a log that is opened again is the same"
FOUND: Final = "records are found by offset and time"
UNDER_WAY: Final = ("swap", "reset", ".cleaned", ".new")
"""Files of something that is being replaced."""
LOOKUPS_MAX: Final = 50
"""Batches of a log that are looked for."""
PAYLOADS: Final = "payloads"
"""The directory in that of a log, which opening it does not read."""
READ_BYTES: Final = 1 << 20


def check_opened_again(node: int, partition: Partition, files: MachineFiles) -> None:
    """Compare the log of a replica with a copy that is opened. Raises: InvariantBroken."""
    log = partition.log
    assert log is not None
    names = files.list_dir(log.directory)
    if any(name.endswith(UNDER_WAY) for name in names):
        return
    copy = MachineFiles(RealRandom(0))
    copy.make_dirs(log.directory)
    for name in names:
        path = f"{log.directory}/{name}"
        if name != PAYLOADS:
            copy.open(path, create=True).write_at(0, files.read_bytes(path))
    where = f"{key_of(partition)} on node {node}"
    again = PartitionLog.open(
        copy, log.directory, log_config(partition.definition.config), RealClock()
    )
    try:
        found, known = _shown(again), _shown(log)
        # What moves the start is on the disk first, and the files go meanwhile.
        if found[0] < known[0] or found[1:] != known[1:]:
            raise InvariantBroken(SAME, f"{where}: {found} where {known} was")
        headers = [
            each.header for each in batches_of(partition, files, again.start_offset, log.end.offset)
        ]
        stamps = [(each.base_offset, each.end_offset, each.max_timestamp) for each in headers]
        _check_lookups(where, again, stamps)
    finally:
        again.close()


def _shown(log: PartitionLog) -> tuple[int, int, tuple[Epoch, ...], int]:
    return log.start_offset, log.end.offset, log.epochs.entries, log.timestamp_max


def _check_lookups(where: str, log: PartitionLog, stamps: Iterable[tuple[int, int, int]]) -> None:
    """`stamps` has base offset, end offset and latest time of each batch."""
    stamps = list(stamps)
    step = max(len(stamps) // LOOKUPS_MAX, 1)
    for base, end_offset, timestamp in stamps[::step]:
        for offset in (max(base, log.start_offset), end_offset - 1):
            piece = log.plan_read(offset, bytes_max=READ_BYTES, end=log.end)
            assert piece is not None, "only a call with `nowait` returns none"
            head = read_header(piece.file.read_at(piece.position, HEADER_BYTES), 0)
            if head.base_offset != base:
                raise InvariantBroken(
                    FOUND, f"{where}: offset {offset} at {head.base_offset}, expected {base}"
                )
        for wanted in (timestamp, timestamp + 1):
            found = log.find_timestamp(wanted, end=log.end)
            first = next(((b, e, t) for b, e, t in stamps if t >= wanted), None)
            is_there = first is None or (
                found is not None and first[0] <= found[0] < first[1] and found[1] >= wanted
            )
            if not is_there or (first is None) != (found is None):
                raise InvariantBroken(
                    FOUND, f"{where}: time {wanted} is found at {found}, expected {first}"
                )
