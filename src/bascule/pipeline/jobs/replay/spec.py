"""The spec of a replay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from bascule.pipeline.jobs.model import refuse
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.retries import RETRY_TIMEOUT_MS

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
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    """How long the target's node or its NATS server may be away."""

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[str]:
        for name in ("rows_per_round", "retry_timeout_ms"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}: expected at least 1"
        rest = PLACEHOLDER.sub("", self.subject)
        if "{" in rest or "}" in rest:
            yield (
                f"subject is {self.subject!r}: expected {{subject}} or a token number such as "
                "{1} in braces"
            )
        if self.start_ms is not None and self.end_ms is not None and self.start_ms > self.end_ms:
            yield f"start_ms is {self.start_ms}, after end_ms, which is {self.end_ms}"
        partitions = {
            name
            for asked in (self.start_offset, self.end_offset)
            if isinstance(asked, dict)
            for name in asked
        }
        for name in sorted(partitions or {"0"}):
            if not name.isdecimal():
                yield f"partition {name!r} is not a number"
                continue
            start, end = (offset_of(a, int(name)) for a in (self.start_offset, self.end_offset))
            if start is not None and end is not None and start > end:
                where = f" of partition {name}" if partitions else ""
                yield f"start_offset{where} is {start}, after end_offset, which is {end}"

    def is_mapped(self) -> bool:
        """Whether the subject depends on the original subject."""
        return not self.subject or bool(PLACEHOLDER.search(self.subject))


def offset_of(asked: int | dict[str, int] | None, partition: int) -> int | None:
    """The requested offset of one partition."""
    if asked is None or isinstance(asked, int):
        return asked
    return asked.get(str(partition))
