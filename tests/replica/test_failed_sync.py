"""fdatasync that fails: who waits is told, nothing is confirmed, nothing is tried again."""

from __future__ import annotations

import errno
import json
import struct

from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.replica.partition import Partition
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import DIRECTORY, make_batch, read_records


class Room:
    def __init__(self, data: bytes) -> None:
        self.view = memoryview(bytearray(data))


def batch(inbox: bytes) -> UnstampedBatch:
    """One message whose publisher waits for its ack on `inbox`."""
    room = Room(make_batch(0, 1))
    answers = struct.pack("<BIH", 0, 0, len(inbox)) + inbox
    return UnstampedBatch(data=room.view, record_count=1, ack_entries=answers)


def open_partition(files: SimFiles) -> Partition:
    clock = SimClock(1_000)
    return Partition(
        StreamDefinition("s", b"i" * 16, 0, StreamConfig(subject="s")),
        0,
        log=PartitionLog.open(files, DIRECTORY, LogConfig(), clock),
        failure=None,
        clock=clock,
        on_moved=lambda _: None,
        hash_key=HashKey(bytes(16)),
    )


def answers(operations: bytes) -> dict[str, dict[str, object]]:
    """Inbox -> the JSON published there."""
    found = {}
    while operations:
        line, _, rest = operations.partition(b"\r\n")
        _, inbox, size = line.split()
        found[inbox.decode()] = json.loads(rest[: int(size)])
        operations = rest[int(size) + 2 :]
    return found


def test_eio_on_sync_is_final() -> None:
    files = SimFiles(RealRandom(1))
    partition = open_partition(files)
    assert partition.append(batch(b"in.0")) == b""
    assert answers(partition.sync())["in.0"]["offset"] == 0
    for inbox in (b"in.1", b"in.2"):
        assert partition.append(batch(inbox)) == b"", "acks wait for the disk"
    files.fail(1, errno.EIO)
    told = answers(partition.sync())
    assert told.keys() == {"in.1", "in.2"}
    for ack in told.values():
        error = ack["error"]
        assert isinstance(error, dict)
        assert (error["code"], error["err_code"]) == (503, 10077)
        assert "EIO" in error["description"]
    assert partition.failure is not None
    assert partition.high_watermark.offset == 1, "what was not confirmed is not served"
    operations = len(files.operations)
    assert partition.sync() == b""
    late = answers(partition.append(batch(b"in.3")))
    assert "has stopped" in str(late["in.3"]["error"])
    assert len(files.operations) == operations, "the disk is not asked again"
    # Opened again, it has what was confirmed, and maybe what was not; all of it synced anew.
    files.crash()
    again = open_partition(files)
    assert again.log is not None
    assert [r.offset for r in read_records(again.log)][:1] == [0]
    assert again.append(batch(b"in.4")) == b""
    offset = answers(again.sync())["in.4"]["offset"]
    assert offset == len(read_records(again.log)) - 1
