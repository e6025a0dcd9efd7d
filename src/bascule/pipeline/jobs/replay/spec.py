"""What a replay is told to do."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.jobs.tables import TableSpec

ROWS_PER_ROUND: Final = 500_000
"""Of each stream partition: some seconds of publishing, which is what a crash repeats."""
PLACEHOLDER: Final = re.compile(r"\{(subject|[1-9]\d*)\}")
"""`{subject}` is the original subject, `{2}` its second token."""


class ReplaySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of a lake table back to a stream, as they were."""

    name: str
    to: str
    """The stream that gets them."""
    table: TableSpec
    server: str = ""
    """Of the node that has the stream."""
    subject: str = ""
    """Where messages go: empty is each one's own subject; else a text in which `{subject}` stands
    for that, and `{1}`, `{2}` for its tokens."""
    value: dict[str, str] = msgspec.field(default_factory=dict)
    """Of a table with typed values and no `raw` column: how they become bytes (json, msgpack)."""
    partitions: tuple[int, ...] = ()
    """Of the archived stream; none is all."""
    start_offset: int | dict[str, int] | None = None
    """The first, of all partitions or by partition; None is the table's first."""
    end_offset: int | dict[str, int] | None = None
    """The first that is not wanted."""
    start_ms: int | None = None
    """Unix time; records before are left out."""
    end_ms: int | None = None
    """Unix time; records from it on are left out."""
    malformed: bool = True
    """Whether records that did not parse are replayed too, in their places."""
    original_headers: bool = True
    """Whether messages tell the record's time, offset and partition in Bascule-Original-*."""
    checkpoint: str | None = None
    """Folder of the state from which a run that was killed goes on; None begins again each time."""
    rows_per_round: int = ROWS_PER_ROUND

    def __post_init__(self) -> None:
        if self.rows_per_round < 1:
            raise ConfigError(f"rows_per_round is {self.rows_per_round}: expected at least 1")
        rest = PLACEHOLDER.sub("", self.subject)
        if "{" in rest or "}" in rest:
            raise ConfigError(
                f"subject is {self.subject!r}: in braces stand subject, or a token's number from 1"
            )

    def is_mapped(self) -> bool:
        """Whether subjects depend on the original ones."""
        return not self.subject or bool(PLACEHOLDER.search(self.subject))


def offset_of(asked: int | dict[str, int] | None, partition: int) -> int | None:
    """What is asked for one partition. Raises: ConfigError for a name that is no number."""
    if asked is None or isinstance(asked, int):
        return asked
    for name in asked:
        if not name.isdecimal():
            raise ConfigError(f"partition {name!r} is no number")
    return asked.get(str(partition))
