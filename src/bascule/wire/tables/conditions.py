"""Conditional writes of a table, as messages and their refusals say them.

A version is an offset. A message expects a sequence of its key: that of the last record, which is
its offset and 1. It expects 0 if the key is to have no value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from bascule.errors import BasculeError, ConfigError, PublishRejected, WrongVersion
from bascule.wire.ack_codes import last_sequence

SEQUENCE_HEADER: Final = "Nats-Expected-Last-Subject-Sequence"
ID_HEADER: Final = "Nats-Msg-Id"
REMOVAL_HEADER: Final = "KV-Operation"
CONTENT_TYPE_HEADER: Final = "Content-Type"
TTL_HEADER: Final = "Nats-TTL"
EXPIRY_HEADERS: Final = ((REMOVAL_HEADER, b"DEL"), ("Nats-Marker-Reason", b"MaxAge"))
"""Of the removal of a key whose time to live is over, as JetStream marks it."""
FORGETTING_HEADERS: Final = ((REMOVAL_HEADER, b"DEL"), ("Nats-Marker-Reason", b"Purge"))
"""Of the second removal of a key, behind which watchers of a bucket are not shown the first one."""
TTL_SECONDS_MIN: Final = 1.0
TTL_SECONDS_END: Final = 3_155_760_000.0
CONTENT_TYPE_BYTES_MAX: Final = 255
VERSION_MAX: Final = 10**18 - 2
"""Its sequence has 18 digits, the most that a message may expect."""


def expected_sequence(if_version: int | None, if_absent: bool) -> int | None:
    """The sequence that a message expects; None: any. Raises: ConfigError."""
    if if_absent:
        if if_version is not None:
            raise ConfigError(
                f"a key cannot both be absent and have version {if_version}: give one of "
                "`if_version` and `if_absent`"
            )
        return 0
    if if_version is None:
        return None
    if not 0 <= if_version <= VERSION_MAX:
        raise ConfigError(f"a version is an offset of 0 to {VERSION_MAX}, got {if_version}")
    return if_version + 1


def message_headers(
    *,
    sequence: int | None,
    message_id: str | None,
    content_type: str | None = None,
    ttl: float | None = None,
    removes: bool = False,
) -> tuple[tuple[str, str], ...]:
    """The headers of a message that sets or removes a key; `ttl` is in seconds.

    Raises: ConfigError.
    """
    found = []
    if message_id is not None:
        found.append((ID_HEADER, message_id))
    if sequence is not None:
        found.append((SEQUENCE_HEADER, str(sequence)))
    if content_type is not None:
        check_content_type(content_type)
        found.append((CONTENT_TYPE_HEADER, content_type))
    if ttl is not None:
        found.append((TTL_HEADER, ttl_text(ttl)))
    if removes:
        found.append((REMOVAL_HEADER, "DEL"))
    return tuple(found)


def http_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers of a request over HTTP for what `message_headers` says; its method says whether
    the key is removed."""
    found = {name.lower(): value for name, value in headers if name != REMOVAL_HEADER}
    sequence = found.pop(SEQUENCE_HEADER.lower(), None)
    if sequence == "0":
        found["if-none-match"] = "*"
    elif sequence is not None:
        found["if-match"] = f'"{int(sequence) - 1}"'
    return found


def ttl_text(seconds: float) -> str:
    """A time to live as the header has it; infinity: for ever. Raises: ConfigError."""
    if seconds == math.inf:
        return "never"
    if not TTL_SECONDS_MIN <= seconds < TTL_SECONDS_END:
        raise ConfigError(f"a time to live is 1 s to 100 years, got {seconds} s")
    ms = round(seconds * 1000)
    return f"{ms // 1000}" if ms % 1000 == 0 else f"{ms}ms"


def check_content_type(text: str) -> None:
    """Raises: ConfigError."""
    is_short = 0 < len(text) <= CONTENT_TYPE_BYTES_MAX
    if not (is_short and text.isascii() and text.isprintable() and text == text.strip()):
        raise ConfigError(
            f"a content type has 1 to {CONTENT_TYPE_BYTES_MAX} printable ASCII characters, got "
            f"{text[:CONTENT_TYPE_BYTES_MAX]!r}"
        )


def refusal_of(
    error: PublishRejected, table: str, key: bytes, sequence: int | None
) -> BasculeError:
    """The error of a write that expected `sequence`: WrongVersion if that was another one."""
    found = last_sequence(error)
    if found is None or sequence is None:
        return error
    return WrongVersion(
        table, key, expected=sequence - 1 if sequence else None, found=found - 1 if found else None
    )
