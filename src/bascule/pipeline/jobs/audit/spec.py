"""The spec of an audit."""

from __future__ import annotations

from typing import Final

import msgspec

from bascule.pipeline.jobs.tables import TableSpec

FAULTS_MAX: Final = 20
"""Faults that are listed. All faults are counted."""


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
    faults_max: int = FAULTS_MAX
