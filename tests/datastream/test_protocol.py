"""Routes, positions, progress and frames of data streaming."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bascule.datastream.protocol import routes
from bascule.datastream.protocol.progress import Reached, TreeProgress
from bascule.datastream.protocol.received import ReceivedPayload
from bascule.errors import InvalidRoute, PayloadDamaged, PayloadGap, RemoteProtocolError
from bascule.wire.datastream import frames
from bascule.wire.datastream.checksums import combine
from bascule.wire.datastream.frames import (
    DATA_HEAD,
    HEAD,
    DataHead,
    StreamFrameReader,
    decode_ack,
    decode_data_head,
    decode_message,
    encode_ack,
    encode_data_head,
    encode_message,
)
from bascule.wire.datastream.messages import (
    ClosePayload,
    OpenPayload,
    PayloadFailed,
    StreamHello,
)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_combine(first: bytes, second: bytes) -> None:
    assert combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


@given(
    racks=st.dictionaries(st.integers(1, 9), st.sampled_from(["", "a", "b"]), min_size=1),
    topology=st.sampled_from(routes.TOPOLOGIES),
    quorum=st.booleans(),
    data=st.data(),
)
def test_a_planned_route_reaches_each_node_once(
    racks: dict[int, str], topology: str, quorum: bool, data: st.DataObject
) -> None:
    primary = data.draw(st.sampled_from(sorted(racks)))
    leader = data.draw(st.sampled_from(sorted(racks)))
    found = routes.plan(topology, primary=primary, leader=leader, racks=racks, quorum=quorum)
    routes.check(found.route, primary=primary, nodes=racks)
    reached = {primary}
    for node in racks:
        below = routes.below(found.route, node)
        if below:
            assert below[0][0] == node
        reached |= {after for _, successors in below for after in successors}
    assert reached == set(racks)
    if topology == "auto" and not quorum:
        crossings = sum(racks[a] != racks[b] for a, after in found.route for b in after)
        assert crossings == len(set(racks.values())) - 1
        if leader != primary:
            assert not {
                b for b in routes.next_nodes(found.route, leader) if racks[b] == racks[leader]
            }


@pytest.mark.parametrize(
    ("route", "why"),
    [
        (((1, (2,)),), "node 3 has a replica"),
        (((1, (2, 3)), (2, (3,))), "node 3 is reached twice"),
        (((1, (2, 3)), (2, (1,))), "node 1 is reached twice"),
        (((1, (1, 2, 3)),), "node 1 is reached twice"),
        (((1, (2, 3, 4)),), "node 4 has no replica"),
        (((2, (1, 3)),), "node 2 forwards, and nothing leads to it"),
        (((1, (2, 3)), (5, (6,))), "node 5 forwards"),
    ],
)
def test_wrong_routes_are_refused(route: routes.Route, why: str) -> None:
    with pytest.raises(InvalidRoute, match=why):
        routes.check(route, primary=1, nodes={1, 2, 3})


def test_a_route_over_a_lost_node_is_refused_as_that() -> None:
    with pytest.raises(InvalidRoute, match="node 3 is not alive, expected 1, 2"):
        routes.check(((1, (2, 3)),), primary=1, nodes={1, 2}, lost={3})
    with pytest.raises(InvalidRoute, match="node 4 has no replica, expected 1, 2"):
        routes.check(((1, (2, 4)),), primary=1, nodes={1, 2}, lost={3})


def test_a_node_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(InvalidRoute, match="node 1 is listed twice"):
        routes.as_route([(1, [2]), (1, [3])])


def test_the_leader_is_the_last_of_a_chain() -> None:
    found = routes.plan("auto", primary=2, leader=1, racks={1: "", 2: "", 3: ""})
    assert found.route == ((2, (3,)), (3, (1,)))
    assert "leader last" in found.why


PACKETS = st.lists(st.integers(0, 50), max_size=12)


@given(sizes=PACKETS, data=st.data())
def test_packets_may_come_again_and_overlap(sizes: list[int], data: st.DataObject) -> None:
    content = bytes(range(256)) * 3
    received = ReceivedPayload("a" * 32)
    file = bytearray()
    for size in sizes:
        start = data.draw(st.integers(0, received.position))
        packet = content[start : start + size]
        head = DataHead(0, start, crc32c(packet), len(packet))
        skip = received.skip(head)
        before = received.position
        new = packet[skip:]
        file[start + skip : start + skip + len(new)] = new
        is_new = received.on_packet(head, crc=crc32c(packet), new_crc=crc32c(new))
        assert is_new == (received.position > before)
        assert received.position == max(before, start + len(packet))
        assert bytes(file) == content[: received.position]
        assert received.crc == crc32c(file)
    whole = received.check_whole(len(file), crc32c(file))
    assert (whole.size, whole.crc) == (len(file), crc32c(file))


def test_gaps_and_damage_are_found() -> None:
    received = ReceivedPayload("a" * 32)
    with pytest.raises(PayloadGap, match="from position 5 on, expected them from 0 on"):
        received.skip(DataHead(0, 5, 0, 3))
    with pytest.raises(PayloadDamaged, match="checksum of 3 bytes at 0"):
        received.on_packet(DataHead(0, 0, 1, 3), crc=2, new_crc=2)
    assert received.position == 0
    received.on_packet(
        DataHead(0, 0, crc32c(b"abc"), 3), crc=crc32c(b"abc"), new_crc=crc32c(b"abc")
    )
    with pytest.raises(PayloadGap):
        received.check_whole(4, 0)
    with pytest.raises(PayloadDamaged, match="size 3, expected 2"):
        received.check_whole(2, 0)
    with pytest.raises(PayloadDamaged, match="checksum"):
        received.check_whole(3, 0)


def test_all_nodes_count() -> None:
    progress = TreeProgress()
    assert progress.reached(Reached(9, 4)) == (9, 4)
    progress.on_successor(2, Reached(5, 5))
    progress.on_successor(3, Reached(7, 0))
    assert progress.reached(Reached(9, 4)) == (5, 0)
    progress.on_successor(2, Reached(3, 8))
    assert progress.of(2) == (5, 8), "positions never go back"
    progress.remove(2)
    assert progress.reached(Reached(6, 4)) == (6, 0)


def test_a_quorum_counts() -> None:
    progress = TreeProgress(quorum=2)
    progress.on_successor(2, Reached(5, 5))
    progress.on_successor(3, Reached(0, 0))
    assert progress.reached(Reached(9, 4)) == (5, 4)
    assert progress.reached(Reached(3, 1)) == (3, 1), "this node answers for its own file"
    progress.remove(2)
    assert progress.reached(Reached(9, 4)) == (0, 0)
    assert progress.has_quorum
    progress.remove(3)
    assert progress.reached(Reached(9, 4)) == (0, 0), "one node alone is no majority of three"
    assert not progress.has_quorum


def test_a_route_has_one_first_node() -> None:
    assert routes.head(((2, (1,)), (1, (3,)))) == 2
    for route in (((1, (2,)), (2, (1,))), ((1, (2,)), (3, (4,)))):
        with pytest.raises(InvalidRoute, match="expected one"):
            routes.head(route)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_frames_come_in_any_pieces(pieces: list[int]) -> None:
    opening = OpenPayload("a" * 32, "models", headers=[("Kind", b"\xff")])
    sent = [
        encode_message(frames.OPEN, opening), encode_data_head(7, 0, 3, frames.SYNC),
        encode_ack(5, 2), encode_message(frames.CLOSE, ClosePayload(7, 3)),
    ]  # fmt: skip
    data = memoryview(b"".join(sent))
    reader, at, found, turn = StreamFrameReader(), 0, [], 0
    while at < len(data):
        count = min(reader.wanted, pieces[turn % len(pieces)], len(data) - at)
        assert count > 0
        if (frame := reader.feed(data[at : at + count])) is not None:
            found.append(frame)
        at, turn = at + count, turn + 1
    assert [bytes(frame) for _, frame in found] == sent
    assert [kind for kind, _ in found] == [frames.OPEN, frames.DATA, frames.ACK, frames.CLOSE]
    assert decode_message(found[0][1], OpenPayload) == opening
    assert decode_data_head(found[1][1]) == (frames.SYNC, 7, 3, 0)
    assert decode_ack(found[2][1]) == (5, 2)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0\0\x10\x12\0", "kind 0x12"),
        (b"\0\0\0\x10\xdf\0", None),
        (b"\xff\xff\xff\xff\xd1\0", "at most 1048576 bytes"),
        (b"\0\0\0\1\xd1\0", "a frame of 1 bytes"),
        (b"\0\0\0\3\xd3\0", "a packet frame of 3 bytes"),
    ],
)
def test_impossible_frames_are_refused(data: bytes, why: str | None) -> None:
    reader = StreamFrameReader()
    if why is None:
        assert reader.feed(data) is None
        return
    with pytest.raises(RemoteProtocolError, match=why):
        reader.feed(data)


@pytest.mark.parametrize("kind", [frames.HELLO, frames.ACK, frames.CLOSE, frames.FETCH])
def test_frames_of_numbers_and_names_are_small(kind: int) -> None:
    most = frames.SMALL_FRAME_BYTES_MAX
    assert StreamFrameReader().feed(frames.HEAD.pack(most, kind, 0)) is None
    with pytest.raises(RemoteProtocolError, match="at most 4096 bytes"):
        StreamFrameReader().feed(frames.HEAD.pack(most + 1, kind, 0))


@pytest.mark.parametrize("kind", [frames.OPEN, frames.DATA, frames.ACK])
def test_a_connection_begins_with_a_hello(kind: int) -> None:
    reader = StreamFrameReader(awaits_hello=True)
    with pytest.raises(RemoteProtocolError, match=f"kind {kind:#04x} before a hello"):
        reader.feed(frames.HEAD.pack(100, kind, 0))
    reader = StreamFrameReader(awaits_hello=True)
    assert reader.feed(encode_message(frames.HELLO, StreamHello())[: frames.HEAD.size]) is None
    assert reader.feed(encode_message(frames.HELLO, StreamHello())[frames.HEAD.size :]) is not None
    assert reader.feed(frames.HEAD.pack(100, kind, 0)) is None or kind == frames.DATA


@pytest.mark.parametrize(
    "body",
    [
        b"\x93\xa1\xff\xa1a\x80",  # text that is not UTF-8
        b"\x93\xa1a\xa1b\x81\xa1c" + b"\x91" * 100_000,  # too deep
        b"\x93\xa1a\xa1b\x81\xa1c\x81\x80\x00",  # a map as a key
        b"",
    ],
)
def test_bodies_that_no_sender_makes_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed PayloadFailed"):
        decode_message(HEAD.pack(2 + len(body), frames.FAILED, 0) + body, PayloadFailed)


def test_impossible_packets_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="packet of 16777217 bytes"):
        decode_data_head(encode_data_head(0, (16 << 20) + 1, 0))
    with pytest.raises(RemoteProtocolError, match="less than 2\\^62"):
        decode_data_head(DATA_HEAD.pack(14, frames.DATA, 0, 1 << 63, 0))
    with pytest.raises(RemoteProtocolError, match="malformed ClosePayload"):
        decode_message(b"\0\0\0\3\xd5\0\xc1", ClosePayload)
    with pytest.raises(RemoteProtocolError, match="acknowledgement of 5 bytes"):
        decode_ack(b"12345")
