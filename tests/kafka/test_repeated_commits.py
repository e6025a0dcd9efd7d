"""Commits that repeat an earlier one of their connection, beside those that are decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bascule.errors import NotLeader, PublishRejected
from bascule.groups import CommittedOffsetStore, committed_offsets
from bascule.kafka.handlers import SERVED_VERSIONS, handle
from bascule.kafka.repeated_requests import RepeatedRequests
from bascule.listening.connection import SHORTCUT_BYTES_MAX
from bascule.wire.connection import ClientConnection, ServerConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.offsets import OFFSETS_STREAM, OffsetKey
from bascule.wire.schema import NO_ID, Message
from support.group_requests import GroupRequests
from support.handlers import FLIGHTS_ID, HandlerHarness
from support.served_stream import open_stream

KEY = OffsetKey("billing", "flights", 0)


@pytest.fixture
def requests(harness: HandlerHarness, tmp_path: Any) -> GroupRequests:
    log = open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)
    return GroupRequests(harness, log)


class Connection:
    """A connection of a client, without sockets."""

    def __init__(self, requests: GroupRequests, version: int = 9) -> None:
        self._context = requests.harness.context
        self.version = version
        self._client = ClientConnection(client_id="test", frame_bytes_max=1 << 20)
        self._server = ServerConnection(
            served=SERVED_VERSIONS, requests=REQUESTS, frame_bytes_max=1 << 20
        )
        self.shortcut = RepeatedRequests(self._context, self._server)
        self.repeated = 0
        """Requests that were not decoded."""

    async def commit(self, offset: int, *, partitions: tuple[int, ...] = (0,), **said: Any) -> int:
        """Commit an offset of partitions of `flights`; the error of the first one."""
        by_id = self.version >= 10
        epoch = said.pop("epoch", 3)
        metadata = said.pop("metadata", "m")
        topic = OffsetCommitTopic(
            "" if by_id else "flights",
            FLIGHTS_ID if by_id else NO_ID,
            [
                OffsetCommitPartition(each, offset, epoch if self.version >= 6 else -1, metadata)
                for each in partitions
            ],
        )
        request = OffsetCommitRequest("billing", topics=[topic], **said)
        return await self.send(request)

    async def send(self, request: OffsetCommitRequest) -> int:
        self._server.feed(self._client.send(request, version=self.version))
        frame = self._server.next_frame()
        assert frame is not None
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer: Any
        if self.shortcut.begin(frame, answered.set_result):
            self.repeated += 1
            answer = await answered
        else:
            received = self._server.decode(frame)
            self.shortcut.on_decoded(received)
            answer = handle(received, self._context)
        if answer is None:
            raise asyncio.CancelledError
        if not isinstance(answer, bytes):
            response = answer if isinstance(answer, Message) else await answer
            (answer,) = self._server.send(self._server.decode(frame), response)
        self._client.feed(answer)
        event: Any = self._client.next_event()
        (topic,) = event.message.topics
        asked = request.topics[0]
        assert (topic.name, topic.topic_id) == (asked.name, asked.topic_id)
        assert [p.partition_index for p in topic.partitions] == [
            p.partition_index for p in asked.partitions
        ]
        return int(topic.partitions[0].error_code)


def run(
    requests: GroupRequests,
    test: Callable[[Connection, CommittedOffsetStore], Awaitable[None]],
    *,
    version: int = 9,
) -> None:
    async def scene() -> None:
        await test(Connection(requests, version), requests.offsets)

    requests.run(scene)


@pytest.mark.parametrize("version", range(2, 11))
def test_the_third_commit_of_a_form_is_not_decoded(requests: GroupRequests, version: int) -> None:
    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in range(5, 10):
            assert await it.commit(offset, epoch=offset) == ErrorCode.NONE
            (entry,) = offsets.entries()
            known = offset if version >= 6 else -1
            assert (entry.offset, entry.leader_epoch, entry.metadata) == (offset, known, "m")
        assert it.repeated == 3
        assert await it.commit(10, epoch=-7) == ErrorCode.NONE
        assert offsets.entries()[0].leader_epoch == -1

    run(requests, test, version=version)

    async def look(_: Connection, offsets: CommittedOffsetStore) -> None:
        assert offsets.committed(*KEY) == 10

    run(requests, look)


def test_another_form_is_decoded(requests: GroupRequests) -> None:
    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in (1, 2):
            assert await it.commit(offset) == ErrorCode.NONE
        assert await it.commit(3, metadata="n") == ErrorCode.NONE
        assert await it.commit(4) == ErrorCode.NONE
        assert it.repeated == 0
        assert offsets.committed(*KEY) == 4

    run(requests, test)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"partitions": (0, 0)}, ErrorCode.NONE),
        ({"partitions": (7,)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"metadata": "m" * SHORTCUT_BYTES_MAX}, ErrorCode.NONE),
        ({"generation_id_or_member_epoch": 3, "member_id": "x"}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_unusual_commits_are_decoded(
    requests: GroupRequests, fields: dict[str, Any], error: ErrorCode
) -> None:
    async def test(it: Connection, _: CommittedOffsetStore) -> None:
        for offset in range(4):
            assert await it.commit(offset, **fields) == error
        assert it.repeated == 0

    run(requests, test)


def test_the_membership_is_checked_each_time(requests: GroupRequests) -> None:
    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in range(3):
            assert await it.commit(offset) == ErrorCode.NONE
        joined = await requests.join(version=3)
        assert (await requests.sync(joined)).error_code == ErrorCode.NONE
        assert await it.commit(7) == ErrorCode.UNKNOWN_MEMBER_ID
        member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        for offset in range(3, 6):
            assert await it.commit(offset, **member) == ErrorCode.NONE
        again = await requests.join(joined.member_id, 3)
        assert again.generation_id == 2
        assert await it.commit(8, **member) != ErrorCode.NONE
        assert it.repeated == 2
        assert offsets.committed(*KEY) == 5

    run(requests, test)


def test_an_offset_below_zero_is_refused(requests: GroupRequests) -> None:
    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in range(3):
            assert await it.commit(offset) == ErrorCode.NONE
        assert await it.commit(-1) == ErrorCode.INVALID_REQUEST
        assert offsets.committed(*KEY) == 2

    run(requests, test)


def test_a_stream_that_is_gone_has_no_commits(requests: GroupRequests) -> None:
    partitions = requests.harness.partitions

    async def test(it: Connection, _: CommittedOffsetStore) -> None:
        for offset in range(3):
            assert await it.commit(offset) == ErrorCode.NONE
        found = partitions.stream("flights")
        assert found is not None
        partitions.remove(found[0].definition)
        assert await it.commit(7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert it.repeated == 1

    run(requests, test)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PublishRejected(503, 10_077, "full"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (NotLeader(None, 1), ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_commit_that_is_not_stored_is_answered_with_its_error(
    requests: GroupRequests, error: Exception, code: ErrorCode
) -> None:
    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in range(3):
            assert await it.commit(offset) == ErrorCode.NONE

        async def fail(*_: object) -> int:
            raise error

        publisher: Any = offsets._publisher
        publisher.publish_encodable = fail
        assert await it.commit(9) == code
        assert it.repeated == 2

    run(requests, test)


def test_a_commit_is_in_memory_once_it_is_answered(requests: GroupRequests) -> None:
    """It is read back where other records come between."""

    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in range(3):
            assert await it.commit(offset) == ErrorCode.NONE
        offsets._is_reading = True
        assert await it.commit(9) == ErrorCode.NONE
        assert offsets.committed(*KEY) == 9
        assert it.repeated == 2

    run(requests, test)


def test_the_limit_of_commits_holds(
    requests: GroupRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in range(3):
            assert await it.commit(offset) == ErrorCode.NONE
        monkeypatch.setattr(committed_offsets, "COMMITS_MAX", 0)
        assert await it.commit(9) == ErrorCode.NONE, "it replaces another one"
        await offsets.remove(consumer="billing", stream=None)
        assert await it.commit(10) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert it.repeated == 2

    run(requests, test)


def test_who_waits_when_the_node_stops_gets_no_answer(requests: GroupRequests) -> None:
    async def test(it: Connection, offsets: CommittedOffsetStore) -> None:
        for offset in range(3):
            assert await it.commit(offset) == ErrorCode.NONE

        begun = asyncio.Event()

        async def never(*_: object) -> int:
            begun.set()
            return await asyncio.get_running_loop().create_future()

        publisher: Any = offsets._publisher
        publisher.publish_encodable = never
        waiting = asyncio.create_task(it.commit(9))
        await begun.wait()
        await offsets._appends.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(requests, test)
