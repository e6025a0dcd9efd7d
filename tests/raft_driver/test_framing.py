"""Splitting bytes into frames, and the hello at the start of a connection."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.cluster_identity import ClusterIdentity
from bascule.errors import RemoteProtocolError
from bascule.raft_driver.framing import RaftFrameReader
from bascule.raft_driver.handshake import (
    MAGIC,
    VERSION,
    Hello,
    check_hello,
    decode_hello,
    encode_hello,
    frame,
)

BLUE = ClusterIdentity("blue")


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.data())
def test_frames_are_read_from_any_chunks(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(body) for body in bodies)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    reader = RaftFrameReader(50)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += list(reader.feed(stream[start:end]))
    assert found == bodies


@pytest.mark.parametrize("length", [0, 11, 2**32 - 1])
def test_a_frame_with_a_wrong_length_is_refused_before_its_body(length: int) -> None:
    reader = RaftFrameReader(10)
    assert list(reader.feed(frame(b"1234567890"))) == [b"1234567890"]
    with pytest.raises(RemoteProtocolError, match=f"a frame of {length} bytes, expected 1 to 10"):
        list(reader.feed(length.to_bytes(4, "big")))


def test_the_limit_may_change_between_two_frames() -> None:
    reader = RaftFrameReader(4)
    frames = reader.feed(frame(b"1234") + frame(b"12345"))
    assert next(frames) == b"1234"
    reader.bytes_max = 5
    assert next(frames) == b"12345"


def body_of(hello: Hello) -> bytes:
    return msgspec.msgpack.encode(hello)


def test_a_hello_is_decoded_as_encoded() -> None:
    (body,) = RaftFrameReader(4_096).feed(encode_hello(BLUE, 1, 2, 77))
    assert decode_hello(body) == Hello(MAGIC, VERSION, "blue", 1, 2, 77)
    (body,) = RaftFrameReader(4_096).feed(encode_hello(ClusterIdentity("blue", "id"), 1, 2, 77))
    assert decode_hello(body) == Hello(MAGIC, VERSION, "blue", 1, 2, 77, (), "id")


def test_releases_before_and_after_read_a_hello() -> None:
    """An earlier one leaves the cluster id out, and a later one has more fields."""
    fields = [MAGIC, VERSION, "blue", 1, 2, 77, [["tick_ms", 50]], "id"]
    known = Hello(MAGIC, VERSION, "blue", 1, 2, 77, (("tick_ms", 50),))
    assert decode_hello(msgspec.msgpack.encode(fields[:-1])) == known
    later = decode_hello(msgspec.msgpack.encode([*fields, "", "later"]))
    assert later == msgspec.structs.replace(known, cluster_id="id")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x00", "is not a hello"),
        (b"GET / HTTP/1.1", "is not a hello"),
        (body_of(Hello("mysql", VERSION, "blue", 1, 2, 77)), "its magic is 'mysql'"),
        (body_of(Hello(MAGIC, 2, "blue", 1, 2, 77)), "has protocol version 2, expected 1"),
        (body_of(Hello(MAGIC, VERSION, "red", 1, 2, 77)), "cluster 'red', expected 'blue'"),
        (body_of(Hello(MAGIC, VERSION, "blue", 1, 3, 77)), "expects node 3 here, this is node 2"),
    ],
)
def test_a_wrong_hello_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        check_hello(decode_hello(body), cluster=BLUE, target=2)


def test_a_hello_with_other_settings_is_refused_by_name_where_leases_are_on() -> None:
    leases = (("tick_ms", 50), ("election_ticks", 10), ("lease_reads", 1))
    without = (("tick_ms", 50), ("election_ticks", 20), ("lease_reads", 0))
    for ours, theirs, why in (
        (leases, leases, ""),
        (leases, (*leases, ("later", 1)), ""),
        (leases, (("tick_ms", 50), ("election_ticks", 20)), "election_ticks = 20, expected 10"),
        (leases, (), "tick_ms = None, expected 50: leases count on equal settings, so restart all"),
        (leases, without, "election_ticks = 20, expected 10"),
        (without, leases, "election_ticks = 10, expected 20"),
        (without, (("tick_ms", 99), ("election_ticks", 9), ("lease_reads", 0)), ""),
    ):
        (body,) = RaftFrameReader(4_096).feed(encode_hello(BLUE, 1, 2, 77, theirs))
        hello = decode_hello(body)
        assert hello.settings == theirs
        if why:
            with pytest.raises(RemoteProtocolError, match=why):
                check_hello(hello, cluster=BLUE, target=2, settings=ours)
        else:
            check_hello(hello, cluster=BLUE, target=2, settings=ours)


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_as_hello(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_hello(body)
