"""The file that names the partition of a log: both of its forms, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.replica.log_identity import (
    FILE_NAME,
    LogIdentity,
    decode_identity,
    read_identity,
    write_identity,
)
from bascule.sim.disk import SimFiles

FIRST = LogIdentity(b"s" * 16, 3)
ADDED = LogIdentity(b"s" * 16, 3, 2**40)


def written(identity: LogIdentity) -> bytes:
    files = SimFiles(RealRandom(1))
    files.make_dirs("d")
    write_identity(files, "d", identity)
    assert read_identity(files, "d") == identity
    return bytes(files.read_bytes(f"d/{FILE_NAME}"))


def test_the_form_without_a_version_is_that_of_earlier_releases() -> None:
    record = b"BscIdnt1" + bytes.fromhex("2a32628a") + b"s" * 16 + b"\0\0\0\x03"
    assert written(FIRST) == 2 * record


@pytest.mark.parametrize("identity", [FIRST, ADDED])
def test_one_damaged_record_is_survived_and_two_are_not(identity: LogIdentity) -> None:
    data = written(identity)
    half = len(data) // 2
    for at in range(half):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert decode_identity(bytes(damaged), path="d") == identity
        damaged[half + at] ^= 0x10
        with pytest.raises(CorruptData):
            decode_identity(bytes(damaged), path="d")


@given(st.binary(max_size=100))
def test_any_bytes_are_an_identity_or_damage(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_identity(data, path="d")
