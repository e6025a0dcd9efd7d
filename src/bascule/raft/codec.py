"""A `Bundle` as the bytes of a frame's body, and back.

```
0         1                  5
+---------+------------------+---------------------------------+
| version | CRC-32C of the   | the bundle in MessagePack,      |
| u8 = 1  | rest, u32        | arrays instead of maps          |
+---------+------------------+---------------------------------+
```

`docs/formats.md` lists every field. The transport says how long a body is. A payload is copied once
into the body and once out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import msgspec
from crc32c import crc32c

from bascule.errors import LimitExceeded, RemoteProtocolError
from bascule.raft.messages import AppendRequest, RaftMessage
from bascule.raft.multi.bundle import NUMBER_MAX, Bundle

VERSION: Final = 1
HEAD_BYTES: Final = 5
BODY_BYTES_MAX: Final = 128 << 20
"""Twice the default of `pending_bytes_max`, which a single entry may use up."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Bundle)


def encode(bundle: Bundle) -> bytearray:
    """The body of a frame.

    Raises: LimitExceeded for a body larger than `BODY_BYTES_MAX`.
    """
    body = bytearray(HEAD_BYTES)
    _encoder.encode_into(bundle, body, HEAD_BYTES)
    if len(body) > BODY_BYTES_MAX:
        raise LimitExceeded("raft frame bytes", BODY_BYTES_MAX, len(body))
    body[0] = VERSION
    with memoryview(body) as view:
        body[1:HEAD_BYTES] = crc32c(view[HEAD_BYTES:]).to_bytes(4, "big")
    return body


def decode(body: bytes | bytearray | memoryview) -> Bundle:
    """The bundle in a body.

    Checked: every message goes from the bundle's source to its target, no number is negative, and
    the entries of an append are contiguous. The node checks what the messages mean.

    Raises: RemoteProtocolError for bytes that `encode` cannot have made, and for another version.
    """
    if not HEAD_BYTES < len(body) <= BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"raft frame of {len(body)} bytes, expected {HEAD_BYTES + 1} to {BODY_BYTES_MAX}"
        )
    with memoryview(body) as view:
        if view[0] != VERSION:
            raise RemoteProtocolError(f"raft frame of version {view[0]}, expected {VERSION}")
        crc, found = int.from_bytes(view[1:HEAD_BYTES], "big"), crc32c(view[HEAD_BYTES:])
        if crc != found:
            raise RemoteProtocolError(f"raft frame has CRC {found:#010x}, expected {crc:#010x}")
        try:
            bundle = _decoder.decode(view[HEAD_BYTES:])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RemoteProtocolError(f"raft frame is malformed: {error}") from None
    _check(bundle)
    return bundle


def _numbers(kind: type[RaftMessage]) -> Callable[[Any], tuple[int, ...]]:
    """A function that returns the integer fields of a message of this type."""
    fields = msgspec.structs.fields(kind)
    return attrgetter(*(field.name for field in fields if field.type is int))


_NUMBERS: Final = {kind: _numbers(kind) for kind in RaftMessage.__subclasses__()}


def _check(bundle: Bundle) -> None:
    """Raises: RemoteProtocolError."""
    source, target = bundle.source, bundle.target
    if source == target:
        raise RemoteProtocolError(f"raft frame of node {source} to itself")
    for group, message in bundle.messages:
        numbers = _NUMBERS[type(message)](message)
        if min(numbers) < 0 or max(numbers) > NUMBER_MAX:
            raise RemoteProtocolError(f"raft message of group {group} has numbers {numbers}")
        if message.source != source or message.target != target:
            raise RemoteProtocolError(
                f"raft message of node {message.source} to {message.target} in a frame of "
                f"{source} to {target}"
            )
        if type(message) is AppendRequest and message.entries:
            _check_entries(group, message)


def _check_entries(group: int, append: AppendRequest) -> None:
    """Raises: RemoteProtocolError."""
    entries, first = append.entries, append.previous_index + 1
    terms = [entry.term for entry in entries]
    if [entry.index for entry in entries] != list(range(first, first + len(entries))):
        raise RemoteProtocolError(
            f"raft append of group {group}: the {len(entries)} entries after "
            f"{append.previous_index} are not contiguous"
        )
    if min(terms) < 0 or max(terms) > append.term:
        raise RemoteProtocolError(
            f"raft append of group {group}, term {append.term}, has entries of terms "
            f"{min(terms)} to {max(terms)}"
        )
