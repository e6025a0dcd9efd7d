"""Replicas of one partition on simulated disks, and what a fetch does between them, by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

from bascule.host.real import RealRandom
from bascule.model import (
    NO_LEADER,
    AckPolicy,
    Cleanup,
    PartitionState,
    StreamConfig,
    StreamDefinition,
    SyncPolicy,
)
from bascule.publish.acks import ACK_POLICIES
from bascule.publish.headers import HashKey, read_publish_headers
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.partition import Partition
from bascule.replica.roles.commitment import LogFlags
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import DIRECTORY

HASH_KEY = HashKey(bytes(16))
LAG_NS = 1_000_000_000


def message(
    inbox: bytes = b"",
    count: int = 1,
    value: bytes = b"value",
    policy: AckPolicy = AckPolicy.ALL,
    **headers: str,
) -> UnstampedBatch:
    """A batch of `count` records with these headers; with `inbox` the first one needs an ack."""
    encoded = tuple((name.replace("_", "-"), text.encode()) for name, text in headers.items())
    records = [Record(n, 1_000, None, value, encoded) for n in range(count)]
    data = bytearray(build_batch(records, base_offset=0, log_append_time=True))
    made = UnstampedBatch(data=memoryview(data), record_count=count)
    if inbox:
        number = ACK_POLICIES[policy]
        made.ack_entries = struct.pack("<BIH", number << 1, 0, len(inbox)) + inbox
        made.ack_policies = 1 << number
    made.headers = read_publish_headers(made.data, count, HASH_KEY) if headers else None
    return made


class ReplicaOnDisk:
    """One node's replica of the partition, which may be closed and opened again."""

    def __init__(
        self,
        node: int,
        *,
        sync: SyncPolicy = SyncPolicy.ALWAYS,
        segment_bytes_max: int = 1 << 20,
        cleanup: tuple[Cleanup, ...] = (Cleanup.DELETE,),
        log: type[PartitionLog] = PartitionLog,
        min_isr: int = 0,
    ) -> None:
        self.node = node
        self.log_type = log
        self.files = SimFiles(RealRandom(node))
        self.clock = SimClock(1_000)
        self.config = StreamConfig(
            subject="s", sync=sync, replicas=3, min_isr=min_isr, cleanup=cleanup
        )
        self.segment_bytes_max = segment_bytes_max
        self.node_epoch = node
        self.open()

    def open(self) -> Partition:
        """Open the log, as after a start of the node."""
        config = LogConfig(segment_bytes_max=self.segment_bytes_max)
        marker = f"{DIRECTORY}/message-ids"
        has_ids = self.files.exists(marker)
        self.partition = Partition(
            StreamDefinition("s", b"i" * 16, 0, self.config),
            0,
            log=self.log_type.open(self.files, DIRECTORY, config, self.clock),
            failure=None,
            clock=self.clock,
            on_changed=lambda _: None,
            hash_key=HASH_KEY,
            persist_id_marker=None if has_ids else self._mark,
        )
        self.node_epoch += 10
        return self.partition

    def _mark(self) -> None:
        self.files.open(f"{DIRECTORY}/message-ids", create=True)

    @property
    def log(self) -> PartitionLog:
        assert self.partition.log is not None
        return self.partition.log

    def log_bytes(self) -> bytes:
        """All batches. A truncation and a fetch of several batches begin segments elsewhere."""
        names = [name for name in self.files.list_dir(DIRECTORY) if name.endswith(".log")]
        return b"".join(self.files.read_bytes(f"{DIRECTORY}/{name}") for name in sorted(names))

    def segments(self) -> int:
        """The number of segments."""
        return sum(name.endswith(".log") for name in self.files.list_dir(DIRECTORY))


class ReplicaGroup:
    """Three replicas, and the state that the controller would give them."""

    def __init__(self, **options: object) -> None:
        self.replicas = {n: ReplicaOnDisk(n, **options) for n in (1, 2, 3)}  # type: ignore[arg-type]
        self.state = PartitionState((1, 2, 3), (1, 2, 3), 1, 1, 1)

    def apply(self, *nodes: int, **changes: object) -> bytes:
        """Change the state and tell `nodes`, by default all; return the acks that were sent."""
        changes.setdefault("version", self.state.version + 1)
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        return b"".join(self.tell(node) for node in nodes or self.replicas)

    def tell(self, node: int) -> bytes:
        return self.replicas[node].partition.set_role(self.state, node, lag_ns_max=LAG_NS)

    @property
    def leader(self) -> Partition:
        assert self.state.leader != NO_LEADER
        return self.replicas[self.state.leader].partition

    def copy(self, node: int, *, check: Callable[[bytes], None] | None = None) -> None:
        """What a fetch does to the follower: truncate by epoch, append, take the watermark."""
        follower, leader = self.replicas[node], self.replicas[self.state.leader]
        ours, theirs = follower.log, leader.log
        epoch, end = theirs.epochs.end_of(ours.epochs.latest, end_offset=theirs.end.offset)
        if ours.epochs.latest >= 0 and (epoch < ours.epochs.latest or end < ours.end.offset):
            own_end = ours.epochs.end_of(epoch, end_offset=ours.end.offset)[1]
            follower.partition.truncate_replicated(min(end, own_end))
        while ours.end.offset < theirs.end.offset:
            part = theirs.plan_read(ours.end.offset, bytes_max=1 << 20, end=theirs.end)
            assert part is not None
            follower.partition.append_replicated(
                memoryview(part.file.read_at(part.position, part.length)),
                LogFlags(leader.partition.may_have_ids, theirs.gaps_allowed),
            )
        follower.partition.on_leader_watermark(
            leader.partition.committed_offset, leader.partition.leader_epoch
        )

    def report(self, node: int) -> bytes:
        """The follower tells its leader how far it is; return the acks that the leader sends."""
        follower = self.replicas[node]
        return self.leader.on_fetch(
            node, follower.node_epoch,
            leader_epoch=self.state.leader_epoch, log_start=follower.log.start_offset,
            log_end=follower.log.end.offset, synced_end=follower.log.synced.offset,
        )  # fmt: skip

    def replicate(self, *nodes: int) -> bytes:
        """Let followers fetch everything, sync it and report it; then hear of the watermark."""
        acks = self.leader.sync()
        for node in nodes:
            self.copy(node)
            self.replicas[node].partition.sync()
            acks += self.report(node)
        for node in nodes:
            self.copy(node)
        return acks
