"""Batches of reads of tables by key, as their clients send them to the client listener.

    request   array of reads: [table, [key, ...], at_least, linearizable]
    response  array as long: [position, [entry, ...]], or nil: ask over HTTP

An entry is [key, version, timestamp, value, content type]; keys without a value have none. All
entries of a read are of one position. The node waits for little: whatever is refused, has to wait
or is large is nil, and HTTP says why.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from bascule.errors import RemoteProtocolError
from bascule.table_results import TableValues

READS_MAX: Final = 1_024
"""Of one request."""
KEYS_MAX: Final = 4_096
"""Of the reads of one request together, if there are several."""


class KeyRead(NamedTuple):
    """One read."""

    table: str
    keys: list[bytes]
    at_least: int = 0
    """A position: what was written below it is read."""
    linearizable: bool = False


_encoder: Final = msgspec.msgpack.Encoder()
_reads: Final = msgspec.msgpack.Decoder(list[KeyRead])
_answers: Final = msgspec.msgpack.Decoder(list[TableValues | None])


def encode_reads(reads: list[KeyRead]) -> bytes:
    return _encoder.encode(reads)


def decode_reads(body: bytes | memoryview) -> list[KeyRead]:
    """Raises: RemoteProtocolError."""
    try:
        found = _reads.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"reads of tables: {error}") from error
    if len(found) > READS_MAX:
        raise RemoteProtocolError(f"{len(found)} reads of tables, expected at most {READS_MAX}")
    return found


def encode_answers(answers: list[TableValues | None]) -> bytes:
    return _encoder.encode(answers)


def decode_answers(body: bytes | memoryview) -> list[TableValues | None]:
    """Raises: RemoteProtocolError."""
    try:
        return _answers.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"answers to reads of tables: {error}") from error
