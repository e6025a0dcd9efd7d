"""What a node whose disk is full tells the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster.healing import full_disk
from bascule.controller.cluster.healing.full_disk import FullDisk
from bascule.controller.cluster.image_follower import ImageFollower
from bascule.errors import Indeterminate
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, decide
from bascule.raft.membership import Members
from bascule.replica.disk_reserve import DECISION_BYTES, DiskReserve
from bascule.replica.partitions import Partitions
from support.deciding_controller import DecidingController
from support.metadata_groups import until

SECONDS_MAX = 60.0
SICK = 2


class Group:
    """A metadata group with one controller."""

    is_controller = False

    def __init__(self, deciding: DecidingController, members: Members | None = None) -> None:
        self._deciding = deciding
        self.members = members or Members(())
        self.asked: list[int] = []
        """To be the controller."""

    @property
    def image(self) -> Image:
        return self._deciding.image

    async def transfer(self, node: int) -> None:
        self.asked.append(node)
        if node == SICK:
            raise Indeterminate(f"node {node} does not lead yet")
        self.is_controller = False

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
        reserve = SimpleNamespace(
            is_needed=lambda: True, keep_room=lambda: None, cannot_decide=lambda: False
        )
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


class Room:
    """Files on a disk of which only the room is asked."""

    def __init__(self) -> None:
        self.free_bytes = DECISION_BYTES - 1
        self.asked = 0

    def room(self, path: str) -> tuple[int, int]:
        self.asked += 1
        return self.free_bytes, 1 << 30


def run_without_room(group: Group, room: Room, done: Callable[[], bool]) -> None:
    """Run node 1, whose disk has no reserve."""

    async def scene() -> None:
        reserve = DiskReserve(cast(Any, room), "data", RealRandom(1), size_bytes=0)
        follower = cast(Any, SimpleNamespace())
        disk = FullDisk(1, cast(Any, group), follower, Partitions(), reserve)
        running = asyncio.create_task(disk.run())
        async with asyncio.timeout(SECONDS_MAX):
            await until(done)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())


def controller() -> Group:
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    group = Group(deciding, Members((1, SICK, 3)))
    group.is_controller = True
    return group


def test_a_controller_that_has_no_room_to_decide_is_it_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_disk, "LOOK_SECONDS", 0.001)
    group = controller()
    run_without_room(group, Room(), lambda: not group.is_controller)
    assert group.asked == [SICK, 3]


def test_a_controller_that_gets_it_back_at_once_waits_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the disks of all voters are full."""
    monkeypatch.setattr(full_disk, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(full_disk, "HAND_OVER_SECONDS_MAX", 3_600.0)
    group, room = controller(), Room()
    monkeypatch.setattr(Group, "is_controller", property(lambda _: True, lambda *_: None))
    run_without_room(group, room, lambda: room.asked > 300)
    assert 2 <= group.asked.count(3) <= 20


def test_a_controller_with_room_stays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "LOOK_SECONDS", 0.001)
    group, room = controller(), Room()
    room.free_bytes = DECISION_BYTES
    run_without_room(group, room, lambda: room.asked > 10)
    assert group.is_controller
    assert group.asked == []
