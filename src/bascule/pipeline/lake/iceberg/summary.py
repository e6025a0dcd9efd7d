"""Stores the commit state in the properties of Iceberg's snapshots and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from bascule.pipeline.lake.commit_plan import (
    TableState,
    digests_of,
    digests_text,
    state_of,
    state_texts,
)
from bascule.pipeline.lake.model import SpanDigest

PREFIX: Final = "bascule."
SPANS: Final = f"{PREFIX}spans"
MARK: Final = f"{PREFIX}committed"
"""Bascule wrote a summary that has this key."""


def own_properties(state: TableState) -> dict[str, str]:
    """The cumulative part, for a snapshot's summary and for the table."""
    return {f"{PREFIX}{name}": text for name, text in state_texts(state).items()}


def summary_of(state: TableState, digests: Sequence[SpanDigest]) -> dict[str, str]:
    return own_properties(state) | {SPANS: digests_text(digests)}


def state_at(table: Table, snapshot: IcebergSnapshot | None = None) -> TableState:
    """The state at a snapshot, by default the newest.

    Snapshots of other programs (a compaction by Spark) have no state and change none. Then the
    parent snapshot has the state, or the table's properties if the parent has expired.
    """
    at = snapshot or table.current_snapshot()
    while at is not None:
        summary = _properties(at)
        if MARK in summary:
            return _state(summary)
        parent = at.parent_snapshot_id
        at = table.snapshot_by_id(parent) if parent is not None else None
    return _state(table.properties)


def digests_in(snapshot: IcebergSnapshot) -> list[SpanDigest]:
    return digests_of(_properties(snapshot).get(SPANS, "[]"))


def _properties(snapshot: IcebergSnapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _state(properties: Mapping[str, str]) -> TableState:
    return state_of(
        {name[len(PREFIX) :]: text for name, text in properties.items() if name.startswith(PREFIX)}
    )
