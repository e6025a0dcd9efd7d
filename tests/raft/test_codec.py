"""The codec of bundles: golden vectors, an independent decoder, and hostile bytes."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import LimitExceeded, RemoteProtocolError
from bascule.raft import codec
from bascule.raft.messages import AppendRequest, ChunkReply, Entry, Heartbeat, RaftMessage
from bascule.raft.multi.bundle import NUMBER_MAX, Bundle, Hibernation
from fuzz.raft_targets import BEAT, BUNDLES, EVERY_MESSAGE

GOLDEN = (
    "0174389a789f010209086463030411000090909090",
    "01dcbf390c9f01020908646303041100009090909c92019901010205c30704c30092029702010205c2c3009203"
    "98030102050604069294070400c4077075742061203194080501c40092039804010205c2080604920497050102"
    "0506ce000111700092049506010205ce0001117092059407010205920699080102050604939201029103029200"
    "ceffffffff92010292069509010205069206960a01020506019206970b0102050601c4056368756e6b92cf0000"
    "010000000000970b0102050601c0",
    "0198ee2a089f01020908646303041103069293010508930205509104919307030390",
)  # fmt: skip
"""BUNDLES, encoded, in hexadecimal."""


def body_of(value: object) -> bytes:
    """A body with a correct head and any content."""
    packed = msgspec.msgpack.encode(value)
    return struct.pack(">BI", codec.VERSION, crc32c(packed)) + packed


def beat_with(*messages: tuple[object, object]) -> list[object]:
    return [1, 2, 9, 8, 100, 99, 3, 4, 17, 0, 0, [], [], [], list(messages)]


@pytest.mark.parametrize("number", range(len(BUNDLES)))
def test_encoded_bytes_match_the_vectors(number: int) -> None:
    bundle, golden = BUNDLES[number], bytes.fromhex(GOLDEN[number])
    assert codec.encode(bundle).hex() == golden.hex()
    assert codec.decode(golden) == bundle


def test_an_independent_decoder_reads_the_vectors() -> None:
    """MessagePack and CRC-32C by their definitions, without the libraries of the encoder."""
    body = bytes(codec.encode(BUNDLES[1]))
    version, crc = struct.unpack_from(">BI", body)
    assert (version, crc) == (1, slow_crc32c(body[5:]))
    fields, end = slow_msgpack(body, 5)
    assert end == len(body)
    assert fields[:9] == [1, 2, 9, 8, 100, 99, 3, 4, 17]
    assert fields[14][2] == [3, [3, 1, 2, 5, 6, 4, 6, [[7, 4, 0, b"put a 1"], [8, 5, 1, b""]]]]
    assert fields[14][11] == [1 << 40, [11, 1, 2, 5, 6, 1, None]]


def slow_msgpack(data: bytes, at: int) -> tuple[Any, int]:
    """(value at `at`, its end): integers, bytes, arrays, booleans and nil."""
    kind = data[at]
    if kind < 0x80:
        return kind, at + 1
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at + 1
    if kind in (0xCC, 0xCD, 0xCE, 0xCF):
        width = 1 << (kind - 0xCC)
        return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
    if kind == 0xC4:
        return data[at + 2 : at + 2 + data[at + 1]], at + 2 + data[at + 1]
    count, at = (kind & 0x0F, at + 1) if kind < 0xA0 else (data[at + 2] | data[at + 1] << 8, at + 3)
    assert 0x90 <= kind < 0xA0 or kind == 0xDC, f"{kind:#x}"
    values = []
    for _ in range(count):
        value, at = slow_msgpack(data, at)
        values.append(value)
    return values, at


def slow_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_every_message_has_a_vector() -> None:
    assert {type(message) for _, message in EVERY_MESSAGE} == set(RaftMessage.__subclasses__())


numbers = st.integers(0, NUMBER_MAX)
rests = st.lists(st.builds(Hibernation, numbers, numbers, numbers), max_size=3).map(tuple)


@st.composite
def appends(draw: st.DrawFn) -> AppendRequest:
    previous, term = draw(st.integers(0, 1 << 40)), draw(st.integers(0, 1 << 40))
    payloads = draw(st.lists(st.binary(max_size=40), max_size=4))
    entries = tuple(
        Entry(previous + n + 1, draw(st.integers(0, term)), draw(st.integers(0, 2)), payload)
        for n, payload in enumerate(payloads)
    )
    return AppendRequest(1, 2, term, previous, draw(numbers), draw(numbers), entries)


messages = st.one_of(
    appends(),
    st.builds(Heartbeat, st.just(1), st.just(2), numbers, numbers, numbers),
    st.builds(
        ChunkReply, st.just(1), st.just(2), numbers, numbers, numbers, st.none() | st.binary()
    ),
    st.sampled_from([message for _, message in EVERY_MESSAGE]),
)
bundles = st.builds(
    Bundle, st.just(1), st.just(2), *[numbers] * 9, rests,
    st.lists(numbers, max_size=3).map(tuple), rests,
    st.lists(st.tuples(numbers, messages), max_size=5).map(tuple),
)  # fmt: skip


@given(bundles)
def test_decode_reverses_encode(bundle: Bundle) -> None:
    body = codec.encode(bundle)
    for form in (body, bytes(body), memoryview(body)):
        assert codec.decode(form) == bundle


@given(bundles, st.data())
def test_a_damaged_body_is_a_protocol_error(bundle: Bundle, data: st.DataObject) -> None:
    body = codec.encode(bundle)
    at = data.draw(st.integers(0, len(body) - 1))
    cut = body[:at]
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (body, cut):
        with pytest.raises(RemoteProtocolError):
            codec.decode(damaged)


HOSTILE = {
    "nothing": b"",
    "a head alone": bytes(5),
    "another version": b"\x02" + bytes(codec.encode(BEAT))[1:],
    "a map": body_of({"source": 1}),
    "too few fields": body_of([1, 2, 3]),
    "a negative number of the beat": body_of([1, 2, -9, *beat_with()[3:]]),
    "a number beyond 63 bits": body_of([1, 2, 1 << 63, *beat_with()[3:]]),
    "text for a number": body_of(["1", *beat_with()[1:]]),
    "itself as target": body_of([2, *beat_with()[1:]]),
    "a message of another node": body_of(beat_with((1, [5, 3, 2, 5, 6, 7]))),
    "a message to another node": body_of(beat_with((1, [5, 1, 3, 5, 6, 7]))),
    "a message of no known kind": body_of(beat_with((1, [99, 1, 2, 5]))),
    "a message without its kind": body_of(beat_with((1, []))),
    "a negative group": body_of(beat_with((-1, [5, 1, 2, 5, 6, 7]))),
    "a negative term": body_of(beat_with((1, [5, 1, 2, -5, 6, 7]))),
    "an index beyond 63 bits": body_of(beat_with((1, [9, 1, 2, 5, 1 << 63]))),
    "entries with a gap": body_of(
        beat_with((1, [3, 1, 2, 5, 6, 4, 6, [[7, 4, 0, b"x"], [9, 4, 0, b"y"]]]))
    ),
    "entries that begin too late": body_of(beat_with((1, [3, 1, 2, 5, 6, 4, 6, [[8, 4, 0, b""]]]))),
    "an entry of a later term": body_of(beat_with((1, [3, 1, 2, 5, 6, 4, 6, [[7, 6, 0, b"x"]]]))),
    "an entry of a negative term": body_of(
        beat_with((1, [3, 1, 2, 5, 6, 4, 6, [[7, -1, 0, b"x"]]]))
    ),
    "text for a payload": body_of(beat_with((1, [3, 1, 2, 5, 6, 4, 6, [[7, 4, 0, "x"]]]))),
    "bytes behind the end": body_of(beat_with()) + b"\0",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bytes_are_a_protocol_error(what: str) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode(HOSTILE[what])


@pytest.mark.parametrize(
    "packed",
    [
        b"\x9f" + b"\x01" * 14 + b"\xdd\xff\xff\xff\xff",
        b"\x9f" + b"\x01" * 14 + b"\xc6\xff\xff\xff\xff",
        b"\xdc\x00\x10" + b"\x01" * 9 + b"\0\0\x90\x90\x90\x90" + b"\x91" * 200_000,
        b"\x91" * 200_000,
    ],
    ids=["array of 4 Gi", "bytes of 4 GiB", "deep field too many", "deep"],
)
def test_wrong_lengths_and_nesting_allocate_no_memory(packed: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode(struct.pack(">BI", codec.VERSION, crc32c(packed)) + packed)


def test_a_body_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BODY_BYTES_MAX", 64)
    small, large = BUNDLES[0], BUNDLES[1]
    assert codec.decode(codec.encode(small)) == small
    with pytest.raises(LimitExceeded):
        codec.encode(large)
    with pytest.raises(RemoteProtocolError, match="expected 6 to 64"):
        codec.decode(bytes.fromhex(GOLDEN[1]))
