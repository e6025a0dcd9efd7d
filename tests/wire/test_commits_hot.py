"""`split_commit`, on both twins: what requests to commit offsets have in common."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import RemoteProtocolError
from bascule.wire.connection import ClientConnection, ServerConnection
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.schema import NO_ID, Request

Hot = Callable[[str], ModuleType]
VERSIONS = range(2, 11)
TOPIC_ID = bytes(range(16))
NUMBERS = st.integers(0, (1 << 63) - 1), st.integers(-1, (1 << 31) - 1)


def frame_of(request: Request, version: int, *, number: int = 0) -> bytes:  # type: ignore[type-arg]
    """Without its size."""
    client = ClientConnection(client_id="test", frame_bytes_max=1 << 20)
    frame = bytearray(client.send(request, version=version))
    frame[8:12] = struct.pack(">i", number)
    return bytes(frame[4:])


def commit(version: int, positions: Sequence[tuple[int, int]], *, text: str = "m") -> bytes:
    """The frame of a commit of two topics with half of the partitions each; see `positions`."""
    partitions = [
        OffsetCommitPartition(index, offset, epoch if version >= 6 else -1, text or None)
        for index, (offset, epoch) in enumerate(positions)
    ]
    half = len(partitions) // 2
    topics = [
        OffsetCommitTopic(name if version < 10 else "", NO_ID if version < 10 else TOPIC_ID, part)
        for name, part in (("flights", partitions[:half]), ("x" * 130, partitions[half:]))
    ]
    request = OffsetCommitRequest(
        text or "g", 3, "member", text if version >= 7 and text else None, -1, topics
    )
    return frame_of(request, version, number=sum(offset for offset, _ in positions) % 1_000)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    pairs=st.lists(st.tuples(st.tuples(*NUMBERS), st.tuples(*NUMBERS)), max_size=5),
    text=st.text(max_size=20),
)
def test_offsets_are_all_that_differs(
    hot: Hot,
    version: int,
    pairs: list[tuple[tuple[int, int], tuple[int, int]]],
    text: str,
) -> None:
    split = hot("wire/_hot_commits").split_commit
    forms = []
    for number in (0, 1):
        positions = [pair[number] for pair in pairs]
        found = split(memoryview(commit(version, positions, text=text)))
        assert found is not None
        form, values = found
        assert type(form) is bytes
        forms.append(form)
        epochs = [epoch if version >= 6 else -1 for _, epoch in positions]
        assert values[::2] == [offset for offset, _ in positions]
        assert values[1::2] == epochs
    assert forms[0] == forms[1]
    zeros = [(0, 0)] * len(pairs)
    if version >= 6:
        assert forms[0] == commit(version, zeros, text=text)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_any_bytes_are_split_or_left(hot: Hot, version: int, data: st.DataObject) -> None:
    """What is split and can be decoded has these offsets."""
    frame = bytearray(commit(version, [(5, 1), (6, 2), (7, 3)]))
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(8, len(frame) - 1), st.integers(0, 255)), max_size=3)
    ):
        frame[at] = byte
    end = data.draw(st.integers(0, len(frame)) | st.just(len(frame)))
    found = hot("wire/_hot_commits").split_commit(memoryview(bytes(frame[:end])))
    server = ServerConnection(
        served={8: OffsetCommitRequest.VERSIONS}, requests=REQUESTS, frame_bytes_max=1 << 20
    )
    try:
        request = server.decode(memoryview(bytes(frame[:end]))).message
    except RemoteProtocolError:
        return
    if found is not None:
        partitions = [each for topic in request.topics for each in topic.partitions]
        assert found[1][::2] == [each.committed_offset for each in partitions]
        assert found[1][1::2] == [each.committed_leader_epoch for each in partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_other_field_is_part_of_the_form(hot: Hot, version: int) -> None:
    split = hot("wire/_hot_commits").split_commit
    frame = commit(version, [(0, 0), (0, 0)])
    form, _ = split(memoryview(frame))
    for at in range(8, len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 1
        found = split(memoryview(bytes(changed)))
        if found is not None and found[0] == form:
            assert found[1] != [0, 0 if version >= 6 else -1] * 2, f"byte {at} is lost"


def test_unusual_requests_are_left(hot: Hot) -> None:
    split = hot("wire/_hot_commits").split_commit
    frame = commit(9, [(1, 1)])
    assert split(memoryview(frame)) is not None
    tagged = frame[:-1] + b"\x01\x00\x00"
    for left in (tagged, frame + b"\0", frame[:-1], frame_of(HeartbeatRequest("g", 1, "m"), 0)):
        assert split(memoryview(left)) is None
    for version in (1, 11):
        assert split(memoryview(frame[:2] + version.to_bytes(2, "big") + frame[4:])) is None
