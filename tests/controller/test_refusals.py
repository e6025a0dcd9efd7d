"""A leader refuses a message over NATS once it knows that it was the leader then."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster.confirmation import (
    LeaderConfirmation,
    Refusals,
    leader_confirmation,
    refusals,
)
from bascule.controller.cluster.confirmation.refusals import RefusalCounts
from bascule.errors import CannotReplicate, NotLeader
from bascule.host.real import RealRandom
from bascule.model import AckPolicy, PartitionState
from bascule.publish.acks import AckError
from bascule.publish.unconfirmed import UNCONFIRMED_BYTES_MAX
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.replica.internal_publisher import ClientMessage, InternalPublisher
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimFiles
from bascule.wire import ack_codes
from support.replica_group import ReplicaGroup, message
from support.replicas import decode_acks, open_partition


class Metadata:
    """The metadata group at a controller, which answers when a test says so."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.group = group
        self.is_controller = True
        self.is_deleted = False
        self.asked: list[asyncio.Future[int]] = []

    @property
    def image(self) -> Any:
        states = {} if self.is_deleted else {b"i" * 16: (self.group.state,)}
        return SimpleNamespace(partitions=states)

    async def read(self) -> int:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    async def wait_applied(self, index: int) -> None:
        pass


class Scene:
    """Node 1 leads three replicas, and has committed one record."""

    def __init__(self) -> None:
        self.group = ReplicaGroup()
        self.metadata = Metadata(self.group)
        self.sent: list[bytes] = []
        confirmation = LeaderConfirmation(1, cast("Any", self.metadata), cast("Any", None))
        self.refusals = Refusals(confirmation, self.sent.append)
        self.group.apply()
        leader = self.leader
        leader.commitment.on_refused = partial(self.refusals.on_refused, leader)
        leader.append(message(b"first"))
        leader.sync()
        self.group.replicate(2)
        self.group.replicate(3)
        assert leader.committed_offset == 1

    @property
    def leader(self) -> Partition:
        return self.group.replicas[1].partition

    async def settle(self, check: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(50):
            if check():
                return
            turn = loop.create_future()
            loop.call_soon(turn.set_result, None)
            await turn
        raise AssertionError("it has not come")

    async def confirm(self, number: int = 0) -> None:
        await self.settle(lambda: len(self.metadata.asked) > number)
        self.metadata.asked[number].set_result(1)

    async def answers(self) -> dict[str, int]:
        """Inbox -> code of the error, once nothing waits."""
        await self.refusals.settle()
        acks = decode_acks(b"".join(self.sent))
        found = {}
        for inbox, ack in acks.items():
            error = ack["error"]
            assert isinstance(error, dict)
            found[inbox] = error["err_code"]
        return found


def run(scene: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        await scene(Scene())

    asyncio.run(play())


def stale(inbox: bytes = b"late", policy: AckPolicy = AckPolicy.ALL) -> UnstampedBatch:
    """A compare-and-set that is right once the next leader has stored another record."""
    return message(inbox, policy=policy, Nats_Expected_Last_Sequence="2")


@pytest.mark.parametrize("policy", list(AckPolicy))
def test_a_refusal_waits_until_the_leader_is_confirmed(policy: AckPolicy) -> None:
    async def scene(play: Scene) -> None:
        assert play.leader.append(stale(policy=policy)) == b""
        await play.settle(lambda: len(play.metadata.asked) == 1)
        assert not play.sent
        await play.confirm()
        assert await play.answers() == {"late": ack_codes.WRONG_LAST_SEQUENCE}
        assert play.refusals.counts == RefusalCounts(confirmed=1)

    run(scene)


@pytest.mark.parametrize(
    "batch",
    [stale, partial(message, b"late", Nats_Expected_Last_Msg_Id="other")],
    ids=["sequence", "id"],
)
def test_a_leader_that_has_a_successor_leaves_the_message_to_it(
    batch: Callable[[], UnstampedBatch],
) -> None:
    async def scene(play: Scene) -> None:
        assert play.leader.append(batch()) == b""
        await play.settle(lambda: len(play.metadata.asked) == 1)
        # It hears of its successor with the answer of the controller, or before that.
        play.group.apply(2, 3, leader=2, leader_epoch=2, isr=(2, 3))
        await play.confirm()
        assert await play.answers() == {}
        assert play.sent == []
        assert play.refusals.counts == RefusalCounts(deposed=1)

    run(scene)


def test_a_leader_once_more_leaves_it_to_the_one_between() -> None:
    async def scene(play: Scene) -> None:
        assert play.leader.append(stale()) == b""
        play.group.apply(2, 3, leader=2, leader_epoch=2, isr=(1, 2, 3))
        play.group.apply(leader=1, leader_epoch=3)
        await play.confirm()
        assert await play.answers() == {}

    run(scene)


def test_another_controller_is_asked_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_confirmation, "RETRY_SECONDS", 0.0)

    async def scene(play: Scene) -> None:
        assert play.leader.append(stale()) == b""
        await play.settle(lambda: len(play.metadata.asked) == 1)
        play.metadata.asked[0].set_exception(CannotReplicate("no majority"))
        await play.confirm(1)
        assert await play.answers() == {"late": ack_codes.WRONG_LAST_SEQUENCE}
        assert play.refusals.counts == RefusalCounts(confirmed=1)

    run(scene)


def test_without_a_controller_the_message_may_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REFUSAL_SECONDS_MAX", 0.01)

    async def scene(play: Scene) -> None:
        assert play.leader.append(stale()) == b""
        await play.settle(lambda: len(play.metadata.asked) == 1)
        play.metadata.asked[0].set_exception(CannotReplicate("no majority"))
        assert await play.answers() == {"late": ack_codes.INDETERMINATE}
        assert play.refusals.counts == RefusalCounts(unconfirmed=1)

    run(scene)


def test_a_leader_that_hands_over_says_that_it_may_be_stored() -> None:
    async def scene(play: Scene) -> None:
        assert play.leader.append(stale()) == b""
        play.leader.has_handed_over = True
        await play.confirm()
        assert await play.answers() == {"late": ack_codes.INDETERMINATE}

    run(scene)


def test_a_leader_that_goes_on_until_it_is_asked_to_hand_over_answers() -> None:
    """The next leader may not have subscribed when the message came."""

    async def scene(play: Scene) -> None:
        assert play.leader.append(stale()) == b""
        play.group.apply(2, 3, leader=2, leader_epoch=2)
        assert play.leader.append(stale(b"later")) == b""
        await play.confirm()
        codes = ack_codes.INDETERMINATE
        assert await play.answers() == {"late": codes, "later": codes}
        assert play.refusals.counts == RefusalCounts(unconfirmed=2)

    run(scene)


def test_who_is_refused_by_a_record_that_the_next_leader_commits_is_answered() -> None:
    async def scene(play: Scene) -> None:
        old = play.leader
        old.append(message(b"second"))
        assert old.append(message(b"wrong", Nats_Expected_Last_Sequence="7")) == b""
        play.group.copy(2)
        old.has_handed_over = True
        play.group.apply(leader=2, leader_epoch=2)
        assert not play.metadata.asked
        play.group.replicate(1, 3)
        await play.confirm()
        assert await play.answers() == {"wrong": ack_codes.INDETERMINATE}

    run(scene)


def test_who_waited_while_another_node_led_is_not_refused_by_the_epoch_after_it() -> None:
    """The leader between may have held the message, and stored it."""

    async def scene(play: Scene) -> None:
        old = play.leader
        old.append(message(b"second"))
        assert old.append(message(b"wrong", Nats_Expected_Last_Sequence="7")) == b""
        play.group.copy(2)
        old.has_handed_over = True
        play.group.apply(leader=2, leader_epoch=2)
        play.group.apply(leader=1, leader_epoch=3)
        play.group.replicate(2)
        play.group.replicate(3)
        assert play.leader.committed_offset == 2
        await play.confirm()
        found = await play.answers()
        assert found.get("wrong", ack_codes.INDETERMINATE) == ack_codes.INDETERMINATE

    run(scene)


def test_without_its_stream_a_message_is_left_to_nobody() -> None:
    async def scene(play: Scene) -> None:
        assert play.leader.append(stale()) == b""
        play.leader.deleted = play.metadata.is_deleted = True
        assert play.leader.append(message(b"later")) == b""
        await play.confirm()
        codes = ack_codes.INDETERMINATE
        assert await play.answers() == {"late": codes, "later": codes}

    run(scene)


def test_what_is_refused_as_a_whole_waits_too() -> None:
    async def scene(play: Scene) -> None:
        assert play.leader.refuse(message(b"full"), "the disk is full") == b""
        await play.confirm()
        assert await play.answers() == {"full": ack_codes.NOT_STORED}
        play.group.apply(isr=(1,))
        play.leader.commitment.replication.min_isr = 2  # type: ignore[union-attr]
        assert play.leader.append(message(b"short")) == b""
        await play.confirm(1)
        found = await play.answers()
        assert found["short"] == ack_codes.NOT_ENOUGH_REPLICAS

    run(scene)


def test_refusals_that_come_while_the_controller_is_asked_share_the_next_question() -> None:
    async def scene(play: Scene) -> None:
        play.leader.append(stale(b"first"))
        await play.settle(lambda: len(play.metadata.asked) == 1)
        for number in range(10):
            play.leader.append(stale(b"later-%d" % number))
        play.metadata.asked[0].set_result(1)
        await play.settle(lambda: len(play.metadata.asked) == 2)
        assert decode_acks(b"".join(play.sent)).keys() == {"first"}
        await play.confirm(1)
        assert len(await play.answers()) == 11
        assert len(play.metadata.asked) == 2

    run(scene)


def test_a_caller_of_this_node_is_told_that_another_one_leads() -> None:
    async def scene(play: Scene) -> None:
        told: list[tuple[int, AckError | None]] = []
        batch = stale(b"")
        batch.on_committed = lambda offset, error: told.append((offset, error))
        play.leader.append(batch)
        assert not told
        play.group.apply(2, 3, leader=2, leader_epoch=2, isr=(2, 3))
        await play.confirm()
        await play.refusals.settle()
        ((offset, error),) = told
        assert offset == -1
        assert error is not None
        assert error.err_code == ack_codes.NOT_STORED

    run(scene)


def test_a_node_that_stops_waits_for_those_alone_who_were_refused_before() -> None:
    """Callers that try again at once were waited for as long as they did."""

    async def scene(play: Scene) -> None:
        refused = 0

        async def read() -> int:
            return 1

        def try_again(_: int, error: AckError | None) -> None:
            nonlocal refused
            assert error is not None
            refused += 1
            if refused < 1_000:
                write()

        def write() -> None:
            batch = stale(b"")
            batch.on_committed = try_again
            play.leader.append(batch)

        play.metadata.read = read  # type: ignore[method-assign]
        write()
        await play.refusals.settle()
        assert 1 <= refused < 10
        await play.settle(lambda: refused > 2)

    run(scene)


def test_what_waits_is_bounded() -> None:
    async def scene(play: Scene) -> None:
        count = 4_000
        entry = struct.pack("<BIH", 0, 0, 2_000) + b"m" * 2_000
        size, kept, replies = 0, 0, list[bytes]()
        for _ in range(count):
            batch = message(b"m" * 2_000)
            replies.append(play.leader.refuse(batch, "the disk is full"))
            waiting = play.leader.commitment._unconfirmed
            size, kept = max(size, waiting.size), len(waiting.refusals)
        assert size <= UNCONFIRMED_BYTES_MAX
        assert kept < count
        assert b"".join(replies).count(b"may or may not be stored") == count - kept
        assert size >= len(entry) * kept
        await play.confirm()
        await play.refusals.settle()
        assert b"".join(play.sent).count(b"message was not stored") == kept

    run(scene)


def test_bursts_that_are_refused_as_a_whole_have_room() -> None:
    async def scene(play: Scene) -> None:
        count, answered = 10_000, b""
        inboxes = [b"_INBOX.0123456789012345678901.%08d" % n for n in range(count)]
        for _ in range(4):
            batch = message(b"burst", count)
            batch.ack_entries = b"".join(
                struct.pack("<BIH", 0, n, len(inbox)) + inbox for n, inbox in enumerate(inboxes)
            )
            answered += play.leader.refuse(batch, "the disk is full")
        assert answered == b""
        await play.confirm()
        await play.refusals.settle()
        assert b"".join(play.sent).count(b"message was not stored") == 4 * count

    run(scene)


def test_a_single_replica_refuses_at_once() -> None:
    async def scene(play: Scene) -> None:
        alone = open_partition(SimFiles(RealRandom(1)))
        alone.commitment.on_refused = partial(play.refusals.on_refused, alone)
        assert decode_acks(alone.append(stale()))["late"]["error"]
        assert not play.metadata.asked

    run(scene)


def test_a_single_replica_whose_log_cannot_be_used_refuses_at_once() -> None:
    async def scene(play: Scene) -> None:
        alone = open_partition(SimFiles(RealRandom(1)))
        alone.commitment.on_refused = partial(play.refusals.on_refused, alone)
        alone.fail("the disk is gone")
        alone.set_role(PartitionState((1,), (1,), 1, 2, 2), 1, lag_ns_max=1)
        assert decode_acks(alone.append(message(b"late")))["late"]["error"]
        assert not play.metadata.asked

    run(scene)


def test_a_caller_of_this_node_hears_of_the_other_leader_before_the_partition_does() -> None:
    async def scene(play: Scene) -> None:
        def append(
            partition: Partition, batches: Sequence[UnstampedBatch], on_done: object = None
        ) -> None:
            for batch in batches:
                partition.append(batch)

        publisher = InternalPublisher(Partitions(), append)
        write = asyncio.create_task(
            publisher.publish_message(
                play.leader,
                ClientMessage("s", None, b"x", (("Nats-Expected-Last-Sequence", b"2"),)),
            )
        )
        await play.settle(lambda: len(play.metadata.asked) == 1)
        play.group.apply(2, 3, leader=2, leader_epoch=2, isr=(2, 3))
        assert play.leader.is_leader
        await play.confirm()
        with pytest.raises(NotLeader):
            await write

    run(scene)
