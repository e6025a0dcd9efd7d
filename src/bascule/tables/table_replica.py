"""`TableReplica`: one partition of a table on this node, kept up with the committed records."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

from bascule.errors import BasculeError, CorruptData, Indeterminate, LogFailed, PartitionFailed
from bascule.host.api import Files
from bascule.host.lasting_tasks import start_lasting
from bascule.replica.partition import Partition
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.partition_log import PartitionLog
from bascule.table_results import TableEntry, TableKey
from bascule.tables.ageing.deadlines import ExpiredKey, NextDeadline
from bascule.tables.ageing.forgotten import ForgetLimits, Forgotten, Walk
from bascule.tables.completeness import Completeness
from bascule.tables.follow_failure import FollowFailure
from bascule.tables.key_ranges import PageRange, is_one_key
from bascule.tables.key_state import KeyPart, KeyState
from bascule.tables.key_versions import KeyVersions
from bascule.tables.log_rows import (
    apply_log_rows,
    has_lost,
    is_beyond,
    is_other_copy,
    may_have,
    why_ended,
)
from bascule.tables.oplog.changes import Bounds, Changes
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.pace import Pace
from bascule.tables.rows import NOTHING_SEEN, Row, TablePosition
from bascule.tables.table_file import TableFile, remove_files
from bascule.tables.watching import ChangesPage, TableWatches, WatchCounts, WatchPosition
from bascule.wire.tables.keys import TableKeys
from bascule.wire.tables.patterns import KeyPattern

log = logging.getLogger("bascule.tables")

T = TypeVar("T")

READ_BYTES: Final = 4 << 20
"""Read, and applied in one transaction."""
WAIT_SECONDS_MAX: Final = 5.0
"""Below the time-out of clients, 10 s: they get the reason."""
RETRY_SECONDS: Final = 1.0
KEYS_NOW_MAX: Final = 512
READ_NOW_SECONDS_MAX: Final = 0.005
"""Of a read on the event loop; above that its pages were not in memory."""
SLOW_SECONDS: Final = 1.0


class TableReplica:
    """Belongs to the event loop; its file is used on threads.

    Where this node holds no replica of the partition, there is no file.
    """

    def __init__(
        self,
        stream: str,
        index: int,
        path: Path,
        find: Callable[[], Partition | None],
        files: Files,
        oplog: Oplog | None = None,
        watch_counts: WatchCounts | None = None,
    ) -> None:
        """`find` returns the partition as it is now, or None once it is gone."""
        self.stream = stream
        self.index = index
        self._path = path
        self._find = find
        self._files = files
        self._oplog = oplog
        self._file: TableFile | None = None
        self._advanced = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._after: asyncio.Task[None] | None = None
        self._completeness = Completeness()
        self.failure = FollowFailure(stream, index)
        self._has_ended_watches = False
        self._is_damaged = False
        """Whether a reader has found the file damaged; it is made anew then."""
        self._followed: tuple[PartitionLog | None, int] = None, 0
        """The log that is in the file, and how many times it had begun again with nothing."""
        self.skipped = 0
        """Records without a key of the table, since the node has started."""
        self.key_versions = KeyVersions(find, lambda: None if self._is_damaged else self._file)
        self.watches = TableWatches(self, watch_counts)
        self._pace = Pace(lambda: self.watches.watchers > 0)
        self._slow_until = 0.0
        """Loop time until which nothing is read on the event loop."""
        self._apart = asyncio.Lock()
        """Held while the whole file is read, so that this takes one thread at most."""
        self._counted: tuple[tuple[int, int], int] | None = None
        """Position, first offset and the number of keys there, as last counted."""
        self._deadlines = NextDeadline()

    def start(self, *, after: asyncio.Task[None] | None = None) -> None:
        """Follow the log, once `after` has removed the files of an earlier table."""
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._pace.hurry()
        self._task = start_lasting("table", self._follow)

    async def close(self) -> None:
        await self.end_watches()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._pace.close()
        await asyncio.to_thread(self._close_file)

    @property
    def position(self) -> int:
        """The first offset that is not in the table; 0 where there is none."""
        return 0 if self._file is None or self._is_damaged else self._file.position.offset

    @property
    def complete_position(self) -> int:
        """Everything below is in the table; see `completeness`. `position` may be beyond."""
        return self._completeness.position if self.position else 0

    @property
    def ended(self) -> PartitionFailed | None:
        """Why nothing more comes to this replica, or has not for a while."""
        return why_ended(self._find()) or self.failure.lasting

    def sync_to(self, end: int) -> int:
        """See `TombstoneReader`."""
        file = self._file
        if file is None or self._is_damaged:
            return 0
        if file.synced < end:
            try:
                file.sync()
            except (CorruptData, LogFailed) as error:
                log.warning(
                    "table not synced; its log keeps tombstones",
                    extra={"stream": self.stream, "partition": self.index, "error": str(error)},
                )
                if isinstance(error, CorruptData) and self._loop is not None:
                    # Where nothing is written and read, nobody else finds it.
                    self._is_damaged = True
                    self._loop.call_soon_threadsafe(self._pace.hurry)
        return file.synced

    def has_synced(self, end: int) -> bool:
        """See `TombstoneReader`."""
        file = self._file
        return file is not None and not self._is_damaged and file.synced >= end

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """The rows of those keys that have a value. Raises: PartitionFailed, CorruptData."""
        return (await self.read(keys))[1]

    async def read(
        self, keys: Sequence[bytes], *, bytes_max: int = 0
    ) -> tuple[int, dict[bytes, Row]]:
        """As `get`, with the position that all rows are of. Also raises: LimitExceeded, see
        `TableFile.read`."""
        position, found = await self._read(lambda file: file.read(keys, bytes_max=bytes_max))
        oldest = self._oldest()
        return position, {
            key: row
            for key, row in found.items()
            if row.value is not None and row.version >= oldest
        }

    def read_now(
        self, keys: Sequence[bytes], *, bytes_max: int
    ) -> tuple[int, dict[bytes, TableEntry]] | None:
        """The position and the entries of those keys that have a value, without waiting; None where
        that takes a thread: see `read`.

        A few keys take some 20 us while their pages are in memory. Once they took long, threads
        read for a while: a disk must not hold the event loop.
        """
        file, loop = self._file, asyncio.get_running_loop()
        began = loop.time()
        if file is None or self._is_damaged or began < self._slow_until:
            return None
        if not 0 < len(keys) <= KEYS_NOW_MAX:
            return None
        try:
            found = file.read_now(keys, bytes_max)
        except (CorruptData, LogFailed):
            return None  # so will the thread find it
        if loop.time() - began > READ_NOW_SECONDS_MAX:
            self._slow_until = loop.time() + SLOW_SECONDS
        if found is None:
            return None
        position, rows = found
        oldest = self._oldest()
        return position, {
            row[0]: TableEntry(*row)
            for row in rows
            if row[0] is not None and row[3] is not None and row[1] >= oldest
        }

    async def page(
        self, asked: PageRange, limit: int, *, bytes_max: int
    ) -> tuple[int, list[Row], bytes | None]:
        """See `TableFile.page`. Raises: PartitionFailed, CorruptData."""
        oldest = self._oldest()
        return await self._read(
            lambda file: file.page(asked, limit, bytes_max=bytes_max, oldest=oldest)
        )

    async def key_page(
        self, asked: PageRange, limit: int
    ) -> tuple[int, list[TableKey], bytes | None]:
        """See `TableFile.key_page`. Raises: PartitionFailed, CorruptData."""
        oldest = self._oldest()
        return await self._read(lambda file: file.key_page(asked, limit, oldest=oldest))

    async def last(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """As `get`, and also the rows of removed keys. Raises: PartitionFailed, CorruptData."""
        found, oldest = await self._read(lambda file: file.get(keys)), self._oldest()
        return {key: row for key, row in found.items() if row.version >= oldest}

    async def at_version(self, version: int) -> Row | None:
        """The row with a version, if it is the latest one of its key; in a large table only one
        that was written not long ago. Raises: PartitionFailed, CorruptData, Indeterminate."""
        if not self._oldest() <= version < self.position:
            return None
        page = await self.changes(version, rows_max=1, bytes_max=1)
        if page.is_full:
            return await self._read(lambda file: file.at_version(version))
        return page.rows[0] if page.rows and page.rows[0].version == version else None

    async def count_quickly(self) -> int:
        """As `count`, without reading a large table; see `TableFile.count_quickly`."""
        return await self._read(lambda file: file.count_quickly(oldest=self._oldest()))

    async def state(
        self, patterns: Sequence[KeyPattern], *, below: int, removed_since: int | None = None
    ) -> KeyState:
        """See `TableFile.state`; reads the keys with the prefix of a single pattern, else all.
        Raises: as `count`."""
        read = partial(
            TableFile.state,
            patterns=patterns,
            oldest=self._oldest(),
            below=below,
            removed_since=removed_since,
        )
        if is_one_key(patterns):
            return await self._read(read)
        async with self._apart:
            return await self._read(read)

    async def rows_of(self, part: KeyPart, *, bytes_max: int) -> tuple[list[Row], KeyPart | None]:
        """See `KeyPart.read`. Raises: as `count`."""
        return await self._read(lambda file: file.rows_of(part, bytes_max=bytes_max))

    async def scan(
        self, first: bytes, end: bytes | None, limit: int, *, bytes_max: int
    ) -> list[Row]:
        """See `TableFile.scan`. Raises: PartitionFailed, CorruptData."""
        oldest = self._oldest()
        return await self._read(
            lambda file: file.scan(first, end, limit, bytes_max=bytes_max, oldest=oldest)
        )

    async def count(self) -> int:
        """The number of keys; reads the whole file, once for all who ask at one position.

        Raises: PartitionFailed, CorruptData.
        """
        async with self._apart:
            asked = self.position, self._oldest()
            if self._counted is None or self._counted[0] != asked:
                found = await self._read(lambda file: file.count(oldest=asked[1]))
                self._counted = asked, found
            return self._counted[1]

    async def changes(
        self,
        since: int,
        *,
        rows_max: int,
        bytes_max: int,
        epoch: int = -1,
        after: bytes | None = None,
        seen: TablePosition = NOTHING_SEEN,
    ) -> Changes:
        """A page of what has changed at or after offset `since`: the last state of each such key.

        `tables.oplog.changes` says how to go on, and what full pages are; the theory is in
        `tables.oplog`. `since`, `epoch`, `after` and `seen` are those of the page before, from
        whichever replica; without them it begins. With epochs a reader gets all rows if the log has
        lost records that it has seen, as after an unclean election; without them that is noticed
        only where `since` is beyond the end of the leader's log. A replica that is not at `since`
        and `seen` yet is waited for. At most `rows_max` rows, of `bytes_max` or one.

        Raises: PartitionFailed, CorruptData; Indeterminate: to be repeated.
        """
        stood, needed = (TablePosition(since, epoch), seen), max(since, seen.offset)
        if needed > self.position and not has_lost(self._find(), *stood):
            await self.wait_position(needed)
        if has_lost(self._find(), *stood):  # also if it was found meanwhile
            since, after = 0, None
        oldest = self._oldest()
        bounds = Bounds(rows_max, bytes_max, oldest)
        page = await self._read(lambda file: file.changes(since, after, bounds))
        if self._file is not None and self._file.is_oplog_damaged:
            self._pace.hurry()
        store = self._store()
        epochs = LeaderEpochs() if store is None else store.epochs
        self._check_log(page.read_at)  # it had these epochs, or more
        return Changes(
            page.rows, page.position, epochs.at(page.position - 1), oldest, page.is_full,
            page.after, page.next_after, page.read_at,
        )  # fmt: skip

    def _check_log(self, read_at: TablePosition | None) -> None:
        """Raises: Indeterminate if the log has lost records that the table had at `read_at`: the
        table has not followed it yet."""
        store = self._store()
        if store is not None and read_at is not None and is_beyond(read_at, store):
            self._pace.hurry()
            raise Indeterminate(f"the table {self.stream} has records that its log has lost")

    async def changed_since(
        self, since: int, *, rows_max: int, bytes_max: int
    ) -> ChangesPage | None:
        """See `watching.WatchedTable`. Raises: PartitionFailed, CorruptData, Indeterminate."""
        present = self.position
        if self._is_damaged or since < min(self._oldest(), present):
            return None
        if since >= present:
            self._check_log(None if self._file is None else self._file.position)
            return ChangesPage([], since, TablePosition(since, self.epoch_of(since - 1)))
        page = await self.changes(since, rows_max=rows_max, bytes_max=bytes_max)
        rows = page.rows
        if page.is_full:
            if since or page.next_after is not None:
                return None
            rows = sorted(rows, key=attrgetter("version"))
        return ChangesPage(rows, page.position, page.read_at)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of a record; -1 if it is not known. Of one in the table it is that which
        was applied, also where the log has lost it since."""
        if self._file is not None and offset < self._file.position.offset:
            return self._file.epoch_of(offset)
        store = self._store()
        return -1 if store is None else store.epochs.at(offset)

    def _store(self) -> PartitionLog | None:
        found = self._find()
        return None if found is None else found.log

    def may_have_applied(self, position: WatchPosition) -> bool:
        """See `watching.WatchedTable`."""
        offset, epoch, seen = position
        found = self._find()
        return may_have(found, offset, epoch) and (seen is None or may_have(found, *seen))

    async def reaches(self, position: WatchPosition, seconds: float) -> bool:
        """Whether a watcher can go on at the position; waits so long for a replica that is behind.

        False also for a position that the log never had, such as one of another table. Raises:
        PartitionFailed.
        """
        if not self.may_have_applied(position):
            return False
        needed = position.offset if position.seen is None else position.seen.offset
        await self.wait_beyond(needed - 1, seconds)
        return self.position >= needed and self.may_have_applied(position)

    async def wait_position(self, offset: int, seconds: float = WAIT_SECONDS_MAX) -> None:
        """Return once everything below `offset` is in the table; see `complete_position`.

        Raises: PartitionFailed, Indeterminate after a timeout.
        """
        if self.complete_position >= offset:
            return
        try:
            with self._pace.awaited():
                async with asyncio.timeout(seconds), self._advanced:
                    await self._advanced.wait_for(
                        lambda: self.complete_position >= offset or self._is_held_up()
                    )
        except TimeoutError:
            raise Indeterminate(
                f"the table {self.stream} is at offset {self.complete_position}, not {offset}, "
                f"after {seconds:.1f} s"
            ) from None
        if self.complete_position < offset:
            raise self.ended or PartitionFailed(self.stream, self.index, str(self.failure.reason))

    def _is_held_up(self) -> bool:
        return self.failure.reason is not None or self.ended is not None

    async def end_watches(self) -> None:
        """Nobody waits for changes any more: the node stops."""
        self.watches.close()
        self._has_ended_watches = True
        async with self._advanced:
            self._advanced.notify_all()

    async def wait_beyond(self, offset: int, seconds: float) -> None:
        """Return once a record at `offset` or behind it is in the table, at the latest after
        `seconds`. Raises: PartitionFailed if none comes to this replica."""
        if self.position > offset or seconds <= 0:
            return
        with suppress(TimeoutError), self._pace.awaited():
            async with asyncio.timeout(seconds), self._advanced:
                await self._advanced.wait_for(
                    lambda: self.position > offset or self._has_ended_watches or bool(self.ended)
                )
        if self.position <= offset and (ended := self.ended) is not None:
            raise ended

    def may_expire(self, now_ms: int) -> bool:
        """Whether `expired` has to look."""
        return self._file is not None and now_ms >= self._deadlines.next_ms

    async def expired(self, now_ms: int, limit: int) -> list[ExpiredKey]:
        """At most `limit` keys whose time to live was over at `now_ms`, in Unix time.

        Without reading where none can be. Raises: PartitionFailed, CorruptData.
        """
        found = self._find()
        if found is None or not self.may_expire(now_ms):
            return []
        ttl_ms = found.definition.config.table_ttl_ms
        if ttl_ms != self._deadlines.indexed_ttl_ms:
            await self._read(lambda file: file.index_ages(ttl_ms))
            self._deadlines.indexed_ttl_ms = ttl_ms
        self._deadlines.next_ms = math.inf  # what is applied meanwhile makes it earlier
        look = partial(TableFile.expired, oldest=self._oldest())
        expired, first = await self._read(lambda file: look(file, ttl_ms, now_ms, limit))
        if first is not None:
            self._deadlines.note(first)
        return expired

    async def forget(self, limits: ForgetLimits, walk: Walk | None, rows_max: int) -> Forgotten:
        """See `TableFile.forget`. Raises: PartitionFailed, CorruptData, LogFailed."""
        return await self._read(lambda file: file.forget(limits, walk, rows_max))

    def look_for_deadlines(self) -> None:
        """The table's time to live may have changed."""
        self._deadlines.next_ms = 0

    def _oldest(self) -> int:
        """Rows of older records were purged."""
        found = self._find()
        return 0 if found is None else found.start_offset

    async def _read(self, read: Callable[[TableFile], T]) -> T:
        file = self._file or await self._opened()
        if file is None:
            why = self.failure.reason or "this node has no table of it"
            raise PartitionFailed(self.stream, self.index, why)
        try:
            return await asyncio.to_thread(read, file)
        except CorruptData:
            self._is_damaged = True
            self._pace.hurry()
            raise

    async def _opened(self) -> TableFile | None:
        """The file, which is opened soon after the replica was; None where that fails."""
        if self._store() is None:
            return None
        self._pace.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS_MAX), self._advanced:
                await self._advanced.wait_for(
                    lambda: self._file is not None or self.failure.reason is not None
                )
        return self._file

    async def _follow(self) -> None:
        if self._after is not None:
            await asyncio.wait([self._after])
            self._after = None
        while True:
            await self._pace.wait()
            found = self._find()
            if found is None:
                return
            self._pace.follow(found.watchers)
            try:
                await self._catch_up(found)
                self.failure.end()
            except (BasculeError, OSError) as error:
                loop = asyncio.get_running_loop()
                self.failure.note(error, now=loop.time())
                if self.failure.lasting is not None:
                    self.watches.wake()
                loop.call_later(RETRY_SECONDS, self._pace.hurry)
            async with self._advanced:
                self._advanced.notify_all()

    async def _catch_up(self, partition: Partition) -> None:
        """Apply what is committed and not in the table. Raises: BasculeError, OSError."""
        store = partition.log
        if self.ended is not None:
            self.watches.wake()
        if partition.failure is not None:
            raise partition.failure
        if store is None:
            await asyncio.to_thread(self._remove_file)
            return
        try:
            await self._apply_all(partition, store)
        except CorruptData as error:
            if error.file != str(self._path):
                raise
            self._is_damaged = True
            await self._apply_all(partition, store)

    async def _apply_all(self, partition: Partition, store: PartitionLog) -> None:
        """Open the file, or make it anew, and apply all. Raises: BasculeError, OSError."""
        if self._is_damaged:
            log.warning(
                "damaged table made anew",
                extra={"stream": self.stream, "partition": self.index, "path": str(self._path)},
            )
            await self._make_anew(partition)
        elif self._file is None:
            await asyncio.to_thread(self._open, partition)
        assert self._file is not None
        followed = store, store.partial_copy.begun
        known, position = self._followed, self._file.position
        if is_beyond(position, store) or await is_other_copy(position, followed, known):
            log.warning(
                "table made anew",
                extra={"stream": self.stream, "partition": self.index, "position": self.position},
            )
            await self._make_anew(partition)
        self._followed = followed
        if self._file.is_oplog_damaged:
            await asyncio.to_thread(self._file.mend_oplog)
        keys = TableKeys(partition.definition.config)
        self._note_gaps(partition, 0)
        until = partition.high_watermark.offset  # what is committed meanwhile has its own time
        while True:
            version, end = store.truncation_version, partition.high_watermark
            if self._file.position.offset >= min(until, end.offset):
                return
            applied = await asyncio.to_thread(
                apply_log_rows, self._file, store, keys, end, version, bytes_max=READ_BYTES
            )
            if applied is None:
                self._pace.hurry()
                return
            self._note_gaps(partition, applied.missing)
            self._deadlines.note_rows(applied, partition.definition.config.table_ttl_ms)
            self.skipped += applied.skipped
            self.watches.on_applied(applied.rows)
            async with self._advanced:
                self._advanced.notify_all()

    async def _make_anew(self, partition: Partition) -> None:
        """Begin with an empty file. Who looks before it is there finds no table, and waits."""
        self.watches.on_lost()
        await asyncio.to_thread(self._remove_file)
        self._is_damaged = False
        await asyncio.to_thread(self._open, partition)
        self.watches.on_lost()

    def _note_gaps(self, partition: Partition, missing: int) -> None:
        end = partition.commitment.leader_watermark
        if partition.is_leader and not partition.knows_end:
            end = -1
        self._completeness.on_applied(self.position, missing=missing, committed_end=end)

    def _open(self, partition: Partition) -> None:
        self._files.make_dirs(str(self._path.parent))
        with partition.commitment.replacing:
            self._file = TableFile(str(self._path), f"{self.stream} {self.index}", self._oplog)
            if partition.log is not None:  # before they are compared
                self._file.begin_epochs(partition.log.epochs)
        self._deadlines = NextDeadline()
        gaps = partition.log is not None and partition.log.gaps_allowed
        self._completeness = Completeness(may_have_gaps=gaps)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _remove_file(self) -> None:
        self._close_file()
        remove_files(self._files, str(self._path), self._oplog)
