"""What a compaction by key is told to do."""

from __future__ import annotations

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.jobs.tables import TableSpec


class CompactLakeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last value of each key."""

    name: str
    table: TableSpec
    """What an archive wrote."""
    into: TableSpec
    """What gets one row for each key; every run rewrites it as a whole."""
    keep_tombstones: bool = False
    """Whether keys whose last record has no value stay, with a null."""

    def __post_init__(self) -> None:
        if self.into.address() == self.table.address():
            raise ConfigError("into is the archive itself: last values need a table of their own")
