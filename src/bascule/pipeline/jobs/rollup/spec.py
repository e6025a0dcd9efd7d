"""What a rollup is told to do. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.jobs.tables import TableSpec

VIEW: Final = "records"
"""What the SQL calls the stream."""
BATCH: Final = "batch"
"""Column of a table in update mode: the micro-batch that wrote the row."""


class Watermark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How late a record may be."""

    column: str = "timestamp"
    """Column of event times; the stream's own is when a record was appended."""
    delay: str
    """`10 minutes`: how far behind the greatest time seen a record may be and still count."""
    expression: str = ""
    """SQL that makes `column`, such as `value.sent_at`; empty where the stream has it."""


class RollupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An aggregate over windows of a stream."""

    name: str
    source: dict[str, str]
    """Options of `format("bascule")`."""
    checkpoint: str
    """Spark's directory: offsets and state. Without it a run begins anew."""
    sql: str
    """A query FROM records."""
    watermark: Watermark | None = None
    mode: Literal["append", "update"] = "append"
    """`append` writes a window once, after the watermark; `update` each time it changed."""
    trigger: str = "available-now"
    table: TableSpec | None = None
    sink: dict[str, Any] | None = None
    """Options of the sink, lower-cased: the stream that takes the results instead of a table."""

    def __post_init__(self) -> None:
        if (self.table is None) == (self.sink is None):
            raise ConfigError("a rollup goes to a [table] or to a [sink]: one of the two")
        if self.sink is not None and "stream" not in self.sink:
            raise ConfigError("sink.stream is missing: which stream takes the results?")
        if not re.search(rf"\b{VIEW}\b", self.sql, re.IGNORECASE):
            raise ConfigError(f"sql reads no table: the stream is FROM {VIEW}")
        if self.mode == "append" and self.watermark is None:
            raise ConfigError(
                "watermark is missing: in append mode a window is written once the watermark has "
                "passed it"
            )
