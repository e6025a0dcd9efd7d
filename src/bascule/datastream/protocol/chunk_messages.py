"""Payloads in chunks of NATS messages: what a chunk says, and what is answered. Pure.

A chunk is a message with these headers, whose names have no case::

    Bascule-Payload-Session   32 hexadecimal digits that the publisher draws: the payload's id
    Bascule-Payload-Offset    the position of the first byte of the message in the payload
    Bascule-Payload-CRC32C    CRC-32C of the message's bytes, 8 hexadecimal digits; may be left out

The last one has no bytes, and instead of the offset `Bascule-Payload-Close`, the size of the whole
payload; `Bascule-Payload-CRC32C` is that of the whole. Its other headers, its key and its subject
are those of the record.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from bascule.errors import (
    BasculeError,
    ConfigError,
    Indeterminate,
    InvalidName,
    LimitExceeded,
    PayloadDamaged,
    PayloadGap,
    PublishRejected,
    RemoteProtocolError,
)
from bascule.publish.acks import AckError, indeterminate, not_stored
from bascule.record.payload_links import PAYLOAD_BYTES_MAX, RESERVED_PREFIX, is_payload_id
from bascule.wire import ack_codes

SESSION: Final = b"bascule-payload-session"
OFFSET: Final = b"bascule-payload-offset"
CRC: Final = b"bascule-payload-crc32c"
CLOSE: Final = b"bascule-payload-close"
KEY: Final = b"bascule-key"
_NUMBER: Final = re.compile(rb"[0-9]{1,16}")
_CRC: Final = re.compile(rb"[0-9A-Fa-f]{8}")


class ChunkHead(NamedTuple):
    """What the headers of a chunk say."""

    id: str
    offset: int
    """-1 in the last one."""
    size: int
    """Of the whole payload; -1 but in the last one."""
    crc: int | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    """Those of the record."""


def read_chunk_head(block: bytes, body_bytes: int) -> ChunkHead:
    """Read the header block of a chunk, which is well-formed, and whose body has so many bytes.

    Raises: RemoteProtocolError for what the head may not say.
    """
    own: dict[bytes, bytes] = {}
    headers: list[tuple[str, bytes]] = []
    for line in block.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if not name:
            continue
        lower, value = name.lower(), value.strip(b" \t")
        if lower == KEY and KEY not in own:
            own[KEY] = value
        elif lower in (SESSION, OFFSET, CRC, CLOSE):
            if lower in own:
                raise RemoteProtocolError(f"the header {name.decode()} is set twice")
            own[lower] = value
        elif lower.startswith(RESERVED_PREFIX.encode()):
            raise RemoteProtocolError(f"the header {name.decode()} is not one of a chunk")
        else:
            headers.append((name.decode(), value))
    id = own[SESSION].decode("ascii", "replace")
    if not is_payload_id(id):
        raise RemoteProtocolError(f"session {id[:40]!r}, expected 32 hexadecimal digits")
    offset, size = _number(own, OFFSET), _number(own, CLOSE)
    if (offset < 0) == (size < 0):
        raise RemoteProtocolError("expected Bascule-Payload-Offset or Bascule-Payload-Close")
    if size >= 0 and body_bytes:
        raise RemoteProtocolError(f"{body_bytes} bytes in the last message, expected none")
    if offset + body_bytes >= PAYLOAD_BYTES_MAX:
        raise RemoteProtocolError(f"{body_bytes} bytes at {offset}, expected less than 2^50")
    crc = own.get(CRC)
    if crc is not None and not _CRC.fullmatch(crc):
        raise RemoteProtocolError("Bascule-Payload-CRC32C is not 8 hexadecimal digits")
    return ChunkHead(id, offset, size, None if crc is None else int(crc, 16), own.get(KEY), headers)


def _number(own: dict[bytes, bytes], name: bytes) -> int:
    """-1 where it is not set. Raises: RemoteProtocolError."""
    text = own.get(name)
    if text is None:
        return -1
    if not _NUMBER.fullmatch(text) or int(text) >= PAYLOAD_BYTES_MAX:
        raise RemoteProtocolError(f"{name.decode()} is not a number below 2^50")
    return int(text)


def error_of(error: Exception) -> AckError:
    """The error ack for what was raised."""
    if isinstance(error, PublishRejected):
        return AckError(error.code, error.err_code, error.description)
    if isinstance(error, Indeterminate):
        return indeterminate(str(error))
    if isinstance(error, PayloadGap):
        return AckError(409, ack_codes.PAYLOAD_GAP, str(error))
    if isinstance(error, PayloadDamaged):
        return AckError(409, ack_codes.PAYLOAD_DAMAGED, str(error))
    if isinstance(error, RemoteProtocolError | ConfigError | InvalidName):
        return AckError(400, ack_codes.MALFORMED_CHUNK, str(error))
    if isinstance(error, LimitExceeded) or (isinstance(error, BasculeError) and error.retriable):
        return busy(str(error))
    return not_stored(str(error))


def busy(cause: str) -> AckError:
    """The chunk was not taken; it may be sent again."""
    return AckError(503, ack_codes.PAYLOAD_BUSY, f"the chunk was not taken: {cause}")


def encode_answer(
    reply: bytes, stream: str, *, id: str = "", next: int = -1, error: AckError | None = None
) -> bytes:
    """A NATS operation that answers a chunk, in the shape of a publisher's ack with `seq` 0.

    `next`: the position from which to go on, if it is known.
    """
    body: dict[str, object] = {"stream": stream, "seq": 0}
    if error is not None:
        body["error"] = {
            "code": error.code,
            "err_code": error.err_code,
            "description": error.description,
        }
    if id:
        body["payload"] = {"id": id} if next < 0 else {"id": id, "next": next}
    return encode_reply(reply, body)


def encode_reply(reply: bytes, body: dict[str, object]) -> bytes:
    """A NATS operation that sends JSON."""
    data = msgspec.json.encode(body)
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(data), data)
