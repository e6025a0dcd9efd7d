"""Encoding what goes out; acks in columns; messages as values."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bascule.client.messages import Ack, Acks, Message, MessageEncoder, Outgoing, encode_block
from bascule.errors import InvalidName


def test_a_plain_message_is_a_pub() -> None:
    assert MessageEncoder().encode(b"r.1", "a.b", b"x\r\ny") == b"PUB a.b r.1 4\r\nx\r\ny\r\n"
    assert MessageEncoder().encode(b"", "a.b", b"") == b"PUB a.b 0\r\n\r\n"


def test_key_and_headers_make_an_hpub() -> None:
    frame = MessageEncoder().encode(b"r", *Outgoing("a", b"v", b"k", [("A", "1"), ("A", b"2")]))
    block = b"NATS/1.0\r\nBascule-Key: k\r\nA: 1\r\nA: 2\r\n\r\n"
    assert frame == b"HPUB a r %d %d\r\n%bv\r\n" % (len(block), len(block) + 1, block)


def test_headers_may_be_a_mapping() -> None:
    assert encode_block(None, {"A": "ä"}) == b"NATS/1.0\r\nA: \xc3\xa4\r\n\r\n"


@pytest.mark.parametrize("subject", ["", "a..b", "a b", "a.*", ">", "a\r\nPUB b 0", "ü\n"])
def test_bad_subjects_are_refused(subject: str) -> None:
    encoder = MessageEncoder()
    for _ in range(2):
        with pytest.raises(InvalidName):
            encoder.encode(b"", subject, b"")


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (b"a\nb", None),
        (b" a", None),
        ("a ", None),
        (None, {"A:B": "1"}),
        (None, {"": "1"}),
        (None, {"A B": "1"}),
        (None, {"A\r\n": "1"}),
        (None, {"A": "1\r\nEvil: 2"}),
        (None, {"Bascule-Key": "k"}),
    ],
)
def test_what_a_header_cannot_carry_is_refused(
    key: bytes | str | None, headers: dict[str, str] | None
) -> None:
    with pytest.raises(ValueError):
        encode_block(key, headers)


def test_acks_in_columns() -> None:
    acks = Acks()
    acks.make_room(3)
    first = Ack("s", 1, 0, 0, 3, True)
    second = Ack("t", 9, 8, 1, 1, False)
    assert acks.put(0, first)
    assert acks.put(1, second)
    assert not acks.put(1, first)
    acks.cut(2)
    assert list(acks) == [first, second]
    assert acks[-1] == second
    assert acks[:1] == [first]
    assert list(acks.offsets) == [0, 8]
    assert "2 messages to s, t" in repr(acks)


def test_a_message_knows_its_time_and_headers() -> None:
    message = Message(0, 0, 1_700_000_000_123, None, b"", "s", None, (("A", b"1"), ("A", b"2")))
    assert message.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert message.header("A") == b"1"
    assert message.header("a") is None
