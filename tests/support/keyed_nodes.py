"""Nodes that replicate one compacted partition; see `support.replica_nodes`."""

from __future__ import annotations

import shutil

from bascule.host.real import RealFiles
from bascule.model import Cleanup, StreamConfig
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.storage.compaction.run import Compaction, CompactionConfig
from support.keyed_logs import held
from support.replica_nodes import ReplicaNodes, wait_until

CONFIG = StreamConfig(subject="s", replicas=3, cleanup=(Cleanup.COMPACT,))
Rows = list[tuple[int, bytes | None, bytes | None]]


class KeyedNodes(ReplicaNodes):
    """Three nodes with one compacted partition."""

    def put(self, node: int, key: bytes, value: bytes | None) -> None:
        batch = build_batch([Record(0, 1_000, key, value, ())], base_offset=0, log_append_time=True)
        data = memoryview(bytearray(batch))
        self.nodes[node].writer.append(self.partition(node), [UnstampedBatch(data, 1)])

    def wait_committed(self, end: int, *nodes: int) -> None:
        def are_there() -> bool:
            found = [(self.partition(each), self.partition(each).log) for each in nodes]
            return all(
                log is not None and partition.committed_offset == log.synced.offset == end
                for partition, log in found
            )

        wait_until(are_there, seconds=20)

    def compact(self, node: int, end: int) -> None:
        partition = self.partition(node)
        assert partition.log is not None
        self.nodes[node].writer.call(partition.log.roll).result()
        partition.sync()
        write_checkpoint(partition)
        compaction = Compaction(
            RealFiles(), partition.log, CompactionConfig(1 << 20, 10), end_offset=end,
            now_ms=partition.now_ms(), secret=bytes(16), committed_end=partition.committed_offset,
            tombstones_end=0, lock=partition.maintenance_lock,
        )  # fmt: skip
        for _ in compaction.steps():
            pass

    def copy_anew(self, node: int) -> None:
        """A node comes back with an empty disk."""
        self.nodes[node].stop()
        shutil.rmtree(self.nodes[node].directory)
        self.start(node)
        self.tell(node)

    def epochs(self, node: int) -> list[tuple[int, int]]:
        log = self.partition(node).log
        assert log is not None
        return [tuple(each) for each in log.epochs.entries]

    def rows(self, node: int) -> Rows:
        log = self.partition(node).log
        assert log is not None
        return [(each.offset, each.key, each.value) for each in held(log)]
