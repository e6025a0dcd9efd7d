"""Lists the data files of an Iceberg snapshot, with the rows that position deletes leave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from bascule.errors import ForeignTable


@dataclass
class LiveFiles:
    """The files of one snapshot."""

    data: list[IcebergFile] = field(default_factory=list)
    deleted_rows: dict[str, bytes] = field(default_factory=dict)
    """Path -> positions of the deleted rows, as in `DataFile.deleted_rows`."""


def live_files(name: str, table: Table, snapshot: IcebergSnapshot | None) -> LiveFiles:
    """Read the manifests of a snapshot.

    Raises: ForeignTable for equality deletes, which pyiceberg cannot read.
    """
    found = LiveFiles()
    if snapshot is None:
        return found
    manifests = snapshot.manifests(table.io)
    data = [
        entry
        for manifest in manifests
        if manifest.content == ManifestContent.DATA
        for entry in _entries(table, manifest)
    ]
    found.data = [entry.data_file for entry in data]
    deletes = [
        entry
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in _entries(table, manifest)
    ]
    if deletes:
        found.deleted_rows = _deleted_rows(name, table, data, deletes)
    return found


def _entries(table: Table, manifest: ManifestFile) -> Iterator[ManifestEntry]:
    yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)


def _deleted_rows(
    name: str, table: Table, data: list[ManifestEntry], deletes: list[ManifestEntry]
) -> dict[str, bytes]:
    index = DeleteFileIndex()
    for entry in deletes:
        file = entry.data_file
        if file.content == DataFileContent.EQUALITY_DELETES:
            raise ForeignTable(
                name,
                f"its snapshot has equality deletes ({file.file_path}), which pyiceberg cannot "
                "read: apply them with the procedure rewrite_data_files of Iceberg",
            )
        index.add_delete_file(entry, partition_key=file.partition)
    read: dict[str, dict[str, pa.ChunkedArray]] = {}
    found = {}
    for entry in data:
        file = entry.data_file
        positions = []
        for delete in index.for_data_file(
            entry.sequence_number or 0, file, partition_key=file.partition
        ):
            if delete.file_path not in read:
                read[delete.file_path] = _read_deletes(table.io, delete)
            if (rows := read[delete.file_path].get(file.file_path)) is not None:
                positions.append(rows.to_numpy())
        if positions:
            found[file.file_path] = np.unique(np.concatenate(positions)).astype("<i8").tobytes()
    return found
