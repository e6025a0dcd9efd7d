"""A transaction of pyiceberg that does not copy the table's whole metadata at every look at it."""

from __future__ import annotations

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate


class CachedTransaction(Transaction):
    """As `Transaction`, with the metadata made once per set of updates.

    pyiceberg 0.12 copies all snapshots sixteen times for one append: 480 ms with 500 snapshots.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table, autocommit=False)
        self._seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base = self._table.metadata
        if not self._updates:
            return base
        seen = self._seen
        # Both are replaced, never changed in place.
        if seen is None or seen[0] is not base or seen[1] is not self._updates:
            seen = self._seen = (base, self._updates, super().table_metadata)
        return seen[2]
