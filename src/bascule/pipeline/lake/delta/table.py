"""A lake table in Delta's format; implements `model.LakeTable`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction

from bascule.errors import (
    ConfigError,
    ForeignTable,
    LakeBusy,
    TableExists,
    UnknownSnapshot,
    UnknownTable,
)
from bascule.pipeline.lake import commit_plan, compaction, storage
from bascule.pipeline.lake.columns import select, with_common_types
from bascule.pipeline.lake.commit_plan import TableState
from bascule.pipeline.lake.compaction import RewrittenFiles
from bascule.pipeline.lake.delta import expiry
from bascule.pipeline.lake.delta.conversion import (
    add_action,
    data_files,
    remove_action,
    table_schema,
)
from bascule.pipeline.lake.delta.log import (
    KEY,
    CommitInfo,
    DeltaLog,
    own_metadata,
    state_at,
    transactions,
    with_token,
)
from bascule.pipeline.lake.file_writer import ParquetWriterSpec
from bascule.pipeline.lake.foreign.spans import committed_by, with_spans
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

ATTEMPTS_MAX: Final = 1000
"""Attempts for one commit. At each of them another commit came first."""
SYNCED_BEFORE_MAX: Final = 10
"""Versions that the first commit of an object syncs, its own included. Each commit does so, hence
a version stays unsynced only if so many processes in a row are killed as they commit."""
FORMAT: Final = f"{KEY}.format"
PARTITION_BY: Final = f"{KEY}.partition-by"
CONFIGURATION: Final = {
    FORMAT: "1",
    # Keep statistics of the offset column, however many fields the value has.
    "delta.dataSkippingNumIndexedCols": "-1",
}
Result = TypeVar("Result")


class DeltaLakeTable:
    """An open table. Each commit loads the newest version."""

    def __init__(self, address: TableAddress, table: DeltaTable) -> None:
        self.address = address
        self._location = address.location
        self._log = DeltaLog(self._location)
        self._synced = -1
        """The version up to which this object has synced the log."""
        configured = table.metadata().configuration
        if configured.get(FORMAT) != "1":
            raise ForeignTable(str(address), f"it lacks the property {FORMAT} = 1")
        self._table_schema = pa.schema(
            [with_common_types(field) for field in pa.schema(table.schema().to_arrow())]
        )
        partition_by = msgspec.json.decode(configured.get(PARTITION_BY, "[]"), type=list[str])
        made = set(msgspec.json.decode(configured.get(f"{KEY}.made-columns", "[]"), type=list[str]))
        self.schema = pa.schema([field for field in self._table_schema if field.name not in made])
        self._fields = parse_partitioning(partition_by, self.schema)

    @property
    def partitioning(self) -> tuple[str, ...]:
        return tuple(str(field) for field in self._fields)

    def snapshot(self, id: str | None = None) -> LakeSnapshot | None:
        """As in `LakeTable`. Raises: UnknownSnapshot, UnknownTable, ForeignTable."""
        if id is None:
            table = self._load()
            return self._as_snapshot(table) if table.version() else None
        return self._as_snapshot(self._load_version(id))

    def files(self, snapshot: LakeSnapshot) -> list[DataFile]:
        """As in `LakeTable`. Raises: UnknownSnapshot, ForeignTable."""
        found = self._files_of(self._load_version(snapshot.id))
        if snapshot.committed:
            name = str(self.address)
            found = [each for file in found for each in with_spans(name, file)]
        return sorted(found, key=compaction.file_order)

    def snapshots(self) -> list[SnapshotEntry]:
        """As in `LakeTable`. Raises: CorruptData."""
        found = (self._log.info(version) for version in self._log.versions() if version)
        return [
            SnapshotEntry(str(info.version), info.ms, info.operation, info.own is not None)
            for info in found
            if info is not None
        ]

    def history(self) -> list[SpanDigest]:
        """As in `LakeTable`. Raises: CorruptData."""
        found = (self._log.info(version) for version in self._log.versions())
        return [each for info in found if info for each in info.digests]

    def writer(
        self, options: WriterOptions | None = None, *, columns: Sequence[str] | None = None
    ) -> ParquetWriterSpec:
        schema = self.schema if columns is None else select(self.schema, columns)
        return ParquetWriterSpec(schema, self._fields, self._location, options or WriterOptions())

    def commit(self, commit: LakeCommit) -> LakeSnapshot:
        """As in `LakeTable`. Raises: LakeConflict, LakeBusy, ForeignTable."""

        def attempt(table: DeltaTable) -> LakeSnapshot:
            state = self._state(table)
            if commit.token is not None:
                state = with_token(state, table, commit.token[0])
            plan = commit_plan.plan_commit(str(self.address), state, commit)
            if plan.advances:
                gone = self._files_of(table) if commit.replaces else []
                self._check_removable(gone)
                actions: list[AddAction | RemoveAction] = [
                    *(
                        add_action(file, self._location, self.schema, is_new=True)
                        for file in plan.files
                    ),
                    *(remove_action(file, self._location, is_gone=True) for file in gone),
                ]
                self._write(table, actions, plan, before=state, files=plan.files, gone=gone)
                table = self._load()
            else:
                self._sync(table.version())
            self._delete_repeated(plan.repeated)
            return self._as_snapshot(table)

        return self._retry_commit(attempt)

    def compact(self, *, file_bytes: int) -> CompactionResult:
        """As in `LakeTable`. Raises: LakeBusy, ForeignTable."""
        # Another program may have added columns since this table was opened.
        fresh = DeltaLakeTable(self.address, self._load())
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
        """As in `LakeTable`. Raises: ForeignTable, CorruptData."""
        assert keep >= 1, "the newest snapshot is the table"
        self._load()
        return expiry.expire(self._log, self._location, older_than_ms=older_than_ms, keep=keep)

    def _check_removable(self, files: Sequence[DataFile]) -> None:
        """Raises: ForeignTable for a file with a deletion vector: deltalake cannot name the vector
        in the action that removes the file, and other engines would keep the file."""
        for file in files:
            if file.deleted_rows:
                raise ForeignTable(
                    str(self.address),
                    f"its file {file.path} has a deletion vector, so its rows cannot be replaced: "
                    "apply it with REORG TABLE ... APPLY (PURGE)",
                )

    def _replace_files(
        self, table: DeltaTable, done: Sequence[RewrittenFiles]
    ) -> list[RewrittenFiles]:
        """Replace old files with compacted ones.

        Raises: CommitFailedError if another commit came first.
        """
        held = {(file.path, file.deleted_rows) for file in self._files_of(table)}
        still = [
            each
            for each in done
            if held.issuperset((file.path, file.deleted_rows) for file in each.old)
        ]
        # Another program has replaced these files, or deleted rows of them.
        storage.delete_files(file.path for each in done if each not in still for file in each.new)
        if not still:
            return []
        old = [file for each in still for file in each.old]
        new = [file for each in still for file in each.new]
        actions: list[AddAction | RemoveAction] = [
            *(add_action(file, self._location, self.schema, is_new=False) for file in new),
            *(remove_action(file, self._location, is_gone=False) for file in old),
        ]
        state = self._state(table)
        plan = commit_plan.CommitPlan((), (), (), state, advances=True)
        self._write(table, actions, plan, before=state, files=new, gone=old, kind="compact")
        return still

    def _write(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        plan: commit_plan.CommitPlan,
        *,
        before: TableState,
        files: Sequence[DataFile],
        gone: Sequence[DataFile] = (),
        kind: str = "append",
    ) -> None:
        """Raises: CommitFailedError if another commit came first."""
        rows, size = self._totals(table)
        more, less = compaction.totals(files), compaction.totals(gone)
        table.create_write_transaction(
            list(actions),
            mode="append",
            schema=table.schema(),
            partition_by=[field.name for field in self._fields],
            commit_properties=CommitProperties(
                custom_metadata=own_metadata(
                    plan.state,
                    plan.digests,
                    rows=rows + more[0] - less[0],
                    bytes=size + more[1] - less[1],
                    kind=kind,
                ),
                max_commit_retries=0,
                app_transactions=transactions(plan.state, plan.digests, before),
            ),
        )
        self._sync(table.version() + 1)

    def _sync(self, version: int) -> None:
        """Sync the log up to a version. Those before it may be of processes that were killed before
        they came to that. Raises: OSError."""
        for each in range(max(self._synced + 1, version + 1 - SYNCED_BEFORE_MAX), version + 1):
            self._log.sync(each)
        self._synced = max(self._synced, version)

    def _totals(self, table: DeltaTable) -> tuple[int, int]:
        """Rows and bytes of a loaded version."""
        info = self._log.info(table.version())
        if info is not None and info.own is not None:
            return info.own["rows"], info.own["bytes"]
        files = self._files_of(table)
        rows, size = compaction.totals(files)
        return rows - sum(len(file.deleted_rows) for file in files) // 8, size

    def _files_of(self, table: DeltaTable) -> list[DataFile]:
        return data_files(str(self.address), table, self._location, self._fields)

    def _state(self, table: DeltaTable) -> TableState:
        """The state of a loaded version. If nothing records the archived spans any longer, the rows
        tell them."""
        state = state_at(self._log, table, table.version())
        if state.stream_id and not state.committed:
            name = str(self.address)
            files = [each for file in self._files_of(table) for each in with_spans(name, file)]
            return replace(state, committed=committed_by(files))
        return state

    def _as_snapshot(self, table: DeltaTable) -> LakeSnapshot:
        version = table.version()
        info = self._log.info(version) or CommitInfo(version=version, ms=0, own=None)
        rows, size = self._totals(table)
        return commit_plan.snapshot_of(
            str(version),
            self._state(table),
            number=version,
            committed_ms=info.ms,
            rows=rows,
            bytes=size,
        )

    def _delete_repeated(self, files: Sequence[DataFile]) -> None:
        """Delete the files of a repeated commit, except files that some version names."""
        if files:
            held = expiry.referenced(self._log, self._location)
            storage.delete_files(file.path for file in files if file.path not in held)

    def _load(self) -> DeltaTable:
        return load(self.address)

    def _load_version(self, id: str) -> DeltaTable:
        if not id.isdigit() or id == "0":
            raise UnknownSnapshot(str(self.address), id)
        try:
            return DeltaTable(self._location, version=int(id))
        except DeltaError:
            raise UnknownSnapshot(str(self.address), id) from None

    def _retry_commit(self, attempt: Callable[[DeltaTable], Result]) -> Result:
        for _ in range(ATTEMPTS_MAX):
            try:
                return attempt(self._load())
            except CommitFailedError:
                continue
        raise LakeBusy(str(self.address), ATTEMPTS_MAX)


def load(address: TableAddress) -> DeltaTable:
    """Load the newest version. Raises: UnknownTable, ForeignTable."""
    try:
        return DeltaTable(address.location)
    except TableNotFoundError:
        check_is_free(address)
        raise UnknownTable(str(address)) from None
    except DeltaError as error:
        raise ForeignTable(str(address), str(error)) from error


def check_is_free(address: TableAddress) -> None:
    """Raises: ForeignTable if the folder holds something else."""
    filesystem, inner = storage.filesystem_of(address.location)
    selector = pafs.FileSelector(inner, allow_not_found=True)
    try:
        held = sorted(info.base_name for info in filesystem.get_file_info(selector))
    except NotADirectoryError:
        raise ForeignTable(str(address), "it is a file") from None
    if "_bascule" in held:
        raise ForeignTable(str(address), f"it is a parquet table: parquet:{inner}")
    if held:
        raise ForeignTable(str(address), f"its folder holds {held[0]!r} and no _delta_log")


def open_table(address: TableAddress) -> DeltaLakeTable:
    """Raises: UnknownTable, ForeignTable."""
    return DeltaLakeTable(address, load(address))


def create_table(
    address: TableAddress,
    schema: pa.Schema,
    partitioning: Sequence[str],
    *,
    stream: str = "",
    stream_id: str = "",
) -> DeltaLakeTable:
    """Raises: TableExists, ForeignTable, ConfigError."""
    schema = schema.remove_metadata()
    fields = parse_partitioning(partitioning, schema)
    whole = table_schema(schema, fields)
    made = [name for name in whole.names if name not in schema.names]
    try:
        columns = DeltaSchema.from_arrow(whole)
    except Exception as error:  # deltalake raises Exception itself
        first = str(error).partition("\n")[0]
        raise ConfigError(f"a delta table does not support these columns: {first}") from error
    if not DeltaTable.is_deltatable(address.location):
        check_is_free(address)
    try:
        table = DeltaTable.create(
            address.location,
            schema=columns,
            partition_by=[field.name for field in fields],
            configuration={
                **CONFIGURATION,
                PARTITION_BY: msgspec.json.encode([str(field) for field in fields]).decode(),
                f"{KEY}.made-columns": msgspec.json.encode(made).decode(),
                f"{KEY}.stream": stream,
                f"{KEY}.stream-id": stream_id,
            },
            raise_if_key_not_exists=False,
        )
    except DeltaError as error:
        if DeltaTable.is_deltatable(address.location):
            raise TableExists(str(address)) from None
        raise ConfigError(f"{address} cannot be created: {error}") from error
    DeltaLog(address.location).sync(0)
    return DeltaLakeTable(address, table)
