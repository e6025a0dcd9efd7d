"""What a scrub says of the replicas of a stream."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster.healing.scrubs import SCRUB, SCRUBBED, Scrubs
from bascule.controller.cluster.views import PARTITIONS, ClusterViews
from bascule.errors import Broken
from bascule.host.real import RealRandom
from bascule.publish.headers import HashKey
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub import Scrubber, ScrubLimits
from bascule.sim.disk import SimClock, SimFiles
from support.deciding_controller import DecidingController
from support.replicas import lead_alone
from support.stored_batches import append, open_log


class Cluster:
    """Three nodes with a replica of the only partition of a stream each."""

    def __init__(self, *, batches: int) -> None:
        self.deciding = DecidingController()
        self.deciding.register(1, 2, 3)
        self.deciding.create("s", replicas=3, min_isr=1)
        self.leader = self.deciding.state("s").leader
        self.is_silent = False
        """Whether nobody says what it leads."""
        self.controls: dict[int, dict[str, Any]] = {}
        self.scrubs: dict[int, Scrubs] = {}
        self.scrubbers: list[Scrubber] = []
        for node in (1, 2, 3):
            self._add(node, batches)

    def _add(self, node: int, batches: int) -> None:
        files, clock, partitions = SimFiles(RealRandom(node)), SimClock(100_000), Partitions()
        partitions.bind(asyncio.get_running_loop())
        store = open_log(files)
        for _ in range(batches):
            append(store, 10)
        partition = Partition(
            self.deciding.image.streams["s"], 0, log=store, failure=None, clock=clock,
            on_changed=partitions.notify_watchers, hash_key=HashKey(bytes(16)),
        )  # fmt: skip
        partitions.add((lead_alone(partition),))
        partition.sync()
        metadata, peers = cast(Any, SimpleNamespace(image=self.deciding.image)), cast(Any, self)
        views = ClusterViews(
            node, "c", partitions, metadata, peers, refusals=dict, duplicates=lambda _: ()
        )
        scrubs = Scrubs(node, partitions, metadata, peers, views, RealRandom(node))
        scrubber = Scrubber(
            partitions, files=files, data_directory="/data", clock=clock,
            limits=ScrubLimits(0, 0), random=RealRandom(node),
        )  # fmt: skip
        scrubs.attach(scrubber)
        self.scrubs[node] = scrubs
        self.scrubbers.append(scrubber)
        handlers = {SCRUB: scrubs.answer_scrub, SCRUBBED: scrubs.answer_scrubbed}
        self.controls[node] = {**views.controls, **handlers}

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        if self.is_silent and kind == PARTITIONS:
            raise Broken(f"node {node} does not answer")
        return cast(bytes, await self.controls[node][kind](body))

    async def scrub(self) -> dict[int, tuple[str, str]]:
        """Node -> result and what was found, as a follower says it."""
        asked = self.scrubs[self.leader % 3 + 1]
        await asked.scrub_stream("s", partition=None)
        for scrubber in self.scrubbers:
            while await scrubber.tick():
                pass
        found = await asked.scrub_results("s", partition=None)
        for scrubs, scrubber in zip(self.scrubs.values(), self.scrubbers, strict=True):
            scrubs.close()
            await scrubber.close()
        return {each.node: (each.result, each.found) for each in found}


@pytest.mark.parametrize("batches", [3, 0])
@pytest.mark.parametrize("is_silent", [False, True])
def test_replicas_are_uncompared_where_nobody_says_what_is_committed(
    is_silent: bool, batches: int
) -> None:
    async def run() -> None:
        cluster = Cluster(batches=batches)
        cluster.is_silent = is_silent
        found = await cluster.scrub()
        assert {*found} == {1, 2, 3}
        for result, why in found.values():
            if is_silent and batches:
                assert (result, "not known" in why) == ("uncompared", True)
            else:
                assert (result, why) == ("ok", "")

    asyncio.run(run())
