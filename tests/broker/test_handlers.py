"""What each request is answered, straight from the handlers: real logs, no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bascule.broker.delayed import Delays
from bascule.broker.handlers import SERVED, handle
from bascule.broker.handlers.context import Context
from bascule.broker.partitions import Partition, Partitions
from bascule.errors import RemoteProtocolError
from bascule.record.builder import build_batch
from bascule.storage.partition_log import FileSlice
from bascule.wire.connection import ReceivedRequest
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest
from bascule.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from bascule.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from bascule.wire.messages.offset_for_leader_epoch import (
    EpochPartition,
    EpochTopic,
    OffsetForLeaderEpochRequest,
)
from bascule.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from bascule.wire.schema import Message, Request
from served_stream import NODE, TIMESTAMP, StepClock, append, make_records, open_stream

FLIGHTS_ID = b"flights#########"
NOBODY = b"nobody's id 0000"
LONG_MS = 30_000


@dataclass
class House:
    """Two streams of this node, and a third whose log could not be opened."""

    partitions: Partitions
    clock: StepClock
    flights: Partition
    context: Context
    delays: Delays = field(default_factory=Delays)

    def ask(self, request: Request[Any], version: int) -> Any:
        return asyncio.run(self.answer(request, version))

    async def answer(self, request: Request[Any], version: int) -> Any:
        self.partitions.bind(asyncio.get_running_loop())
        received = ReceivedRequest(request.API_KEY, version, 1, "test", request, version)
        response = handle(received, self.context)
        return response if isinstance(response, Message) else await response

    def fetch(self, version: int = 12, **partition: Any) -> FetchPartitionResponse:
        request = fetch_request("flights", **partition)
        answer: FetchPartitionResponse = self.ask(request, version).responses[0].partitions[0]
        return answer


async def on_thread(function: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    partitions, clock = Partitions(), StepClock()
    flights = open_stream(tmp_path, partitions, clock=clock, segment_bytes_max=8_000)
    flights.leader_epoch = 3
    for batch in range(20):
        append(flights, make_records(batch * 10, 10))
        clock.wall_ms += 1000
    open_stream(tmp_path, partitions, "empty")
    open_stream(tmp_path, partitions, "broken", failure="bad sector")
    delays = Delays()
    context = Context(
        partitions=partitions,
        node=NODE,
        host="here",
        port=9092,
        fetch_bytes_max=1 << 20,
        fetch_wait_ms_max=60_000,
        delays=delays,
        on_thread=on_thread,
    )
    yield House(partitions, clock, flights, context, delays)
    for stream in partitions.streams().values():
        if stream[0].log is not None:
            stream[0].log.close()


def fetch_request(name: str, *, wait_ms: int = 0, bytes_min: int = 1, **asked: Any) -> FetchRequest:
    asked.setdefault("partition_max_bytes", 1 << 20)
    topic = FetchTopic(name, partitions=[FetchPartition(**asked)])
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=bytes_min, topics=[topic])


def length(answer: FetchPartitionResponse) -> int:
    return answer.records.length if isinstance(answer.records, FileSlice) else 0


# -- ApiVersions, FindCoordinator, Produce ------------------------------------------------------


def test_api_versions_lists_what_is_served(house: House) -> None:
    answer = house.ask(ApiVersionsRequest(), 3)
    assert answer.error_code == 0
    table = {a.api_key: (a.min_version, a.max_version) for a in answer.api_keys}
    assert table == {key: (v.first, v.last) for key, v in SERVED.items()}
    # What librdkafka reads features off, each by a version it looks for.
    for key, version in ((0, 0), (0, 3), (0, 7), (1, 4), (1, 10), (2, 1), (10, 0)):
        assert table[key][0] <= version <= table[key][1]


def test_an_unknown_api_versions_version_gets_the_table_with_an_error(house: House) -> None:
    answer = house.ask(ApiVersionsRequest(), 99)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.api_keys


@pytest.mark.parametrize("version", range(7))
def test_this_node_is_every_coordinator(house: House, version: int) -> None:
    answer = house.ask(FindCoordinatorRequest("g", coordinator_keys=["g", "h"]), version)
    found = [answer] if version < 4 else answer.coordinators
    assert {(c.error_code, c.node_id, c.host, c.port) for c in found} == {(0, 7, "here", 9092)}
    assert version < 4 or [c.key for c in found] == ["g", "h"]


def test_produce_is_refused_with_the_subject(house: House) -> None:
    topics = [
        ProduceTopic("flights", partition_data=[ProducePartition(0, b"x"), ProducePartition(1)]),
        ProduceTopic("nobody", partition_data=[ProducePartition(0, b"x")]),
    ]
    answer = house.ask(ProduceRequest(acks=-1, topic_data=topics), 9)
    first, second = answer.responses
    assert [p.error_code for p in first.partition_responses] == [ErrorCode.POLICY_VIOLATION] * 2
    assert "NATS subject flights.>" in first.partition_responses[0].error_message
    assert second.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(RemoteProtocolError, match="without acks"):
        house.ask(ProduceRequest(acks=0, topic_data=topics), 9)


# -- Metadata -----------------------------------------------------------------------------------


def test_metadata_of_everything(house: House) -> None:
    for version, topics in ((0, ()), (1, None), (13, None)):
        answer = house.ask(MetadataRequest(topics), version)
        assert [t.name for t in answer.topics] == ["broken", "empty", "flights"]
        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(7, "here", 9092)]
        assert answer.controller_id == 7
        assert answer.cluster_id == NODE.cluster_id
    (partition,) = answer.topics[2].partitions
    assert (partition.leader_id, partition.isr_nodes, partition.replica_nodes) == (7, [7], [7])
    assert partition.leader_epoch == house.flights.leader_epoch
    assert house.ask(MetadataRequest(()), 1).topics == []


def test_metadata_by_name_and_by_id(house: House) -> None:
    asked = [
        MetadataRequestTopic(name="flights"),
        MetadataRequestTopic(name="nobody"),
        MetadataRequestTopic(name="not a name"),
        MetadataRequestTopic(name=".."),
        MetadataRequestTopic(topic_id=FLIGHTS_ID),
        MetadataRequestTopic(topic_id=NOBODY),
    ]
    answer = house.ask(MetadataRequest(asked), 12)
    assert [(t.error_code, t.name, t.topic_id) for t in answer.topics] == [
        (0, "flights", FLIGHTS_ID),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nobody", bytes(16)),
        (ErrorCode.INVALID_TOPIC, "not a name", bytes(16)),
        (ErrorCode.INVALID_TOPIC, "..", bytes(16)),
        (0, "flights", FLIGHTS_ID),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, NOBODY),
    ]
    assert len(house.partitions.streams()) == 3


# -- ListOffsets --------------------------------------------------------------------------------


def list_offset(
    house: House, timestamp: int, *, version: int = 8, name: str = "flights", **asked: Any
) -> tuple[int, int, int]:
    partition = ListOffsetsPartition(timestamp=timestamp, **asked)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name, [partition])])
    answer = house.ask(request, version).topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


def test_offsets_of_both_ends(house: House) -> None:
    append(house.flights, make_records(200, 5), commit=False)
    assert list_offset(house, -1) == (0, 200, -1)
    assert list_offset(house, -2) == (0, 0, -1)
    assert list_offset(house, -4) == (0, 0, -1)
    assert list_offset(house, -1, name="empty") == (0, 0, -1)


def test_offsets_by_timestamp(house: House) -> None:
    assert list_offset(house, TIMESTAMP) == (0, 0, TIMESTAMP)
    assert list_offset(house, TIMESTAMP + 1) == (0, 10, TIMESTAMP + 1000)
    assert list_offset(house, TIMESTAMP + 7_000) == (0, 70, TIMESTAMP + 7_000)
    assert list_offset(house, TIMESTAMP + 19_001) == (0, -1, -1)
    # All records of the last batch carry the largest timestamp; the first of them is found.
    assert list_offset(house, -3, version=7) == (0, 190, TIMESTAMP + 19_000)
    assert list_offset(house, -3, name="empty") == (0, -1, -1)
    house.clock.wall_ms = TIMESTAMP + 50_000
    append(house.flights, make_records(200, 5), commit=False)
    assert list_offset(house, TIMESTAMP + 19_001) == (0, -1, -1)


def test_offsets_that_cannot_be_listed(house: House) -> None:
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    for timestamp, version in ((-3, 6), (-4, 7), (-5, 11), (-77, 11)):
        assert list_offset(house, timestamp, version=version)[0] == unsupported
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offset(house, -1, name="nobody")[0] == unknown
    assert list_offset(house, -1, partition_index=1)[0] == unknown
    assert list_offset(house, -1, partition_index=-1)[0] == unknown
    assert list_offset(house, -1, name="broken")[0] == ErrorCode.KAFKA_STORAGE_ERROR
    epoch = house.flights.leader_epoch
    assert list_offset(house, -1, current_leader_epoch=epoch)[0] == 0
    assert list_offset(house, -1, current_leader_epoch=epoch - 1)[0] == 74
    assert list_offset(house, -1, current_leader_epoch=epoch + 1)[0] == 75


# -- OffsetForLeaderEpoch -----------------------------------------------------------------------


def test_where_epochs_end(house: House) -> None:
    epoch = house.flights.leader_epoch
    append(house.flights, make_records(200, 5), commit=False)

    def ask(leader_epoch: int, current: int = -1, name: str = "flights") -> tuple[int, int, int]:
        topic = EpochTopic(name, [EpochPartition(0, current, leader_epoch)])
        answer = house.ask(OffsetForLeaderEpochRequest(topics=[topic]), 2)
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert ask(epoch) == (0, epoch, 200)
    assert ask(epoch + 1) == (0, -1, -1)
    assert ask(epoch - 1) == (0, -1, -1)
    house.flights.leader_epoch = epoch + 2  # nothing is written in it yet
    assert ask(epoch) == ask(epoch + 1) == (0, epoch, 200)
    assert ask(epoch + 2) == (0, epoch + 2, 200)
    append(house.flights, make_records(205, 5))
    assert ask(epoch) == ask(epoch + 1) == (0, epoch, 205)
    assert ask(epoch + 2, current=epoch + 2) == (0, epoch + 2, 210)
    assert ask(epoch, current=epoch)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(epoch, current=epoch + 3)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(epoch, name="nobody")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(epoch, name="broken")[0] == ErrorCode.KAFKA_STORAGE_ERROR


# -- Fetch --------------------------------------------------------------------------------------


def test_fetch_from_the_middle_of_a_batch_starts_with_that_batch(house: House) -> None:
    whole, middle, next_batch = (house.fetch(fetch_offset=o) for o in (0, 5, 10))
    assert whole.records == middle.records
    assert whole.high_watermark == whole.last_stable_offset == 200
    assert isinstance(next_batch.records, FileSlice)
    assert next_batch.records.position > 0
    assert whole.aborted_transactions is None
    assert whole.preferred_read_replica == -1


def test_fetch_never_passes_the_high_watermark(house: House) -> None:
    before = house.fetch(fetch_offset=190)
    append(house.flights, make_records(200, 5), commit=False)
    after = house.fetch(fetch_offset=190)
    assert length(before) == length(after) > 0
    for offset in (200, 203, 205):
        beyond = house.fetch(fetch_offset=offset)
        assert (beyond.error_code, beyond.high_watermark, length(beyond)) == (0, 200, 0)
    house.flights.sync()
    assert length(house.fetch(fetch_offset=200)) > 0


def test_fetch_errors(house: House) -> None:
    epoch = house.flights.leader_epoch
    out_of_range = house.fetch(fetch_offset=201)
    assert out_of_range.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert out_of_range.log_start_offset == 0
    assert house.fetch(fetch_offset=-1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert house.fetch(partition=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert house.fetch(current_leader_epoch=epoch).error_code == 0
    assert house.fetch(current_leader_epoch=epoch + 1).error_code == 75
    assert house.fetch(current_leader_epoch=epoch - 1).error_code == 74
    for name, code in (("nobody", 3), ("broken", 56)):
        answer = house.ask(fetch_request(name, wait_ms=LONG_MS), 12)
        assert answer.responses[0].partitions[0].error_code == code
    for id, code in ((NOBODY, 100), (FLIGHTS_ID, 0), (b"broken##########", 56)):
        request = FetchRequest(topics=[FetchTopic("", id, [FetchPartition()])])
        answer = house.ask(request, 13)
        assert answer.responses[0].topic_id == id
        assert answer.responses[0].partitions[0].error_code == code


def test_followers_and_sessions_are_refused(house: House) -> None:
    follower = fetch_request("flights")
    for change in ({"replica_id": 3}, {"replica_state": ReplicaState(3, 0)}):
        answer = house.ask(replace(follower, **change), 15)  # type: ignore[arg-type]
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    answer = house.ask(replace(follower, session_id=9), 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert house.ask(follower, 12).session_id == 0


def test_the_first_batch_is_whole_whatever_the_limits(house: House) -> None:
    whole = house.fetch(fetch_offset=0, partition_max_bytes=0)
    first = len(build_batch(make_records(0, 10), base_offset=0))
    assert length(whole) == first
    assert length(house.fetch(fetch_offset=0, partition_max_bytes=first + 100)) == first + 100
    answer = house.ask(replace(fetch_request("flights"), max_bytes=1), 12)
    assert length(answer.responses[0].partitions[0]) == first


def test_limits_over_partitions(house: House, tmp_path: Path) -> None:
    others = [open_stream(tmp_path, house.partitions, f"other-{n}") for n in range(3)]
    for other in others:
        append(other, make_records(0, 10))
    batch = len(build_batch(make_records(0, 10), base_offset=0))

    def lengths(bytes_max: int, *names: str, partition_max_bytes: int = 1 << 20) -> list[int]:
        topics = [
            fetch_request(n, partition_max_bytes=partition_max_bytes).topics[0] for n in names
        ]
        request = FetchRequest(max_bytes=bytes_max, max_wait_ms=LONG_MS, topics=topics)
        return [length(t.partitions[0]) for t in house.ask(request, 12).responses]

    names = ("empty", "other-0", "other-1", "other-2")
    assert lengths(1 << 20, *names) == [0, batch, batch, batch]
    assert lengths(2 * batch, *names) == [0, batch, batch, 0]
    assert lengths(2 * batch - 1, *names) == [0, batch, 0, 0]
    assert lengths(1, *names) == [0, batch, 0, 0]
    assert lengths(1 << 20, *names, partition_max_bytes=1) == [0, batch, 0, 0]


def test_every_segment_is_reached(house: House) -> None:
    assert house.flights.log is not None
    offset, seen = 0, []
    last_segment = house.flights.log.end.segment_base
    assert 0 < last_segment < 190
    while offset < 200:
        # Where a segment ends, more is there already: no reason to wait for the least bytes.
        bytes_min = 1 << 20 if offset < last_segment else 1
        records = house.fetch(fetch_offset=offset, wait_ms=LONG_MS, bytes_min=bytes_min).records
        assert isinstance(records, FileSlice)
        data = records.file.read_at(records.position, records.length)
        while data:
            size = int.from_bytes(data[8:12], "big") + 12
            seen.append(int.from_bytes(data[:8], "big"))
            data = data[size:]
        offset = seen[-1] + 10
    assert seen == list(range(0, 200, 10))


# -- Fetch that waits ---------------------------------------------------------------------------


def waiting(house: House, request: FetchRequest) -> asyncio.Future[Any]:
    return asyncio.ensure_future(house.answer(request, 12))


async def until(condition: Any) -> None:
    """Let the loop turn until `condition` holds."""
    while not condition():
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


def test_a_fetch_at_the_end_waits_for_a_commit(house: House) -> None:
    async def scene() -> None:
        request = fetch_request("flights", fetch_offset=200, wait_ms=LONG_MS)
        answer = waiting(house, request)
        await until(lambda: house.flights.watchers)
        append(house.flights, make_records(200, 1), commit=False)
        assert house.delays is not None
        assert house.flights.watchers
        house.flights.sync()
        partition = (await answer).responses[0].partitions[0]
        assert partition.high_watermark == 201
        assert length(partition) > 0
        assert not house.flights.watchers

    asyncio.run(scene())


def test_a_fetch_waits_for_its_least_bytes(house: House) -> None:
    async def scene() -> None:
        request = fetch_request("flights", fetch_offset=200, wait_ms=LONG_MS, bytes_min=3_000)
        answer = waiting(house, request)
        for first in (200, 210, 220):  # some 1,400 bytes each: the third is needed
            await until(lambda: house.flights.watchers)
            assert not answer.done()
            before = set(house.flights.watchers)
            append(house.flights, make_records(first, 10))
            await until(lambda before=before: house.flights.watchers != before)
        assert length((await answer).responses[0].partitions[0]) >= 3_000

    asyncio.run(scene())


def test_a_wait_ends_empty_when_its_time_is_over(house: House) -> None:
    answer = house.fetch(fetch_offset=200, wait_ms=5)
    assert (answer.error_code, length(answer)) == (0, 0)
    assert not house.flights.watchers


def test_a_wait_ends_when_the_stream_goes_or_fails(house: House) -> None:
    async def scene(change: Any, code: ErrorCode) -> None:
        answer = waiting(house, fetch_request("flights", fetch_offset=200, wait_ms=LONG_MS))
        await until(lambda: house.flights.watchers)
        change()
        assert (await answer).responses[0].partitions[0].error_code == code

    asyncio.run(scene(lambda: house.flights.fail("bad sector"), ErrorCode.KAFKA_STORAGE_ERROR))
    house.flights.failure = None
    gone = scene(lambda: house.partitions.remove("flights"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    asyncio.run(gone)
    assert house.flights.log is not None
    house.flights.log.close()


def test_a_cancelled_wait_leaves_no_watcher(house: House) -> None:
    async def scene() -> None:
        task = asyncio.ensure_future(
            house.answer(fetch_request("flights", fetch_offset=200, wait_ms=LONG_MS), 12)
        )
        await until(lambda: house.flights.watchers)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not house.flights.watchers

    asyncio.run(scene())


def test_closed_delays_let_everybody_go(house: House) -> None:
    async def scene() -> None:
        answer = waiting(house, fetch_request("flights", fetch_offset=200, wait_ms=LONG_MS))
        await until(lambda: house.flights.watchers)
        house.delays.close()
        assert (await answer).responses[0].partitions[0].error_code == 0
        late = await house.answer(fetch_request("empty", wait_ms=LONG_MS), 12)
        assert late.responses[0].partitions[0].error_code == 0

    asyncio.run(scene())
