"""`KeyVersions`: the last record of each key of a table, also of what is not committed yet.

A table has what is committed and applied. What the log has beyond that is read from the log once,
and its keys are remembered until the table has them, too. While the table's file is not open yet,
a log that is not too long is read from its start.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Final

from bascule.errors import BasculeError, Indeterminate
from bascule.publish.preconditions import NO_KEY_OF_TABLE, UNKNOWN_VERSION
from bascule.replica.partition import Partition
from bascule.storage.partition_log import PartitionLog
from bascule.tables import _hot
from bascule.tables.log_rows import is_beyond, read_log_rows
from bascule.tables.table_file import TableFile
from bascule.wire.tables.keys import TableKeys

log = logging.getLogger("bascule.tables")

READ_BYTES: Final = 1 << 20
BEHIND_RECORDS_MAX: Final = 200_000
"""Records that are read at once, on the log writer thread, before a table is said to be behind."""
TAIL_KEYS_MAX: Final = 1_000_000
TRIM_KEYS: Final = 10_000
"""Keys that are remembered at least before those are forgotten that the table has."""


class KeyVersions:
    """Of one partition, for its preconditions. Belongs to the log writer thread."""

    def __init__(
        self, find: Callable[[], Partition | None], file: Callable[[], TableFile | None]
    ) -> None:
        self._find = find
        self._file = file
        self._basis = (-1, False)
        """The leader epoch that the rest is of, and whether the table's file was there."""
        self._start = self._end = 0
        """The offsets whose records `_tail` has."""
        self._tail: dict[bytes, int] = {}
        """For each key twice the offset of its last record, plus 1 if that has a value."""
        self._trim_at = TRIM_KEYS

    def find(self, keys: list[bytes], end_offset: int) -> array[int]:
        versions = array("q", [UNKNOWN_VERSION, 0] * len(keys))
        partition, file = self._find(), self._file()
        if partition is None or partition.log is None:
            return versions
        try:
            self._find_all(keys, end_offset, versions, partition, partition.log, file)
        except (BasculeError, OSError) as error:
            self._reset(0)
            log.warning(
                "versions of keys unknown",
                extra={
                    "stream": partition.definition.name,
                    "partition": partition.index,
                    "error": str(error),
                },
            )
            return array("q", [UNKNOWN_VERSION, 0] * len(keys))
        return versions

    def _find_all(
        self,
        record_keys: list[bytes],
        end_offset: int,
        versions: array[int],
        partition: Partition,
        store: PartitionLog,
        file: TableFile | None,
    ) -> None:
        """Raises: BasculeError, OSError; the versions are unknown then."""
        keys = TableKeys(partition.definition.config)
        position = None if file is None else file.position
        applied = store.start_offset if position is None else position.offset
        basis = (partition.leader_epoch, file is not None)
        if self._basis != basis:
            if position is not None and is_beyond(position, store):
                raise Indeterminate(f"the table is at offset {applied}, beyond its log")
            self._basis = basis
            self._reset(applied)
        start = max(applied, store.start_offset)
        if not self._start <= applied or self._end < start:
            self._reset(start)
        self._read_tail(store, keys, end_offset)
        if len(self._tail) >= self._trim_at:
            self._trim(applied)
        tail, unknown = self._tail, {}
        for number, record_key in enumerate(record_keys):
            key = keys.table_key(record_key)
            if key is None:
                versions[2 * number] = NO_KEY_OF_TABLE
            elif (found := tail.get(key)) is not None:
                version = found >> 1
                versions[2 * number] = version
                versions[2 * number + 1] = found & 1 and version >= store.start_offset
            else:
                versions[2 * number] = -1
                unknown[key] = number
        if unknown and file is not None:
            for key, version, has_value in file.versions(list(unknown)):
                number = unknown[key]
                versions[2 * number] = version
                versions[2 * number + 1] = has_value and version >= store.start_offset

    def _reset(self, start: int) -> None:
        self._tail = {}
        self._start = self._end = start
        self._trim_at = TRIM_KEYS

    def _read_tail(self, store: PartitionLog, keys: TableKeys, end_offset: int) -> None:
        """Raises: BasculeError, OSError."""
        if end_offset - self._end > BEHIND_RECORDS_MAX:
            raise Indeterminate(f"the table is at offset {self._end}, and its log at {end_offset}")
        while self._end < end_offset:
            rows = read_log_rows(store, keys, self._end, store.end, bytes_max=READ_BYTES)
            _hot.note_rows(rows.rows, self._tail)
            self._end = rows.end
            if len(self._tail) > TAIL_KEYS_MAX:
                raise Indeterminate(f"the table lags by more than {TAIL_KEYS_MAX} keys")

    def _trim(self, applied: int) -> None:
        """Forget what the table has."""
        self._start = applied
        self._tail = {key: found for key, found in self._tail.items() if found >> 1 >= applied}
        self._trim_at = max(TRIM_KEYS, 2 * len(self._tail))
