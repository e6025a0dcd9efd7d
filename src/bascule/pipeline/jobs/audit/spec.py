"""The spec of an audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from bascule.pipeline.jobs.model import refuse
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.retries import RETRY_TIMEOUT_MS

FAULTS_MAX: Final = 20
"""Faults that are listed. All faults are counted."""
LEAST: Final = {"faults_max": 0, "retry_timeout_ms": 1}
"""Field of the spec -> its smallest value."""


class AuditSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An audit of a lake table against the log."""

    name: str
    stream: str
    table: TableSpec
    server: str = ""
    value: dict[str, str] = msgspec.field(default_factory=dict)
    """As in the archive's spec: valueFormat, valueSchema and so on."""
    allow_lag: bool = False
    """Accept a table that ends before the stream, as during a running archive."""
    deletions: Literal["refused", "allowed"] = "refused"
    """Whether rows that another program deleted from the table are faults."""
    faults_max: int = FAULTS_MAX
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    """How long the node may be away, on the driver and in each task."""

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[str]:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                yield f"{name} is {getattr(self, name)}: expected at least {least}"
