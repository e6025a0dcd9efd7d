"""Hints for errors that end a write. Pure."""

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
from bascule.wire import ack_codes
from bascule.wire.nats import NatsRefused

_REJECTED: Final = {
    ack_codes.TOO_LARGE: "raise the stream's message_bytes_max, or leave such rows out",
    ack_codes.NOT_STORED: (
        "the stream is at its limits or its partition stopped: see `bascule stream info`"
    ),
    ack_codes.PAUSED: "run `bascule stream resume` and start the write again",
    ack_codes.READ_ONLY: "the stream is read-only: alter it, or write to another stream",
    ack_codes.RATE_EXCEEDED: "raise the stream's rate limit, or write fewer rows at a time",
}


def explain(error: BasculeError) -> str:
    """The error's text and a hint."""
    return f"{_text(error)}; {_todo(error)}"


def _text(error: BasculeError) -> str:
    return error.why if isinstance(error, RowRefused) else str(error)


def _todo(error: BasculeError) -> str:
    if isinstance(error, RowRefused):
        return "correct such rows before the sink, or filter them out"
    if isinstance(error, PublishRejected):
        return _REJECTED.get(error.err_code, "the stream refused the row; see docs/publishing.md")
    if isinstance(error, NoResponders):
        return "with option `stream` the sink waits for a stream whose node is unavailable"
    if isinstance(error, Indeterminate):
        return (
            "check the node with `bascule top`; if it is only slow, raise option ackTimeout; "
            "repeated rows are not stored twice while the stream remembers their ids"
        )
    if isinstance(error, LimitExceeded):
        return "raise the limit, or leave such rows out"
    if isinstance(error, NatsRefused):
        return "correct the credentials: options user and password, token, nkey, creds, tlsCa ..."
    if isinstance(error, Broken):
        return "check that the NATS server runs and that this machine can reach it"
    if isinstance(error, ConfigError):
        return "correct the option and start the write again"
    return "rows after this one may or may not be stored"
