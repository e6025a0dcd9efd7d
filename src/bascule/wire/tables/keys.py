"""Keys of a table: their subjects, and the keys of their records.

A table is the latest value of each key of a stream that is compacted by key. Where the stream takes
the keys of records from subjects, as that of a bucket of NATS's key-value clients does
(``$KV.NAME.>``), a key is what the wildcard stands for::

    key                     subject                       key of the record
    user.7                  $KV.sessions.user.7           the same
    a b                     $KV.sessions.a%20b            the same

Otherwise the key is that of the record, and publishers send it in the header ``Bascule-Key``.

A message whose subject is none of a key, as one with a wildcard, with ``%`` and no two digits, or
for a key of more than 1,024 bytes, is refused where offsets are given (`publish.preconditions`). So
a record that is acknowledged is in the table. Only records that were stored before the stream was
opened as a table may be skipped.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from bascule.errors import InvalidKey
from bascule.errors.tables import KEY_SHOWN_BYTES
from bascule.model import Cleanup, KeyFrom, StreamConfig

KEY_BYTES_MAX: Final = 1024
BUCKET_PREFIX: Final = "$KV."
"""Subjects of a bucket of NATS's key-value clients begin with it and the bucket's name."""

_PLAIN_TEXT: Final = re.compile(rb"[A-Za-z0-9_/=-]+(?:\.[A-Za-z0-9_/=-]+)*")
"""Keys that are a part of a subject as they are: those that NATS's clients allow."""
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_/=-")
_DOT: Final = ord(".")


def bucket_subject(name: str) -> str:
    """The subject of a new table: NATS's key-value clients find a bucket of its name there."""
    return f"{BUCKET_PREFIX}{name}.>"


def why_no_table(config: StreamConfig) -> str | None:
    """Why a stream cannot be a table; None if it can."""
    if Cleanup.COMPACT not in config.cleanup:
        return f"its cleanup is {', '.join(config.cleanup)}, expected compact"
    if config.key_from is KeyFrom.SUBJECT and _wildcard_prefix(config.subject) is None:
        return f"its subject is {config.subject}, and not one with > at its end as only wildcard"
    if config.partitions != 1:
        return f"it has {config.partitions} partitions, and a table has one"
    return None


def why_not_opened(config: StreamConfig) -> str:
    """Why a stream is no table, and what makes it one if it can be."""
    return why_no_table(config) or "open it with `bascule stream alter --table`"


class TableKeys:
    """The keys of one table."""

    def __init__(self, config: StreamConfig) -> None:
        """`config` of a stream that can be a table."""
        self.prefix: bytes | None = None
        """What the keys of records begin with, if they are subjects."""
        if config.key_from is KeyFrom.SUBJECT:
            self.prefix = _wildcard_prefix(config.subject)
        self._subject = config.subject

    def record_key(self, key: bytes) -> bytes:
        """The key of the records of `key`. Raises: InvalidKey."""
        check_key(key)
        return key if self.prefix is None else self.prefix + escape(key)

    def subject(self, key: bytes) -> str:
        """The subject of messages that set `key`. Raises: InvalidKey."""
        record_key = self.record_key(key)
        return self._subject if self.prefix is None else record_key.decode()

    def table_key(self, record_key: bytes) -> bytes | None:
        """The key in a record's key; None if the record is none of the table."""
        if self.prefix is None:
            return record_key if 0 < len(record_key) <= KEY_BYTES_MAX else None
        if not record_key.startswith(self.prefix):
            return None
        key = unescape(record_key[len(self.prefix) :])
        return key if key is not None and len(key) <= KEY_BYTES_MAX else None

    def why_no_key(self, record_key: bytes | None) -> str:
        """What is found and expected, of a record key whose `table_key` is None."""
        if self.prefix is None:
            found = "no Bascule-Key" if record_key is None else f"one of {len(record_key)} bytes"
            return (
                f"the message has no key of the table: found {found}, expected a Bascule-Key of 1 "
                f"to {KEY_BYTES_MAX} bytes"
            )
        if record_key is None or not record_key.startswith(self.prefix):
            return f"the message has no key of the table: expected {self._subject}"
        part = record_key[len(self.prefix) :]
        key = unquote_to_bytes(part)
        if len(key) > KEY_BYTES_MAX:
            why = f"it has {len(key)} bytes, expected 1 to {KEY_BYTES_MAX}"
        else:
            wanted = escape(key).decode() if key else "1 byte or more"
            why = f"found {_shown(part)} in the subject, expected {_shown(wanted.encode())}"
        return str(InvalidKey(key, why))


def _shown(part: bytes) -> str:
    text = part[:KEY_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return text if len(part) <= KEY_SHOWN_BYTES else f"{text}..."


def check_key(key: bytes) -> None:
    """Raises: InvalidKey unless it has 1 to KEY_BYTES_MAX bytes."""
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InvalidKey(key, f"it has {len(key)} bytes, expected 1 to {KEY_BYTES_MAX}")


def escape(key: bytes) -> bytes:
    """`key` as a part of a subject. Each key has another one."""
    if _PLAIN_TEXT.fullmatch(key):
        return key
    out = bytearray()
    for at, byte in enumerate(key):
        if byte in _PLAIN or (byte == _DOT and _is_between_tokens(key, at)):
            out.append(byte)
        else:
            out += b"%%%02X" % byte
    return bytes(out)


def unescape(part: bytes) -> bytes | None:
    """The inverse of `escape`; None for what `escape` does not return."""
    if _PLAIN_TEXT.fullmatch(part):
        return part
    key = unquote_to_bytes(part)
    return key if key and escape(key) == part else None


def _is_between_tokens(key: bytes, at: int) -> bool:
    """Whether a dot separates two tokens; other dots would make an empty one."""
    return 0 < at < len(key) - 1 and key[at - 1] != _DOT


def _wildcard_prefix(subject: str) -> bytes | None:
    """What comes before the ``>`` of a subject without another wildcard."""
    prefix = subject.removesuffix(">")
    if prefix == subject or "*" in prefix or not prefix:
        return None
    return prefix.encode()


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with `prefix`; None if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] < 255:
            return prefix[:at] + bytes([prefix[at] + 1])
    return None
