"""OffsetCommit and OffsetFetch of consumers that assign themselves partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bascule.groups import CommittedOffsetStore, committed_offsets
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.messages.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from bascule.wire.offsets import METADATA_BYTES_MAX, OFFSETS_STREAM
from bascule.wire.schema import NO_ID, Request
from support.handlers import FLIGHTS_ID, UNKNOWN_ID, HandlerHarness
from support.served_stream import open_stream

COMMIT_VERSIONS = range(2, 11)
FETCH_VERSIONS = range(1, 11)


@pytest.fixture
def with_offsets(harness: HandlerHarness, tmp_path: Any) -> HandlerHarness:
    open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)
    return harness


def handle_all(harness: HandlerHarness, *requests: tuple[Request[Any], int]) -> list[Any]:
    """Handle the requests one after the other while the offset store follows `_offsets`."""
    offsets = harness.context.offsets
    assert isinstance(offsets, CommittedOffsetStore)

    async def answer_all() -> list[Any]:
        harness.partitions.bind(asyncio.get_running_loop())
        offsets.start()
        try:
            return [await harness.handle_async(request, version) for request, version in requests]
        finally:
            await offsets.close()

    return asyncio.run(answer_all())


def commit(
    offset: int = 7, *, version: int = 9, name: str = "flights", partition: int = 0, **fields: Any
) -> tuple[OffsetCommitRequest, int]:
    topic_id = FLIGHTS_ID if name == "flights" else UNKNOWN_ID
    metadata = fields.pop("metadata", "")
    asked = OffsetCommitPartition(partition, offset, 3, metadata)
    topic = OffsetCommitTopic(name, topic_id if version >= 10 else NO_ID, [asked])
    fields.setdefault("group_id", "billing")
    return OffsetCommitRequest(topics=[topic], **fields), version


def fetch(
    version: int = 9,
    *,
    name: str = "flights",
    partitions: tuple[int, ...] | None = (0,),
    **fields: Any,
) -> tuple[OffsetFetchRequest, int]:
    """`partitions` None requests all offsets of the group."""
    topic_id = FLIGHTS_ID if name == "flights" else UNKNOWN_ID
    group = fields.pop("group_id", "billing")
    if version < 8:
        topics = None if partitions is None else [OffsetFetchTopic(name, partitions)]
        return OffsetFetchRequest(group, topics), version
    asked = None
    if partitions is not None:
        topic = OffsetFetchGroupTopic(name, topic_id if version >= 10 else NO_ID, partitions)
        asked = [topic]
    return OffsetFetchRequest(groups=[OffsetFetchGroup(group, topics=asked, **fields)]), version


def fetched(answer: Any, version: int) -> list[tuple[str, bytes, int, int, int, str, int]]:
    if version >= 8:
        assert [group.group_id for group in answer.groups] == ["billing"]
        topics = answer.groups[0].topics
    else:
        topics = answer.topics
    return [
        (
            topic.name, getattr(topic, "topic_id", NO_ID), p.partition_index, p.committed_offset,
            p.committed_leader_epoch, p.metadata, p.error_code,
        )
        for topic in topics
        for p in topic.partitions
    ]  # fmt: skip


def code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_a_commit_is_fetched_back(with_offsets: HandlerHarness, version: int) -> None:
    done, answer = handle_all(with_offsets, commit(version=version, metadata="m"), fetch(5))
    assert code(done) == ErrorCode.NONE
    assert done.topics[0].topic_id == (FLIGHTS_ID if version >= 10 else NO_ID)
    assert fetched(answer, 5) == [("flights", NO_ID, 0, 7, 3, "m", 0)]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_in_every_version(with_offsets: HandlerHarness, version: int) -> None:
    requests = [commit(), fetch(version), fetch(version, partitions=(0, 4))]
    if version >= 2:
        requests.append(fetch(version, partitions=None))
    _, one, two, *rest = handle_all(with_offsets, *requests)
    id = FLIGHTS_ID if version >= 10 else NO_ID
    held = ("flights", id, 0, 7, 3, "", 0)
    assert fetched(one, version) == [held]
    assert fetched(two, version) == [held, ("flights", id, 4, -1, -1, "", 0)]
    for everything in rest:
        assert [row[:1] + row[2:] for row in fetched(everything, version)] == [held[:1] + held[2:]]
        if version >= 10:
            assert everything.groups[0].topics[0].topic_id == FLIGHTS_ID


def test_a_group_that_never_committed_has_nothing(with_offsets: HandlerHarness) -> None:
    (answer,) = handle_all(with_offsets, fetch(group_id="billing"))
    assert fetched(answer, 9) == [("flights", NO_ID, 0, -1, -1, "", 0)]
    (answer,) = handle_all(with_offsets, fetch(10, name="nobody"))
    assert fetched(answer, 10) == [
        ("nobody", UNKNOWN_ID, 0, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": "nobody"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "nobody", "version": 10}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"metadata": "m" * (METADATA_BYTES_MAX + 1)}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "x" * 201}, ErrorCode.INVALID_GROUP_ID),
        ({"generation_id_or_member_epoch": 0}, ErrorCode.ILLEGAL_GENERATION),
        (
            {"generation_id_or_member_epoch": 3, "member_id": "someone"},
            ErrorCode.ILLEGAL_GENERATION,
        ),
    ],
)
def test_invalid_commits_are_refused(
    with_offsets: HandlerHarness, fields: dict[str, Any], expected: ErrorCode
) -> None:
    done, answer = handle_all(with_offsets, commit(**fields), fetch(partitions=None))
    assert code(done) == expected
    assert fetched(answer, 9) == []


@pytest.mark.parametrize("fields", [{"member_id": "someone"}, {"group_instance_id": "static"}])
def test_a_member_id_without_a_generation_means_nothing(
    with_offsets: HandlerHarness, fields: dict[str, Any]
) -> None:
    """A consumer of librdkafka with group.protocol=consumer that assigns sends its member id."""
    done, answer = handle_all(with_offsets, commit(**fields), fetch())
    assert code(done) == ErrorCode.NONE
    assert fetched(answer, 9)[0][3] == 7


def test_a_member_of_a_group_is_refused(with_offsets: HandlerHarness) -> None:
    (answer,) = handle_all(with_offsets, fetch(member_id="someone", member_epoch=3))
    assert answer.groups[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(answer.groups[0].topics) == []


def test_the_last_entry_of_a_repeated_partition_counts(with_offsets: HandlerHarness) -> None:
    request, version = commit()
    request.topics[0].partitions = [OffsetCommitPartition(0, n) for n in (4, 9, 6)]
    asked, _ = fetch(partitions=None)
    asked.groups = [*asked.groups, *asked.groups]
    done, answer = handle_all(with_offsets, (request, version), (asked, 9))
    assert [p.error_code for p in done.topics[0].partitions] == [0, 0, 0]
    assert fetched(answer, 9)[0][3] == 6
    (log,) = with_offsets.partitions.stream(OFFSETS_STREAM) or ()
    assert log.high_watermark.offset == 1


def test_valid_and_invalid_partitions_in_one_request(with_offsets: HandlerHarness) -> None:
    request, version = commit()
    request.topics[0].partitions = [
        OffsetCommitPartition(0, 4), OffsetCommitPartition(9, 4),
    ]  # fmt: skip
    done, answer = handle_all(with_offsets, (request, version), fetch())
    assert [p.error_code for p in done.topics[0].partitions] == [
        0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    assert fetched(answer, 9)[0][3] == 4


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_without_the_stream_clients_look_for_the_coordinator(
    harness: HandlerHarness, version: int
) -> None:
    """The node goes on creating it."""
    done, answer = handle_all(harness, commit(), fetch(version))
    assert code(done) == ErrorCode.NOT_COORDINATOR
    if version == 1:
        assert fetched(answer, 1)[0][-1] == ErrorCode.NOT_COORDINATOR
    else:
        where = answer.groups[0] if version >= 8 else answer
        assert where.error_code == ErrorCode.NOT_COORDINATOR


def test_what_cannot_be_held_is_refused_and_not_tried_again(
    with_offsets: HandlerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_offsets, "COMMITS_MAX", 1)
    other = commit(8, group_id="other")
    first, refused, again, answer = handle_all(with_offsets, commit(), other, commit(9), fetch())
    assert [code(each) for each in (first, refused, again)] == [
        0, ErrorCode.UNKNOWN_SERVER_ERROR, 0,
    ]  # fmt: skip
    assert fetched(answer, 9)[0][3] == 9
