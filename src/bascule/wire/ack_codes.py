"""`err_code`s of error acks; docs/publishing.md lists them for users.

Numbers from 10000 on are JetStream's, those from 20000 on Bascule's own.
"""

from __future__ import annotations

from typing import Final

from bascule.errors import BasculeError, Indeterminate, PublishRejected

TOO_LARGE: Final = 10054
WRONG_STREAM: Final = 10060
WRONG_LAST_ID: Final = 10070
WRONG_LAST_SEQUENCE: Final = 10071
NOT_STORED: Final = 10077
MALFORMED_TTL: Final = 10165
PAUSED: Final = 20001
READ_ONLY: Final = 20002
RATE_EXCEEDED: Final = 20003
UNSUPPORTED_HEADER: Final = 20004
UNKNOWN_ACK_POLICY: Final = 20005
MALFORMED_SEQUENCE: Final = 20006
INDETERMINATE: Final = 20007
"""The message may or may not be stored: the log failed after the message was appended."""
NOT_ENOUGH_REPLICAS: Final = 20008
"""Fewer replicas are in sync than the stream requires; the message is not stored."""
NO_KEY: Final = 20009
MALFORMED_CHUNK: Final = 20010
"""The headers of a chunk of a payload are not as they must be."""
PAYLOAD_GAP: Final = 20011
"""Bytes of a payload before a chunk, or before its end, have not come."""
PAYLOAD_DAMAGED: Final = 20012
"""The checksum or the size of a chunk or payload is another one."""
PAYLOAD_BUSY: Final = 20013
"""A chunk of a payload was not taken; it may be sent again."""

WRONG_SEQUENCE_TEXT: Final = "wrong last sequence: "
"""What the description of WRONG_LAST_SEQUENCE begins with; the sequence follows."""
NOT_CAUGHT_UP_TEXT: Final = "message was not stored: the table has not caught up with its stream"
"""What the description of NOT_STORED begins with where the same message may soon be compared."""


def last_sequence(error: PublishRejected) -> int | None:
    """The sequence that WRONG_LAST_SEQUENCE reports; None for another error."""
    number = error.description.removeprefix(WRONG_SEQUENCE_TEXT)
    if error.err_code != WRONG_LAST_SEQUENCE or not (number.isascii() and number.isdecimal()):
        return None
    return int(number)


def is_not_caught_up(error: PublishRejected) -> bool:
    """Whether a table was behind its stream, so that nothing was compared."""
    return error.err_code == NOT_STORED and error.description.startswith(NOT_CAUGHT_UP_TEXT)


def publish_error(code: int, err_code: int, description: str, stream: str = "") -> BasculeError:
    """The exception for an error ack: whether the message is stored is unknown, or it is not."""
    if err_code == INDETERMINATE:
        return Indeterminate(description)
    return PublishRejected(code, err_code, description, stream)
