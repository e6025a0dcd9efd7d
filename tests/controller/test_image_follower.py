"""What a node asks the controller for by itself, and for how long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster import image_follower
from bascule.controller.cluster.image_follower import ImageFollower
from bascule.errors import Closed, Indeterminate
from bascule.metadata.image import Image
from bascule.metadata.requests import (
    ControllerRequest,
    Delete,
    Forget,
    RegisterProcess,
    decide,
)
from bascule.replica.partitions import Partitions
from support.deciding_controller import DecidingController, isr_change, registration
from support.metadata_groups import until

SECONDS_MAX = 10.0


class Group:
    """A metadata group without a controller for some requests."""

    def __init__(self, deciding: DecidingController, lost: int) -> None:
        self._deciding = deciding
        self._lost = lost

    @property
    def image(self) -> Image:
        return self._deciding.image

    @property
    def applied(self) -> int:
        return self._deciding.index

    async def submit(self, request: ControllerRequest) -> int:
        if self._lost:
            self._lost -= 1
            raise Indeterminate("no controller has answered")
        return self._deciding.commit(decide(self.image, request))


def test_a_replica_that_has_failed_resigns_however_long_there_is_no_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its failure is told once; a request that gave up left it the leader for ever."""
    monkeypatch.setattr(image_follower, "RETRY_SECONDS_MIN", 0.001)
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    deciding.create("s", replicas=3)
    before = deciding.state("s")

    async def scene() -> None:
        partitions = Partitions()
        group = Group(deciding, lost=3)
        follower = ImageFollower(before.leader, partitions, cast(Any, None), cast(Any, group))
        failed = SimpleNamespace(definition=deciding.image.streams["s"], index=0, deleted=False)
        partitions.on_failed(cast(Any, failed))
        partitions.on_failed(cast(Any, failed))
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: deciding.state("s").leader != before.leader)
        await follower.close()

    asyncio.run(scene())
    assert before.leader not in deciding.state("s").isr


def test_a_replica_that_has_failed_resigns_once_an_eligible_node_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image_follower, "RETRY_SECONDS_MIN", 0.001)
    deciding = DecidingController()
    deciding.register(1, 2)
    stream_id = deciding.create("s", replicas=2)
    before = deciding.state("s")
    other = next(node for node in before.replicas if node != before.leader)
    deciding.lose(other)
    assert deciding.state("s").eligible == (other,)

    async def scene() -> None:
        partitions = Partitions()
        group = Group(deciding, lost=0)
        reconciler = SimpleNamespace(roles=SimpleNamespace(on_image=lambda: None))
        follower = ImageFollower(before.leader, partitions, cast(Any, reconciler), cast(Any, group))
        failed = SimpleNamespace(
            definition=deciding.image.streams["s"], index=0, deleted=False, failure="damaged"
        )
        monkeypatch.setattr(partitions, "streams", lambda: {"s": (failed,)})
        partitions.on_failed(cast(Any, failed))
        assert deciding.state("s").leader == before.leader, "nobody else has every record"
        deciding.submit(RegisterProcess(registration(other, incarnation=2)))
        follower.on_image({stream_id})
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: deciding.state("s").leader == other)
        await follower.close()

    asyncio.run(scene())
    assert deciding.state("s").isr == (other,)


def test_a_replica_that_has_failed_is_not_eligible_any_more() -> None:
    """It would be elected once the leader is lost."""
    deciding = DecidingController()
    deciding.register(1, 2)
    deciding.create("s", replicas=2)
    leader, other = deciding.state("s").replicas
    deciding.set_isr("s", leader)
    assert deciding.state("s").eligible == (other,)

    async def scene() -> None:
        partitions = Partitions()
        group = Group(deciding, lost=0)
        follower = ImageFollower(other, partitions, cast(Any, None), cast(Any, group))
        failed = SimpleNamespace(definition=deciding.image.streams["s"], index=0, deleted=False)
        partitions.on_failed(cast(Any, failed))
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: not deciding.state("s").eligible)
        await follower.close()

    asyncio.run(scene())
    assert (deciding.state("s").leader, deciding.state("s").isr) == (leader, (leader,))


def test_a_replica_that_has_failed_resigns_also_if_it_is_taken_into_the_isr_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader remembers where it was, until it hears of the failure."""
    monkeypatch.setattr(image_follower, "RETRY_SECONDS_MIN", 0.001)
    deciding = DecidingController()
    deciding.register(1, 2)
    stream_id = deciding.create("s", replicas=2)
    leader, other = deciding.state("s").replicas
    deciding.submit(isr_change(deciding, "s", grow=False, node=other))

    async def scene() -> None:
        partitions = Partitions()
        group = Group(deciding, lost=0)
        reconciler = SimpleNamespace(roles=SimpleNamespace(on_image=lambda: None))
        follower = ImageFollower(other, partitions, cast(Any, reconciler), cast(Any, group))
        follower.on_image(None)
        failed = SimpleNamespace(
            definition=deciding.image.streams["s"], index=0, deleted=False, failure="damaged"
        )
        monkeypatch.setattr(partitions, "stream_by_id", lambda _: (failed,))
        deciding.submit(isr_change(deciding, "s", grow=True, node=other))
        epoch = deciding.state("s").leader_epoch
        follower.on_image({stream_id})
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: deciding.state("s").isr == (leader,))
        assert deciding.state("s").leader_epoch == epoch + 1, "positions are forgotten"
        assert deciding.state("s").eligible == ()
        await follower.close()

    asyncio.run(scene())


def test_a_replica_that_has_failed_resigns_again_where_an_election_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first request is of an epoch before it, and the election finds it under way."""
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    stream_id = deciding.create("s", replicas=3)
    leader, failing, _ = deciding.state("s").replicas

    async def scene() -> None:
        partitions = Partitions()
        group = Group(deciding, lost=0)
        reconciler = SimpleNamespace(roles=SimpleNamespace(on_image=lambda: None))
        follower = ImageFollower(failing, partitions, cast(Any, reconciler), cast(Any, group))
        follower.on_image(None)
        failed = SimpleNamespace(
            definition=deciding.image.streams["s"], index=0, deleted=False, failure="damaged"
        )
        monkeypatch.setattr(partitions, "stream_by_id", lambda _: (failed,))

        async def submit(request: ControllerRequest) -> int:
            if deciding.image.is_alive(leader):
                deciding.lose(leader)
                follower.on_image({stream_id})
            return deciding.submit(request)

        monkeypatch.setattr(group, "submit", submit)
        partitions.on_failed(cast(Any, failed))
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: failing not in deciding.state("s").isr)
        await follower.close()

    asyncio.run(scene())
    assert deciding.state("s").leader not in (leader, failing)


def test_a_node_that_stops_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The nodes of a cluster stop one after the other, and each gives to the next what it led."""
    monkeypatch.setattr(image_follower, "RETRY_SECONDS_MIN", 0.001)
    errors: list[Exception] = [Closed("the log writer has stopped"), ValueError("a bug")]
    deciding = DecidingController()

    class Reconciling:
        is_settled = False

        async def reconcile(self, *_: object) -> None:
            raise errors.pop(0) if len(errors) > 1 else errors[0]

    async def scene() -> None:
        group = SimpleNamespace(applied=0, image=deciding.image)
        follower = ImageFollower(1, Partitions(), cast(Any, Reconciling()), cast(Any, group))
        task = asyncio.get_running_loop().create_task(follower.run())
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: bool(caplog.records))
        task.cancel()
        await asyncio.wait([task])
        await follower.close()

    asyncio.run(scene())
    assert all("a bug" in str(record.exc_info and record.exc_info[1]) for record in caplog.records)


@pytest.mark.parametrize("lost", [0, 3])
def test_what_is_removed_while_another_deletion_is_told_is_told_too(
    monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """No other image may come; `lost` attempts find no controller."""
    monkeypatch.setattr(image_follower, "RETRY_SECONDS_MIN", 0.001)
    deciding = DecidingController()
    deciding.register(1)
    first, second = (deciding.create(name, replicas=1) for name in ("a", "b"))
    for name in ("a", "b"):
        deciding.submit(Delete(name))
    state = SimpleNamespace(removed={first})
    told: list[tuple[bytes, ...]] = []

    class Telling(Group):
        async def submit(self, request: ControllerRequest) -> int:
            assert isinstance(request, Forget)
            told.append(request.ids)
            index = await super().submit(request)
            if second not in state.removed:
                state.removed.add(second)
                await follower.reconcile()  # with the last image of all
            return index

    async def reconcile(*_: object) -> dict[bytes, Exception]:
        return {}

    async def scene() -> None:
        nonlocal follower
        reconciler = SimpleNamespace(
            state=state, reconcile=reconcile, forget_deletions=state.removed.difference_update
        )
        group = Telling(deciding, lost)
        follower = ImageFollower(1, Partitions(), cast(Any, reconciler), cast(Any, group))
        await follower.reconcile()
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: not deciding.image.deletions)
        await follower.reconcile()
        assert not state.removed
        await follower.close()

    follower: ImageFollower = cast(Any, None)
    asyncio.run(scene())
    assert told == [*[(first,)] * (lost + 1), (second,)]
