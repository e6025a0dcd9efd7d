"""Requests that a node forwards to controllers that hang and are replaced. Time is virtual."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from bascule.controller.cluster.metadata_group import DECIDE, MetadataGroup
from bascule.host.real import RealRandom
from bascule.metadata.requests import Delete
from support.virtual_time import elapse, run_virtually

DECIDED = 8


class Node:
    """A node that is not the controller. It is its own way to the others."""

    def __init__(self) -> None:
        self.hanging = {2}
        self.asked: list[tuple[int, bytes]] = []
        driver = SimpleNamespace(node_id=1)
        self.metadata = MetadataGroup(
            cast(Any, driver), self, RealRandom(1), cluster_id="c", make_room=lambda: None
        )
        self.group = SimpleNamespace(
            is_leader=False, leader=2, node=SimpleNamespace(term=1), barrier=self._barrier
        )
        self.metadata._group = cast(Any, self.group)

    async def _barrier(self, index: int, *, timeout_s: float) -> None:
        assert index == DECIDED

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert kind == DECIDE
        self.asked.append((node, body))
        while node in self.hanging:
            await elapse(1)
        return msgspec.msgpack.encode(DECIDED)

    def lead(self, node: int) -> None:
        """The node hears who is the controller now; 0: nobody is."""
        self.group.leader = node
        self.metadata.watchers.tell()


def test_a_request_goes_on_with_the_next_controller_as_soon_as_there_is_one() -> None:
    async def scene() -> None:
        node = Node()
        loop = asyncio.get_running_loop()
        submitting = asyncio.create_task(node.metadata.submit(Delete("s")))
        await elapse(0.5)
        node.lead(0)
        await elapse(0.5)
        assert len(node.asked) == 1, "nobody else can answer"
        node.lead(3)
        began = loop.time()
        assert await submitting == DECIDED
        assert loop.time() - began < 0.2
        assert [number for number, _ in node.asked] == [2, 3]
        first, second = (body for _, body in node.asked)
        assert first == second, "the same request, which is carried out once"

    run_virtually(scene())


def test_a_controller_that_answers_late_is_waited_for() -> None:
    async def scene() -> None:
        node = Node()
        submitting = asyncio.create_task(node.metadata.submit(Delete("s")))
        await elapse(2)
        node.metadata.watchers.tell()
        node.hanging.clear()
        assert await submitting == DECIDED
        assert [number for number, _ in node.asked] == [2]

    run_virtually(scene())
