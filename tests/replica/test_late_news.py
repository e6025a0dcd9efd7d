"""What was said, or planned, in a leader epoch and comes after the next one has begun."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bascule.controller.purges import Purges
from bascule.errors import Broken, NotLeader
from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.replica.maintenance.purging import follow_start, purge
from bascule.replica.maintenance.retention import Retention
from bascule.replica.partitions import Partitions
from bascule.replica.roles.commitment import ReplicatedEnd
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchPartitionResponse
from support.fetched_leader import turn
from support.overtaken_lock import overtaken_lock
from support.replica_group import ReplicaGroup, message
from support.replicas import decode_acks, no_reserve


class Behind:
    """Nodes 2 and 3 end at 40, and have heard of their leader that its log starts at 50 and is
    committed up to 60. Then an unclean election chooses one of them."""

    def __init__(self) -> None:
        self.group = ReplicaGroup(min_isr=1)
        self.group.apply()
        self.group.leader.append(message(count=40))
        self.group.replicate(2, 3)
        self.group.apply(isr=(1,))
        self.partition = self.group.replicas[2].partition
        self.follower = FollowedPartition(self.partition, 1, node_id=2)
        assert self.follower.begin()
        self.news = ReplicaFetchPartitionResponse(
            attempt=self.follower.attempt, high_watermark=60, log_start_offset=50,
            version=9, replicated_offset=55,
        )  # fmt: skip

    def lead(self) -> None:
        """Node 2 is chosen, and acknowledges others than those that were purged."""
        self.group.apply(2, leader=2, leader_epoch=2, isr=(2,), unclean_epoch=2)
        for n in range(20):
            self.partition.append(message(inbox=b"%d" % n))
        acks = decode_acks(self.partition.sync())
        assert [acks[f"{n}"]["seq"] for n in range(20)] == list(range(41, 61))

    def follow(self) -> None:
        """Node 3 is chosen, and node 2 has copied what is not committed yet."""
        self.group.apply(
            2, 3, leader=3, leader_epoch=2, isr=(2, 3), replicas=(2, 3), unclean_epoch=2
        )
        self.group.leader.append(message(count=20))
        self.group.copy(2)
        log = self.group.replicas[2].log
        assert (log.end.offset, self.partition.committed_offset) == (60, 40)


def retention_of(scene: Behind) -> Retention:
    known = Partitions()
    known.add((scene.partition,))
    return Retention(
        known, clock=scene.group.replicas[2].clock, archived=lambda *_: None, roll=lambda _: None,
        reserve=no_reserve(),
    )  # fmt: skip


def test_retention_that_has_waited_removes_nothing_that_an_unclean_election_has_brought() -> None:
    """For the lock, while a checkpoint is written to a slow disk."""
    scene = Behind()
    scene.group.replicas[2].log.advance_start(10, high_watermark=40)
    scene.follower.on_news(scene.news)
    assert (scene.partition.told_start.offset, scene.partition.committed_offset) == (50, 40)
    scene.partition.maintenance_lock = overtaken_lock(scene.lead)
    asyncio.run(retention_of(scene).tick())
    assert (scene.partition.start_offset, scene.partition.committed_offset) == (40, 60)


def test_the_start_of_a_lost_leaders_log_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fetcher thread has looked at the epoch before the log writer has begun another one."""
    scene = Behind()
    commitment = scene.partition.commitment
    on_replicated = commitment.on_replicated

    def late(*arguments: Any) -> None:
        scene.lead()
        on_replicated(*arguments)

    monkeypatch.setattr(commitment, "on_replicated", late)
    scene.follower.on_news(scene.news)
    assert scene.partition.told_start.offset == 0
    asyncio.run(retention_of(scene).tick())
    assert scene.partition.start_offset == 0


def test_a_lost_leaders_watermark_commits_nothing_of_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Behind()
    commitment = scene.partition.commitment
    on_replicated = commitment.on_replicated

    def late(*arguments: Any) -> None:
        scene.follow()
        on_replicated(*arguments)

    monkeypatch.setattr(commitment, "on_replicated", late)
    scene.follower.on_news(scene.news)
    assert scene.partition.committed_offset == 40
    assert commitment.replicated != ReplicatedEnd(9, 55)
    assert scene.partition.told_start.offset == 0


def test_what_a_follower_of_the_epoch_before_reports_raises_no_start() -> None:
    scene = Behind()
    scene.lead()
    for epoch, start in ((1, 0), (2, 50)):
        scene.partition.on_fetch(3, 30, leader_epoch=epoch, log_start=50, log_end=60, synced_end=60)
        assert scene.partition.told_start.offset == start


def test_a_purge_that_has_waited_removes_nothing_of_the_next_leader() -> None:
    scene = Behind()
    one = scene.group.leader
    one.append(message(count=20))
    one.sync()
    assert one.committed_offset == 60

    def lose() -> None:
        """Node 3 is chosen, and node 1 copies what is acknowledged then."""
        scene.group.apply(1, 3, leader=3, leader_epoch=2, isr=(3,), unclean_epoch=2)
        scene.group.leader.append(message(count=20))
        scene.group.leader.sync()
        scene.group.copy(1)
        assert one.committed_offset == 60

    one.maintenance_lock = overtaken_lock(lose)
    with pytest.raises(NotLeader):
        purge(one, to_offset=50, before_ms=None)
    assert one.start_offset == 0


def test_a_follower_that_has_waited_purges_nothing_of_the_next_epoch() -> None:
    scene = Behind()
    scene.partition.maintenance_lock = overtaken_lock(scene.lead)
    with pytest.raises(Broken, match="follows leader epoch 2, not 1"):
        follow_start(scene.partition, 50, 1)
    assert scene.partition.start_offset == 0


@pytest.mark.parametrize("tells_epoch", [False, True], ids=["earlier release", "this release"])
def test_a_follower_that_waits_for_what_is_purged_ends_with_the_epoch(tells_epoch: bool) -> None:
    """It leads meanwhile, and what it commits was never purged."""
    scene = Behind()
    held: Any = SimpleNamespace(
        stream_by_id=lambda _: (scene.partition,), notify_watchers=lambda _: None
    )
    none: Any = None
    purges = Purges(2, held, none, none, no_reserve())
    epochs = [{0: 1}] if tells_epoch else []
    body = msgspec.msgpack.encode((b"i" * 16, {0: 50}, *epochs))

    async def main() -> None:
        answer = asyncio.ensure_future(purges.answer_follow_starts(body))
        await turn()
        scene.lead()
        await answer

    with pytest.raises(Broken, match="follows leader epoch 2, not 1"):
        asyncio.run(main())
    assert scene.partition.start_offset == 0
