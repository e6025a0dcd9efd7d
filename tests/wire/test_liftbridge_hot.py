"""Both twins of the envelope parser, and acks in envelopes, against Google's protobuf."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from bascule.wire.liftbridge import CRC32C_TABLE

Load = Callable[[str], ModuleType]


def _messages() -> tuple[Any, Any]:
    """Liftbridge's Message and Ack (api.proto), built without generated code."""
    kinds = {"i64": 3, "i32": 5, "str": 9, "bytes": 12}
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="proto", syntax="proto3")
    fields = {
        "Message": [
            ("offset", 1, "i64"), ("key", 2, "bytes"), ("value", 3, "bytes"),
            ("timestamp", 4, "i64"), ("stream", 5, "str"), ("partition", 6, "i32"),
            ("subject", 7, "str"), ("replySubject", 8, "str"), ("ackInbox", 10, "str"),
            ("correlationId", 11, "str"), ("ackPolicy", 12, "i32"),
        ],
        "Ack": [
            ("stream", 1, "str"), ("partitionSubject", 2, "str"), ("msgSubject", 3, "str"),
            ("offset", 4, "i64"), ("ackInbox", 5, "str"), ("correlationId", 6, "str"),
            ("ackPolicy", 7, "i32"), ("receptionTimestamp", 8, "i64"),
            ("commitTimestamp", 9, "i64"), ("ackError", 10, "i32"),
        ],
    }  # fmt: skip
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind in members:
            message.field.add(name=field, number=number, type=kinds[kind], label=1)
        if name == "Message":
            entry = message.nested_type.add(name="HeadersEntry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=9, label=1)
            entry.field.add(name="value", number=2, type=12, label=1)
            message.field.add(
                name="headers", number=9, type=11, label=3, type_name=".proto.Message.HeadersEntry"
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(  # type: ignore[return-value]
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"proto.{name}"))
        for name in ("Message", "Ack")
    )


Message, Ack = _messages()
MAGIC = b"\xb9\x0e\x43\xb4"


def envelope(body: bytes, *, crc: bool = False, kind: int = 0) -> bytes:
    if crc:
        return MAGIC + bytes([0, 12, 1, kind]) + crc32c(body).to_bytes(4, "big") + body
    return MAGIC + bytes([0, 8, 0, kind]) + body


def parse(hot: ModuleType, payloads: list[bytes]) -> list[dict[str, Any] | None]:
    buf = b"".join(payloads)
    messages, rows = array("i"), array("q", [7] * (13 * len(payloads)))
    at = 0
    for payload in payloads:
        messages.extend([1, 0, 0, 0, 0, 0, at, len(payload)])
        at += len(payload)
    headers = bytearray(2 * len(buf) + 16)
    count = hot.parse_envelopes(buf, messages, len(payloads), CRC32C_TABLE, rows, headers)
    if not count:
        return [None] * len(payloads)

    def part(row: int, field: int) -> bytes | None:
        start, size = rows[13 * row + field], rows[13 * row + field + 1]
        return None if start < 0 else buf[start : start + size]

    found: list[dict[str, Any] | None] = []
    for row in range(len(payloads)):
        if rows[13 * row] < 0:
            found.append(None)
            continue
        start, size = rows[13 * row + 1], rows[13 * row + 11]
        found.append(
            {
                "header_count": rows[13 * row],
                "headers": bytes(headers[start : start + size]),
                "key": part(row, 2), "value": part(row, 4), "inbox": part(row, 6),
                "correlation": part(row, 8), "policy": rows[13 * row + 10],
                "offset": rows[13 * row + 12],
            }
        )  # fmt: skip
    return found


def test_envelopes_written_by_protobuf_are_unpacked(hot: Load) -> None:
    module = hot("wire/liftbridge")
    names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9)

    @given(
        st.binary(max_size=9), st.binary(max_size=200),
        st.dictionaries(names, st.binary(max_size=80)),
        names, names, st.integers(0, 2), st.booleans(), st.integers(-(2**63), 2**63 - 2),
    )  # fmt: skip
    def check(
        key: bytes, value: bytes, headers: dict[str, bytes], inbox: str, correlation: str,
        policy: int, crc: bool, offset: int,
    ) -> None:  # fmt: skip
        message = Message(
            key=key, value=value, headers=headers, ackInbox=inbox, correlationId=correlation,
            ackPolicy=policy, offset=offset, stream="s", partition=-3, replySubject="r",
        )  # fmt: skip
        payload = envelope(message.SerializeToString(), crc=crc)
        plain, found = parse(module, [b"plain text", payload])
        assert plain is None
        assert found is not None
        assert found["key"] == (key or None)
        assert found["value"] == (value or None)
        assert found["inbox"] == inbox.encode()
        assert found["correlation"] == correlation.encode()
        assert found["policy"] == policy
        assert found["offset"] == (offset if offset > 0 else -1)
        assert found["header_count"] == len(headers)
        assert len(found["headers"]) >= sum(len(k) + len(v) for k, v in headers.items())

    check()


def damaged() -> list[bytes]:
    body = Message(key=b"k", value=b"v", ackInbox="in").SerializeToString()
    good = envelope(body)
    return [
        good[:7],
        MAGIC + bytes([1, 8, 0, 0]) + body,
        MAGIC + bytes([0, 9, 0, 0]) + body,
        envelope(body, kind=1),
        envelope(body, crc=True)[:-1] + b"x",
        envelope(body + b"\x0a"),
        envelope(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        envelope(b"\x1a\x05abc"),
        envelope(b"\x0b\x00"),
        envelope(b"\x00\x00"),
        envelope(Message(ackInbox="with blank").SerializeToString()),
        envelope(Message(ackInbox="x" * 5000).SerializeToString()),
    ]


@pytest.mark.parametrize("number", range(len(damaged())))
def test_malformed_payloads_are_not_envelopes(hot: Load, number: int) -> None:
    assert parse(hot("wire/liftbridge"), [damaged()[number]]) == [None]


def test_the_parser_accepts_arbitrary_bytes(hot: Load) -> None:
    module = hot("wire/liftbridge")

    @given(st.binary(max_size=80))
    def check(body: bytes) -> None:
        parse(module, [envelope(body), b"x" * 9, envelope(body, crc=True)])

    check()


def test_an_ack_envelope_is_read_by_protobuf(hot: Load) -> None:
    inbox, correlation, subject = b"in.box", b"id-7", b"foo.bar"
    entry = b"\x01" + (3).to_bytes(4, "little")
    entry += len(inbox).to_bytes(2, "little") + inbox
    entry += len(correlation).to_bytes(2, "little") + correlation + b"\x01"
    entry += len(subject).to_bytes(2, "little") + subject
    for error in (0, 3):
        out = bytearray(4000)
        size = hot("wire").format_acks(
            entry, b"{", b"", b"", b"stream", b"foo.*", 500, 7_000_000, 8_000_000, error, 7, out
        )
        line, _, rest = bytes(out[:size]).partition(b"\r\n")
        assert line.startswith(b"PUB in.box ")
        body = rest[:-2]
        assert len(body) == int(line.split()[2])
        assert body[:8] == MAGIC + bytes([0, 8, 0, 1])
        ack = Ack.FromString(body[8:])
        assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("stream", "foo.*", "foo.bar")
        assert (ack.ackInbox, ack.correlationId, ack.ackPolicy) == ("in.box", "id-7", 1)
        assert ack.receptionTimestamp == 7_000_000
        assert ack.offset == (0 if error else 503)
        assert ack.commitTimestamp == (0 if error else 8_000_000)
        assert ack.ackError == error
