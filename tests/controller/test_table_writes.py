"""Writes of tables that are sent to the leader of the partition: once each, whatever gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from bascule.controller.cluster.confirmation import LeaderConfirmation
from bascule.controller.cluster.tables.writes import WRITE_SECONDS_MAX, TableWrites
from bascule.errors import (
    Broken,
    ConfigError,
    Indeterminate,
    InvalidKey,
    NotLeader,
    PublishRejected,
    UnknownKey,
    WrongVersion,
)
from bascule.host.real import RealRandom
from bascule.model import Cleanup, KeyFrom, PartitionState, StreamConfig, StreamDefinition
from bascule.publish.acks import TABLE_NOT_CAUGHT_UP, wrong_last_sequence
from bascule.replica.internal_publisher import ClientMessage
from bascule.table_results import TableEntry
from bascule.wire.ack_codes import publish_error
from support.virtual_time import run_virtually as run

LEADER: Final = 2
CONFIG: Final = StreamConfig(
    "$KV.t.>", cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True
)


class Cluster:
    """Node 1, which is asked, and node 2, which leads; what gets lost between them."""

    def __init__(self, *faults: Exception | None, lost: int = 0, dedupe_ms: int = 120_000) -> None:
        """The leader answers with `faults`, one after the other, None: it does what is asked, and
        then always. Its first `lost` answers do not arrive."""
        config = replace(CONFIG, dedupe_window_ms=dedupe_ms)
        self.definition = StreamDefinition("t", b"i" * 16, 0, config)
        self.faults = list(faults)
        self.lost = lost
        self.stored: list[ClientMessage] = []
        self.asked: list[ClientMessage] = []
        self.stale_reads = 0
        self.at_least: list[int] = []
        self.node, self.leader = (self._writes(number) for number in (1, LEADER))

    def _writes(self, node: int) -> TableWrites:
        partition = SimpleNamespace(definition=self.definition)
        return TableWrites(
            node,
            cast("Any", SimpleNamespace(stream=lambda name: (partition,))),
            cast("Any", SimpleNamespace(states=lambda id: [PartitionState((2,), (2,), 2, 0, 0)])),
            cast("Any", self),
            cast("Any", self),
            cast("Any", SimpleNamespace(definition=lambda name: self.definition, get=self._get)),
            RealRandom(1),
        )

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert (node, kind) == (LEADER, "table-writes")
        answer = await self.leader.answer(body)
        if self.lost:
            self.lost -= 1
            raise Broken("the connection is gone")
        return answer

    async def publish_message(self, partition: object, message: ClientMessage) -> int:
        self.asked.append(message)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        headers = dict(message.headers)
        for offset, each in enumerate(self.stored):
            if dict(each.headers)["Nats-Msg-Id"] == headers["Nats-Msg-Id"]:
                return offset
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        last = max(
            (n + 1 for n, each in enumerate(self.stored) if each.subject == message.subject),
            default=0,
        )
        if expected is not None and int(expected) != last:
            error = wrong_last_sequence(last)
            raise publish_error(error.code, error.err_code, error.description, "t")
        self.stored.append(message)
        return len(self.stored) - 1

    async def _get(self, table: str, key: bytes, *, at_least: int) -> tuple[int, TableEntry]:
        self.at_least.append(at_least)
        end = len(self.stored)
        if self.stale_reads:
            self.stale_reads -= 1
            end -= 1
        for offset in range(end - 1, -1, -1):
            if self.stored[offset].subject == f"$KV.t.{key.decode()}":
                value = self.stored[offset].value
                assert value is not None
                return end, TableEntry(key, offset, 0, value)
        raise UnknownKey(table, key)


def not_caught_up() -> PublishRejected:
    error = TABLE_NOT_CAUGHT_UP
    found = publish_error(error.code, error.err_code, error.description, "t")
    assert isinstance(found, PublishRejected)
    return found


def test_a_message_has_what_a_nats_client_would_have_sent() -> None:
    cluster = Cluster()
    chosen = {"if_version": None, "if_absent": True, "content_type": "a/b", "message_id": "id"}
    assert run(cluster.node.set("t", b"a b", b"v", **chosen)) == 0
    assert cluster.stored == [
        ClientMessage(
            "$KV.t.a%20b",
            None,
            b"v",
            (
                ("Nats-Msg-Id", b"id"),
                ("Nats-Expected-Last-Subject-Sequence", b"0"),
                ("Content-Type", b"a/b"),
            ),
        )
    ]
    assert run(cluster.node.set("t", b"a b", None, if_version=0)) == 1
    assert dict(cluster.stored[1].headers)["KV-Operation"] == b"DEL"
    assert cluster.stored[1].value is None


def test_a_write_whose_answer_was_lost_is_stored_once() -> None:
    cluster = Cluster(lost=3)
    assert run(cluster.node.set("t", b"k", b"v", if_absent=True)) == 0
    assert (len(cluster.asked), len(cluster.stored)) == (4, 1)


def test_without_a_dedupe_window_a_lost_answer_is_said_to_be_lost() -> None:
    cluster = Cluster(lost=1, dedupe_ms=0)
    with pytest.raises(Indeterminate, match="may or may not be stored"):
        run(cluster.node.set("t", b"k", b"v"))
    assert len(cluster.asked) == 1


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ([NotLeader(None, 0)], NotLeader),
        ([not_caught_up()], PublishRejected),
        ([Indeterminate("another node leads now"), NotLeader(None, 0)], Indeterminate),
    ],
)
def test_a_write_is_tried_until_its_time_is_over(
    faults: Sequence[Exception], kind: type[Exception]
) -> None:
    cluster = Cluster(*faults, *[faults[-1]] * 1_000)
    with pytest.raises(kind):
        run(cluster.node.set("t", b"k", b"v"))
    assert len(cluster.asked) > WRITE_SECONDS_MAX / 0.05 - 2
    assert run(Cluster(*faults).node.set("t", b"k", b"v")) == 0


def test_a_condition_that_does_not_hold_is_refused_at_once() -> None:
    cluster = Cluster(not_caught_up())
    with pytest.raises(WrongVersion) as raised:
        run(cluster.node.set("t", b"k", b"v", if_version=4))
    assert (raised.value.expected, raised.value.found) == (4, None)
    assert len(cluster.asked) == 2
    with pytest.raises(ConfigError):
        run(cluster.node.set("t", b"k", b"v", content_type="a\r\nb"))
    with pytest.raises(InvalidKey):
        run(cluster.node.set("t", b"", b"v"))
    paused = Cluster(PublishRejected(503, 20001, "stream is paused"))
    with pytest.raises(PublishRejected, match="paused"):
        run(paused.node.set("t", b"k", b"v"))


def test_an_increment_reads_again_what_it_was_told() -> None:
    cluster = Cluster()
    assert run(cluster.node.increment("t", b"n", 5)) == (0, 5)
    run(cluster.node.set("t", b"n", b"10"))
    cluster.stale_reads = 1
    assert run(cluster.node.increment("t", b"n", -1)) == (2, 9)
    assert cluster.at_least == [0, 0, 2]


def test_an_increment_is_counted_once_for_each_message_id() -> None:
    """Also where its answer was lost, or comes with another one."""
    cluster = Cluster()

    def increment(id: str, by: int = 1) -> tuple[int, int | None]:
        return run(cluster.node.increment("t", b"n", by, message_id=id))

    assert increment("first") == (0, 1)
    assert increment("first") == (0, 1)
    cluster.stale_reads = 1
    assert increment("second", 4) == (1, 5)
    assert increment("second", 4) == (1, 5)
    assert increment("first") == (0, None), "the table has the latest value alone"
    run(cluster.node.set("t", b"n", b"text"))
    assert increment("second", 4) == (1, None)
    assert [each.value for each in cluster.stored] == [b"1", b"5", b"text"]


def test_an_increment_that_its_first_attempt_overtakes_is_counted_once() -> None:
    """That was on its way to the leader when the repetition asked for it."""
    cluster = Cluster()
    run(cluster.node.set("t", b"n", b"5"))

    async def read(table: str, key: bytes, *, at_least: int) -> tuple[int, TableEntry]:
        if len(cluster.stored) == 1:
            await cluster.leader.set("t", b"n", b"6", if_version=0, message_id="id")
            await cluster.leader.set("t", b"n", b"9", if_version=1, message_id="x")
        return await Cluster._get(cluster, table, key, at_least=at_least)

    cluster.node._reads = cast(
        "Any", SimpleNamespace(definition=lambda _: cluster.definition, get=read)
    )
    assert run(cluster.node.increment("t", b"n", 1, message_id="id")) == (1, None)
    assert [each.value for each in cluster.stored] == [b"5", b"6", b"9"]


class Metadata:
    """A metadata group whose controller answers when it is told to."""

    def __init__(self, state: PartitionState) -> None:
        self.image = SimpleNamespace(partitions={b"i" * 16: (state,)})
        self.is_controller = True
        self.asked: list[asyncio.Future[int]] = []
        self.applied: list[int] = []

    async def read(self) -> int:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    async def wait_applied(self, index: int) -> None:
        self.applied.append(index)


def leading(**changes: Any) -> Any:
    """The partition of a node that leads, as far as a confirmation looks at it."""
    state = PartitionState((1, 2), (1, 2), 1, 7, 0)
    plain = {
        "definition": SimpleNamespace(id=b"i" * 16),
        "index": 0,
        "leader_epoch": 7,
        "is_leader": True,
        "knows_end": True,
        "high_watermark": SimpleNamespace(offset=40),
        "state": state,
        "watchers": set(),
    }
    return SimpleNamespace(**{**plain, **changes})


async def settle(check: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(50):
        if check():
            return
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn
    raise AssertionError("it has not come")


def test_reads_share_the_confirmation_that_begins_after_them() -> None:
    async def scene() -> None:
        partition = leading()
        metadata = Metadata(partition.state)
        confirmation = LeaderConfirmation(1, cast("Any", metadata), cast("Any", None))
        first = asyncio.ensure_future(confirmation.position(partition))
        await settle(lambda: len(metadata.asked) == 1)
        later = [asyncio.ensure_future(confirmation.position(partition)) for _ in range(5)]
        metadata.asked[0].set_result(3)
        assert await first == 40
        await settle(lambda: len(metadata.asked) == 2)
        assert not any(each.done() for each in later)
        partition.high_watermark.offset = 41
        metadata.asked[1].set_result(4)
        assert await asyncio.gather(*later) == [41] * 5
        assert (len(metadata.asked), metadata.applied) == (2, [3, 4])

    run(scene())


@pytest.mark.parametrize(
    ("state", "changes"),
    [
        (PartitionState((1, 2), (2,), 2, 8, 1), {}),
        (PartitionState((1, 2), (1, 2), 1, 9, 1), {}),
        (PartitionState((1, 2), (1, 2), 1, 7, 0), {"is_leader": False}),
        (None, {}),
    ],
)
def test_who_does_not_lead_in_the_epoch_of_the_metadata_is_refused(
    state: PartitionState | None, changes: dict[str, Any]
) -> None:
    async def scene() -> None:
        partition = leading(**changes)
        metadata = Metadata(partition.state)
        confirmation = LeaderConfirmation(1, cast("Any", metadata), cast("Any", None))
        reading = asyncio.ensure_future(confirmation.position(partition))
        await settle(lambda: len(metadata.asked) == 1)
        # The metadata has changed until the controller answers.
        metadata.image.partitions = {} if state is None else {b"i" * 16: (state,)}
        metadata.asked[0].set_result(3)
        with pytest.raises(NotLeader):
            await reading

    run(scene())


def test_a_new_leader_first_commits_what_its_predecessors_have_left() -> None:
    async def scene() -> None:
        partition = leading(knows_end=False)
        metadata = Metadata(partition.state)
        confirmation = LeaderConfirmation(1, cast("Any", metadata), cast("Any", None))
        reading = asyncio.ensure_future(confirmation.position(partition))
        await settle(lambda: len(metadata.asked) == 1)
        metadata.asked[0].set_result(3)
        await settle(lambda: bool(partition.watchers))
        partition.high_watermark.offset = 50
        partition.knows_end = True
        for watcher in list(partition.watchers):
            watcher()
        assert await reading == 50
        assert not partition.watchers
        late = leading(knows_end=False)
        waiting = asyncio.ensure_future(confirmation.position(late))
        await settle(lambda: len(metadata.asked) == 2)
        metadata.asked[1].set_result(4)
        with pytest.raises(Indeterminate, match="has not committed the end of its log"):
            await waiting

    run(scene())
