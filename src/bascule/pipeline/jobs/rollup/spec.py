"""The spec of a rollup. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from bascule.pipeline.jobs.model import fault_of, refuse
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.trigger import trigger_of

VIEW: Final = "records"
"""Name of the stream in the SQL."""
BATCH: Final = "batch"
"""Column of the table in update mode: the micro-batch that wrote the row."""
_UNITS: Final = "microsecond|millisecond|second|minute|hour|day|week|month|year"
DELAY: Final = re.compile(
    rf"\s*(?:interval\s)?(?:\s*'?\+?\d+(?:\.\d+)?'?\s*(?:{_UNITS})s?)+\s*", re.IGNORECASE
)
"""An interval of Spark's SQL that is not negative."""


class Watermark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The watermark: how late a record may be."""

    column: str = "timestamp"
    """Column of event times. The stream's own column is the append time."""
    delay: str
    """`10 minutes`: the greatest accepted distance from the latest event time."""
    expression: str = ""
    """SQL expression for `column`, such as `value.sent_at`; empty if the stream has the column."""


class RollupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An aggregate over time windows of a stream."""

    name: str
    source: dict[str, str]
    """Options of `format("bascule")`."""
    checkpoint: str
    """Spark's checkpoint directory: offsets and state. Without it a run starts again."""
    sql: str
    """A query FROM records."""
    watermark: Watermark | None = None
    mode: Literal["append", "update"] = "append"
    """`append` writes a window once, after the watermark. `update` writes it at every change."""
    trigger: str = "available-now"
    table: TableSpec | None = None
    sink: dict[str, Any] | None = None
    """Options of the sink, with lower-case names: the target stream instead of a table."""

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[str]:
        if (self.table is None) == (self.sink is None):
            yield "a rollup needs exactly one of [table] and [sink]"
        if self.sink is not None and "stream" not in self.sink:
            yield "sink.stream is missing: expected the target stream"
        if not re.search(rf"\b{VIEW}\b", self.sql, re.IGNORECASE):
            yield f"sql does not read FROM {VIEW}, the name of the stream"
        if self.mode == "append" and self.watermark is None:
            yield (
                "watermark is missing: in append mode a window is written once the watermark has "
                "passed it"
            )
        if self.watermark is not None and not DELAY.fullmatch(self.watermark.delay):
            yield (
                f"watermark.delay is {self.watermark.delay!r}: expected a time such as "
                "'10 minutes' or '1 hour 30 minutes'"
            )
        yield from fault_of(lambda: trigger_of(self.trigger))
