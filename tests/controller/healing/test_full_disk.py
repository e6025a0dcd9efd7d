"""What a node whose disk is full tells the controller."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster.healing import full_disk
from bascule.controller.cluster.healing.full_disk import FullDisk
from bascule.controller.cluster.image_follower import ImageFollower
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, decide
from bascule.replica.partitions import Partitions
from support.deciding_controller import DecidingController
from support.metadata_groups import until

SECONDS_MAX = 10.0


class Group:
    """A metadata group with one controller."""

    def __init__(self, deciding: DecidingController) -> None:
        self._deciding = deciding

    @property
    def image(self) -> Image:
        return self._deciding.image

    async def submit(self, request: ControllerRequest) -> int:
        return self._deciding.commit(decide(self.image, request))


@pytest.mark.parametrize("failure", [None, "damaged"])
def test_a_log_that_is_whole_stays_eligible(
    failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disk, "LOOK_SECONDS", 0.001)
    deciding = DecidingController()
    deciding.register(1, 2)
    deciding.create("s", replicas=2)
    leader, other = deciding.state("s").replicas

    async def scene() -> None:
        partitions, group = Partitions(), cast(Any, Group(deciding))
        follower = ImageFollower(leader, partitions, cast(Any, None), group)
        held = SimpleNamespace(log="a log", failure=failure)
        monkeypatch.setattr(partitions, "stream_by_id", lambda _: (held,))
        reserve = SimpleNamespace(is_needed=lambda: True, keep_room=lambda: None)
        disk = FullDisk(leader, group, follower, partitions, cast(Any, reserve))
        running = asyncio.create_task(disk.run())
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: deciding.state("s").leader == other)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await follower.close()

    asyncio.run(scene())
    state = deciding.state("s")
    assert (state.isr, state.eligible) == ((other,), () if failure else (leader,))
