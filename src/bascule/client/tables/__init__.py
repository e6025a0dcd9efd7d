"""Tables in the Python client: the latest value of each key of a compacted stream."""

from __future__ import annotations

from bascule.client.tables.blocking import SyncTableClient
from bascule.client.tables.replica import (
    LocalReplica,
    SyncLocalReplica,
    open_replica,
    open_replica_sync,
)
from bascule.client.tables.table import TableClient, Values
from bascule.table_results import TableEntry, TableInfo

__all__ = [
    "LocalReplica",
    "SyncLocalReplica",
    "SyncTableClient",
    "TableClient",
    "TableEntry",
    "TableInfo",
    "Values",
    "open_replica",
    "open_replica_sync",
]
