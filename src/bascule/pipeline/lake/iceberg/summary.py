"""Stores the commit state in the properties of Iceberg's snapshots and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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


def lineage(table: Table, snapshot: IcebergSnapshot | None = None) -> list[IcebergSnapshot]:
    """A snapshot, by default the newest, and its ancestors that have not expired, oldest first."""
    found = []
    at = snapshot or table.current_snapshot()
    while at is not None:
        found.append(at)
        parent = at.parent_snapshot_id
        at = table.snapshot_by_id(parent) if parent is not None else None
    return found[::-1]


def is_own(snapshot: IcebergSnapshot) -> bool:
    """Whether Bascule committed the snapshot."""
    return MARK in _properties(snapshot)


def state_at(table: Table, snapshot: IcebergSnapshot | None = None) -> TableState:
    """The state at a snapshot, by default the newest.

    Snapshots of other programs (a compaction by Spark) have no state and change none. Then the
    nearest ancestor has the state. If all these have expired, the table's properties have it,
    unless a later snapshot of Bascule wrote them (the table was rolled back): then the state has no
    spans.
    """
    held = lineage(table, snapshot)
    for at in reversed(held):
        if is_own(at):
            return _state(_properties(at))
    state = _state(table.properties)
    ids = {at.snapshot_id for at in held}
    if held and any(is_own(at) and at.snapshot_id not in ids for at in table.snapshots()):
        return replace(state, committed=None)
    return state


def live_rows(snapshot: IcebergSnapshot) -> int:
    """The rows of a snapshot, without those that position deletes leave out."""
    summary = snapshot.summary
    if summary is None:
        return 0
    return int(summary.get("total-records") or 0) - int(summary.get("total-position-deletes") or 0)


def digests_in(snapshot: IcebergSnapshot) -> list[SpanDigest]:
    return digests_of(_properties(snapshot).get(SPANS, "[]"))


def _properties(snapshot: IcebergSnapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _state(properties: Mapping[str, str]) -> TableState:
    return state_of(
        {name[len(PREFIX) :]: text for name, text in properties.items() if name.startswith(PREFIX)}
    )
