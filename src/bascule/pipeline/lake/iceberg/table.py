"""A lake table in Iceberg's format; implements `model.LakeTable`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from bascule.errors import ForeignTable, LakeBusy, TableExists, UnknownSnapshot, UnknownTable
from bascule.pipeline.lake import commit_plan, compaction, storage
from bascule.pipeline.lake.columns import select
from bascule.pipeline.lake.commit_plan import TableState
from bascule.pipeline.lake.compaction import RewrittenFiles
from bascule.pipeline.lake.file_writer import ParquetWriterSpec
from bascule.pipeline.lake.foreign.spans import committed_by, with_spans
from bascule.pipeline.lake.iceberg import expiry
from bascule.pipeline.lake.iceberg.catalog import ensure_namespace, open_catalog
from bascule.pipeline.lake.iceberg.conversion import (
    FileConverter,
    offset_metrics,
    to_arrow,
    to_fields,
    to_iceberg,
    to_sort_order,
    to_spec,
)
from bascule.pipeline.lake.iceberg.live_files import LiveFiles, live_files
from bascule.pipeline.lake.iceberg.summary import (
    PREFIX,
    digests_in,
    is_own,
    lineage,
    live_rows,
    own_properties,
    state_at,
    summary_of,
)
from bascule.pipeline.lake.iceberg.transaction import CachedTransaction, ReplaceFiles
from bascule.pipeline.lake.model import (
    CompactionResult,
    DataFile,
    ExpiryResult,
    LakeCommit,
    LakeSnapshot,
    SnapshotEntry,
    SpanDigest,
    TableAddress,
    WriterOptions,
)
from bascule.pipeline.lake.partitioning import parse_partitioning

ATTEMPTS_MAX: Final = 100
"""Attempts for one commit. At each of them another commit came first."""
RETRIES: Final = "commit.retry.num-retries"
PROPERTIES: Final = {
    "format-version": "2",
    RETRIES: "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    f"{PREFIX}format": "1",
}
Result = TypeVar("Result")


class IcebergTable:
    """An open table. Each commit loads the table from its catalog."""

    def __init__(self, address: TableAddress, catalog: Catalog, table: Table) -> None:
        self.address = address
        self._catalog = catalog
        name = str(address)
        if table.properties.get(f"{PREFIX}format") != "1":
            raise ForeignTable(name, f"it lacks the property {PREFIX}format = 1")
        iceberg = table.schema()
        self.schema: pa.Schema = to_arrow(iceberg, field_ids=False)
        self._file_schema = to_arrow(iceberg, field_ids=True)
        self._fields = to_fields(name, table.spec(), iceberg)
        self._terms = FileConverter(iceberg, table.spec())
        self._folder = f"{table.location().rstrip('/')}/data"

    @property
    def partitioning(self) -> tuple[str, ...]:
        return tuple(str(field) for field in self._fields)

    def snapshot(self, id: str | None = None) -> LakeSnapshot | None:
        """As in `LakeTable`. Raises: UnknownSnapshot, UnknownTable."""
        table = self._load()
        found = table.current_snapshot() if id is None else self._held(table, id)
        return self._as_snapshot(table, found) if found else None

    def files(self, snapshot: LakeSnapshot) -> list[DataFile]:
        """As in `LakeTable`. Raises: UnknownSnapshot, UnknownTable."""
        table = self._load()
        found = self._data_files(table, self._held(table, snapshot.id))
        if snapshot.committed:
            name = str(self.address)
            found = [each for file in found for each in with_spans(name, file)]
        return sorted(found, key=compaction.file_order)

    def snapshots(self) -> list[SnapshotEntry]:
        table = self._load()
        return [
            SnapshotEntry(
                str(each.snapshot_id),
                each.timestamp_ms,
                each.summary.operation.value if each.summary else "",
                is_own(each),
            )
            for each in lineage(table)
        ]

    def history(self) -> list[SpanDigest]:
        return [digest for each in lineage(self._load()) for digest in digests_in(each)]

    def writer(
        self, options: WriterOptions | None = None, *, columns: Sequence[str] | None = None
    ) -> ParquetWriterSpec:
        schema = self._file_schema if columns is None else select(self._file_schema, columns)
        return ParquetWriterSpec(schema, self._fields, self._folder, options or WriterOptions())

    def commit(self, commit: LakeCommit) -> LakeSnapshot:
        """As in `LakeTable`. Raises: LakeConflict, LakeBusy, UnknownTable."""

        def attempt(table: Table) -> LakeSnapshot:
            plan = commit_plan.plan_commit(str(self.address), self._state(table), commit)
            if plan.advances:
                self._append(table, plan, replaces=commit.replaces)
            self._delete_repeated(table, plan.repeated)
            found = table.current_snapshot()
            return self._as_snapshot(table, found)

        return self._retry_commit(attempt)

    def compact(self, *, file_bytes: int) -> CompactionResult:
        """As in `LakeTable`. Raises: LakeBusy, UnknownTable."""
        # Another program may have added columns since this table was opened.
        fresh = IcebergTable(self.address, self._catalog, self._load())
        snapshot = fresh.snapshot()
        held = fresh.files(snapshot) if snapshot else []
        return compaction.compact(
            held,
            fresh.writer(),
            file_bytes=file_bytes,
            replace_files=lambda done: self._retry_commit(
                lambda table: self._replace_files(table, done)
            ),
        )

    def expire(self, *, older_than_ms: int, keep: int = 1) -> ExpiryResult:
        """As in `LakeTable`. Raises: LakeBusy, UnknownTable."""
        assert keep >= 1, "the newest snapshot is the table"
        return self._retry_commit(
            lambda table: expiry.expire(table, self._load, older_than_ms=older_than_ms, keep=keep)
        )

    def _append(self, table: Table, plan: commit_plan.CommitPlan, *, replaces: bool) -> None:
        """Raises: CommitFailedException if another commit came first."""
        gone = self._live_files(table, table.current_snapshot()).data if replaces else []
        with CachedTransaction(table) as transaction:
            if table.properties.get(RETRIES) != "0":
                transaction.set_properties({RETRIES: "0"})
            transaction.list_unsorted_order()
            transaction.set_properties(own_properties(plan.state))
            update = transaction.update_snapshot(
                snapshot_properties=summary_of(plan.state, plan.digests)
            )
            with update.overwrite() if gone else update.merge_append() as change:
                for old in gone:
                    change.delete_data_file(old)
                for file in plan.files:
                    change.append_data_file(self._terms.to_iceberg(file))

    def _replace_files(self, table: Table, done: Sequence[RewrittenFiles]) -> list[RewrittenFiles]:
        """Replace old files with compacted ones.

        Raises: CommitFailedException if another commit came first.
        """
        live = self._live_files(table, table.current_snapshot())
        held = {file.file_path: file for file in live.data}
        still = [
            each
            for each in done
            if all(
                file.path in held and live.deleted_rows.get(file.path, b"") == file.deleted_rows
                for file in each.old
            )
        ]
        # Another program has replaced these files, or deleted rows of them.
        storage.delete_files(file.path for each in done if each not in still for file in each.new)
        if not still:
            return []
        with CachedTransaction(table) as transaction:
            if table.properties.get(RETRIES) != "0":
                transaction.set_properties({RETRIES: "0"})
            with ReplaceFiles(transaction, table.io, summary_of(self._state(table), ())) as rewrite:
                for each in still:
                    for file in each.old:
                        rewrite.delete_data_file(held[file.path])
                    for file in each.new:
                        rewrite.append_data_file(self._terms.to_iceberg(file))
        return still

    def _live_files(self, table: Table, snapshot: IcebergSnapshot | None) -> LiveFiles:
        return live_files(str(self.address), table, snapshot)

    def _data_files(self, table: Table, snapshot: IcebergSnapshot | None) -> list[DataFile]:
        """The files of a snapshot, without spans."""
        live = self._live_files(table, snapshot)
        return [
            self._terms.from_iceberg(file, deleted_rows=live.deleted_rows.get(file.file_path, b""))
            for file in live.data
        ]

    def _state(self, table: Table, snapshot: IcebergSnapshot | None = None) -> TableState:
        """The state at a snapshot, by default the newest. If nothing records the archived spans any
        longer, the rows tell them."""
        state = state_at(table, snapshot)
        if state.stream_id and not state.committed:
            name = str(self.address)
            files = [
                each
                for file in self._data_files(table, snapshot or table.current_snapshot())
                for each in with_spans(name, file)
            ]
            return replace(state, committed=committed_by(files))
        return state

    def _held(self, table: Table, id: str) -> IcebergSnapshot:
        found = table.snapshot_by_id(int(id)) if id.isdigit() else None
        if found is None:
            raise UnknownSnapshot(str(self.address), id)
        return found

    def _as_snapshot(self, table: Table, found: IcebergSnapshot | None) -> LakeSnapshot:
        if found is None:  # an empty commit to an empty table
            return commit_plan.snapshot_of(
                "0", self._state(table), number=0, committed_ms=0, rows=0, bytes=0
            )
        summary = found.summary
        return commit_plan.snapshot_of(
            str(found.snapshot_id),
            self._state(table, found),
            number=found.sequence_number or 0,
            committed_ms=found.timestamp_ms,
            rows=live_rows(found),
            bytes=int(summary.get("total-files-size", 0)) if summary else 0,
        )

    def _delete_repeated(self, table: Table, files: Sequence[DataFile]) -> None:
        """Delete the files of a repeated commit, except files that some snapshot names."""
        if files:
            held = expiry.referenced(table).data
            storage.delete_files(file.path for file in files if file.path not in held)

    def _load(self) -> Table:
        return load(self.address, self._catalog)

    def _retry_commit(self, attempt: Callable[[Table], Result]) -> Result:
        for _ in range(ATTEMPTS_MAX):
            table = self._load()
            try:
                return attempt(table)
            except (CommitFailedException, CommitStateUnknownException, ValidationException):
                # If the commit succeeded after all, the next attempt finds its spans in the table.
                continue
        raise LakeBusy(str(self.address), ATTEMPTS_MAX)


def load(address: TableAddress, catalog: Catalog) -> Table:
    """Raises: UnknownTable, ForeignTable."""
    try:
        return catalog.load_table(address.name)
    except (NoSuchTableError, NoSuchNamespaceError):
        raise UnknownTable(str(address)) from None
    except FileNotFoundError as error:
        raise ForeignTable(str(address), f"its metadata does not exist: {error}") from error


def open_table(address: TableAddress) -> IcebergTable:
    """Raises: UnknownTable, ForeignTable, ConfigError."""
    catalog = open_catalog(address, create=False)
    if catalog is None:
        raise UnknownTable(str(address))
    return IcebergTable(address, catalog, load(address, catalog))


def create_table(
    address: TableAddress,
    schema: pa.Schema,
    partitioning: Sequence[str],
    *,
    stream: str = "",
    stream_id: str = "",
) -> IcebergTable:
    """Raises: TableExists, ConfigError."""
    fields = parse_partitioning(partitioning, schema)
    iceberg = to_iceberg(schema.remove_metadata())
    catalog = open_catalog(address, create=True)
    assert catalog is not None, "create=True returns a catalog"
    ensure_namespace(catalog, address.name)
    try:
        table = catalog.create_table(
            address.name,
            iceberg,
            partition_spec=to_spec(fields, iceberg),
            sort_order=to_sort_order(iceberg),
            properties=PROPERTIES
            | offset_metrics(iceberg)
            | own_properties(TableState(stream, stream_id)),
        )
    except TableAlreadyExistsError:
        raise TableExists(str(address)) from None
    return IcebergTable(address, catalog, table)
