"""Decode and encode messages by their descriptions (`wire.schema`).

    generated    a function for each version of a structure, for everything that may come
    _hot         the usual forms of most requests and responses, compiled
    programs     structures as `_hot` takes them

Compiled code takes a quarter of the time. It leaves all unusual forms to the generated functions,
which also say what is wrong with a request.
"""

from __future__ import annotations

from struct import error
from typing import Any, TypeVar

from bascule.errors import LocalProtocolError, RemoteProtocolError
from bascule.wire.codec import _hot
from bascule.wire.codec.generated import (
    Decode,
    Encode,
    check_consumed,
    structure_decoder,
    structure_encoder,
)
from bascule.wire.codec.programs import program_of
from bascule.wire.primitives import Piece
from bascule.wire.schema import Message, memoize

MessageT = TypeVar("MessageT", bound=Message)


@memoize
def decoder(message: type[Message], version: int) -> Decode:
    """The function that decodes a known version of a message; it raises RemoteProtocolError."""
    flexible = version in message.FLEXIBLE
    generated = structure_decoder(message, version, flexible)
    program = program_of(message, version, flexible) if _hot.IS_COMPILED else None
    if program is None:
        return generated
    decode_usual = _hot.decode_structure

    def decode_any(body: memoryview, position: int, end: int) -> tuple[Any, int]:
        return decode_usual(program, body, position, end) or generated(body, position, end)

    return decode_any


@memoize
def _encoder(message: type[Message], version: int) -> Encode:
    if version not in message.VERSIONS:
        raise LocalProtocolError(
            f"{message.__name__} version {version} is unknown, expected {message.VERSIONS}"
        )
    return structure_encoder(message, version, version in message.FLEXIBLE)


def decode(message: type[MessageT], version: int, body: memoryview, position: int = 0) -> MessageT:
    """Decode a message that starts at `position` and must fill the rest of `body`.

    Fields with record batches are views of `body`. Raises: RemoteProtocolError naming field and
    byte.
    """
    value, end = decode_prefix(message, version, body, position)
    check_consumed(message.__name__, end, len(body))
    return value


def decode_prefix(
    message: type[MessageT], version: int, body: memoryview, position: int = 0
) -> tuple[MessageT, int]:
    """Decode a body that starts at `position`; return it and where it ends.

    Raises: RemoteProtocolError saying which field at which byte.
    """
    if version not in message.VERSIONS:
        raise RemoteProtocolError(
            f"{message.__name__} version {version} is unknown, expected {message.VERSIONS}"
        )
    value: MessageT
    value, end = decoder(message, version)(body, position, len(body))
    return value, end


def encode(message: Message, version: int, parts: list[Piece]) -> None:
    """Append the body of `message` to `parts`. Record batches are appended without copying.

    Raises: LocalProtocolError if a value does not fit its field.
    """
    try:
        _encoder(type(message), version)(message, parts.append)
    except error as bad:
        raise LocalProtocolError(f"{type(message).__name__} v{version}: {bad}") from bad


def encode_frame(message: Message, version: int, head: bytes) -> bytes | None:
    """The whole frame of a message behind its header `head`.

    None where `encode` has to do it: with record batches, and with values that do not fit.
    """
    program = _frame_program(type(message), version)
    return None if program is None else _hot.encode_structure(program, message, head)


@memoize
def _frame_program(message: type[Message], version: int) -> tuple[Any, ...] | None:
    if not _hot.IS_COMPILED or version not in message.VERSIONS:
        return None
    return program_of(message, version, version in message.FLEXIBLE)
