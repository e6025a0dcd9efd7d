"""A lake table of Parquet files with Bascule's manifest; implements `model.LakeTable`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from bascule.errors import (
    CorruptData,
    ForeignTable,
    LakeBusy,
    TableExists,
    UnknownSnapshot,
    UnknownTable,
)
from bascule.pipeline.lake import commit_plan, compaction, storage
from bascule.pipeline.lake.columns import select
from bascule.pipeline.lake.commit_plan import TableState
from bascule.pipeline.lake.compaction import RewrittenFiles
from bascule.pipeline.lake.file_writer import ParquetWriterSpec
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
from bascule.pipeline.lake.parquet import expiry
from bascule.pipeline.lake.parquet.manifest import (
    FORMAT,
    SnapshotManifest,
    TableManifest,
    commit_entry,
    data_file,
    digests_of,
    file_entry,
    schema_of,
    schema_text,
)
from bascule.pipeline.lake.parquet.manifest_folder import LinkingFiles, ManifestFolder, merge_chain
from bascule.pipeline.lake.partitioning import PartitionField, parse_partitioning

ATTEMPTS_MAX: Final = 1000
"""Attempts for one commit. At each of them another commit came first."""
Result = TypeVar("Result")


class ParquetTable:
    """An open table. Thread-safe. Each commit reads the folder again."""

    def __init__(self, address: TableAddress, text: TableManifest, folder: ManifestFolder) -> None:
        self.address = address
        self._location = storage.local_path(address.location)
        self._text = text
        self._folder = folder
        self.schema = schema_of(text.schema, f"{self._location}/_bascule/table.json")
        self._fields: tuple[PartitionField, ...] = parse_partitioning(
            text.partition_by, self.schema
        )

    @property
    def partitioning(self) -> tuple[str, ...]:
        return tuple(self._text.partition_by)

    def snapshot(self, id: str | None = None) -> LakeSnapshot | None:
        """As in `LakeTable`. Raises: UnknownSnapshot, CorruptData, OSError."""
        if id is not None and (not id.isdigit() or int(id) == 0):
            raise UnknownSnapshot(str(self.address), id)
        n = self._folder.top() if id is None else int(id)
        if id is not None and not self._folder.holds(n):
            raise UnknownSnapshot(str(self.address), id)
        return self._as_snapshot(self._folder.read(n)) if n else None

    def files(self, snapshot: LakeSnapshot) -> list[DataFile]:
        """As in `LakeTable`. Raises: UnknownSnapshot, CorruptData, OSError."""
        try:
            text = merge_chain(self._folder.chain(int(snapshot.id)))
        except UnknownSnapshot:
            # An expiry may have rewritten the snapshot without its base.
            self._folder.forget()
            text = merge_chain(self._folder.chain(int(snapshot.id)))
        found = [data_file(file, self._location) for file in text.added]
        return sorted(found, key=compaction.file_order)

    def history(self) -> list[SpanDigest]:
        def read() -> list[SpanDigest]:
            top = self._folder.top()
            oldest = min(self._folder.numbers(), default=0)
            return [
                summed
                for text in self._folder.chain(top)
                for commit in text.commits
                if commit.n >= oldest
                for summed in digests_of(commit)
            ]

        return self._retry_after_expiry(read)

    def snapshots(self) -> list[SnapshotEntry]:
        """As in `LakeTable`. Raises: UnknownSnapshot, CorruptData, OSError."""
        texts = [self._folder.read(n) for n in self._folder.numbers()]
        return [
            SnapshotEntry(str(text.n), text.ms, text.commits[-1].kind, True)
            for text in texts
            if text.commits
        ]

    def writer(
        self, options: WriterOptions | None = None, *, columns: Sequence[str] | None = None
    ) -> ParquetWriterSpec:
        schema = self.schema if columns is None else select(self.schema, columns)
        return ParquetWriterSpec(
            schema, self._fields, f"{self._location}/data", options or WriterOptions()
        )

    def commit(self, commit: LakeCommit) -> LakeSnapshot:
        """As in `LakeTable`. Raises: LakeConflict, LakeBusy, CorruptData, OSError."""

        def attempt() -> LakeSnapshot | None:
            top = self._top()
            plan = commit_plan.plan_commit(str(self.address), self._state(top), commit)
            if not plan.advances:
                # A process that was killed may have committed it, and not synced the name.
                self._folder.sync_names()
                self._delete_repeated(plan.repeated)
                return self._as_snapshot(top)
            gone = self.files(self._as_snapshot(top)) if commit.replaces and top else []
            text = self._next(top, plan.state, added=plan.files, removed=gone, digests=plan.digests)
            if not self._folder.add(text):
                return None
            self._delete_repeated(plan.repeated)
            return self._as_snapshot(text)

        return self._retry_commit(attempt)

    def compact(self, *, file_bytes: int) -> CompactionResult:
        """As in `LakeTable`. Raises: LakeBusy, CorruptData, OSError."""
        snapshot = self._retry_after_expiry(self.snapshot)
        held = self.files(snapshot) if snapshot else []
        return compaction.compact(
            held,
            self.writer(),
            file_bytes=file_bytes,
            replace_files=lambda done: self._retry_commit(lambda: self._replace_files(done)),
        )

    def expire(self, *, older_than_ms: int, keep: int = 1) -> ExpiryResult:
        """As in `LakeTable`. Raises: LakeBusy, CorruptData, OSError."""
        assert keep >= 1, "the newest snapshot is the table"
        return self._retry_after_expiry(
            lambda: expiry.expire(
                self._folder, self._location, older_than_ms=older_than_ms, keep=keep
            )
        )

    def _replace_files(self, done: Sequence[RewrittenFiles]) -> list[RewrittenFiles] | None:
        """Try once to replace old files with compacted ones. None if another commit came first."""
        top = self._top()
        assert top is not None, "there was a snapshot with files"
        held = {file.path for file in merge_chain(self._folder.chain(top.n)).added}
        still: list[RewrittenFiles] = []
        gone: list[RewrittenFiles] = []
        for each in done:
            names = [file_entry(file, self._location).path for file in each.old]
            (still if held.issuperset(names) else gone).append(each)
        # Another compaction has replaced these files.
        storage.delete_files(file.path for each in gone for file in each.new)
        if not still:
            return still
        text = self._next(
            top,
            self._state(top),
            added=[file for each in still for file in each.new],
            removed=[file for each in still for file in each.old],
            kind="compact",
        )
        return still if self._folder.add(text) else None

    def _next(
        self,
        top: SnapshotManifest | None,
        state: TableState,
        *,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        digests: tuple[SpanDigest, ...] = (),
        kind: str = "append",
    ) -> SnapshotManifest:
        n = top.n + 1 if top else 1
        # Jobs tell snapshots apart by their times, so these ascend although the clock may not.
        now = max(time.time_ns() // 1_000_000, top.ms + 1 if top else 0)
        more, less = compaction.totals(added), compaction.totals(removed)
        return SnapshotManifest(
            format=FORMAT,
            n=n,
            base=n - 1,
            ms=now,
            rows=(top.rows if top else 0) + more[0] - less[0],
            bytes=(top.bytes if top else 0) + more[1] - less[1],
            stream=state.stream,
            stream_id=state.stream_id,
            committed={str(number): span for number, span in (state.committed or {}).items()},
            tokens=dict(state.tokens or {}),
            commits=[commit_entry(n, now, digests, kind)],
            added=[file_entry(file, self._location) for file in added],
            removed=[file_entry(file, self._location).path for file in removed],
        )

    def _top(self) -> SnapshotManifest | None:
        n = self._folder.top()
        return self._folder.read(n) if n else None

    def _state(self, top: SnapshotManifest | None) -> TableState:
        return top.state if top else TableState(self._text.stream, self._text.stream_id)

    def _as_snapshot(self, text: SnapshotManifest | None) -> LakeSnapshot:
        if text is None:  # an empty commit to an empty table
            return commit_plan.snapshot_of(
                "0", self._state(None), number=0, committed_ms=0, rows=0, bytes=0
            )
        return commit_plan.snapshot_of(
            str(text.n),
            text.state,
            number=text.n,
            committed_ms=text.ms,
            rows=text.rows,
            bytes=text.bytes,
        )

    def _delete_repeated(self, files: Sequence[DataFile]) -> None:
        """Delete the files of a repeated commit, except files that some snapshot names."""
        if not files:
            return
        held = expiry.referenced(self._folder)
        storage.delete_files(
            file.path for file in files if file_entry(file, self._location).path not in held
        )

    def _retry_commit(self, attempt: Callable[[], Result | None]) -> Result:
        for _ in range(ATTEMPTS_MAX):
            done = self._retry_after_expiry(attempt)
            if done is not None:
                return done
        raise LakeBusy(str(self.address), ATTEMPTS_MAX)

    def _retry_after_expiry(self, read: Callable[[], Result]) -> Result:
        """Call `read`, and again if an expiry removed a file while it ran."""
        for _ in range(ATTEMPTS_MAX):
            top = self._folder.top()
            try:
                return read()
            except UnknownSnapshot as gone:
                self._folder.forget()
                if self._folder.top() == top:
                    raise CorruptData(
                        f"{self._location}/_bascule/snapshots/{int(gone.snapshot):020d}.json",
                        0,
                        f"a file that snapshot {top} builds on",
                        "none",
                    ) from None
        raise LakeBusy(str(self.address), ATTEMPTS_MAX)


def open_table(address: TableAddress, *, files: LinkingFiles | None = None) -> ParquetTable:
    """Raises: UnknownTable, ForeignTable, CorruptData, UnsupportedFormat, OSError."""
    location = storage.local_path(address.location)
    folder = ManifestFolder(str(address), location, files or LinkingFiles())
    text = folder.read_table()
    if text is None:
        check_is_free(address, location)
        raise UnknownTable(str(address))
    return ParquetTable(address, text, folder)


def create_table(
    address: TableAddress,
    schema: pa.Schema,
    partitioning: Sequence[str],
    *,
    stream: str = "",
    stream_id: str = "",
    files: LinkingFiles | None = None,
) -> ParquetTable:
    """Raises: TableExists, ForeignTable, ConfigError, OSError."""
    location = storage.local_path(address.location)
    schema = schema.remove_metadata()
    parse_partitioning(partitioning, schema)
    folder = ManifestFolder(str(address), location, files or LinkingFiles())
    text = TableManifest(
        format=FORMAT,
        id=uuid.uuid4().hex,
        created_ms=time.time_ns() // 1_000_000,
        columns={field.name: str(field.type) for field in schema},
        schema=schema_text(schema),
        partition_by=list(partitioning),
        stream=stream,
        stream_id=stream_id,
    )
    if folder.read_table() is None:
        check_is_free(address, location)
    if not folder.make(text):
        raise TableExists(str(address))
    return ParquetTable(address, msgspec.structs.replace(text), folder)


def check_is_free(address: TableAddress, location: str) -> None:
    """Raises: ForeignTable if the folder holds something else."""
    folder = Path(location)
    if folder.exists() and not folder.is_dir():
        raise ForeignTable(str(address), "it is a file")
    if not folder.exists():
        return
    held = sorted(entry.name for entry in folder.iterdir() if entry.name != "_bascule")
    if "_delta_log" in held:
        raise ForeignTable(str(address), f"it is a delta table: delta:{location}")
    if held:
        raise ForeignTable(str(address), f"its folder holds {held[0]!r} and no _bascule/table.json")
