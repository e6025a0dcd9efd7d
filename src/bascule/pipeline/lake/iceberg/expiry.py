"""Expires old snapshots of an Iceberg table, then deletes files that no snapshot names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotsUpdate

from bascule.pipeline.lake import storage
from bascule.pipeline.lake.model import ExpiryResult


@dataclass
class Referenced:
    """Paths that the remaining snapshots name."""

    data: set[str] = field(default_factory=set)
    metadata: set[str] = field(default_factory=set)


def expire(
    table: Table, load: Callable[[], Table], *, older_than_ms: int, keep: int
) -> ExpiryResult:
    """Expire snapshots and delete files. Raises: CommitFailedException if another commit came
    first."""
    held = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
    branches = {ref.snapshot_id for ref in table.metadata.refs.values()}
    going = [
        each.snapshot_id
        for each in held[: max(0, len(held) - keep)]
        if each.timestamp_ms < older_than_ms and each.snapshot_id not in branches
    ]
    if going:
        # pyiceberg's own builder copies the metadata twice for each snapshot.
        table.catalog.commit_table(
            table,
            (AssertTableUUID(uuid=table.metadata.table_uuid),),
            (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": going}),),
        )
    location = table.location().rstrip("/")
    data = _old(f"{location}/data", older_than_ms)
    metadata = _old(f"{location}/metadata", older_than_ms)
    # Read the referenced files last, so that files committed in the meantime are kept.
    named = referenced(load())
    count, size = storage.delete_files(path for path in data if path not in named.data)
    storage.delete_files(
        path for path in metadata if path.endswith(".avro") and path not in named.metadata
    )
    return ExpiryResult(len(going), count, size)


def _old(folder: str, older_than_ms: int) -> list[str]:
    return [
        found.path for found in storage.files_below(folder) if found.modified_ms < older_than_ms
    ]


def referenced(table: Table) -> Referenced:
    """Every file that some snapshot names. Each manifest is read once."""
    named = Referenced()
    for snapshot in table.snapshots():
        named.metadata.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in named.metadata:
                continue
            named.metadata.add(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                named.data.add(entry.data_file.file_path)
    return named
