"""Variants of pyiceberg's transaction and snapshot producer, as pyiceberg lacks them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from pyiceberg.io import FileIO
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSortOrderUpdate, TableUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles


class CachedTransaction(Transaction):
    """A `Transaction` that builds the metadata once per set of updates.

    pyiceberg 0.12 copies all snapshots sixteen times for one append: 480 ms with 500 snapshots. The
    class overrides internals of pyiceberg (`_table`, `_updates`, the property `table_metadata`), so
    pyproject.toml pins pyiceberg below the next minor version.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table, autocommit=False)
        self._seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    def __enter__(self) -> Self:
        return self

    @property
    def table_metadata(self) -> TableMetadata:
        base = self._table.metadata
        if not self._updates:
            return base
        seen = self._seen
        # Both objects are replaced, never changed in place.
        if seen is None or seen[0] is not base or seen[1] is not self._updates:
            seen = self._seen = (base, self._updates, super().table_metadata)
        return seen[2]

    def list_unsorted_order(self) -> None:
        """List sort order 0 among the orders of a sorted table; the table stays sorted.

        The specification reserves id 0 for files without an order, and a table that was created
        sorted does not list it. Iceberg 1.11 and 1.12 refuse `rewrite_data_files` of such a table
        with a z-order or another order (apache/iceberg#17814).
        """
        held = self.table_metadata.sort_orders
        if all(order.order_id != UNSORTED_SORT_ORDER.order_id for order in held):
            added = AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER})
            self._apply((added,))


class ReplaceFiles(_OverwriteFiles):
    """Replaces files by others with the same rows. Streaming readers skip such a snapshot.

    pyiceberg 0.12 does not produce snapshots with operation `replace`, and refuses the name when it
    computes the summary.
    """

    def __init__(self, transaction: Transaction, io: FileIO, properties: Mapping[str, str]) -> None:
        super().__init__(
            operation=Operation.OVERWRITE,
            transaction=transaction,
            io=io,
            snapshot_properties=dict(properties),
        )

    def _summary(self, snapshot_properties: Mapping[str, str] = MappingProxyType({})) -> Summary:
        summary = super()._summary(dict(snapshot_properties))
        return Summary(Operation.REPLACE, **summary.additional_properties)
