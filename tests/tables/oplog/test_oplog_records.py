"""Records of an oplog on both twins: bytes, damage, search, the last operation of each key."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import pairwise
from random import Random
from types import ModuleType

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from support.twins import load_twin

TABLE = 0x8899AABBCCDDEEFF
SEED = 0x12345678
Hot = Callable[[str], ModuleType]


def operations(count: int, *, keys: int = 50, first: int = 1, dice: int = 0) -> array[int]:
    random, made, id = Random(dice), array("q"), first - 1
    for _ in range(count):
        id += random.choice([1, 1, 1, 7])
        made.extend((id, random.randint(1, keys), random.randint(1, 2)))
    return made


def encode(hot: ModuleType, *pieces: array[int]) -> tuple[bytes, list[int], list[int]]:
    """The records, the state after them, and the first ids of blocks."""
    state, firsts, data = array("q", [SEED, 0, SEED, 0]), array("q"), b""
    for piece in pieces:
        out = bytearray(25 * (len(piece) // 3 * 2 + 2))
        slot = len(data) // 25
        data += out[: hot.encode(piece, TABLE, slot, out, state, firsts)]
    return data, list(state), list(firsts)


def expected_records(made: array[int]) -> bytes:
    """By `int.to_bytes`, record by record."""
    data, crc, last = b"", SEED, 0
    for at in range(0, len(made), 3):
        last = made[at]
        data += b"".join(n.to_bytes(8, "little") for n in (last, made[at + 1], TABLE))
        data += bytes([made[at + 2]])
        if len(data) // 25 % 256 == 255:
            crc = crc32c(data[-25 * 255 :], crc)
            data += b"".join(n.to_bytes(8, "little") for n in (last, crc, TABLE)) + b"\x80"
    return data


def checked(hot: ModuleType, data: bytes) -> tuple[int, list[int], list[int]]:
    state, firsts = array("q", [SEED, 0, SEED, 0]), array("q")
    return hot.check(data, len(data) // 25, TABLE, state, firsts), list(state), list(firsts)


def test_the_bytes_of_records(hot: Hot) -> None:
    data, state, firsts = encode(hot("tables/oplog"), array("q", [1, 5, 1, 3, (1 << 40) + 2, 2]))
    assert data.hex(" ", 1) == (
        "01 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 ff ee dd cc bb aa 99 88 01 "
        "03 00 00 00 00 00 00 00 02 00 00 00 00 01 00 00 ff ee dd cc bb aa 99 88 02"
    )
    assert state == [crc32c(data, SEED), 3, SEED, 0]
    assert firsts == [1]


@given(st.lists(st.integers(0, 700), max_size=6), st.integers(0, 5))
def test_records_are_the_same_in_pieces(counts: list[int], dice: int) -> None:
    made = operations(sum(counts), dice=dice)
    ends = [3 * sum(counts[:n]) for n in range(len(counts) + 1)]
    pieces = [made[a:b] for a, b in pairwise(ends)]
    hot = load_twin("tables/oplog", "compiled")
    data, state, firsts = encode(hot, *pieces)
    assert data == expected_records(made)
    assert firsts == [made[at] for at in range(0, len(made), 3 * 255)]
    assert checked(hot, data) == (len(data) // 25, state, firsts)


@pytest.mark.parametrize("count", [0, 1, 254, 255, 256, 600])
def test_both_twins_encode_and_check(hot: Hot, count: int) -> None:
    twin, made = hot("tables/oplog"), operations(count)
    data, state, firsts = encode(twin, made)
    assert data == expected_records(made)
    assert checked(twin, data) == (len(data) // 25, state, firsts)


@pytest.mark.parametrize("bad", [[1, 1, 1, 1, 2, 1], [0, 1, 1], [5, 0, 1], [5, -1, 1]])
def test_ids_have_to_rise_and_keys_to_be_positive(hot: Hot, bad: list[int]) -> None:
    with pytest.raises(ValueError, match="after operation"):
        encode(hot("tables/oplog"), array("q", bad))


def test_every_flipped_bit_is_found(hot: Hot) -> None:
    """In whole blocks by `check` alone; in the rest by it or the CRC32C of the mark."""
    twin, made = hot("tables/oplog"), operations(300)
    data, state, _ = encode(twin, made)
    random = Random(4)
    for bit in random.sample(range(8 * len(data)), 300 if twin.IS_COMPILED else 30):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        good, after, _ = checked(twin, bytes(damaged))
        if bit // 8 < 25 * 256:
            assert good < 256
        else:
            assert good < len(data) // 25 or after[0] != state[0]


@pytest.mark.parametrize("count", [0, 1, 254, 255, 256, 600])
def test_blocks_are_verified_by_their_checks(hot: Hot, count: int) -> None:
    twin = hot("tables/oplog")
    data, state, _ = encode(twin, operations(count))
    slots, found = len(data) // 25, array("q", [SEED])
    assert twin.verify(data, slots, found) == slots
    assert found[0] == state[0]
    for at in range(0, len(data), 997):
        damaged = bytearray(data)
        damaged[at] ^= 4
        found = array("q", [SEED])
        good = twin.verify(bytes(damaged), slots, found)
        # Of a check only what the reader needs: its CRC32C and its operation.
        if at % 6_400 < 6_375 or at % 6_400 in range(6_383, 6_391):
            assert good == at // 6_400 * 256 or (good == slots and found[0] != state[0])
    with pytest.raises(IndexError):
        twin.verify(data, slots + 1, array("q", [SEED]))


def test_zeros_of_a_lost_page_are_no_records(hot: Hot) -> None:
    twin, made = hot("tables/oplog"), operations(200)
    data, _, _ = encode(twin, made)
    for cut in (0, 24, 25, 26, 41, 512, 1_000, 4_096):
        assert checked(twin, data[:cut] + bytes(len(data) - cut))[0] == cut // 25


def test_records_of_another_table_or_place_are_refused(hot: Hot) -> None:
    twin = hot("tables/oplog")
    data, _, _ = encode(twin, operations(600))
    state, firsts = array("q", [SEED, 0, SEED, 0]), array("q")
    assert twin.check(data, 600, TABLE + 1, state, firsts) == 0
    second = data[25 * 256 : 25 * 512]
    assert checked(twin, second)[0] == 0, "a block is bound to the one before"
    state = array("q", [SEED + 1, 0, SEED + 1, 0])
    assert twin.check(data, 600, TABLE, state, firsts) == 0, "and the first one to the header"


@pytest.mark.parametrize("count", [1, 2, 255, 257, 600])
def test_search(hot: Hot, count: int) -> None:
    twin, made = hot("tables/oplog"), operations(count)
    data, _, _ = encode(twin, made)
    ids = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 25)]
    for since in range(made[-3] + 2):
        expected = sum(id <= since for id in ids)
        assert twin.find(data, len(ids), since) == expected


def collapsed(twin: ModuleType, data: bytes, since: int, size: int) -> list[tuple[int, int]]:
    seen, found = array("q", bytes(8 * size)), array("q", bytes(8 * size))
    rest, slots, count = array("q", [0, 0]), len(data) // 25, 0
    while True:
        answer = twin.collapse(data, slots, since, seen, count, found, rest)
        slots, count = rest
        if answer != twin.FULL:
            break
        found.frombytes(bytes(8 * len(seen)))
        seen = array("q", bytes(16 * len(seen)))
        twin.fill(found, count, seen)
    assert (answer == twin.REACHED) == bool(slots)
    return [(found[2 * n], found[2 * n + 1]) for n in range(count)]


@pytest.mark.parametrize("keys", [1, 3, 1_000, 1 << 45])
@pytest.mark.parametrize("since", [0, 1, 100, 5_000])
def test_the_last_operation_of_each_key(hot: Hot, keys: int, since: int) -> None:
    twin, made = hot("tables/oplog"), operations(900, keys=keys)
    data, _, _ = encode(twin, made)
    last = {made[at + 1]: made[at] for at in range(0, len(made), 3) if made[at] > since}
    expected = sorted(((id, key) for key, id in last.items()), reverse=True)
    assert collapsed(twin, data, since, 4) == expected


def test_operations_of_rows(hot: Hot) -> None:
    twin = hot("tables/oplog")
    changes = [(b"a", 4, b"1"), (b"b", 5, None), (b"a", 7, b""), (b"c", 9, b"3")]
    rows = [(key, version, 0, value, None, None) for key, version, value in changes]
    out = array("q", bytes(8 * 12))
    assert twin.make_operations(rows, [3, 5, 11, 7], 11, out) == 13
    assert list(out) == [5, 11, 1, 6, 3, 2, 8, 11, 1, 10, 12, 1]
    with pytest.raises(ValueError, match="row ids of 1 keys, expected 0"):
        twin.make_operations(rows, [3, 6], 11, out)
    with pytest.raises(IndexError):
        twin.make_operations(rows, [], 11, array("q", bytes(8 * 11)))
