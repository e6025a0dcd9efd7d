"""Heartbeats that repeat an earlier one of their connection, beside those that are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bascule.groups.consumer import ConsumerGroup, ConsumerMember
from bascule.kafka.handlers import SERVED_VERSIONS, handle
from bascule.kafka.repeated_requests import RepeatedRequests
from bascule.listening.connection import SHORTCUT_BYTES_MAX
from bascule.wire.connection import ClientConnection, ServerConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.leave_group import LeaveGroupRequest, MemberIdentity
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.offsets import OFFSETS_STREAM
from bascule.wire.schema import Message, Request
from support.group_requests import GroupRequests
from support.handlers import HandlerHarness
from support.served_stream import open_stream


@pytest.fixture
def requests(harness: HandlerHarness, tmp_path: Path) -> GroupRequests:
    log = open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)
    return GroupRequests(harness, log)


class Connection:
    """A connection of a client, without sockets."""

    def __init__(self, requests: GroupRequests) -> None:
        self._context = requests.harness.context
        self._client = ClientConnection(client_id="test", frame_bytes_max=1 << 20)
        self._server = ServerConnection(
            served=SERVED_VERSIONS, requests=REQUESTS, frame_bytes_max=1 << 20
        )
        self.shortcut = RepeatedRequests(self._context, self._server)
        self.repeated = 0
        """Requests that were not decoded."""

    async def send(self, request: Request[Any], version: int) -> Any:
        """The response to a request."""
        self._server.feed(self._client.send(request, version=version))
        frame = self._server.next_frame()
        assert frame is not None
        begun = self.shortcut.begin(frame, lambda _: pytest.fail("heartbeats are answered at once"))
        if isinstance(begun, bytes):
            self.repeated += 1
            self._client.feed(begun)
        else:
            assert begun is False
            received = self._server.decode(frame)
            self.shortcut.on_decoded(received)
            answer = handle(received, self._context)
            response = answer if isinstance(answer, Message) else await answer
            (encoded,) = self._server.send(received, response)
            assert isinstance(encoded, bytes)
            self._client.feed(encoded)
        event: Any = self._client.next_event()
        return event.message

    async def join(self, name: str, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            "billing",
            name,
            0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["flights"],
            topic_partitions=[],
            **fields,
        )
        return await self.send(request, 1)

    async def beat(self, name: str, epoch: int = 1, **fields: Any) -> Any:
        return await self.send(ConsumerGroupHeartbeatRequest("billing", name, epoch, **fields), 1)


def group_of(requests: GroupRequests) -> ConsumerGroup:
    group = requests.groups.consumer_group("billing")
    assert group is not None
    return group


def member_of(requests: GroupRequests, name: str) -> ConsumerMember:
    return group_of(requests).members[name]


@pytest.mark.parametrize("version", range(5))
def test_the_third_classic_heartbeat_is_not_decoded(requests: GroupRequests, version: int) -> None:
    async def test() -> None:
        joined = await requests.member()
        it = Connection(requests)
        request = HeartbeatRequest("billing", joined.generation_id, joined.member_id)
        for _ in range(5):
            assert (await it.send(request, version)).error_code == ErrorCode.NONE
        assert (it.repeated, it.shortcut.name) == (3, "Heartbeat")

    requests.run(test)


def test_a_repeated_heartbeat_hears_of_a_rebalance(requests: GroupRequests) -> None:
    async def test() -> None:
        joined = await requests.member()
        it = Connection(requests)
        request = HeartbeatRequest("billing", joined.generation_id, joined.member_id)
        for _ in range(3):
            await it.send(request, 4)
        leaves = LeaveGroupRequest("billing", members=[MemberIdentity(joined.member_id)])
        await requests.send(leaves, 5)
        assert it.repeated == 1
        for _ in range(3):
            assert (await it.send(request, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert it.repeated == 1, "errors are found by the handler"

    requests.run(test)


def test_a_member_of_the_consumer_protocol_stays_alive_by_repetition(
    requests: GroupRequests,
) -> None:
    async def test() -> None:
        it = Connection(requests)
        await it.join("a")
        for _ in range(4):
            answer = await it.beat("a")
            assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, 1)
            assert (answer.member_id, answer.assignment) == ("a", None)
        assert (it.repeated, it.shortcut.name) == (2, "ConsumerGroupHeartbeat")
        member_of(requests, "a").heard_ms = -1
        await it.beat("a")
        assert it.repeated == 3
        assert member_of(requests, "a").heard_ms > 0

    requests.run(test)


def test_a_repeated_heartbeat_hears_of_a_new_epoch(requests: GroupRequests) -> None:
    async def test() -> None:
        it, other = Connection(requests), Connection(requests)
        await it.join("a")
        for _ in range(3):
            await it.beat("a")
        assert it.repeated == 1
        await other.join("b")
        assert (await it.beat("a")).member_epoch == 2
        assert it.repeated == 1
        fenced = await it.beat("a", 9)
        assert fenced.error_code == ErrorCode.FENCED_MEMBER_EPOCH

    requests.run(test)


def test_the_interval_is_told_again_once_it_changes(
    requests: GroupRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        it = Connection(requests)
        await it.join("a")
        for _ in range(3):
            assert (await it.beat("a")).heartbeat_interval_ms == 500
        now_ms = requests.groups._due.now_ms
        monkeypatch.setattr(requests.groups._due, "now_ms", lambda: now_ms() + 10_000)
        for _ in range(3):
            assert (await it.beat("a")).heartbeat_interval_ms == 5_000
        assert it.repeated == 3, "one of the old interval and two of the new one"

    requests.run(test)


def test_unusual_heartbeats_are_decoded(requests: GroupRequests) -> None:
    async def test() -> None:
        it = Connection(requests)
        await it.join("a", rack_id="r" * SHORTCUT_BYTES_MAX)
        for _ in range(3):
            # What a member says again is compared with what is known of it.
            answer = await it.beat("a", subscribed_topic_names=["flights"])
            assert answer.error_code == ErrorCode.NONE
            await it.beat("a", rack_id="r" * SHORTCUT_BYTES_MAX)
        assert it.repeated == 0

    requests.run(test)


def test_requests_of_two_members_on_one_connection_are_not_mixed(requests: GroupRequests) -> None:
    async def test() -> None:
        it = Connection(requests)
        await it.join("a")
        for _ in range(3):
            assert (await it.beat("a")).member_id == "a"
        for _ in range(3):
            assert (await it.beat("x")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await it.beat("a")).member_id == "a"
        assert it.repeated == 1

    requests.run(test)


def test_a_node_that_does_not_lead_the_groups_any_more_says_so(requests: GroupRequests) -> None:
    async def test() -> None:
        it = Connection(requests)
        await it.join("a")
        for _ in range(3):
            await it.beat("a")
        await requests.groups.close()
        assert (await it.beat("a")).error_code == ErrorCode.NOT_COORDINATOR

    requests.run(test)
