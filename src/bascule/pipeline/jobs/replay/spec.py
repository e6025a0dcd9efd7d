"""The spec of a replay."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.jobs.tables import TableSpec

ROWS_PER_ROUND: Final = 500_000
"""Rows per stream partition and round: some seconds of publishing. A crash repeats at most one
round."""
PLACEHOLDER: Final = re.compile(r"\{(subject|[1-9]\d*)\}")
"""`{subject}` is the original subject, `{2}` is its second token."""


class ReplaySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replay of a lake table to a stream."""

    name: str
    to: str
    """Target stream."""
    table: TableSpec
    server: str = ""
    """HTTP address of the target's node."""
    subject: str = ""
    """Subject of the messages. Empty: the original subject. In a text, `{subject}` is the original
    subject and `{1}`, `{2}` are its tokens."""
    value: dict[str, str] = msgspec.field(default_factory=dict)
    """Encoding of typed values if the table has no `raw` column (json, msgpack)."""
    partitions: tuple[int, ...] = ()
    """Partitions of the archived stream; empty: all."""
    start_offset: int | dict[str, int] | None = None
    """First offset, for all partitions or by partition. None: the table's first."""
    end_offset: int | dict[str, int] | None = None
    """End offset, exclusive."""
    start_ms: int | None = None
    """Unix time. Earlier records are left out."""
    end_ms: int | None = None
    """Unix time. Records at this time or later are left out."""
    malformed: bool = True
    """Replay malformed records too, at their offsets."""
    original_headers: bool = True
    """Add the record's time, offset and partition as headers Bascule-Original-*."""
    checkpoint: str | None = None
    """Folder of the state that lets a killed run continue. None: every run starts again."""
    rows_per_round: int = ROWS_PER_ROUND

    def __post_init__(self) -> None:
        if self.rows_per_round < 1:
            raise ConfigError(f"rows_per_round is {self.rows_per_round}: expected at least 1")
        rest = PLACEHOLDER.sub("", self.subject)
        if "{" in rest or "}" in rest:
            raise ConfigError(
                f"subject is {self.subject!r}: expected {{subject}} or a token number such as "
                "{1} in braces"
            )

    def is_mapped(self) -> bool:
        """Whether the subject depends on the original subject."""
        return not self.subject or bool(PLACEHOLDER.search(self.subject))


def offset_of(asked: int | dict[str, int] | None, partition: int) -> int | None:
    """The requested offset of one partition. Raises: ConfigError for a key that is not a number."""
    if asked is None or isinstance(asked, int):
        return asked
    for name in asked:
        if not name.isdecimal():
            raise ConfigError(f"partition {name!r} is not a number")
    return asked.get(str(partition))
