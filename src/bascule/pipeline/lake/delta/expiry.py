"""Expires old versions of a Delta table, then deletes files that no version names.

Delta's vacuum has a resolution of hours and does not remove versions. So expiry is done here: a
checkpoint at the oldest kept version makes older versions unnecessary, and they are removed newest
first.
"""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from bascule.pipeline.lake import storage
from bascule.pipeline.lake.delta.log import DeltaLog
from bascule.pipeline.lake.model import ExpiryResult


def expire(log: DeltaLog, location: str, *, older_than_ms: int, keep: int) -> ExpiryResult:
    """Expire versions and delete files. Raises: CorruptData."""
    versions = log.versions()
    going = []
    for version in versions[: max(0, len(versions) - keep)]:
        info = log.info(version)
        if info is None or info.ms >= older_than_ms:
            break
        going.append(version)
    if going:
        oldest = going[-1] + 1
        DeltaTable(location, version=oldest).create_checkpoint()
        log.sync(oldest)
        log.remove_before(oldest)
    candidates = [
        found
        for found in storage.files_below(location)
        if found.modified_ms < older_than_ms
        and found.path.endswith(".parquet")
        and not found.path[len(location) + 1 :].startswith("_")
    ]
    held = referenced(log, location)
    count, size = storage.delete_files(found.path for found in candidates if found.path not in held)
    return ExpiryResult(sum(version > 0 for version in going), count, size)


def referenced(log: DeltaLog, location: str) -> set[str]:
    """Paths of all files that some version in the log names: the files of the oldest version, and
    the files that each later version added."""
    versions = log.versions()
    table = DeltaTable(location, version=versions[0]) if versions else DeltaTable(location)
    later = [each for each in versions if each > table.version()]
    actions = pa.table(table.get_add_actions())
    paths = list(actions.column("path").to_pylist())
    for version in later:
        paths += log.added(version)
    return {f"{location}/{unquote(path)}" for path in paths}
