"""The headers of payloads in chunks, and their answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.datastream.protocol.chunk_messages import (
    ChunkHead,
    encode_answer,
    error_of,
    read_chunk_head,
)
from bascule.errors import (
    Broken,
    Indeterminate,
    PayloadDamaged,
    PayloadGap,
    PublishRejected,
    RemoteProtocolError,
)
from bascule.wire import ack_codes

ID = "0123456789abcdef" * 2


def block(*lines: str) -> bytes:
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


def test_a_chunk_in_the_middle() -> None:
    head = read_chunk_head(
        block(
            f"bascule-payload-SESSION:  {ID} ",
            "Bascule-Payload-Offset: 1048576",
            "Bascule-Payload-CRC32C: 0A0b0C0d",
            "Bascule-Key: resnet",
            "Bascule-Key: another",
            "Nats-Msg-Id: 7",
        ),
        5,
    )
    assert head == ChunkHead(
        ID, 1048576, -1, 0x0A0B0C0D, b"resnet",
        [("Bascule-Key", b"another"), ("Nats-Msg-Id", b"7")],
    )  # fmt: skip


def test_the_last_one() -> None:
    head = read_chunk_head(block(f"Bascule-Payload-Session: {ID}", "Bascule-Payload-Close: 0"), 0)
    assert head == ChunkHead(ID, -1, 0, None, None, [])


SESSION = f"Bascule-Payload-Session: {ID}"
OFFSET = "Bascule-Payload-Offset: 0"


@pytest.mark.parametrize(
    ("lines", "body_bytes", "text"),
    [
        (["Bascule-Payload-Session: 12", OFFSET], 1, "session '12'"),
        (["Bascule-Payload-Session: " + "AB" * 16, OFFSET], 1, "session"),
        (["Bascule-Payload-Session: é" + ID[1:], OFFSET], 1, "session"),
        ([SESSION], 1, "expected Bascule-Payload-Offset or"),
        ([SESSION, OFFSET, "Bascule-Payload-Close: 1"], 0, "expected Bascule-Payload-Offset or"),
        ([SESSION, "Bascule-Payload-Close: 1"], 1, "1 bytes in the last message"),
        ([SESSION, OFFSET, OFFSET], 1, "set twice"),
        ([SESSION, SESSION, OFFSET], 1, "set twice"),
        ([SESSION, "Bascule-Payload-Offset: -1"], 1, "not a number"),
        ([SESSION, "Bascule-Payload-Offset: ١"], 1, "not a number"),
        ([SESSION, f"Bascule-Payload-Offset: {1 << 50}"], 1, "not a number below 2^50"),
        ([SESSION, "Bascule-Payload-Offset: " + "9" * 400], 1, "not a number"),
        ([SESSION, f"Bascule-Payload-Offset: {(1 << 50) - 1}"], 1, "expected less than 2^50"),
        ([SESSION, OFFSET, "Bascule-Payload-CRC32C: 0x123456"], 1, "8 hexadecimal digits"),
        ([SESSION, OFFSET, f"Bascule-Payload-Id: {ID}"], 1, "is not one of a chunk"),
    ],
)
def test_what_a_chunk_may_not_say(lines: list[str], body_bytes: int, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text.replace("^", r"\^")):
        read_chunk_head(block(*lines), body_bytes)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Session", "Offset", "Close", "CRC32C", "Bytes"]),
            st.text(alphabet="0123456789abcdefé -", max_size=34),
        ),
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_any_headers_are_read_or_refused(pairs: list[tuple[str, str]], body_bytes: int) -> None:
    lines = [f"Bascule-Payload-{name}: {value}" for name, value in pairs]
    try:
        head = read_chunk_head(block(SESSION, *lines), body_bytes)
    except RemoteProtocolError:
        return
    assert (head.offset >= 0) != (head.size >= 0)
    assert head.id == ID


def test_answers_have_the_shape_of_acks() -> None:
    operation = encode_answer(b"_INBOX.1", "models", id=ID, next=7)
    line, body, rest = operation.split(b"\r\n")
    assert line == b"PUB _INBOX.1 %d" % len(body)
    assert rest == b""
    assert json.loads(body) == {
        "stream": "models", "seq": 0, "payload": {"id": ID, "next": 7},
    }  # fmt: skip
    gap = error_of(PayloadGap(ID, 9, 7))
    refused = json.loads(encode_answer(b"r", "models", id=ID, next=7, error=gap).split(b"\r\n")[1])
    assert refused["error"]["err_code"] == ack_codes.PAYLOAD_GAP
    assert refused["payload"]["next"] == 7


@pytest.mark.parametrize(
    ("error", "code", "err_code"),
    [
        (PublishRejected(400, 10071, "wrong last sequence: 3"), 400, 10071),
        (Indeterminate("who knows"), 503, ack_codes.INDETERMINATE),
        (PayloadDamaged(ID, "size", "1", "2"), 409, ack_codes.PAYLOAD_DAMAGED),
        (RemoteProtocolError("no"), 400, ack_codes.MALFORMED_CHUNK),
        (Broken("gone"), 503, ack_codes.PAYLOAD_BUSY),
        (OSError(5, "input/output error"), 503, ack_codes.NOT_STORED),
    ],
)
def test_codes_of_errors(error: Exception, code: int, err_code: int) -> None:
    found = error_of(error)
    assert (found.code, found.err_code) == (code, err_code)
