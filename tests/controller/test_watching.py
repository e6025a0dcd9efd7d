"""Requests that end once what they wait for is not to come. Time is virtual."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster.metadata_group import LivingPeers
from bascule.controller.cluster.metadata_group.watching import Watchers
from bascule.errors import Broken
from bascule.metadata.image import Image
from bascule.model import NodeRegistration
from support.virtual_time import elapse, run_virtually

OTHERWISE = "node 2 is lost"


class Asked:
    """A request that is answered when it is told to be."""

    def __init__(self) -> None:
        self.watchers = Watchers()
        self.is_due = True
        self.is_cancelled = False
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def _asking(self) -> int:
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise

    async def ask(self) -> int:
        return await self.watchers.ask_while(
            lambda: self.is_due, self._asking(), otherwise=OTHERWISE
        )

    def change(self) -> None:
        self.is_due = False
        self.watchers.tell()


def test_an_answer_is_returned_whatever_changes_else() -> None:
    async def scene() -> None:
        asked = Asked()
        task = asyncio.create_task(asked.ask())
        await elapse(1)
        asked.watchers.tell()
        await elapse(1)
        assert not task.done()
        asked.answer.set_result(7)
        assert await task == 7
        asked.change()  # nobody is told any more

    run_virtually(scene())


@pytest.mark.parametrize("when", ["before", "while it is asked"])
def test_a_request_ends_with_what_it_waits_for(when: str) -> None:
    async def scene() -> None:
        asked = Asked()
        if when == "before":
            asked.change()
            with pytest.raises(Broken, match=OTHERWISE):
                await asked.ask()
            return
        task = asyncio.create_task(asked.ask())
        await elapse(1)
        asked.change()
        asked.change()
        with pytest.raises(Broken, match=OTHERWISE):
            await task
        await elapse(0)
        assert asked.is_cancelled

    run_virtually(scene())


def test_an_error_is_that_of_the_request() -> None:
    async def scene() -> None:
        asked = Asked()
        asked.answer.set_exception(KeyError("k"))
        with pytest.raises(KeyError):
            await asked.ask()

    run_virtually(scene())


def test_who_is_cancelled_cancels_the_request() -> None:
    async def scene() -> None:
        asked = Asked()
        task = asyncio.create_task(asked.ask())
        await elapse(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await elapse(0)
        assert asked.is_cancelled
        asked.change()

    run_virtually(scene())


def test_a_node_that_hangs_is_asked_until_it_is_lost() -> None:
    async def scene() -> None:
        watchers = Watchers()
        metadata = SimpleNamespace(image=image_with(alive=True), watchers=watchers)
        answers = {1: asyncio.get_running_loop().create_future()}
        answers[1].set_result(b"followed")

        async def control(node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
            assert (kind, body, timeout_s) == ("await", b"7", 20.0)
            return await answers.setdefault(node, asyncio.get_running_loop().create_future())

        peers = LivingPeers(cast(Any, metadata), cast(Any, SimpleNamespace(control=control)))
        assert await peers.control(1, "await", b"7", timeout_s=20.0) == b"followed"
        asking = asyncio.create_task(peers.control(2, "await", b"7", timeout_s=20.0))
        await elapse(1)
        watchers.tell()
        await elapse(1)
        assert not asking.done()
        metadata.image = image_with(alive=False)
        watchers.tell()
        with pytest.raises(Broken, match="node 2 is lost"):
            await asking
        with pytest.raises(Broken, match="node 3 is lost"):
            await peers.control(3, "await", b"7", timeout_s=20.0)

    run_virtually(scene())


def image_with(*, alive: bool) -> Image:
    """Nodes 1 and 2, of which 2 may be lost."""
    nodes = {n: NodeRegistration(n, "h:1", "h:2", "http://h:3", incarnation=n) for n in (1, 2)}
    nodes[2] = replace(nodes[2], alive=alive)
    return Image(nodes=nodes)
