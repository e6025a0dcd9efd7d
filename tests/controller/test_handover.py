"""The steps of a handover between two nodes, and which leaders are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from bascule.controller import handover
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.handover import Handovers, RoleChange
from bascule.errors import Broken
from bascule.metadata.image import Image
from bascule.model import PartitionBy, PartitionState
from bascule.replica.handover.held_messages import HoldingMemory
from bascule.replica.handover.takeover import append_held, end_appends, hold
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from support.deciding_controller import DecidingController
from support.metadata_groups import turn
from support.replica_group import ReplicaGroup, message

NOT_IN_THIS_TEST_S = 60.0
LIMITS = ("SUBSCRIBE_SECONDS_MAX", "ANSWER_SECONDS_MAX", "COPY_SECONDS_MAX")


class Side:
    """One node: its replica, its subscriptions, and its part of the handovers."""

    def __init__(self, node: int, pair: Pair) -> None:
        self.node, self.pair = node, pair
        self.partition = pair.group.replicas[node].partition
        self.handovers = Handovers(
            node,
            cast(Partitions, self),
            self,
            self,
            cast(MetadataGroup, self),
            self,
        )

    def note(self, what: str) -> None:
        self.pair.events.append(f"{self.node} {what}")

    # Partitions and metadata

    def stream_by_id(self, stream_id: bytes) -> tuple[Partition, ...]:
        return (self.partition,)

    applied = 1

    @property
    def image(self) -> Image:
        return self.pair.deciding.image

    async def wait_applied(self, index: int) -> None:
        self.note(f"applied {index}")

    # Roles

    def hold(self, partition: Partition, tail_start: int | None) -> Future[None]:
        self.note(f"hold {tail_start}")
        return _done(lambda: hold(partition, HoldingMemory(), tail_start))

    def end_appends(self, partition: Partition, leader_epoch: int) -> Future[int]:
        self.note("end")
        return _done(lambda: end_appends(partition, leader_epoch))

    # Subscriptions

    async def route(
        self, partitions: Sequence[Partition], *, to_here: bool
    ) -> Mapping[bytes, Exception]:
        self.note("subscribe" if to_here else "unsubscribe")
        if self.pair.nats_hangs:
            await asyncio.Event().wait()
        return {}

    async def flush_subscriptions(self) -> None:
        self.note("flush")
        if self.pair.nats_hangs:
            await asyncio.Event().wait()

    # Peers

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        self.note(f"asks {node}")
        if self.pair.is_cut:
            raise Broken("cut")
        answer = await self.pair.sides[node].handovers.answer(body)
        self.pair.group.copy(self.node)
        return answer


class Pair:
    """Node 1 leads, and node 2 is to lead."""

    def __init__(self) -> None:
        self.deciding = DecidingController()
        self.deciding.register(1, 2, 3)
        self.events: list[str] = []
        self.is_cut = self.nats_hangs = False
        self.group = ReplicaGroup()
        self.group.apply()
        self.sides = {node: Side(node, self) for node in (1, 2)}
        self.decide(replace(self.group.state, leader=2, leader_epoch=2, version=9))

    def decide(self, state: PartitionState) -> None:
        """The image of both nodes has this state."""
        self.state = state
        image, stream_id = self.deciding.image, self.group.leader.definition.id
        partitions = image.partitions.insert(stream_id, (state,))
        self.deciding.image = replace(image, partitions=partitions)

    def configure(self, **changes: Any) -> None:
        for side in self.sides.values():
            definition = side.partition.definition
            side.partition.configure(
                replace(definition, config=replace(definition.config, **changes))
            )

    def change(self, node: int) -> RoleChange:
        partition = self.sides[node].partition
        return RoleChange(partition, self.state, partition.state)

    async def hand_over(self) -> None:
        """Both nodes follow the decision."""
        old, new = self.sides[1].handovers, self.sides[2].handovers
        taken, given = self.change(2), self.change(1)
        assert new.is_taken(taken)
        assert old.is_given(given)

        async def take() -> None:
            await new.take([taken])
            self.events.append("2 leads")
            self.group.apply(2, leader=2, leader_epoch=2)
            append_held(taken.partition)
            new.on_led([taken])

        async def give() -> None:
            await old.give([given])
            self.events.append("1 follows")

        await asyncio.gather(take(), give())


def _done(function: Callable[[], Any]) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(function())
    return done


def test_the_new_leader_subscribes_before_the_old_one_unsubscribes() -> None:
    pair = Pair()
    pair.group.leader.append(message())
    pair.group.copy(2)
    asyncio.run(pair.hand_over())
    assert pair.events == [
        "2 flush", "2 hold 1", "2 subscribe", "2 asks 1", "1 applied 1", "1 unsubscribe", "1 end",
        "2 leads", "2 asks 1", "1 follows",
    ]  # fmt: skip


def test_a_subscription_of_several_partitions_ends_after_the_log() -> None:
    """Otherwise the old leader may subscribe in between, for another partition that it is to lead,
    and append later messages than some that it has not received."""
    pair = Pair()
    pair.configure(partition_by=PartitionBy.SUBJECT)
    asyncio.run(pair.hand_over())
    assert pair.events[4:7] == ["1 applied 1", "1 flush", "1 end"]
    assert pair.events.count("1 unsubscribe") == 1


def test_a_member_of_a_queue_group_subscribes_after_the_old_one_has_drained() -> None:
    pair = Pair()
    pair.configure(group="workers")
    asyncio.run(pair.hand_over())
    assert pair.events == [
        "2 hold None", "2 asks 1", "1 applied 1", "1 unsubscribe", "1 end", "2 subscribe",
        "2 leads", "2 asks 1", "1 follows",
    ]  # fmt: skip


def test_what_the_old_leader_has_received_is_copied_before_the_new_one_leads() -> None:
    pair = Pair()
    for _ in range(5):
        pair.group.leader.append(message())
    asyncio.run(pair.hand_over())
    assert pair.group.replicas[2].log.end.offset == 5


@pytest.mark.parametrize("trouble", ["is_cut", "nats_hangs"])
def test_without_the_old_leader_or_nats_the_new_one_leads_nevertheless(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*LIMITS, "ASKED_SECONDS_MAX", "TAKEN_SECONDS_MAX"):
        monkeypatch.setattr(handover, name, 0.01)
    pair = Pair()
    setattr(pair, trouble, True)
    asyncio.run(pair.hand_over())
    assert "2 leads" in pair.events
    assert "1 follows" in pair.events


@pytest.mark.parametrize("why", ["lost", "silent", "unclean"])
def test_a_leader_that_is_not_trusted_is_not_asked(why: str) -> None:
    pair = Pair()
    if why == "lost":
        pair.deciding.lose(1)
    elif why == "silent":
        pair.decide(replace(pair.state, isr=(2, 3)))
    else:
        pair.decide(replace(pair.state, unclean_epoch=2))
    new = pair.sides[2].handovers
    taken = pair.change(2)
    assert new.is_taken(taken)
    asyncio.run(new.take([taken]))
    assert pair.events == ["2 flush", "2 hold 0", "2 subscribe"]


def test_a_leader_that_was_lost_waits_for_nobody_to_ask() -> None:
    """It went on for a second, and refused messages that the new leader stored: its image of the
    ISR was that of before, which was too small."""
    pair = Pair()
    assert pair.sides[1].handovers.is_given(pair.change(1))
    pair.decide(replace(pair.state, isr=(2, 3)))
    assert not pair.sides[1].handovers.is_given(pair.change(1))


def test_a_leader_that_leaves_with_a_move_is_asked() -> None:
    pair = Pair()
    pair.decide(replace(pair.state, isr=(2, 3), replicas=(2, 3)))
    assert pair.sides[1].handovers.is_given(pair.change(1))
    taken = pair.change(2)
    asyncio.run(pair.sides[2].handovers.take([taken]))
    assert "2 asks 1" in pair.events


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_late_request_does_not_end_what_belongs_to_a_later_epoch(is_followed: bool) -> None:
    """It ended the subscription of a node that led again, and nothing subscribed before the stream
    changed the next time."""
    pair = Pair()
    old = pair.sides[1]
    taken = pair.change(2)
    pair.decide(replace(pair.state, leader=1, leader_epoch=3, version=10))
    if is_followed:
        pair.group.apply(1, leader_epoch=3)
    asyncio.run(pair.sides[2].handovers.take([taken]))
    assert "1 applied 1" in pair.events
    assert "1 unsubscribe" not in pair.events
    assert old.partition.append(message()) == b""
    assert pair.group.replicas[1].log.end.offset == 1


@pytest.mark.parametrize("what", ["the new leader is lost", "another epoch", "the stream is gone"])
def test_the_old_leader_waits_no_longer_once_the_image_has_moved_on(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ASKED_SECONDS_MAX", "TAKEN_SECONDS_MAX"):
        monkeypatch.setattr(handover, name, NOT_IN_THIS_TEST_S)
    pair = Pair()
    old = pair.sides[1].handovers

    async def scene() -> None:
        giving = asyncio.create_task(old.give([pair.change(1)]))
        await turn()
        old.on_image()
        await turn()
        assert not giving.done(), "nothing of it has changed"
        if what == "the new leader is lost":
            pair.deciding.lose(2)
        elif what == "another epoch":
            pair.decide(replace(pair.state, leader=3, leader_epoch=3))
        else:
            image = pair.deciding.image
            gone = image.partitions.discard(pair.group.leader.definition.id)
            pair.deciding.image = replace(image, partitions=gone)
        old.on_image()
        await giving

    asyncio.run(scene())


def test_the_new_leader_does_not_wait_for_the_log_of_a_leader_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "COPY_SECONDS_MAX", NOT_IN_THIS_TEST_S)
    pair = Pair()
    pair.group.leader.append(message())
    monkeypatch.setattr(pair.group, "copy", lambda node: pair.deciding.lose(1))
    asyncio.run(pair.sides[2].handovers.take([pair.change(2)]))
    assert pair.group.replicas[2].log.end.offset == 0
