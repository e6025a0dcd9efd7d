"""Build a batch from single records: for tools, tests and small internal streams.

Ingest does not use this module: compiled code builds its batches from the received bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bascule.record import header as batch_header
from bascule.record.batch import Record

SHORT: Final = 1_024
"""Varints below are looked up: those of nearly all lengths in commits."""


def encode_varint(value: int) -> bytes:
    """Encode a zigzag varint."""
    if 0 <= value < SHORT:
        return _SHORT[value]
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_SHORT: Final = tuple(
    bytes([value << 1] if value < 64 else [value << 1 & 0x7F | 0x80, value >> 6])
    for value in range(SHORT)
)
_NOTHING: Final = encode_varint(-1)


def _sized(value: bytes | None) -> bytes:
    if value is None:
        return _NOTHING
    size = len(value)
    return (_SHORT[size] if size < SHORT else encode_varint(size)) + value


def encode_record(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    *,
    offset_delta: int,
    timestamp_delta: int = 0,
) -> bytes:
    """Encode one record with its length prefix (Kafka's record batch, version 2)."""
    parts = [b"\0", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    parts += [_sized(key), _sized(value), encode_varint(len(headers))]
    for name, content in headers:
        parts += [_sized(name.encode()), _sized(content)]
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int,
    leader_epoch: int = 0,
    log_append_time: bool = False,
) -> bytearray:
    """Build one batch of at least one record. The records' offsets are at least `base_offset`.

    With `log_append_time` all records get the largest timestamp, as a broker sets it.
    """
    items = list(records)
    assert items, "a batch holds at least one record"
    base_timestamp = items[0].timestamp
    out = bytearray(batch_header.HEADER_BYTES)
    for item in items:
        out += encode_record(
            item.key,
            item.value,
            item.headers,
            offset_delta=item.offset - base_offset,
            timestamp_delta=0 if log_append_time else item.timestamp - base_timestamp,
        )
    batch_header.seal(
        out,
        record_count=len(items),
        base_timestamp=base_timestamp,
        max_timestamp=max(item.timestamp for item in items),
        attributes=batch_header.LOG_APPEND_TIME if log_append_time else 0,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        last_offset_delta=items[-1].offset - base_offset,
    )
    return out
