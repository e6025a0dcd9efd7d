"""What an audit is told to do."""

from __future__ import annotations

from typing import Final

import msgspec

from bascule.pipeline.jobs.tables import TableSpec

FAULTS_MAX: Final = 20
"""Faulty offsets that are listed; all are counted."""


class AuditSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log against the table that archives it."""

    name: str
    stream: str
    table: TableSpec
    server: str = ""
    value: dict[str, str] = msgspec.field(default_factory=dict)
    """As the archive has it: valueFormat, valueSchema and so on."""
    allow_lag: bool = False
    """Whether the table may end before the stream does, as it does while an archive runs."""
    faults_max: int = FAULTS_MAX
