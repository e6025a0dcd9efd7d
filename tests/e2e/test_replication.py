"""Replicas that copy logs over real sockets, with faults: kills, changes of the leader, pauses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.model import StreamConfig, SyncPolicy
from bascule.peer import replica_fetch
from bascule.replica.follower import fetcher
from bascule.replica.follower.followed_partition import FollowedPartition, WholeBatches
from bascule.replica.maintenance.purging import purge
from bascule.replica.roles.commitment import LogFlags
from bascule.storage.partition_log import PartitionLog
from support.replica_nodes import ReplicaNodes, wait_until


class SlowSync:
    """A log whose syncs are another function."""

    def __init__(self, log: object, sync: Callable[..., object]) -> None:
        self._log = log
        self.sync = sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def replicated(**settings: object) -> StreamConfig:
    return StreamConfig(subject="s.>", replicas=3, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [SyncPolicy.ALWAYS, SyncPolicy.NEVER])
def test_acks_come_when_all_in_sync_replicas_have_the_record(
    tmp_path: Path, policy: SyncPolicy
) -> None:
    with ReplicaNodes(tmp_path, replicated(sync=policy)) as group:
        group.apply()
        acks = group.wait_acks(1, group.publish(1, 200, records=3))
        assert {ack["replicas"] for ack in acks.values()} == {3}
        assert [ack["offset"] for ack in acks.values()] == [3 * n for n in range(200)]
        wait_until(lambda: group.partition(3).committed_offset == 600)
        if policy is SyncPolicy.ALWAYS:
            group.wait_equal(1, 2, 3)
        assert len({n.log_bytes(group.definition) for n in group.nodes.values()}) == 1


def test_a_partition_moves_from_leader_to_leader_and_cuts_diverging_tails(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 50, prefix="first"))
        group.wait_equal(1, 2, 3)
        # Node 1 appends what nobody copies: the others have another leader already.
        group.apply(2, 3, leader=2, leader_epoch=2, isr=(2, 3))
        lost = group.publish(1, 20, prefix="lost", records=5)
        group.wait_acks(2, group.publish(2, 30, prefix="second"))
        group.tell(1)
        group.wait_acks(2, group.publish(2, 5, prefix="third"))
        group.wait_equal(1, 2, 3)
        assert not group.nodes[1].received_acks().keys() & set(lost)
        assert group.partition(1).committed_offset == 85
        group.apply(leader=3, leader_epoch=3, isr=(1, 3))
        group.wait_acks(3, group.publish(3, 5, prefix="fourth"))
        group.wait_equal(1, 2, 3)
        log = group.partition(1).log
        assert log is not None
        assert [(e.number, e.start) for e in log.epochs.entries] == [(1, 0), (2, 50), (3, 85)]


def test_a_follower_that_was_killed_catches_up(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated(segment_bytes_max=200_000)) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 20, prefix="before"))
        group.nodes[3].stop(kill=True)
        group.apply(1, 2, isr=(1, 2))
        group.wait_acks(1, group.publish(1, 3_000, prefix="without", records=20))
        group.start(3)
        group.tell(3)
        group.wait_equal(1, 2, 3)
        wait_until(lambda: [w.isr for w in group.nodes[1].wanted_isrs()] == [(1, 2, 3)])
        (wanted,) = group.nodes[1].wanted_isrs()
        assert wanted.node_epochs == {2: 1, 3: 2}
        partition = group.partition(1)
        assert partition.commitment.on_isr_proposed(wanted.isr, wanted.state)
        group.apply(isr=(1, 2, 3))
        group.wait_acks(1, group.publish(1, 20, prefix="after"))
        group.wait_equal(1, 2, 3)


def test_a_leader_that_was_killed_comes_back_as_a_follower(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        acked = group.wait_acks(1, group.publish(1, 100, prefix="first"))
        group.publish(1, 50, prefix="unknown", records=100)
        group.nodes[1].stop(kill=True)
        wait_until(lambda: bool(group.nodes[2].silent))
        assert group.nodes[2].silent[0][0] == 1
        group.apply(2, 3, leader=3, leader_epoch=2, isr=(2, 3))
        group.wait_acks(3, group.publish(3, 10, prefix="second"))
        group.start(1)
        group.tell(1)
        log = group.wait_equal(1, 2, 3)
        assert len(acked) >= 100
        assert group.partition(1).committed_offset >= 110
        assert log


def test_a_follower_that_stands_still_is_to_be_removed_and_the_rest_goes_on(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated(), lag_ms_max=300) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 5, prefix="before"))
        assert group.nodes[1].wanted_isrs() == []
        # Its log writer stands still, as on a disk that hangs; its connection stays.
        group.partition(3).maintenance_lock.acquire()
        group.nodes[3].writer.call(group.partition(3).maintenance_lock.acquire)
        inboxes = group.publish(1, 20, prefix="during")
        wait_until(lambda: [w.isr for w in group.nodes[1].wanted_isrs()] == [(1, 2)])
        assert not group.nodes[1].received_acks().keys() & set(inboxes)
        group.apply(1, 2, isr=(1, 2))
        acks = group.wait_acks(1, inboxes)
        assert {acks[inbox]["replicas"] for inbox in inboxes} == {2}
        group.partition(3).maintenance_lock.release()
        wait_until(lambda: [w.isr for w in group.nodes[1].wanted_isrs()] == [(1, 2, 3)])
        group.partition(3).maintenance_lock.release()
        group.apply(isr=(1, 2, 3))
        group.wait_equal(1, 2, 3)


def test_a_leader_whose_disk_hangs_is_silent_to_its_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_fetch, "STUCK_NS_MAX", 300_000_000)
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 5, prefix="before"))
        writes, syncs = threading.Event(), threading.Event()
        try:
            group.nodes[1].writer.call(writes.wait)
            wait_until(lambda: {leader for leader, _ in group.nodes[2].silent} == {1})
            wait_until(lambda: {leader for leader, _ in group.nodes[3].silent} == {1})
            assert "silent for" in group.nodes[2].silent[0][1]
            # The writer goes on, and a sync that publishers wait for hangs.
            log = group.partition(1).log
            assert log is not None
            sync = log.sync
            monkeypatch.setattr(
                group.partition(1),
                "log",
                SlowSync(log, lambda *told: (syncs.wait(), sync(*told))[1]),
            )
            writes.set()
            inboxes = group.publish(1, 5, prefix="during")
            for node in (2, 3):
                group.nodes[node].silent.clear()
            wait_until(lambda: all(group.nodes[node].silent for node in (2, 3)))
            assert not group.nodes[1].received_acks().keys() & set(inboxes)
        finally:
            writes.set()
            syncs.set()
        group.wait_acks(1, inboxes)
        monkeypatch.setattr(group.partition(1), "log", log)
        group.wait_equal(1, 2, 3)


def test_a_leader_that_is_back_soon_is_not_reported(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 5))
        group.nodes[1].stop(kill=True)
        wait_until(lambda: len(group.nodes[2].silent) >= 2)
        failures = group.nodes[2].replicator.counts()[1].failures
        assert failures > len(group.nodes[2].silent), "the first second is not reported"


def test_a_follower_that_is_gone_leaves_an_idle_partition(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated(), lag_ms_max=200) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 5))
        group.wait_equal(1, 2, 3)
        group.nodes[2].stop(kill=True)
        wait_until(lambda: [w.isr for w in group.nodes[1].wanted_isrs()] == [(1, 3)])


def test_a_follower_below_the_leader_s_log_start_begins_anew(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated(segment_bytes_max=20_000)) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 5, prefix="before"))
        group.nodes[3].stop(kill=True)
        group.apply(1, 2, isr=(1, 2))
        group.wait_acks(1, group.publish(1, 500, prefix="without", records=10))
        purge(group.partition(1), to_offset=4_000, before_ms=None)
        group.start(3)
        group.tell(3)
        wait_until(lambda: group.partition(3).committed_offset == 5_005)
        # Batches are copied as a whole: this one holds offset 4,000.
        assert group.partition(3).start_offset == 3_995
        # Both followers hear of the start; their retention applies it.
        for node in (2, 3):
            wait_until(lambda node=node: group.partition(node).told_start.offset == 4_000)


def test_a_node_that_wakes_as_an_old_leader_commits_nothing(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 10, prefix="first"))
        group.apply(2, 3, leader=2, leader_epoch=2, isr=(2, 3))
        old = group.publish(1, 10, prefix="old")
        group.wait_acks(2, group.publish(2, 10, prefix="new"))
        assert not group.nodes[1].received_acks().keys() & set(old)
        assert group.partition(1).committed_offset == 10
        group.tell(1)
        group.wait_equal(1, 2, 3)


def test_many_partitions_share_a_connection_and_idle_ones_cost_nothing(tmp_path: Path) -> None:
    count = 40
    with ReplicaNodes(tmp_path, replicated(partitions=count)) as group:
        for index in range(count):
            group.apply(index=index)
        for index in range(count):
            group.wait_acks(1, group.publish(1, 2, prefix=f"p{index}", index=index))
        for index in range(count):
            group.wait_equal(1, 2, 3, index=index)
        before = group.nodes[1].handler.counts.reports
        connects = [n.replicator.counts()[1].connects for n in (group.nodes[2], group.nodes[3])]
        assert connects == [1, 1]
        group.wait_acks(1, group.publish(1, 10, prefix="busy", index=7))
        group.wait_equal(1, 2, 3, index=7)
        reports = group.nodes[1].handler.counts.reports - before
        assert 2 <= reports <= 100, "only the busy partition is in requests"


def test_the_report_of_a_sync_is_the_request_for_the_next_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "REPORT_SECONDS_MAX", 3600.0)
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 5))
        group.wait_equal(1, 2, 3)
        held = threading.Event()
        try:
            log = hold_sync(group, 3, held, monkeypatch)
            before = group.nodes[3].replicator.counts()[1].requests
            inboxes = group.publish(1, 1, prefix="next")
            wait_until(lambda: log.end.offset == 6)
            assert group.nodes[3].replicator.counts()[1].requests == before
        finally:
            held.set()
        group.wait_acks(1, inboxes)


def test_a_slow_sync_does_not_hold_up_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        group.wait_acks(1, group.publish(1, 5))
        held = threading.Event()
        try:
            log = hold_sync(group, 3, held, monkeypatch)
            for end in range(6, 9):
                inboxes = group.publish(1, 1, prefix=f"m{end}")
                wait_until(lambda end=end: log.end.offset == end)
            assert log.synced.offset == 5
        finally:
            held.set()
        group.wait_acks(1, inboxes)


def hold_sync(
    group: ReplicaNodes, node: int, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> PartitionLog:
    """Have the syncs of a node's log wait for `held`."""
    log = group.partition(node).log
    assert log is not None
    wait_until(lambda: log.synced.offset == log.end.offset == 5)
    slow = SlowSync(log, lambda *told: (held.wait(), log.sync(*told))[1])
    monkeypatch.setattr(group.partition(node), "log", slow)
    return log


def test_a_follower_starts_before_its_leader_has_heard_that_it_leads(tmp_path: Path) -> None:
    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply(2, 3)
        group.tell(1)
        group.wait_acks(1, group.publish(1, 5))
        group.apply(1, 3, leader=3, leader_epoch=2, isr=(1, 2, 3))
        group.tell(2)
        group.wait_acks(3, group.publish(3, 5, prefix="second"))
        group.wait_equal(1, 2, 3)


def test_damaged_batches_on_the_way_are_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte of a response is changed once; the follower asks again."""
    append, damaged = FollowedPartition.append, []

    def damage(
        self: FollowedPartition,
        attempt: int,
        start: int,
        data: memoryview,
        flags: LogFlags,
        arrived: WholeBatches,
    ) -> bool:
        if len(damaged) < 2:
            damaged.append(start)
            data[-1] ^= 1
        return append(self, attempt, start, data, flags, arrived)

    with ReplicaNodes(tmp_path, replicated()) as group:
        group.apply()
        monkeypatch.setattr(FollowedPartition, "append", damage)
        # Larger than what is copied out of the receive buffer.
        group.wait_acks(1, group.publish(1, 50, records=500))
        group.wait_equal(1, 2, 3)
    assert damaged
