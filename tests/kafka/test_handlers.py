"""Responses of all handlers but Fetch, over real logs without a socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import RemoteProtocolError
from bascule.kafka.handlers import SUPPORTED_VERSIONS
from bascule.listening.refusals import RefusalLog
from bascule.model import PartitionState
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest
from bascule.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
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
from bascule.wire.offsets import OFFSETS_STREAM
from support.handlers import FLIGHTS_ID, UNKNOWN_ID, HandlerHarness
from support.served_stream import NODE, TIMESTAMP, append, make_records, open_stream

# -- ApiVersions, FindCoordinator, Produce ------------------------------------------------------


def test_api_versions_lists_the_supported_versions(harness: HandlerHarness) -> None:
    answer = harness.handle(ApiVersionsRequest(), 3)
    assert answer.error_code == 0
    table = {a.api_key: (a.min_version, a.max_version) for a in answer.api_keys}
    assert table == {key: (v.first, v.last) for key, v in SUPPORTED_VERSIONS.items()}
    # What librdkafka reads features off, each by a version it looks for.
    for key, version in ((0, 0), (0, 3), (0, 7), (1, 4), (1, 10), (2, 1), (10, 0)):
        assert table[key][0] <= version <= table[key][1]


def test_an_unknown_api_versions_version_gets_the_table_with_an_error(
    harness: HandlerHarness,
) -> None:
    answer = harness.handle(ApiVersionsRequest(), 99)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.api_keys


@pytest.mark.parametrize("version", range(7))
def test_this_node_coordinates_every_group(
    harness: HandlerHarness, version: int, tmp_path: Path
) -> None:
    answer = harness.handle(FindCoordinatorRequest("g", coordinator_keys=["g"]), version)
    (missing,) = [answer] if version < 4 else answer.coordinators
    assert missing.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)
    answer = harness.handle(FindCoordinatorRequest("g", coordinator_keys=["g", "h"]), version)
    found = [answer] if version < 4 else answer.coordinators
    assert {(c.error_code, c.node_id, c.host, c.port) for c in found} == {(0, 7, "here", 9092)}
    assert version < 4 or [c.key for c in found] == ["g", "h"]


def test_produce_is_refused_with_the_subject(harness: HandlerHarness) -> None:
    topics = [
        ProduceTopic("flights", partition_data=[ProducePartition(0, b"x"), ProducePartition(1)]),
        ProduceTopic("nobody", partition_data=[ProducePartition(0, b"x")]),
    ]
    answer = harness.handle(ProduceRequest(acks=-1, topic_data=topics), 9)
    first, second = answer.responses
    assert [p.error_code for p in first.partition_responses] == [ErrorCode.POLICY_VIOLATION] * 2
    assert "NATS subject flights.>" in first.partition_responses[0].error_message
    assert second.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def refused(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [
        (str(r.client), str(r.api), str(r.reason))  # type: ignore[attr-defined]
        for r in caplog.records
        if r.getMessage() == "request refused"
    ]


def test_produce_without_acks_closes_the_connection_and_the_log_says_why(
    harness: HandlerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [ProduceTopic("flights", partition_data=[ProducePartition(0, b"x")])]
    for _ in range(3):
        with pytest.raises(RemoteProtocolError, match=r"acks is 0, .* stored: stream flights"):
            harness.handle(ProduceRequest(acks=0, topic_data=topics), 9)
    ((client, api, reason),) = refused(caplog)
    assert (client, api) == ("test", "Produce")
    assert "acks is 0" in reason
    assert "NATS subject flights.>" in reason


def test_a_refusal_is_logged_once_for_each_client_and_reason(
    harness: HandlerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    log = RefusalLog(lambda: now[0])
    for port in range(3):
        log.note(f"192.0.2.1:{port}", "a", api="Produce", reason="no")
    log.note("192.0.2.1:9", "b", api="Produce", reason="no")
    log.note("192.0.2.2:9", None, api="Produce", reason="no" * 1000)
    assert [(c, len(r)) for c, _, r in refused(caplog)] == [("a", 2), ("b", 2), ("", 400)]
    now[0] = 3_600.0
    log.note("192.0.2.1:9", "a", api="Produce", reason="no")
    assert len(refused(caplog)) == 4
    # However many there are, so many are remembered.
    for n in range(5_000):
        log.note("192.0.2.1:9", str(n), api="Produce", reason="no")
    log.note("192.0.2.1:9", "a", api="Produce", reason="no")
    assert len(refused(caplog)) == 5_005


def test_a_refusal_of_many_partitions_does_not_repeat_its_text(harness: HandlerHarness) -> None:
    topic = ProduceTopic("flights", partition_data=[ProducePartition(n) for n in range(5_000)])
    answer = harness.handle(ProduceRequest(acks=1, topic_data=[topic]), 9)
    partitions = answer.responses[0].partition_responses
    assert {p.error_code for p in partitions} == {ErrorCode.POLICY_VIOLATION}
    assert sum(p.error_message is not None for p in partitions) == 100


def test_what_a_request_repeats_is_answered_once(harness: HandlerHarness) -> None:
    topics = [MetadataRequestTopic(name="flights")] * 1_000
    assert len(harness.handle(MetadataRequest(topics), 12).topics) == 1
    keys = FindCoordinatorRequest(coordinator_keys=["g"] * 1_000)
    assert len(harness.handle(keys, 4).coordinators) == 1


# -- Metadata -----------------------------------------------------------------------------------


def test_metadata_of_all_streams(harness: HandlerHarness) -> None:
    for version, topics in ((0, ()), (1, None), (13, None)):
        answer = harness.handle(MetadataRequest(topics), version)
        assert [t.name for t in answer.topics] == ["broken", "empty", "flights"]
        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(7, "here", 9092)]
        assert answer.controller_id == 7
        assert answer.cluster_id == NODE.cluster_id
    (partition,) = answer.topics[2].partitions
    assert (partition.leader_id, partition.isr_nodes, partition.replica_nodes) == (7, [7], [7])
    assert partition.leader_epoch == harness.flights.leader_epoch
    assert harness.handle(MetadataRequest(()), 1).topics == []


def test_metadata_by_name_and_by_id(harness: HandlerHarness) -> None:
    asked = [
        MetadataRequestTopic(name="flights"),
        MetadataRequestTopic(name="nobody"),
        MetadataRequestTopic(name="not a name"),
        MetadataRequestTopic(name=".."),
        MetadataRequestTopic(topic_id=FLIGHTS_ID),
        MetadataRequestTopic(topic_id=UNKNOWN_ID),
    ]
    answer = harness.handle(MetadataRequest(asked), 12)
    assert [(t.error_code, t.name, t.topic_id) for t in answer.topics] == [
        (0, "flights", FLIGHTS_ID),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nobody", bytes(16)),
        (ErrorCode.INVALID_TOPIC, "not a name", bytes(16)),
        (ErrorCode.INVALID_TOPIC, "..", bytes(16)),
        (0, "flights", FLIGHTS_ID),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, UNKNOWN_ID),
    ]
    assert len(harness.partitions.streams()) == 3


# -- ListOffsets --------------------------------------------------------------------------------


def listed(
    harness: HandlerHarness,
    timestamp: int,
    *,
    version: int = 8,
    name: str = "flights",
    **asked: Any,
) -> ListOffsetsPartitionResponse:
    partition = ListOffsetsPartition(timestamp=timestamp, **asked)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name, [partition])])
    answer: ListOffsetsPartitionResponse = harness.handle(request, version).topics[0].partitions[0]
    return answer


def list_offset(harness: HandlerHarness, timestamp: int, **asked: Any) -> tuple[int, int, int]:
    answer = listed(harness, timestamp, **asked)
    return answer.error_code, answer.offset, answer.timestamp


def test_earliest_and_latest_offsets(harness: HandlerHarness) -> None:
    append(harness.flights, make_records(200, 5), commit=False)
    assert list_offset(harness, -1) == (0, 200, -1)
    assert list_offset(harness, -2) == (0, 0, -1)
    assert list_offset(harness, -4) == (0, 0, -1)
    assert list_offset(harness, -1, name="empty") == (0, 0, -1)


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, 78), (8, 78)])
def test_a_new_leader_knows_no_end_before_its_followers_have_its_log(
    harness: HandlerHarness, version: int, code: int
) -> None:
    """An earlier leader may have told a higher one (KIP-207)."""
    epoch = harness.flights.leader_epoch + 1
    state = PartitionState((1, 2), (1, 2), 1, epoch, 1)
    append(harness.flights, make_records(200, 5), commit=False)
    harness.flights.set_role(replace(state, leader=2), 1, lag_ns_max=1 << 40)
    harness.flights.set_role(replace(state, leader_epoch=epoch + 1), 1, lag_ns_max=1 << 40)
    for timestamp in (-1, TIMESTAMP):
        assert list_offset(harness, timestamp, version=version) == (code, -1, -1)
    assert list_offset(harness, -2, version=version) == (0, 0, -1)
    harness.flights.on_fetch(2, 1, leader_epoch=epoch + 1, log_start=0, log_end=205, synced_end=205)
    assert list_offset(harness, -1, version=version) == (0, 205, -1)


def test_offsets_by_timestamp(harness: HandlerHarness) -> None:
    assert list_offset(harness, TIMESTAMP) == (0, 0, TIMESTAMP)
    assert list_offset(harness, TIMESTAMP + 1) == (0, 10, TIMESTAMP + 1000)
    assert list_offset(harness, TIMESTAMP + 7_000) == (0, 70, TIMESTAMP + 7_000)
    assert list_offset(harness, TIMESTAMP + 19_001) == (0, -1, -1)
    # All records of the last batch carry the largest timestamp; the first of them is found.
    assert list_offset(harness, -3, version=7) == (0, 190, TIMESTAMP + 19_000)
    assert list_offset(harness, -3, name="empty") == (0, -1, -1)
    harness.clock.wall_ms = TIMESTAMP + 50_000
    append(harness.flights, make_records(200, 5), commit=False)
    assert list_offset(harness, TIMESTAMP + 19_001) == (0, -1, -1)


def test_remote_offsets_are_those_of_a_broker_without_remote_storage(
    harness: HandlerHarness,
) -> None:
    assert list_offset(harness, -5, version=9) == (0, -1, -1)
    for timestamp in (-5, -6):
        assert list_offset(harness, timestamp, version=11) == (0, -1, -1)
        assert listed(harness, timestamp, version=11).leader_epoch == -1


def test_every_listed_offset_has_its_leader_epoch(harness: HandlerHarness) -> None:
    first = harness.flights.leader_epoch
    harness.flights.leader_epoch = first + 2
    harness.clock.wall_ms = TIMESTAMP + 60_000
    append(harness.flights, make_records(200, 5))
    harness.flights.leader_epoch = first + 5  # nothing is written in it yet
    earliest, local = listed(harness, -2), listed(harness, -4)
    assert (earliest.offset, earliest.leader_epoch) == (0, first)
    assert (local.offset, local.leader_epoch) == (0, first)
    early, late = listed(harness, TIMESTAMP), listed(harness, TIMESTAMP + 30_000)
    assert (early.offset, early.leader_epoch) == (0, first)
    assert (late.offset, late.leader_epoch) == (200, first + 2)
    latest, newest = listed(harness, -1), listed(harness, -3)
    assert (newest.offset, newest.leader_epoch) == (200, first + 2)
    assert (latest.offset, latest.leader_epoch) == (205, first + 5)
    assert listed(harness, TIMESTAMP + 90_000).leader_epoch == -1
    # The first record of a log without records will be of the present epoch.
    empty = listed(harness, -2, name="empty")
    assert (empty.offset, empty.leader_epoch) == (
        0,
        harness.partitions.streams()["empty"][0].leader_epoch,
    )
    assert listed(harness, -2, version=3).leader_epoch == first


def test_offsets_that_cannot_be_listed(harness: HandlerHarness) -> None:
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    for timestamp, version in ((-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11), (-77, 11)):
        assert list_offset(harness, timestamp, version=version)[0] == unsupported
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offset(harness, -1, name="nobody")[0] == unknown
    assert list_offset(harness, -1, partition_index=1)[0] == unknown
    assert list_offset(harness, -1, partition_index=-1)[0] == unknown
    assert list_offset(harness, -1, name="broken")[0] == ErrorCode.KAFKA_STORAGE_ERROR
    epoch = harness.flights.leader_epoch
    assert list_offset(harness, -1, current_leader_epoch=epoch)[0] == 0
    assert list_offset(harness, -1, current_leader_epoch=epoch - 1)[0] == 74
    assert list_offset(harness, -1, current_leader_epoch=epoch + 1)[0] == 75


# -- OffsetForLeaderEpoch -----------------------------------------------------------------------


def test_epoch_end_offsets(harness: HandlerHarness) -> None:
    epoch = harness.flights.leader_epoch
    append(harness.flights, make_records(200, 5), commit=False)

    def ask(leader_epoch: int, current: int = -1, name: str = "flights") -> tuple[int, int, int]:
        topic = EpochTopic(name, [EpochPartition(0, current, leader_epoch)])
        answer = harness.handle(OffsetForLeaderEpochRequest(topics=[topic]), 2)
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert ask(epoch) == (0, epoch, 200)
    assert ask(epoch + 1) == (0, -1, -1)
    assert ask(epoch - 1) == (0, -1, -1)
    harness.flights.leader_epoch = epoch + 2  # nothing is written in it yet
    # An earlier leader may have committed, and served, what this one does not know as committed.
    assert ask(epoch) == ask(epoch + 1) == (0, epoch, 205)
    assert ask(epoch + 2) == (0, epoch + 2, 200)
    append(harness.flights, make_records(205, 5))
    assert ask(epoch) == ask(epoch + 1) == (0, epoch, 205)
    assert ask(epoch + 2, current=epoch + 2) == (0, epoch + 2, 210)
    assert ask(epoch, current=epoch)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(epoch, current=epoch + 3)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(epoch, name="nobody")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(epoch, name="broken")[0] == ErrorCode.KAFKA_STORAGE_ERROR
