"""The spec of a compaction by key."""

from __future__ import annotations

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.jobs.tables import TableSpec


class CompactLakeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compaction of an archived stream to the last value of each key."""

    name: str
    table: TableSpec
    """The archive's table."""
    into: TableSpec
    """The table that gets one row per key. Every run rewrites it."""
    keep_tombstones: bool = False
    """Keep keys whose last record has no value, with a null value."""

    def __post_init__(self) -> None:
        if self.into.address() == self.table.address():
            raise ConfigError("into is the archived table: expected another table")
