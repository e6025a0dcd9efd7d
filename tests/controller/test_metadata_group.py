"""Decisions on what is proposed and not committed yet, in a real Raft group of one node."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec
import pytest

from bascule.controller.cluster.metadata_group import GROUP, MetadataGroup, metadata_group
from bascule.controller.cluster.nats_lack import LackingNodes
from bascule.controller.cluster.upkeep import ClusterUpkeep
from bascule.controller.remembered_requests import ENTRIES_KEPT
from bascule.errors import Broken, NotLeader, RequestExpired, StreamConflict, UnknownStream
from bascule.host.real import RealRandom
from bascule.metadata.command_codec import RequestId
from bascule.metadata.image import Image
from bascule.metadata.requests import (
    Alter,
    ChangeIsrs,
    ControllerRequest,
    Create,
    Delete,
    IsrChange,
    RegisterProcess,
    StepDown,
)
from bascule.model import NodeRegistration, StreamConfig
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.sim.disk import SimClock
from support.metadata_groups import (
    CONFIG,
    NODE,
    Deciding,
    HeldStore,
    NoPeers,
    decide,
    some_turns,
    until,
)


def test_requests_that_come_together_share_syncs() -> None:
    async def scene(deciding: Deciding) -> None:
        before = deciding.store.statistics().syncs
        indexes = await asyncio.gather(*(deciding.create(f"s{n}") for n in range(200)))
        assert len(set(indexes)) == 200, "each is an entry of its own"
        assert len(deciding.group.image.streams) == 200
        assert deciding.store.statistics().syncs - before < 50
        last: set[bytes] = set().union(*deciding.touched)
        assert last == {f"s{n}".encode().rjust(16) for n in range(200)}
        assert sum(map(len, deciding.touched)) == 200, "each change names what it touches"

    decide(scene)


def test_a_decision_sees_what_is_proposed_before_it() -> None:
    async def scene(deciding: Deciding) -> None:
        await asyncio.gather(
            deciding.create("a"),
            deciding.group.submit(Alter("a", {"retention_messages_max": 7})),
            deciding.create("b"),
            deciding.group.submit(Delete("b")),
            deciding.create("c"),
            deciding.group.submit(RegisterProcess(NODE)),
        )
        image = deciding.group.image
        assert set(image.streams) == {"a", "c"}
        assert image.streams["a"].config.retention_messages_max == 7
        assert {each.name for each in image.deletions.values()} == {"b"}

    decide(scene)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Create("a", StreamConfig("other"), b"2" * 16, 0), StreamConflict),
        (Create("a", StreamConfig("a"), b"2" * 16, 0), None),
        (Delete("gone"), UnknownStream),
    ],
)
def test_nothing_is_answered_that_may_still_be_lost(
    request_: Create | Delete, error: type[Exception] | None
) -> None:
    """An error, and that there is nothing to do, wait for the proposals that they depend on."""

    async def scene(deciding: Deciding) -> None:
        await deciding.create("gone")
        last = deciding.driver.group(GROUP).node.log.last
        deciding.store.goes_on.clear()
        first = [
            asyncio.create_task(deciding.create("a")),
            asyncio.create_task(deciding.group.submit(Delete("gone"))),
        ]
        await deciding.until_proposed(last + 2)
        second = asyncio.create_task(deciding.group.submit(request_))
        await some_turns()
        assert not second.done()
        assert "a" not in deciding.group.image.streams
        deciding.store.goes_on.set()
        if error is None:
            await second
        else:
            with pytest.raises(error):
                await second
        assert set(deciding.group.image.streams) == {"a"}
        await asyncio.gather(*first)

    decide(scene)


def test_a_repeated_request_waits_for_its_first_entry() -> None:
    async def scene(deciding: Deciding) -> None:
        last = deciding.driver.group(GROUP).node.log.last
        deciding.store.goes_on.clear()
        create = Create("a", StreamConfig("a"), b"1" * 16, 0)
        deletion = Delete("a")
        requests = [
            (RequestId(b"1" * 16, ENTRIES_KEPT), create),
            (RequestId(b"2" * 16, ENTRIES_KEPT), deletion),
        ]
        tasks = [
            asyncio.create_task(deciding.group._decide(*each)) for each in (*requests, *requests)
        ]
        await deciding.until_proposed(last + 2)
        await some_turns()
        assert deciding.driver.group(GROUP).node.log.last == last + 2, "one entry each"
        deciding.store.goes_on.set()
        found: Sequence[int] = await asyncio.gather(*tasks)
        assert found == [last + 1, last + 2, last + 1, last + 2]
        assert not deciding.group.image.streams
        assert await deciding.group._decide(*requests[1]) >= last + 2

    decide(scene)


def test_a_request_whose_id_is_forgotten_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_group, "ENTRIES_KEPT", 3)

    async def scene(deciding: Deciding) -> None:
        group, create = deciding.group, Create("a", StreamConfig("a"), b"1" * 16, 0)
        request = RequestId(b"r" * 16, group.applied + 3)
        index = await group._decide(request, create)
        assert await group._decide(request, create) == index
        await group.submit(Delete("a"))
        assert await group._decide(request, create) == group.applied, "it is remembered"
        await deciding.create("b")
        await deciding.create("c")
        with pytest.raises(RequestExpired) as refused:
            await group._decide(request, create)
        assert (refused.value.last_index, refused.value.retriable) == (index + 2, False)
        assert sorted(group.image.streams) == ["b", "c"], "deleted, and not created again"

    decide(scene)


def test_a_node_whose_log_is_far_behind_is_no_late_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first attempt is refused, and has had no effect; a later one may have had one."""

    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        decided = group._submit_once
        asked: list[RequestId] = []

        async def late(identity: RequestId, request: ControllerRequest) -> int:
            asked.append(identity)
            if len(asked) == 1:
                raise RequestExpired(identity.last_index, 40_000)
            return await decided(identity, request)

        monkeypatch.setattr(group, "_submit_once", late)
        await deciding.create("a")
        first, second = asked
        assert first.id == second.id
        assert second.last_index == 40_000 + ENTRIES_KEPT

        async def lost(identity: RequestId, request: ControllerRequest) -> int:
            asked.append(identity)
            if len(asked) == 1:
                raise Broken("the answer was lost")
            raise RequestExpired(identity.last_index, 80_000)

        asked.clear()
        monkeypatch.setattr(group, "_submit_once", lost)
        with pytest.raises(RequestExpired, match="it may have been carried out before"):
            await deciding.create("b")
        first, second = asked
        assert first == second, "a repetition"

    decide(scene)


def test_a_node_has_what_it_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that registers acts on no older image, however late it hears of what is committed."""

    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        answered = group.applied + 1

        async def answer(identity: RequestId, request: ControllerRequest) -> int:
            return answered

        with monkeypatch.context() as patched:
            patched.setattr(group, "_submit_once", answer)
            registering = asyncio.create_task(group.submit(RegisterProcess(NODE)))
            await some_turns()
            assert not registering.done()
        await deciding.create("s")
        assert await registering == answered <= group.applied

    decide(scene)


def test_another_term_begins_with_what_is_applied() -> None:
    async def scene(deciding: Deciding) -> None:
        last = deciding.driver.group(GROUP).node.log.last
        deciding.store.goes_on.clear()
        creating = asyncio.create_task(deciding.create("a"))
        await deciding.until_proposed(last + 1)
        group = deciding.group
        foreseen = group._foresee(group.term)
        assert set(foreseen.image.streams) == {"a"}
        assert group._foresee(group.term) is foreseen
        later = group._foresee(group.term + 1)
        assert later.image is group.image
        assert not later.requests
        deciding.store.goes_on.set()
        await creating
        # What was decided on the proposals of a term that is over is not an answer.
        foreseen.term -= 1
        with pytest.raises(NotLeader):
            await group._confirm(foreseen, last + 1)

    decide(scene)


def test_what_was_foreseen_is_what_is_applied() -> None:
    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        deciding.store.goes_on.clear()
        last = deciding.driver.group(GROUP).node.log.last
        again = NodeRegistration(1, "h:1", "h:2", "http://h:3", incarnation=8)
        tasks = [
            asyncio.create_task(each)
            for each in (
                deciding.create("a", partitions=3),
                group.submit(RegisterProcess(again)),
                group.submit(Alter("a", {"partitions": 5})),
                deciding.create("b"),
            )
        ]
        await deciding.until_proposed(last + 4)
        foreseen = group._foresee(group.term).image
        deciding.store.goes_on.set()
        await asyncio.gather(*tasks)
        assert group.image == foreseen
        assert group.image.index == foreseen.index
        # The steps of a registration are a task, which begins after the other requests.
        assert group.image.nodes[1].epoch == last + 4, "the index of its entry"

    decide(scene)


def test_a_node_that_stops_gets_no_leadership_back() -> None:
    """It is alive and in sync until it is gone; its next process is not concerned."""

    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        second = replace(NODE, node_id=2)
        await group.submit(RegisterProcess(second))
        await deciding.create("a", partitions=2, replicas=2)
        (stream_id,) = group.image.partitions

        def leaders() -> list[int]:
            return sorted(state.leader for state in group.image.partitions[stream_id])

        assert leaders() == [1, 2]
        lacking = LackingNodes(group, dict, SimClock())
        upkeep = ClusterUpkeep(1, group, lacking, balance_ms=1)
        await group.submit(StepDown(2, group.image.nodes[2].epoch))
        assert leaders() == [1, 1]
        await upkeep._balance(now=1.0)
        assert leaders() == [1, 1]
        await group.submit(RegisterProcess(replace(second, incarnation=9)))
        for number, state in enumerate(group.image.partitions[stream_id]):
            await group.submit(
                ChangeIsrs(1, (IsrChange(
                    stream_id, number, state.leader_epoch, state.version,
                    tuple((n, group.image.nodes[n].epoch) for n in (1, 2)),
                ),))
            )  # fmt: skip
        await upkeep._balance(now=2.0)
        assert leaders() == [1, 2]

    decide(scene)


def test_a_snapshot_restores_the_image() -> None:
    async def scene(deciding: Deciding) -> None:
        await asyncio.gather(*(deciding.create(f"s{n}") for n in range(120)))
        before, store = deciding.group.image, deciding.store
        await until(lambda: deciding.driver.group(GROUP).report().log.snapshot_index >= 100)
        await deciding.driver.close_group(GROUP)
        contents = store._disk
        again = HeldStore()
        again._disk = contents
        driver = RaftDriver(1, DriverSettings(cluster="t", tick_ms=20), config=CONFIG)
        await driver.start()
        try:
            reopened = Deciding(driver, again)
            images: list[Image] = []
            touches: list[Collection[bytes] | None] = []

            def on_image(image: Image, touched: Collection[bytes] | None) -> None:
                images.append(image)
                touches.append(touched)

            reopened.group.on_image = on_image
            await reopened.group.open(voters=[1], store=reopened.store)
            await reopened.create("more")
            assert touches[0] is None, "any stream may differ after a snapshot"
            assert len(images[0].streams) >= 90
            assert dict(reopened.group.image.partitions).keys() > dict(before.partitions).keys()
        finally:
            await driver.stop()

    decide(scene)


def test_a_disk_that_fails_for_a_moment_delays_a_decision() -> None:
    """The duties of a controller end at no error that they do not know."""

    async def scene(deciding: Deciding) -> None:
        errors = [OSError(errno.EIO, "input/output error")] * 3

        def make_room() -> None:
            if errors:
                raise errors.pop()

        deciding.group.disk_check._make_room = make_room
        await deciding.create("s")
        assert "s" in deciding.group.image.streams
        assert not errors

    decide(scene)


def test_a_node_that_has_not_opened_its_group_refuses_what_others_forward() -> None:
    """Its peer listener answers before: another node may take it for the controller still."""

    async def scene() -> None:
        driver = RaftDriver(1, DriverSettings(cluster="t"), random=RealRandom(1))
        group = MetadataGroup(
            driver, NoPeers(), RealRandom(1), cluster_id="c", make_room=lambda: None
        )
        body = msgspec.msgpack.encode(
            metadata_group._Decide(bytes(16), RegisterProcess(NODE), ENTRIES_KEPT)
        )
        with pytest.raises(NotLeader):
            await group.handle_decide(body)
        with pytest.raises(Broken, match="node 1 has not opened its metadata yet"):
            await group.wait_applied(1)

    asyncio.run(scene())
