"""`Oplog`: the files of one partition of a table, from the oldest to the one that is written."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import attrgetter
from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.tables.oplog import _hot
from bascule.tables.oplog.file_header import FileHeader, Mark, first_of_name
from bascule.tables.oplog.oplog_file import OplogFile, create_file, open_file

FILES_PER_OPLOG: Final = 8
SYNC_RECORDS: Final = 1 << 17
"""Records that are written before they are synced, 3.3 MB. More would be made up from the table
after a power loss; nothing else depends on it."""
SEEN_AT_FIRST: Final = 1 << 12
"""Places of the table of key ids at first, for half as many."""


class OplogPlace(NamedTuple):
    """Where a record is."""

    first: int
    """The first id of its file."""
    slot: int


class LastOperations(NamedTuple):
    """The last operation of each key that has changed."""

    found: array[int]
    """Operation id and key id in turn, the newest first."""
    keys: int


class Oplog:
    """Written by one thread at a time; others read meanwhile, each up to a mark of its own.

    Raises OSError everywhere. After one of a writer, `open` has to be called again.
    """

    def __init__(self, files: Files, directory: str, *, table: int, bytes_max: int) -> None:
        """`table` is the first 8 bytes of the stream's id."""
        self.directory = directory
        self._files = files
        self._table = table
        self._bytes_max = bytes_max
        self._file_bytes = bytes_max // FILES_PER_OPLOG
        self._open_files: tuple[OplogFile, ...] = ()
        """By their first ids. Replaced, never changed."""
        self._unsynced = 0

    @property
    def first(self) -> int:
        """Every operation from this id on is there."""
        return self._open_files[0].first

    @property
    def mark(self) -> Mark:
        """The end of what was written."""
        return self._open_files[-1].mark

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.size() for each in self._open_files)

    def open(self, mark: Mark, position: int) -> int | None:
        """Open what a table's transaction says is there, and remove what is beyond.

        `position` is the offset at which the table is. Returns None if everything up to there is in
        the oplog. Otherwise the operations with higher ids than the returned one have to be
        appended before anything else. Where the file of the mark is missing or its header damaged,
        the oplog begins anew behind `position`.
        """
        self.close()
        self._files.make_dirs(self.directory)
        kept = self._kept_files(mark)
        if not kept:
            self.begin(position + 1)
            return None
        newest = kept[-1]
        is_whole = newest.recover(mark.slots, mark.crc)
        if newest.last > position:
            self.begin(position + 1)
            return None
        self._open_files = tuple(kept)
        self._unsynced = 1
        self._remove_others()
        return None if is_whole else max(newest.last, newest.first - 1)

    def begin(self, first: int) -> Mark:
        """Begin anew: the oplog has no operation below `first`, and none yet from there on."""
        self.close()
        self._files.make_dirs(self.directory)
        self._open_files = ()
        self._remove_others()
        header = FileHeader(self._table, first, None)
        self._open_files = (create_file(self._files, self.directory, header),)
        self._unsynced = 0
        return self.mark

    def append(self, operations: array[int]) -> Mark:
        """Write operations: id, key id, and what (`_hot.SET`, `REMOVE`) in turn, by rising ids.

        Returns the mark for the transaction that they belong to. They are not synced.
        """
        if not operations:
            return self.mark
        newest = self._open_files[-1]
        if newest.slots and newest.size() >= self._file_bytes:
            newest = self._rotate(operations[0])
        newest.append(operations)
        self._unsynced += len(operations) // _hot.OPERATION_FIELDS
        if self._unsynced >= SYNC_RECORDS:
            self.sync()
        return newest.mark

    def sync(self) -> None:
        """Return once everything is on the disk."""
        if self._unsynced:
            self._open_files[-1].sync()
            self._unsynced = 0

    def close(self) -> None:
        """Nothing is synced."""
        for each in self._open_files:
            each.close()

    def find(self, since: int, mark: Mark) -> OplogPlace | None:
        """The first record with an id above `since`; None if there is none up to the mark.

        Raises: CorruptData.
        """
        files = self._files_since(since, mark)
        for each in files or ():
            end = mark if each.first == mark.first else each.mark
            slot = each.find(since, end)
            if slot < end.slots:
                return OplogPlace(each.first, slot)
        return None

    def last_operations(self, since: int, mark: Mark, *, keys_max: int) -> LastOperations | None:
        """The last operation with an id above `since` of each key that has one, up to the mark.

        There are at most `keys_max` such keys. Once they are found nothing older is read.

        None if the oplog does not have them all. Raises: CorruptData.
        """
        files = self._files_since(since, mark)
        if files is None:
            return None
        collapse = _Collapse(since)
        try:
            for each in reversed(files):
                end = mark if each.first == mark.first else each.mark
                start = each.find(since, end) if each is files[0] else 0
                for data, slots in each.read(start // _hot.BLOCK_SLOTS, end):
                    collapse.add(data, slots)
                    if collapse.count == keys_max:
                        return LastOperations(collapse.found, collapse.count)
        except FileNotFoundError:
            if set(files) <= set(self._open_files):
                raise CorruptData(files[0].path, 0, "a file", "none") from None
            return None  # removed meanwhile
        return LastOperations(collapse.found, collapse.count)

    def _files_since(self, since: int, mark: Mark) -> tuple[OplogFile, ...] | None:
        """Those with operations above `since`, up to the mark; None if some are missing."""
        files = self._open_files
        first_of = attrgetter("first")
        end = bisect_right(files, mark.first, key=first_of)
        if not end or files[end - 1].first != mark.first or since < files[0].first - 1:
            return None
        return files[max(bisect_right(files, since, 0, end, key=first_of) - 1, 0) : end]

    def _rotate(self, first: int) -> OplogFile:
        before = self._open_files[-1]
        self.sync()
        header = FileHeader(self._table, first, before.mark)
        newest = create_file(self._files, self.directory, header)
        files = (*self._open_files, newest)
        total = sum(each.size() for each in files)
        while len(files) > 2 and total > self._bytes_max - self._file_bytes:
            oldest, *rest = files
            files = tuple(rest)
            total -= oldest.size()
            self._open_files = files
            self._files.remove(oldest.path)
        self._open_files = files
        return newest

    def _kept_files(self, mark: Mark | None) -> list[OplogFile]:
        """From the file of the mark back to the oldest that all others follow."""
        kept: list[OplogFile] = []
        while mark is not None:
            try:
                found = open_file(self._files, self.directory, table=self._table, first=mark.first)
                if kept and not found.seal(mark.slots, mark.crc):
                    break
            except (CorruptData, FileNotFoundError):
                break
            kept.insert(0, found)
            mark = found.header.before
        return kept

    def _remove_others(self) -> None:
        """Remove the files that do not belong to it."""
        known = {each.first for each in self._open_files}
        others = [
            name
            for name in self._files.list_dir(self.directory)
            if (first := first_of_name(name)) is not None and first not in known
        ]
        for name in others:
            self._files.remove(f"{self.directory}/{name}")


class _Collapse:
    """The last operation of each key, from the newest record to the oldest."""

    def __init__(self, since: int) -> None:
        self._since = since
        self._seen = array("q", bytes(8 * SEEN_AT_FIRST))
        self._rest = array("q", [0, 0])
        self.found = array("q", bytes(8 * SEEN_AT_FIRST))
        self.count = 0

    def add(self, data: memoryview, slots: int) -> None:
        rest = self._rest
        while True:
            answer = _hot.collapse(
                data, slots, self._since, self._seen, self.count, self.found, rest
            )
            slots, self.count = rest
            if answer != _hot.FULL:
                return
            self.found.frombytes(bytes(8 * len(self._seen)))
            self._seen = array("q", bytes(16 * len(self._seen)))
            _hot.fill(self.found, self.count, self._seen)
