"""The bodies of reads of tables by key."""

from __future__ import annotations

import msgspec
import pytest

from bascule.errors import RemoteProtocolError
from bascule.table_results import TableEntry, TableValues
from bascule.wire.tables.read_batches import (
    READS_MAX,
    KeyRead,
    decode_answers,
    decode_reads,
    encode_answers,
    encode_reads,
)


def test_bodies_are_as_documented() -> None:
    reads = [KeyRead("t", [b"a", b"b"], 7, linearizable=True), KeyRead("u", [])]
    body = encode_reads(reads)
    assert msgspec.msgpack.decode(body) == [["t", [b"a", b"b"], 7, True], ["u", [], 0, False]]
    assert decode_reads(memoryview(body)) == reads
    answers = [TableValues(9, [TableEntry(b"a", 8, 1_000, b"1", "text/plain")]), None]
    body = encode_answers(answers)
    assert msgspec.msgpack.decode(body) == [[9, [[b"a", 8, 1_000, b"1", "text/plain"]]], None]
    assert decode_answers(body) == answers


@pytest.mark.parametrize(
    "value", [None, 1, [1], [["t"]], [[1, []]], [["t", ["text"]]], [["t", [], "x"]]]
)
def test_other_bodies_are_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_reads(msgspec.msgpack.encode(value))


def test_broken_bodies_are_refused() -> None:
    for body in (b"", b"\x91", b"\xc1", encode_reads([KeyRead("t", [b"a"])])[:-1]):
        with pytest.raises(RemoteProtocolError):
            decode_reads(body)
        with pytest.raises(RemoteProtocolError):
            decode_answers(body)


def test_too_many_reads_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="at most 1024"):
        decode_reads(encode_reads([KeyRead("t", [])] * (READS_MAX + 1)))
