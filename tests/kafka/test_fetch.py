"""Fetch responses, at once and after waiting, over real logs without a socket."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bascule.model import NodeRegistration, PartitionState
from bascule.record.builder import build_batch
from bascule.storage.partition_log import FileSlice
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from support.handlers import (
    FLIGHTS_ID,
    LONG_WAIT_MS,
    UNKNOWN_ID,
    HandlerHarness,
    fetch_request,
    record_bytes,
)
from support.served_stream import NODE, append, make_records, open_stream

# -- Fetch --------------------------------------------------------------------------------------


def test_fetch_from_the_middle_of_a_batch_starts_with_that_batch(harness: HandlerHarness) -> None:
    whole, middle, next_batch = (harness.fetch(fetch_offset=o) for o in (0, 5, 10))
    assert whole.records == middle.records
    assert whole.high_watermark == whole.last_stable_offset == 200
    assert isinstance(next_batch.records, FileSlice)
    assert next_batch.records.position > 0
    assert whole.aborted_transactions is None
    assert whole.preferred_read_replica == -1


def test_fetch_never_passes_the_high_watermark(harness: HandlerHarness) -> None:
    before = harness.fetch(fetch_offset=190)
    append(harness.flights, make_records(200, 5), commit=False)
    after = harness.fetch(fetch_offset=190)
    assert record_bytes(before) == record_bytes(after) > 0
    for offset in (200, 203, 205):
        beyond = harness.fetch(fetch_offset=offset)
        assert (beyond.error_code, beyond.high_watermark, record_bytes(beyond)) == (0, 200, 0)
    harness.flights.sync()
    assert record_bytes(harness.fetch(fetch_offset=200)) > 0


def test_fetch_errors(harness: HandlerHarness) -> None:
    epoch = harness.flights.leader_epoch
    out_of_range = harness.fetch(fetch_offset=201)
    assert out_of_range.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert out_of_range.log_start_offset == 0
    assert harness.fetch(fetch_offset=-1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert harness.fetch(partition=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert harness.fetch(current_leader_epoch=epoch).error_code == 0
    assert harness.fetch(current_leader_epoch=epoch + 1).error_code == 75
    assert harness.fetch(current_leader_epoch=epoch - 1).error_code == 74
    for name, code in (("nobody", 3), ("broken", 56)):
        answer = harness.handle(fetch_request(name, wait_ms=LONG_WAIT_MS), 12)
        assert answer.responses[0].partitions[0].error_code == code
    for id, code in ((UNKNOWN_ID, 100), (FLIGHTS_ID, 0), (b"broken##########", 56)):
        request = FetchRequest(topics=[FetchTopic("", id, [FetchPartition()])])
        answer = harness.handle(request, 13)
        assert answer.responses[0].topic_id == id
        assert answer.responses[0].partitions[0].error_code == code


def test_followers_and_sessions_are_refused(harness: HandlerHarness) -> None:
    follower = fetch_request("flights")
    for change in ({"replica_id": 3}, {"replica_state": ReplicaState(3, 0)}):
        answer = harness.handle(replace(follower, **change), 15)  # type: ignore[arg-type]
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    answer = harness.handle(replace(follower, session_id=9), 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert harness.handle(follower, 12).session_id == 0


def test_the_first_batch_is_whole_regardless_of_the_limits(harness: HandlerHarness) -> None:
    whole = harness.fetch(fetch_offset=0, partition_max_bytes=0)
    first = len(build_batch(make_records(0, 10), base_offset=0))
    assert record_bytes(whole) == first
    assert (
        record_bytes(harness.fetch(fetch_offset=0, partition_max_bytes=first + 100)) == first + 100
    )
    answer = harness.handle(replace(fetch_request("flights"), max_bytes=1), 12)
    assert record_bytes(answer.responses[0].partitions[0]) == first


def test_limits_over_partitions(harness: HandlerHarness, tmp_path: Path) -> None:
    others = [open_stream(tmp_path, harness.partitions, f"other-{n}") for n in range(3)]
    for other in others:
        append(other, make_records(0, 10))
    batch = len(build_batch(make_records(0, 10), base_offset=0))

    def lengths(bytes_max: int, *names: str, partition_max_bytes: int = 1 << 20) -> list[int]:
        topics = [
            fetch_request(n, partition_max_bytes=partition_max_bytes).topics[0] for n in names
        ]
        request = FetchRequest(max_bytes=bytes_max, max_wait_ms=LONG_WAIT_MS, topics=topics)
        return [record_bytes(t.partitions[0]) for t in harness.handle(request, 12).responses]

    names = ("empty", "other-0", "other-1", "other-2")
    assert lengths(1 << 20, *names) == [0, batch, batch, batch]
    assert lengths(2 * batch, *names) == [0, batch, batch, 0]
    assert lengths(2 * batch - 1, *names) == [0, batch, 0, 0]
    assert lengths(1, *names) == [0, batch, 0, 0]
    assert lengths(1 << 20, *names, partition_max_bytes=1) == [0, batch, 0, 0]


def test_every_segment_is_reached(harness: HandlerHarness) -> None:
    assert harness.flights.log is not None
    offset, seen = 0, []
    last_segment = harness.flights.log.end.segment_base
    assert 0 < last_segment < 190
    while offset < 200:
        # Where a segment ends, more is there already: no reason to wait for the least bytes.
        bytes_min = 1 << 20 if offset < last_segment else 1
        records = harness.fetch(
            fetch_offset=offset, wait_ms=LONG_WAIT_MS, bytes_min=bytes_min
        ).records
        assert isinstance(records, FileSlice)
        data = records.file.read_at(records.position, records.length)
        while data:
            size = int.from_bytes(data[8:12], "big") + 12
            seen.append(int.from_bytes(data[:8], "big"))
            data = data[size:]
        offset = seen[-1] + 10
    assert seen == list(range(0, 200, 10))


# -- Fetch that waits ---------------------------------------------------------------------------


def start_fetch(harness: HandlerHarness, request: FetchRequest) -> asyncio.Future[Any]:
    return asyncio.ensure_future(harness.handle_async(request, 12))


async def wait_until(condition: Any) -> None:
    """Run the event loop until `condition` holds."""
    while not condition():
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


def test_a_fetch_at_the_end_waits_for_a_commit(harness: HandlerHarness) -> None:
    async def scene() -> None:
        request = fetch_request("flights", fetch_offset=200, wait_ms=LONG_WAIT_MS)
        answer = start_fetch(harness, request)
        await wait_until(lambda: harness.flights.watchers)
        append(harness.flights, make_records(200, 1), commit=False)
        assert harness.purgatory is not None
        assert harness.flights.watchers
        harness.flights.sync()
        partition = (await answer).responses[0].partitions[0]
        assert partition.high_watermark == 201
        assert record_bytes(partition) > 0
        assert not harness.flights.watchers

    asyncio.run(scene())


def test_a_fetch_waits_for_min_bytes(harness: HandlerHarness) -> None:
    async def scene() -> None:
        request = fetch_request("flights", fetch_offset=200, wait_ms=LONG_WAIT_MS, bytes_min=3_000)
        answer = start_fetch(harness, request)
        for first in (200, 210, 220):  # some 1,400 bytes each: the third is needed
            await wait_until(lambda: harness.flights.watchers)
            assert not answer.done()
            before = set(harness.flights.watchers)
            append(harness.flights, make_records(first, 10))
            await wait_until(lambda before=before: harness.flights.watchers != before)
        assert record_bytes((await answer).responses[0].partitions[0]) >= 3_000

    asyncio.run(scene())


def test_a_wait_times_out_with_an_empty_response(harness: HandlerHarness) -> None:
    answer = harness.fetch(fetch_offset=200, wait_ms=5)
    assert (answer.error_code, record_bytes(answer)) == (0, 0)
    assert not harness.flights.watchers


def test_a_wait_ends_when_the_stream_is_deleted_or_fails(harness: HandlerHarness) -> None:
    async def scene(change: Any, code: ErrorCode) -> None:
        answer = start_fetch(
            harness, fetch_request("flights", fetch_offset=200, wait_ms=LONG_WAIT_MS)
        )
        await wait_until(lambda: harness.flights.watchers)
        change()
        assert (await answer).responses[0].partitions[0].error_code == code

    asyncio.run(scene(lambda: harness.flights.fail("bad sector"), ErrorCode.KAFKA_STORAGE_ERROR))
    harness.flights.failure = None
    gone = scene(
        lambda: harness.partitions.remove(harness.flights.definition),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    asyncio.run(gone)
    assert harness.flights.log is not None
    harness.flights.log.close()


def test_a_cancelled_wait_leaves_no_watcher(harness: HandlerHarness) -> None:
    async def scene() -> None:
        task = asyncio.ensure_future(
            harness.handle_async(
                fetch_request("flights", fetch_offset=200, wait_ms=LONG_WAIT_MS), 12
            )
        )
        await wait_until(lambda: harness.flights.watchers)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not harness.flights.watchers

    asyncio.run(scene())


def test_a_closed_purgatory_ends_all_waits(harness: HandlerHarness) -> None:
    async def scene() -> None:
        answer = start_fetch(
            harness, fetch_request("flights", fetch_offset=200, wait_ms=LONG_WAIT_MS)
        )
        await wait_until(lambda: harness.flights.watchers)
        harness.purgatory.close()
        assert (await answer).responses[0].partitions[0].error_code == 0
        late = await harness.handle_async(fetch_request("empty", wait_ms=LONG_WAIT_MS), 12)
        assert late.responses[0].partitions[0].error_code == 0

    asyncio.run(scene())


# -- followers ----------------------------------------------------------------------------------


class TwoRacks:
    """A cluster of this node in `north` and others elsewhere."""

    controller_id = 1

    def __init__(self, *alive: int) -> None:
        self._alive = alive

    def nodes(self) -> list[NodeRegistration]:
        racks = {NODE.node_id: "north", 8: "south", 9: "south"}
        return [NodeRegistration(n, "", "host:1", "", rack=racks[n]) for n in self._alive]

    def states(self, stream_id: bytes) -> list[PartitionState]:
        return []


def in_cluster(harness: HandlerHarness, *, leader: int, isr: tuple[int, ...]) -> None:
    """This node leads or follows `flights`; nodes 8 and 9 have replicas, too."""
    here = NODE.node_id
    state = PartitionState((here, 8, 9), isr, leader, harness.flights.leader_epoch + 1, 1)
    harness.flights.set_role(state, here, lag_ns_max=1)
    harness.context = replace(harness.context, cluster=TwoRacks(here, 8, 9))


def ask(harness: HandlerHarness, rack: str, offset: int, version: int = 12) -> Any:
    request = fetch_request("flights", fetch_offset=offset)
    request.rack_id = rack
    return harness.handle(request, version).responses[0].partitions[0]


def test_a_leader_names_the_closest_replica_in_sync(harness: HandlerHarness) -> None:
    here = NODE.node_id
    in_cluster(harness, leader=here, isr=(here, 8, 9))
    told = ask(harness, "south", 10)
    assert (told.error_code, told.preferred_read_replica) == (0, 8)
    assert record_bytes(told) == 0
    for rack in ("north", "nowhere", ""):
        served = ask(harness, rack, 10)
        assert served.preferred_read_replica == -1, rack
        assert record_bytes(served) > 0
    assert record_bytes(ask(harness, "south", 10, version=10)) > 0, "it cannot ask a follower"
    assert ask(harness, "south", 10_000).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    in_cluster(harness, leader=here, isr=(here, 9))
    assert ask(harness, "south", 10).preferred_read_replica == 9
    harness.context = replace(harness.context, cluster=TwoRacks(here, 8))
    assert ask(harness, "south", 10).preferred_read_replica == -1, "node 9 is not alive"


def test_a_follower_serves_up_to_its_own_watermark(harness: HandlerHarness) -> None:
    here = NODE.node_id
    in_cluster(harness, leader=8, isr=(here, 8))
    harness.flights.on_leader_watermark(200, harness.flights.leader_epoch)
    served = ask(harness, "north", 10)
    assert (served.error_code, served.high_watermark) == (0, 200)
    assert served.preferred_read_replica == -1
    assert record_bytes(served) > 0
    assert record_bytes(ask(harness, "", 190)) > 0, "a consumer may ask any replica"
    assert ask(harness, "north", 500).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    old = ask(harness, "north", 10, version=10)
    assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    in_cluster(harness, leader=8, isr=(8, 9))
    assert ask(harness, "north", 10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
