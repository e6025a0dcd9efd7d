"""What a node asks the leader of a partition."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster.views import PARTITIONS, ClusterViews
from bascule.errors import Broken
from bascule.publish.headers import HashKey
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock
from support.deciding_controller import DecidingController

ASKING = 9


class Leader:
    """The leader of the only partition of a stream, which another node asks."""

    def __init__(self, deciding: DecidingController) -> None:
        self.node = deciding.state("s").leader
        self.partitions = Partitions()
        self.partitions.bind(asyncio.get_running_loop())
        self.is_there = True
        self._deciding = deciding
        self._views = self._make_views(self.node)
        self.asking = self._make_views(ASKING)

    def _make_views(self, node: int) -> ClusterViews:
        return ClusterViews(
            node, "c", self.partitions, cast(Any, SimpleNamespace(image=self._deciding.image)),
            cast(Any, self), refusals=dict, duplicates=lambda _: (),
        )  # fmt: skip

    def open(self) -> Partition:
        partition = Partition(
            self._deciding.image.streams["s"], 0, log=None, failure=None, clock=SimClock(1_000),
            on_changed=self.partitions.notify_watchers, hash_key=HashKey(bytes(16)),
        )  # fmt: skip
        self.partitions.add((partition,))
        return partition

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert kind == PARTITIONS
        if not self.is_there:
            raise Broken(f"node {node} does not answer")
        return await self._views.answer_partitions(body)

    async def serves(self) -> bool:
        state = self._deciding.state("s")
        return await self.asking.leader_serves(self._deciding.image.streams["s"].id, 0, state)


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
        assert await leader.asking.leader_serves(stream_id, 0, state) is knows

    asyncio.run(run())
