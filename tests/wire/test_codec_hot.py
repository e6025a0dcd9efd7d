"""The compiled codec and its interpreted twin against the generated decoders and encoders."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import RemoteProtocolError
from bascule.wire.codec import encode
from bascule.wire.codec.generated import structure_decoder
from bascule.wire.codec.programs import program_of
from bascule.wire.messages.fetch import FetchRequest
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetCommitTopicResponse,
)
from bascule.wire.primitives import Piece
from bascule.wire.schema import Message
from wire.test_vectors import KINDS, comparable, from_json, read_vectors

Hot = Callable[[str], ModuleType]
HEAD = b"head"


@cache
def _cases() -> list[tuple[type[Message], int, bytes, Any]]:
    """Class, version, bytes and value of each vector whose structure the compiled codec knows."""
    found = []
    for vector in read_vectors():
        kind, version = KINDS[vector["message"]], vector["version"]
        if _program(kind, version) is not None:
            data = bytes.fromhex(vector["bytes"])
            found.append((kind, version, data, from_json(kind, vector["value"])))
    return found


def _program(kind: type[Message], version: int) -> tuple[Any, ...] | None:
    return program_of(kind, version, version in kind.FLEXIBLE)


def _expected(kind: type[Message], version: int, data: bytes) -> tuple[Any, int] | None:
    try:
        return structure_decoder(kind, version, version in kind.FLEXIBLE)(
            memoryview(data), 0, len(data)
        )
    except RemoteProtocolError:
        return None


def _frame(data: bytes) -> bytes:
    return (len(HEAD) + len(data)).to_bytes(4, "big") + HEAD + data


def test_all_requests_of_members_are_known() -> None:
    assert {OffsetCommitRequest, HeartbeatRequest} <= {kind for kind, *_ in _cases()}


def test_foreign_bytes_are_read_and_repeated(hot: Hot) -> None:
    codec = hot("wire/codec")
    decoded = encoded = 0
    for kind, version, data, value in _cases():
        program = _program(kind, version)
        found = codec.decode_structure(program, memoryview(data), 0, len(data))
        if found is not None:
            decoded += 1
            assert found[1] == len(data)
            assert comparable(found[0]) == comparable(value), (kind, version)
        frame = codec.encode_structure(program, value, HEAD)
        assert frame in (None, _frame(data)), (kind, version)
        assert frame is None or found is not None, (kind, version)
        encoded += frame is not None
    assert decoded > 0.9 * len(_cases())
    assert encoded > 0.8 * len(_cases())


@given(data=st.data())
def test_any_bytes_are_read_as_generated_code_reads_them(hot: Hot, data: st.DataObject) -> None:
    kind, version, valid, _ = data.draw(st.sampled_from(_cases()))
    changed = bytearray(valid)
    for _ in range(data.draw(st.integers(0, 3))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    found = hot("wire/codec").decode_structure(
        _program(kind, version), memoryview(cut), 0, len(cut)
    )
    if found is not None:
        assert found == _expected(kind, version, cut)


@given(
    group=st.text(max_size=200), member=st.text(max_size=20), instance=st.none() | st.text(),
    topics=st.lists(st.tuples(st.text(max_size=9), st.lists(st.integers(-(2**31), 2**31 - 1)))),
    version=st.integers(2, 9),
)  # fmt: skip
def test_commits_of_any_size(
    hot: Hot,
    group: str,
    member: str,
    instance: str | None,
    topics: list[tuple[str, list[int]]],
    version: int,
) -> None:
    request = OffsetCommitRequest(
        group_id=group,
        member_id=member,
        group_instance_id=instance if version >= 7 else None,
        topics=[
            OffsetCommitTopic(
                name, partitions=[OffsetCommitPartition(n, n * 2**31 + 1) for n in items]
            )
            for name, items in topics
        ],
    )
    parts: list[Piece] = []
    encode(request, version, parts)
    data = b"".join(part for part in parts if isinstance(part, bytes))
    codec, program = hot("wire/codec"), _program(OffsetCommitRequest, version)
    assert codec.encode_structure(program, request, HEAD) == _frame(data)
    assert codec.decode_structure(program, data, 0, len(data)) == (request, len(data))


@pytest.mark.parametrize(
    "partition",
    [
        OffsetCommitPartitionResponse(1 << 31, 0),
        OffsetCommitPartitionResponse(0, 1 << 15),
        OffsetCommitPartitionResponse(0, -(1 << 15) - 1),
        OffsetCommitPartitionResponse(1 << 70, 0),
        OffsetCommitPartitionResponse("0", 0),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_fit_are_left_to_generated_code(
    hot: Hot, partition: OffsetCommitPartitionResponse
) -> None:
    response = OffsetCommitResponse(topics=[OffsetCommitTopicResponse("a", partitions=[partition])])
    program = _program(OffsetCommitResponse, 8)
    assert hot("wire/codec").encode_structure(program, response, HEAD) is None


@pytest.mark.parametrize("name", ["\ud800", "x" * 32_768, None])
def test_text_that_cannot_be_sent_is_left_to_generated_code(hot: Hot, name: str) -> None:
    response = OffsetCommitResponse(topics=[OffsetCommitTopicResponse(name)])
    program = _program(OffsetCommitResponse, 8)
    assert hot("wire/codec").encode_structure(program, response, HEAD) is None


def test_a_claimed_count_takes_no_memory(hot: Hot) -> None:
    head = b"\x02g" + b"\0\0\0\1" + b"\x02m" + b"\0"
    data = head + b"\xff\xff\xff\xff\x0f" + bytes(100)
    program = _program(OffsetCommitRequest, 8)
    assert hot("wire/codec").decode_structure(program, data, 0, len(data)) is None


def test_positions_outside_the_bytes_are_refused(hot: Hot) -> None:
    program, codec = _program(HeartbeatRequest, 0), hot("wire/codec")
    with pytest.raises(IndexError):
        codec.decode_structure(program, bytes(10), 0, 11)
    with pytest.raises(IndexError):
        codec.decode_structure(program, bytes(10), -1, 10)


def test_structures_with_record_batches_have_no_program() -> None:
    assert _program(FetchRequest.RESPONSE, 12) is None
