"""Both twins of the client's hot module against plain Python and hostile bytes."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.client.messages import Acks
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.wire import _hot as wire_hot

Hot = Callable[[str], ModuleType]
INBOX = b"_INBOX.0123456789abcdef"


def ack(offset: int, **more: object) -> bytes:
    fields = {"stream": "s", "seq": offset + 1, "partition": 0, "offset": offset, "replicas": 1}
    return json.dumps({**fields, "synced": True, **more}, separators=(",", ":")).encode()


def message(index: object, body: bytes, *, run: object = 1, headers: bytes = b"") -> bytes:
    subject = b"%b.%b.%b" % (INBOX, str(run).encode(), str(index).encode())
    if headers:
        size = len(headers)
        return b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (subject, size, size + len(body), headers, body)
    return b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(body), body)


def collect(
    hot: ModuleType,
    data: bytes,
    acks: Acks,
    *,
    stream: bytes = b"s",
    run: int = 1,
    first: int = 0,
) -> tuple[int, list[int]]:
    """Acks added and rows left over."""
    positions = array("i", bytes(4 * 8 * 4096))
    state = array("q", [0] * 4)
    count = wire_hot.parse_messages(data, 0, len(data), 1 << 20, 1 << 16, positions, state)
    assert state[0] == len(data)
    leftover = array("i", bytes(4 * 4096))
    added = hot.collect_acks(
        data, positions, count, len(INBOX) + 1, run, stream,
        acks.offsets, acks.partitions, acks.details, leftover, state, first,
    )  # fmt: skip
    return added, list(leftover[: state[0]])


def room(count: int) -> Acks:
    acks = Acks()
    acks.names.append("s")
    acks.make_room(count)
    return acks


def test_acks_land_at_their_indexes(hot: Hot) -> None:
    acks = room(4)
    data = message(2, ack(7)) + message(0, ack(5, synced=False, replicas=3, partition=9))
    assert collect(hot("client"), data, acks) == (2, [])
    assert list(acks.offsets) == [5, -1, 7, -1]
    assert acks[0] == ("s", 6, 5, 9, 3, False, False)
    assert acks[2] == ("s", 8, 7, 0, 1, True, False)


def test_the_first_ack_of_a_message_counts(hot: Hot) -> None:
    acks = room(1)
    assert collect(hot("client"), message(0, ack(5)) + message(0, ack(6)), acks) == (1, [])
    assert list(acks.offsets) == [5]


def test_duplicates_are_marked(hot: Hot) -> None:
    acks = room(2)
    data = message(0, ack(5, duplicate=True)) + message(1, ack(6, duplicate=False))
    assert collect(hot("client"), data, acks) == (2, [])
    assert [ack.duplicate for ack in acks] == [True, False]
    assert [ack.replicas for ack in acks] == [1, 1]


def test_columns_may_begin_later(hot: Hot) -> None:
    """A long run drops what is acked: entry 0 is another index then, and older acks are late."""
    acks = room(2)
    data = b"".join(message(index, ack(index)) for index in (999, 1_000, 1_001, 1_002))
    assert collect(hot("client"), data, acks, first=1_000) == (2, [0, 3])
    assert list(acks.offsets) == [1_000, 1_001]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"synced": True, "offset": 5, "stream": "s", "seq": 6}).encode(),
        ack(5, domain="hub"),
        b'{ "stream" : "s" , "seq" : 6 , "offset" : 5 , "synced" : true }',
    ],
    ids=["order and blanks", "a text more", "blanks everywhere"],
)
def test_acks_may_be_spelled_otherwise(hot: Hot, body: bytes) -> None:
    acks = room(1)
    assert collect(hot("client"), message(0, body), acks) == (1, [])
    assert acks.offsets[0] == 5


@pytest.mark.parametrize(
    "data",
    [
        message(0, b'{"error":{"code":503},"stream":"s","seq":0}'),
        message(0, b"", headers=b"NATS/1.0 503\r\n\r\n"),
        message(0, ack(5), headers=b"NATS/1.0\r\nA: b\r\n\r\n"),
        message(0, ack(5), run=2),
        message(9, ack(5)),
        message("x", ack(5)),
        message("1x", ack(5)),
        message(0, ack(5)[:-1]),
        message(0, ack(5) + b" "),
        message(0, ack(5, extra=[1])),
        message(0, ack(5, stream="other")),
        message(0, ack(5, stream='q"')),
        message(0, ack(5, seq=-1)),
        message(0, ack(5, replicas=70_000)),
        message(0, b'{"stream":"s","seq":6}'),
        message(0, b"{}"),
        message(0, b""),
        message(0, b'{"offset":5,"stream":"s","seq":6'),
    ],
)
def test_what_is_no_usual_ack_is_left_to_the_caller(hot: Hot, data: bytes) -> None:
    acks = room(2)
    assert collect(hot("client"), data, acks) == (0, [0])
    assert list(acks.offsets) == [-1, -1]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 20),
            st.integers(0, 2**62),
            st.booleans(),
            st.sampled_from(["s", "t", "stream"]),
        ),
        max_size=30,
    )
)
def test_agrees_with_a_json_parser(hot: Hot, rows: list[tuple[int, int, bool, str]]) -> None:
    acks, expected, others = room(16), [-1] * 16, []
    data = b""
    for number, (index, offset, synced, stream) in enumerate(rows):
        data += message(index, ack(offset, synced=synced, stream=stream))
        if index >= 16 or stream != "s" or offset >= 10**18:
            others.append(number)
        elif expected[index] < 0:
            expected[index] = offset
    _, leftover = collect(hot("client"), data, acks)
    assert list(acks.offsets) == expected
    assert leftover == others


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=80), cut=st.integers(0, 200), at=st.integers(0, 100))
def test_hostile_bodies_change_nothing_else(hot: Hot, body: bytes, cut: int, at: int) -> None:
    whole = ack(5)
    for spoiled in (body, whole[:cut], whole[: at % len(whole)] + body + whole[at % len(whole) :]):
        acks = room(3)
        collect(hot("client"), message(1, spoiled), acks)
        assert acks.offsets[0] == acks.offsets[2] == -1


def test_buffers_too_small_are_refused(hot: Hot) -> None:
    numbers, more = array("i", [0] * 8), array("q", [0])
    with pytest.raises(IndexError):
        hot("client").collect_acks(
            b"x", numbers, 2, 0, 1, b"s", more, numbers, array("H", [0]), numbers, more
        )


def test_positions_outside_the_bytes_are_not_followed(hot: Hot) -> None:
    acks = room(1)
    leftover, state = array("i", [0]), array("q", [0])
    for positions in ([1, -5, 99, 0, 0, 0, -9, 5], [1, 10**6, 9, 0, 0, 0, 10**6, 9]):
        assert not hot("client").collect_acks(
            b"0123456789", array("i", positions), 1, 3, 1, b"s",
            acks.offsets, acks.partitions, acks.details, leftover, state,
        )  # fmt: skip


def test_first_unacked(hot: Hot) -> None:
    find = hot("client").first_unacked
    column = array("q", [3, 4, -1, 5])
    assert [find(column, start, 4) for start in range(5)] == [2, 2, 2, 4, 4]
    with pytest.raises(IndexError):
        find(column, 0, 5)


@settings(max_examples=60)
@given(
    acks=st.lists(
        st.tuples(st.integers(0, 1 << 60), st.integers(0, 3), st.booleans(), st.booleans(),
                  st.integers(0, 1)),
        max_size=40,
    )
)  # fmt: skip
def test_acks_are_tallied(hot: Hot, acks: list[tuple[int, int, bool, bool, int]]) -> None:
    table = array("q", bytes(8 * 5 * 4 * 2))
    offsets, partitions = array("q", [a[0] for a in acks]), array("i", [a[1] for a in acks])
    details = array("H", [1 + 32768 * a[2] + 16384 * a[3] for a in acks])
    streams = array("H", [a[4] for a in acks])
    tally = hot("client").tally_acks
    assert tally(offsets, partitions, details, streams, len(acks), 4, table) == len(acks)
    for stream in range(2):
        for partition in range(4):
            mine = [a for a in acks if (a[4], a[1]) == (stream, partition)]
            at = 5 * (4 * stream + partition)
            assert table[at] == len(mine)
            assert table[at + 1] == sum(a[3] for a in mine)
            assert table[at + 2] == sum(not a[2] for a in mine)
            if mine:
                assert table[at + 3] == min(a[0] for a in mine)
                assert table[at + 4] == max(a[0] for a in mine)


def test_acks_beyond_the_table_are_not_counted(hot: Hot) -> None:
    tally, none = hot("client").tally_acks, array("H", [0, 0])
    table = array("q", bytes(8 * 5 * 4))
    for partition in (4, -1):
        partitions = array("i", [0, partition])
        assert tally(array("q", [1, 2]), partitions, none, none, 2, 4, table) == 1
    assert tally(array("q", [1]), array("i", [0]), none, array("H", [1]), 1, 4, table) == 0
    with pytest.raises(IndexError):
        tally(array("q", [1]), array("i", [0]), none, none, 2, 4, table)


def batch(first: int, count: int) -> bytes:
    records = [Record(first + n, 1_700_000_000_000, None, b"value") for n in range(count)]
    return bytes(build_batch(records, base_offset=first))


def walk(hot: ModuleType, data: bytes) -> tuple[int, int, int]:
    state = array("q", [-1, -1])
    return (hot.walk_batches(data, 0, len(data), state), *state)


def test_walk_finds_the_next_offset(hot: Hot) -> None:
    first, second = batch(0, 5), batch(5, 3)
    data = first + second
    assert walk(hot("client"), data) == (2, 8, len(data))
    assert walk(hot("client"), data[:-1]) == (1, 5, len(first))
    assert walk(hot("client"), data[: len(first) - 1]) == (0, -1, 0)
    assert walk(hot("client"), b"") == (0, -1, 0)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300))
def test_walk_stays_in_any_bytes(hot: Hot, data: bytes) -> None:
    count, _, end = walk(hot("client"), data)
    assert 0 <= end <= len(data)
    assert count <= len(data) // 61


def test_walk_refuses_lengths_that_cannot_be(hot: Hot) -> None:
    for length in (-1, 0, 48, 2**31 - 1):
        data: Any = bytearray(batch(0, 5))
        data[8:12] = length.to_bytes(4, "big", signed=True)
        assert walk(hot("client"), bytes(data)) == (0, -1, 0)
