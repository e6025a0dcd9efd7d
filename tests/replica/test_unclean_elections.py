"""What replicas keep after an unclean election."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.replica.maintenance.purging import purge
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchPartitionResponse
from support.keyed_nodes import CONFIG, KeyedNodes
from support.replica_group import ReplicaGroup, message
from support.replica_nodes import wait_until


@pytest.fixture
def group(tmp_path: Path) -> Iterator[KeyedNodes]:
    with KeyedNodes(tmp_path, replace(CONFIG, min_isr=1)) as nodes:
        yield nodes


@pytest.mark.parametrize("has_lost_its_end", [False, True])
def test_what_compaction_has_removed_for_an_undone_record_is_copied_again(
    group: KeyedNodes, has_lost_its_end: bool
) -> None:
    """Truncation does not bring it back, and a log without its unsynced end has nothing of that to
    truncate."""
    group.apply()
    group.put(1, b"k", b"acked")
    group.wait_committed(1, 1, 2, 3)
    group.nodes[2].stop()
    group.apply(1, 3, isr=(1, 3))
    group.put(1, b"k", b"2")
    group.put(1, b"z", b"1")
    group.wait_committed(3, 1, 3)
    group.compact(1, 3)
    log = group.partition(1).log
    assert log is not None
    if has_lost_its_end:
        log.truncate_to(1, 1, high_watermark=0)
    group.nodes[1].stop()
    group.nodes[3].stop()
    group.start(2)
    group.apply(2, leader=2, leader_epoch=2, isr=(2,), unclean_epoch=2)

    group.start(1)
    group.tell(1)
    wait_until(lambda: group.rows(1) == [(0, b"k", b"acked")], seconds=20)
    wait_until(lambda: [each.isr for each in group.nodes[2].wanted_isrs()] == [(1, 2)], seconds=20)
    assert group.partition(1).counts.records_lost == (0 if has_lost_its_end else 2)


def test_a_log_is_kept_until_the_leader_of_the_unclean_election_answers(group: KeyedNodes) -> None:
    """It may be lost for good, and then this log is what there is."""
    group.apply()
    group.put(1, b"k", b"acked")
    group.wait_committed(1, 1, 2, 3)
    group.nodes[2].stop()
    group.put(1, b"z", b"1")
    group.apply(1, 3, isr=(1, 3))
    group.wait_committed(2, 1, 3)
    group.apply(1, leader=2, leader_epoch=2, isr=(2,), unclean_epoch=2)
    wait_until(lambda: group.nodes[1].replicator.counts()[2].failures > 1)
    assert len(group.rows(1)) == 2
    group.start(2)
    group.tell(2)
    wait_until(lambda: group.rows(1) == group.rows(2) == [(0, b"k", b"acked")], seconds=20)


@pytest.mark.parametrize("has_written", [False, True])
def test_a_copy_of_a_purged_log_begins_again_where_the_leader_of_an_unclean_election_starts(
    group: KeyedNodes, has_written: bool
) -> None:
    """It began again where it had, behind the leader's end. There it waited for ever; or the leader
    wrote past that, took it in, and removed what was below on both."""
    group.apply()
    group.put(1, b"a", b"0")
    group.wait_committed(1, 1, 2, 3)
    group.nodes[2].stop()
    group.apply(1, 3, isr=(1, 3))
    for n in range(5):
        group.put(1, b"b%d" % n, b"1")
    group.wait_committed(6, 1, 3)
    purge(group.partition(1), to_offset=5, before_ms=None)
    group.apply(1, isr=(1,))
    group.copy_anew(3)
    copy = group.partition(3).log
    assert copy is not None
    wait_until(lambda: (copy.start_offset, copy.end.offset) == (5, 6), seconds=20)
    for node in (1, 3):
        group.nodes[node].stop(kill=True)
    group.start(2)
    group.apply(2, leader=2, leader_epoch=2, isr=(2,), unclean_epoch=2)
    for n in range(6 if has_written else 0):
        group.put(2, b"new%d" % n, b"1")
    leader = group.partition(2)
    assert leader.log is not None
    end = 7 if has_written else 1
    wait_until(lambda: leader.committed_offset == end, seconds=20)

    group.start(3)
    group.tell(3)
    wait_until(lambda: group.rows(3) == group.rows(2), seconds=20)
    assert group.rows(3)[0] == (0, b"a", b"0")
    assert leader.told_start.offset == group.partition(3).told_start.offset == 0


def test_the_start_of_a_lost_leaders_log_removes_nothing_of_since_an_unclean_election() -> None:
    """A follower that is behind has heard of a purge beyond its end. The new leader ends there,
    too: what it appends was never purged."""
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message(count=4))
    group.copy(2)
    partition = group.replicas[2].partition
    follower = FollowedPartition(partition, 1, node_id=2)
    assert follower.begin()
    news = ReplicaFetchPartitionResponse(attempt=follower.attempt, log_start_offset=16)
    follower.on_news(news)
    group.apply(leader=3, leader_epoch=2, isr=(3,))
    assert partition.told_start.offset == 16
    group.apply(leader=1, leader_epoch=3, isr=(1,), unclean_epoch=3)
    assert partition.told_start.offset == 4
    follower.on_news(news)
    assert partition.told_start.offset == 4, "the lost leader's answer comes late"


def test_the_start_of_a_lost_leaders_log_removes_nothing_behind_a_truncation() -> None:
    """The new leader's log ends before the follower's, which had less than was purged."""
    group = ReplicaGroup(min_isr=1)
    group.apply()
    group.leader.append(message(count=3))
    group.replicate(2, 3)
    group.leader.append(message(count=2))
    group.copy(2)
    partition = group.replicas[2].partition
    follower = FollowedPartition(partition, 1, node_id=2)
    assert follower.begin()
    follower.on_news(ReplicaFetchPartitionResponse(attempt=follower.attempt, log_start_offset=16))
    group.apply(leader=3, leader_epoch=2, isr=(3,), unclean_epoch=2)
    assert partition.told_start.offset == 5
    group.leader.append(message(count=4))
    group.copy(2)
    assert group.replicas[2].log.end.offset == 7
    assert partition.told_start.offset == 3
