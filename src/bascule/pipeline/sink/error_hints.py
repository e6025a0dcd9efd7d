"""What to do about an error that ended a write. Pure."""

from __future__ import annotations

from typing import Final

from bascule.errors import (
    BasculeError,
    Broken,
    ConfigError,
    Indeterminate,
    LimitExceeded,
    NoResponders,
    PublishRejected,
    RowRefused,
)
from bascule.wire.nats import NatsRefused

TOO_LARGE: Final = 10054
NOT_STORED: Final = 10077
PAUSED: Final = 20001
READ_ONLY: Final = 20002
TOO_FAST: Final = 20003
"""`err_code`s of error acks; see docs/publishing.md."""

_REJECTED: Final = {
    TOO_LARGE: "raise the stream's message_bytes_max, or leave such rows out",
    NOT_STORED: "the stream is at its limits or its partition stopped: `bascule stream show` tells",
    PAUSED: "`bascule stream resume` it and start the write again",
    READ_ONLY: "the stream takes no messages: alter it, or write to another",
    TOO_FAST: "the stream's rate is limited: raise it, or write less at a time",
}


def explain(error: BasculeError) -> str:
    """The error and what to do about it."""
    return f"{_text(error)}; {_todo(error)}"


def _text(error: BasculeError) -> str:
    return error.why if isinstance(error, RowRefused) else str(error)


def _todo(error: BasculeError) -> str:
    if isinstance(error, RowRefused):
        return "mend such rows before the sink, or filter them out"
    if isinstance(error, PublishRejected):
        return _REJECTED.get(error.err_code, "the stream refused the row; see docs/publishing.md")
    if isinstance(error, NoResponders):
        return "with option `stream` the sink waits for a stream whose node is away"
    if isinstance(error, Indeterminate):
        return (
            "is the node healthy (`bascule top`)? If it is only slow, raise option ackTimeout; "
            "a repetition stores nothing twice while the stream remembers the ids"
        )
    if isinstance(error, LimitExceeded):
        return "raise the limit, or leave such rows out"
    if isinstance(error, NatsRefused):
        return "mend the credentials: options user and password, token, nkey, creds, tlsCa ..."
    if isinstance(error, Broken):
        return "is the NATS server there, and may this machine reach it?"
    if isinstance(error, ConfigError):
        return "mend the option and start the write again"
    return "nothing after this row is known to be stored"
