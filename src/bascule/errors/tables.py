"""Exceptions of tables."""

from __future__ import annotations

from bascule.errors.system import BasculeError, CorruptData

KEY_SHOWN_BYTES = 80


def shown_key(key: bytes) -> str:
    """A key in a text: at most 80 bytes of it."""
    text = key[:KEY_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return repr(text) if len(key) <= KEY_SHOWN_BYTES else f"{text!r}..."


class NotATable(BasculeError):
    """A stream cannot be read as a table, or is not opened as one: `why`."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(f"stream {stream!r} is not a table: {why}")
        self.stream = stream
        self.why = why


class InvalidKey(BasculeError):
    """A key of a table is not valid: its `key`, and `why`."""

    def __init__(self, key: bytes, why: str) -> None:
        super().__init__(f"key {shown_key(key)} is not valid: {why}")
        self.key = key
        self.why = why


class InvalidPattern(BasculeError):
    """A pattern of keys is not valid: the `pattern`, and `why`."""

    def __init__(self, pattern: bytes, why: str) -> None:
        super().__init__(f"pattern {shown_key(pattern)} is not valid: {why}")
        self.pattern = pattern
        self.why = why


class UnknownKey(BasculeError):
    """A table has no value for a key."""

    def __init__(self, table: str, key: bytes, *, position: int = 0) -> None:
        """`position` is that of the replica which was read."""
        super().__init__(f"table {table!r} has no key {shown_key(key)}")
        self.table = table
        self.key = key
        self.position = position


class WrongVersion(BasculeError):
    """A conditional write was refused: the last record of `key` is not that which was expected.

    `expected` is a version, or None: that the key has no value. `found` is the version of its last
    record, which may have removed it; None: it has no record. `wanted` says what was expected if
    that is neither.
    """

    def __init__(
        self,
        table: str,
        key: bytes,
        *,
        expected: int | None,
        found: int | None,
        wanted: str | None = None,
    ) -> None:
        if wanted is None:
            wanted = "no value" if expected is None else f"version {expected}"
        present = "none" if found is None else f"version {found}"
        super().__init__(
            f"key {shown_key(key)} of table {table!r}: expected {wanted}, found {present}"
        )
        self.table = table
        self.key = key
        self.expected = expected
        self.found = found


class CopyDamaged(CorruptData):
    """A copy of a table on this machine is damaged. The table is not."""


class NotANumber(BasculeError):
    """A key of a table cannot be incremented: `why`."""

    def __init__(self, table: str, key: bytes, why: str) -> None:
        super().__init__(f"key {shown_key(key)} of table {table!r} cannot be incremented: {why}")
        self.table = table
        self.key = key
        self.why = why
