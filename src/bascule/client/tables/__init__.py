"""Tables in the Python client: the latest value of each key of a compacted stream."""

from __future__ import annotations

from bascule.client.tables.blocking import SyncTableClient
from bascule.client.tables.table import TableClient, Values
from bascule.table_results import TableEntry, TableInfo

__all__ = ["SyncTableClient", "TableClient", "TableEntry", "TableInfo", "Values"]
