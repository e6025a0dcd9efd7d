"""What becomes of a write that was made on a copy, when others have changed the key meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple, TypeAlias

from bascule.errors import ConfigError
from bascule.wire.tables.conditions import check_content_type

STRATEGIES: Final = ("reject", "newer")


class LocalWrite(NamedTuple):
    """A write that was made on a copy of a table."""

    key: bytes
    value: bytes | None
    """None: the key is removed."""
    timestamp: int
    """When it was made, by the clock of that machine; Unix time, milliseconds."""
    content_type: str | None = None


class RemoteState(NamedTuple):
    """The last record of a key in the cluster."""

    version: int | None
    """None: the key has none, or was removed long ago."""
    timestamp: int
    """Unix time, milliseconds; -1 where that is not known."""
    value: bytes | None
    """None: the key has no value."""
    content_type: str | None = None


class Conflict(NamedTuple):
    """A write that was made on a copy, and what others have made of the key since."""

    table: str
    ours: LocalWrite
    theirs: RemoteState

    def merged(self, value: bytes | None, *, content_type: str | None = None) -> LocalWrite:
        """A write of another value; None removes the key."""
        return self.ours._replace(value=value, content_type=content_type)


Resolver: TypeAlias = Callable[[Conflict], LocalWrite | Awaitable[LocalWrite | None] | None]
"""Returns what is to be written: `conflict.ours`, `conflict.merged(...)`, or None, which leaves the
table as it is and the write refused."""
Conflicts: TypeAlias = Literal["reject", "newer"] | Resolver


def resolver_of(conflicts: Conflicts) -> Resolver:
    """Raises: ConfigError."""
    if callable(conflicts):
        return conflicts
    if conflicts == "reject":
        return lambda conflict: None
    if conflicts == "newer":
        return newer
    raise ConfigError(
        f"conflicts is {', '.join(STRATEGIES)} or a function of a Conflict, got {conflicts!r}"
    )


def newer(conflict: Conflict) -> LocalWrite | None:
    """The write with the later time. A key that was removed nobody knows when is written."""
    return conflict.ours if conflict.ours.timestamp > conflict.theirs.timestamp else None


def checked_value(value: object, content_type: str | None) -> bytes | None:
    """The value of a write as bytes; None: the key is removed.

    Raises: TypeError; ConfigError for a content type that no header can have.
    """
    if content_type is not None:
        if not isinstance(content_type, str):
            raise TypeError(f"a content type is a str or None, got {content_type!r}")
        check_content_type(content_type)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a value is bytes, got {type(value).__name__}")


def checked_choice(found: object) -> LocalWrite | None:
    """What the function for conflicts has returned. Raises: TypeError, ConfigError."""
    if found is None:
        return None
    if not isinstance(found, LocalWrite):
        raise TypeError(f"it returns a LocalWrite or None, got {type(found).__name__}")
    return found._replace(value=checked_value(found.value, found.content_type))
