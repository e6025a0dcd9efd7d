"""What a node asks the leader of a partition."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bascule.controller.cluster.views import LEADER_DAMAGED, ClusterViews
from bascule.errors import Broken
from bascule.http.schemas import partition_body
from bascule.model import NO_LEADER, PartitionInfo
from bascule.publish.headers import HashKey
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock
from support.deciding_controller import DecidingController, isr_change

ASKING = 9
VALUES = (
    "start_offset", "high_watermark", "synced_offset", "end_offset", "bytes", "bytes_behind",
    "replicated_offset",
)  # fmt: skip
DAMAGE = "f is corrupt at byte 1; it serves what can be read"


class Leader:
    """The leader of the only partition of a stream, which another node asks."""

    def __init__(self, deciding: DecidingController) -> None:
        self.node = deciding.state("s").leader
        self.partitions = Partitions()
        self.partitions.bind(asyncio.get_running_loop())
        self.is_there = True
        self._deciding = deciding
        self._nodes: dict[int, ClusterViews] = {}
        self.views = self.make_views(self.node, self.partitions)
        self.asking = self.make_views(ASKING, Partitions())

    def make_views(self, node: int, partitions: Partitions) -> ClusterViews:
        metadata = SimpleNamespace(
            image=self._deciding.image,
            controller_id=1,
            term=1,
            applied=1,
            members=SimpleNamespace(voters=(), learners=()),
        )
        found = self._nodes[node] = ClusterViews(
            node, "c", partitions, cast(Any, metadata), cast(Any, self), refusals=dict,
            duplicates=lambda _: (),
        )  # fmt: skip
        return found

    def open(self, partitions: Partitions | None = None) -> Partition:
        partitions = partitions or self.partitions
        partition = Partition(
            self._deciding.image.streams["s"], 0, log=None, failure=None, clock=SimClock(1_000),
            on_changed=partitions.notify_watchers, hash_key=HashKey(bytes(16)),
        )  # fmt: skip
        partitions.add((partition,))
        return partition

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        if not self.is_there or node not in self._nodes:
            raise Broken(f"node {node} does not answer")
        return await self._nodes[node].controls[kind](body)

    async def why_not(self) -> str:
        state = self._deciding.state("s")
        return await self.asking.why_not_served(self._deciding.image.streams["s"].id, 0, state)

    async def serves(self) -> bool:
        return not await self.why_not()


def test_a_leader_serves_once_it_has_opened_its_replica_and_until_that_fails() -> None:
    async def run() -> None:
        deciding = DecidingController()
        deciding.register(1, 2, 3)
        deciding.create("s", replicas=3)
        leader = Leader(deciding)
        assert not await leader.serves(), "not opened yet"
        partition = leader.open()
        assert await leader.serves()
        leader.is_there = False
        assert not await leader.serves()
        leader.is_there = True
        partition.fail("a bad CRC", is_damage=True)
        assert not await leader.serves()

    asyncio.run(run())


@pytest.mark.parametrize("knows", [True, False])
def test_a_node_that_has_not_heard_that_it_leads_does_not_serve_yet(knows: bool) -> None:
    async def run() -> None:
        deciding = DecidingController()
        deciding.register(1, 2, 3)
        deciding.create("s", replicas=3)
        leader = Leader(deciding)
        leader.open()
        state = deciding.state("s")
        if not knows:
            state = replace(state, leader_epoch=state.leader_epoch + 1)
        stream_id = deciding.image.streams["s"].id
        assert (not await leader.asking.why_not_served(stream_id, 0, state)) is knows

    asyncio.run(run())


def test_a_leader_whose_log_is_damaged_does_not_serve_those_that_are_to_heal() -> None:
    """It goes on with what can be read, since nobody else has all records."""

    async def run() -> None:
        deciding = DecidingController()
        deciding.register(1, 2, 3)
        deciding.create("s", replicas=3)
        leader = Leader(deciding)
        partition = leader.open()
        leader.views.standing = lambda _: DAMAGE
        assert await leader.why_not() == LEADER_DAMAGED
        (described,) = (await leader.asking.describe("s")).partitions
        assert (described.damage, described.failure) == (DAMAGE, None)
        partition.fail("a bad CRC", is_damage=True)
        assert "a bad CRC" in await leader.why_not()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("third", "advice"),
    [
        ("none", "once another replica has caught up; where none can, save what"),
        ("dead", "once another replica leads: start node"),
        ("alive", "once another replica leads"),
    ],
)
def test_damaged_replicas_that_wait_for_each_other_are_listed(third: str, advice: str) -> None:
    """Those that a healthy replica will heal, and those that an operator has to look at."""

    async def run() -> None:
        deciding = DecidingController()
        deciding.register(1, 2, 3)
        if third == "none":
            deciding.create("s", replicas=2, min_isr=1)
        else:
            deciding.create("s", replicas=3, min_isr=2)
        node, waiting, *more = deciding.state("s").replicas
        deciding.submit(isr_change(deciding, "s", grow=False, node=waiting))
        for other in more:
            deciding.lose(other)
            if third == "alive":
                deciding.register(other)
        leader, healing = Leader(deciding), Partitions()
        assert leader.node == node
        leader.open()
        leader.views.standing = lambda _: DAMAGE
        views = leader.make_views(waiting, healing)
        views.standing = lambda _: f"waits: {LEADER_DAMAGED}"
        leader.open(healing).fail("another bad CRC", is_damage=True)

        info = await leader.asking.describe_cluster()
        assert info.failed_count == 2
        said = {each.node: each for each in info.failed}
        assert said[node].failure == DAMAGE
        assert said[node].advice.startswith("it serves what can be read")
        assert "another bad CRC" in said[waiting].failure
        assert said[waiting].failure.endswith(f"waits: {LEADER_DAMAGED}")
        assert said[waiting].advice.startswith(f"node {node} leads with a damaged log")
        for each in said.values():
            assert advice in each.advice
        # What a drain waits for: others may catch up with a damaged leader.
        assert [each.node for each in await leader.asking.stuck_replicas()] == [waiting]

    asyncio.run(run())


def test_what_a_leader_does_not_say_is_unknown() -> None:
    async def run() -> None:
        deciding = DecidingController()
        deciding.register(1, 2, 3)
        deciding.create("s", replicas=3)
        leader = Leader(deciding)
        held = Partitions()
        held.bind(asyncio.get_running_loop())
        follower = leader.make_views(deciding.state("s").replicas[1], held)
        leader.open(held)

        async def described(views: ClusterViews) -> PartitionInfo:
            (one,) = await views.describe_all(">")
            (some,) = await views.describe_some(["s"])
            assert one == some == await views.describe("s")
            return one.partitions[0]

        for views in (leader.asking, follower):
            unknown = await described(views)
            assert unknown.unknown == f"node {leader.node} does not say that it leads it"
            leader.is_there = False
            unknown = await described(views)
            assert unknown.unknown == f"its leader, node {leader.node}, does not answer"
            assert {getattr(unknown, name) for name in VALUES} == {None}
            assert unknown.messages is None
            assert (unknown.leader, len(unknown.replicas)) == (leader.node, 3)
            body = partition_body(unknown)
            assert {getattr(body, name) for name in VALUES} == {None}
            assert body.unknown == unknown.unknown
            leader.is_there = True
        leader.open()
        for views in (leader.asking, follower, leader.views):
            known = await described(views)
            assert (known.unknown, known.messages) == ("", 0)
            assert {getattr(known, name) for name in VALUES} == {0}

    asyncio.run(run())


def test_what_nobody_leads_is_unknown_also_where_a_replica_is() -> None:
    async def run() -> None:
        deciding = DecidingController()
        deciding.register(1, 2)
        deciding.create("s", replicas=1)
        deciding.lose(deciding.state("s").leader)
        leader = Leader(deciding)
        held = Partitions()
        held.bind(asyncio.get_running_loop())
        leader.open(held)
        for views in (leader.asking, leader.make_views(1, held)):
            (found,) = (await views.describe("s")).partitions
            assert (found.leader, found.end_offset) == (NO_LEADER, None)
            assert found.unknown == "nobody leads it"
            assert found.waits
            # What a node exports of its own replicas it knows.
            assert views.stream_info("s").partitions[0].end_offset == 0

    asyncio.run(run())


def test_a_description_of_an_earlier_release_is_read() -> None:
    said = PartitionInfo(0, 1, 2, 3, 4, 5, 6)
    earlier = {name: value for name, value in asdict(said).items() if name != "unknown"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(earlier), type=PartitionInfo) == said
