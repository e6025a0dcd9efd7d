"""Replicas for tests: one without a log, and a real one on a simulated disk."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from bascule.host.real import RealRandom
from bascule.model import PartitionState, StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.partition import Partition
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import DIRECTORY, make_batch

_DEFINITION = StreamDefinition("s", b"i" * 16, 0, StreamConfig(subject="s"))


@dataclass(frozen=True)
class NamedReplica:
    """A replica that has only a number."""

    index: int
    definition: StreamDefinition = _DEFINITION


def awaited_batch(inbox: bytes) -> UnstampedBatch:
    """One message whose publisher waits for its ack on `inbox`."""
    ack_entries = struct.pack("<BIH", 0, 0, len(inbox)) + inbox
    return UnstampedBatch(
        data=memoryview(bytearray(make_batch(0, 1))), record_count=1, ack_entries=ack_entries
    )


def lead_alone(partition: Partition, node: int = 1) -> Partition:
    """Have this node lead the partition as its only replica, as the node of a cluster of one."""
    state = PartitionState((node,), (node,), node, partition.leader_epoch, 0)
    partition.set_role(state, node, lag_ns_max=0)
    return partition


def open_partition(files: SimFiles) -> Partition:
    """A partition that this node leads alone."""
    clock = SimClock(1_000)
    return lead_alone(
        Partition(
            StreamDefinition("s", b"i" * 16, 0, StreamConfig(subject="s")),
            0,
            log=PartitionLog.open(files, DIRECTORY, LogConfig(), clock),
            failure=None,
            clock=clock,
            on_changed=lambda _: None,
            hash_key=HashKey(bytes(16)),
        )
    )


def no_reserve() -> DiskReserve:
    return DiskReserve(SimFiles(RealRandom(0)), "/", RealRandom(0), size_bytes=0)


def decode_acks(operations: bytes) -> dict[str, dict[str, object]]:
    """Inbox -> the JSON published there."""
    found = {}
    while operations:
        line, _, rest = operations.partition(b"\r\n")
        _, inbox, size = line.split()
        found[inbox.decode()] = json.loads(rest[: int(size)])
        operations = rest[int(size) + 2 :]
    return found
