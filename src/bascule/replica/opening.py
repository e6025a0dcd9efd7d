"""Open one partition of a stream: compare its identity, open its log, load its dedupe window."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

from bascule.errors import (
    BasculeError,
    CorruptData,
    MissingLog,
    PartitionFailed,
    is_damage,
    reason_without_paths,
)
from bascule.host.api import Clock, Files
from bascule.model import StreamDefinition
from bascule.publish.headers import HashKey
from bascule.replica.dedupe_loading import load_dedupe_window
from bascule.replica.log_identity import FILE_NAME as IDENTITY_FILE
from bascule.replica.log_identity import LogIdentity, read_identity, write_identity
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.checkpoint import replace_file
from bascule.storage.partition_log import PartitionLog
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.retention import log_config
from bascule.storage.segment import LOG_SUFFIX
from bascule.storage.truncation import reset
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.replica")

MESSAGE_IDS_FILE: Final = "message-ids"
"""A marker in a partition's directory: the log may contain message ids, and they must be loaded."""


@dataclass(frozen=True, slots=True)
class PartitionOpener:
    """Opens partitions. Several threads may use it for different partitions."""

    files: Files
    clock: Clock
    hash_key: HashKey
    partitions: Partitions
    """Notified when an opened partition changes; the caller adds the partition to it."""

    def open(
        self,
        definition: StreamDefinition,
        index: int,
        directory: str,
        *,
        since: int = 0,
        adopt: bool,
        held: bool,
    ) -> tuple[Partition, bool]:
        """Open the log in `directory`, creating it where there is none.

        `since`: the version of the partition's state that made this node a replica.
        `held`: this node has had the log before, so a missing one is not created anew.
        `adopt` accepts a log without an identity file, as an older release left it, and writes
        the file. A log that cannot be opened gives a failed partition. The second value says
        whether a retry may succeed: the cause was the disk and not the data.
        """
        store: PartitionLog | None = None
        failure: OSError | BasculeError | None = None
        marker = f"{directory}/{MESSAGE_IDS_FILE}"
        has_ids = False
        try:
            if held and not (
                _has_segments(self.files, directory)
                or self.files.exists(f"{directory}/{reset.FILE_NAME}")
            ):
                raise MissingLog(definition.name, index, directory)
            if not held:
                _make_directory(self.files, directory)
            self._check_identity(directory, LogIdentity(definition.id, index, since), adopt=adopt)
            store = PayloadLog.open(
                self.files,
                directory,
                log_config(definition.config),
                self.clock,
                make_lock=threading.Lock,
            )
            has_ids = self.files.exists(marker)
            _log_cut_tail(store, definition, index)
        except (OSError, BasculeError) as error:
            failure = error
        partition = Partition(
            definition,
            index,
            log=store,
            failure=None,
            clock=self.clock,
            on_changed=self.partitions.notify_watchers,
            on_appended=self.partitions.notify_replicas,
            hash_key=self.hash_key,
            subjects=self.partitions.subjects,
            persist_id_marker=(None if has_ids else lambda: replace_file(self.files, marker, b"")),
        )
        if definition.name == OFFSETS_STREAM:
            # Commits that name no stream id are of the stream of that name if they are not older.
            partition.log_clock.not_before_ms = self.partitions.latest_creation_ms
        if store is not None and has_ids:
            since_ms = partition.now_ms() - definition.config.dedupe_window_ms
            try:
                load_dedupe_window(partition.preconditions, store, since_ms=since_ms)
            except (OSError, BasculeError) as error:
                failure = error
        if failure is not None:
            partition.failure = _cannot_open(definition, index, failure)
        return partition, isinstance(failure, OSError)

    def without_log(self, definition: StreamDefinition, index: int) -> Partition:
        """A partition whose replicas are on other nodes."""
        return Partition(
            definition,
            index,
            log=None,
            failure=None,
            clock=self.clock,
            on_changed=self.partitions.notify_watchers,
            hash_key=self.hash_key,
            subjects=self.partitions.subjects,
        )

    def fail(self, partition: Partition, error: OSError) -> None:
        """Mark a partition as failed that was opened and cannot be used yet."""
        if partition.failure is None:
            partition.failure = _cannot_open(partition.definition, partition.index, error)

    def _check_identity(self, directory: str, expected: LogIdentity, *, adopt: bool) -> None:
        """Compare the identity file; write it for a new log. Raises: CorruptData, OSError."""
        files = self.files
        path = f"{directory}/{IDENTITY_FILE}"
        found = read_identity(files, directory)
        if found is None:
            if not adopt and _has_segments(files, directory):
                raise CorruptData(path, 0, f"the identity of {expected}", "no such file")
            write_identity(files, directory, expected)
        elif found != expected:
            raise CorruptData(path, 0, f"{expected}", f"{found}; directories were exchanged")


def close_partition(partition: Partition, *, writes_checkpoint: bool = True) -> bool:
    """Close a partition's log with a clean checkpoint, or only synced; a failure is logged.

    A deleted one gets neither: for many segments both take long, and the files are to be removed.

    Returns whether all of it is synced.
    """
    if partition.log is None:
        return True
    if partition.deleted:
        with partition.maintenance_lock:
            partition.log.abandon()
        return True
    is_synced = partition.log.failure is None
    try:
        with partition.maintenance_lock:
            partition.log.close(
                high_watermark=partition.committed_offset, writes_checkpoint=writes_checkpoint
            )
    except (OSError, BasculeError) as error:
        log.error(
            "closing a log failed",
            extra={"stream": partition.definition.name, "error": str(error)},
        )
        return False
    return is_synced


def _make_directory(files: Files, directory: str) -> None:
    """Make the directory of a log that this node has not had. Its name is on the disk on return.

    An attempt that failed, or a process that was killed, may have left it in the page cache alone,
    or that of its stream. Raises: OSError.
    """
    stream = directory.rpartition("/")[0]
    found = [each for each in (stream, directory) if files.exists(each)]
    files.make_dirs(directory)
    for each in found:
        files.sync_dir(each.rpartition("/")[0])


def _has_segments(files: Files, directory: str) -> bool:
    if not files.exists(directory):
        return False
    return any(name.endswith(LOG_SUFFIX) for name in files.list_dir(directory))


def _log_cut_tail(store: PartitionLog, definition: StreamDefinition, index: int) -> None:
    if store.truncated_bytes:
        log.warning(
            "unsynced tail cut",
            extra={
                "stream": definition.name,
                "partition": index,
                "bytes": store.truncated_bytes,
                "end_offset": store.end.offset,
            },
        )


def _cannot_open(
    definition: StreamDefinition, index: int, error: OSError | BasculeError
) -> PartitionFailed:
    log.error(
        "partition cannot be opened; the other streams go on",
        extra={"stream": definition.name, "partition": index, "error": str(error)},
    )
    return PartitionFailed(
        definition.name,
        index,
        str(error),
        reason=reason_without_paths(error),
        is_damage=is_damage(error),
    )
