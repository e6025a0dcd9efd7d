"""Replicas that are copied of a compacted log know where each leader epoch began, by real threads,
sockets and files: records do not say of which epoch those were that compaction has removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.host.real import RealFiles
from bascule.model import Cleanup, StreamConfig
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.storage.compaction.run import Compaction, CompactionConfig
from bascule.storage.epochs import NO_EPOCHS, LeaderEpochs
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
        partition.checkpoint()
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


@pytest.fixture
def group(tmp_path: Path) -> Iterator[KeyedNodes]:
    with KeyedNodes(tmp_path, CONFIG) as nodes:
        yield nodes


def test_a_record_of_a_deposed_leader_goes_where_compaction_has_removed_that_offset(
    group: KeyedNodes,
) -> None:
    group.apply(leader=3, leader_epoch=1)
    group.put(3, b"k", b"acked")
    group.wait_committed(1, 1, 2, 3)
    group.apply(1, 2, leader=1, leader_epoch=2, isr=(1, 2))  # node 3 is cut off
    group.put(3, b"k", None)
    lost = group.partition(3).log
    assert lost is not None
    wait_until(lambda: lost.synced.offset == 2)
    group.nodes[3].stop(kill=True)
    for value in (b"1", b"2"):
        group.put(1, b"b", value)
    group.put(1, b"z", b"1")
    group.wait_committed(4, 1, 2)
    group.compact(1, 4)
    group.apply(1, isr=(1,))
    group.copy_anew(2)
    group.wait_committed(4, 1, 2)
    assert group.epochs(2) == group.epochs(1) == [(1, 0), (2, 1)]

    group.apply(1, 2, leader=2, leader_epoch=3, isr=(1, 2))
    group.start(3)
    group.tell(3)
    group.put(2, b"y", b"1")
    group.wait_committed(5, 1, 2, 3)
    assert group.rows(3) == group.rows(2)
    assert (0, b"k", b"acked") in group.rows(3)


def lose_an_epoch(group: KeyedNodes) -> None:
    """Node 2 leads, and has a copy of a log that was compacted: no record of epoch 2 is left there.
    Node 3 has one, and comes back."""
    group.apply()
    group.put(1, b"a", b"1")
    group.wait_committed(1, 1, 2, 3)
    group.apply(leader=2, leader_epoch=2)
    group.put(2, b"b", b"1")
    group.wait_committed(2, 1, 2, 3)
    group.nodes[3].stop()
    group.apply(1, 2, leader=1, leader_epoch=3, isr=(1, 2))
    group.put(1, b"b", b"2")
    group.put(1, b"z", b"1")
    group.wait_committed(4, 1, 2)
    group.compact(1, 4)
    group.apply(1, isr=(1,))
    group.copy_anew(2)
    group.wait_committed(4, 1, 2)
    group.apply(1, 2, isr=(1, 2))
    group.nodes[1].stop()
    group.apply(2, leader=2, leader_epoch=4, isr=(2,))
    group.start(3)
    group.tell(3)


def test_a_replica_follows_that_ends_with_an_epoch_of_which_compaction_left_nothing(
    group: KeyedNodes,
) -> None:
    lose_an_epoch(group)
    log = group.partition(3).log
    assert log is not None
    wait_until(lambda: log.synced.offset == 4, seconds=20)
    assert group.epochs(3) == group.epochs(2) == [(1, 0), (2, 1), (3, 2)]
    assert (1, b"b", b"1") in group.rows(3), "it goes on where it was"


def test_a_replica_that_a_copy_contradicts_is_copied_again(
    group: KeyedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of earlier releases lack epochs."""
    monkeypatch.setattr(LeaderEpochs, "after", lambda *_: NO_EPOCHS)
    lose_an_epoch(group)
    assert group.epochs(2)[:2] == [(1, 0), (3, 1)]
    wait_until(lambda: group.rows(3) == group.rows(2), seconds=20)
    assert group.epochs(3) == group.epochs(2)
