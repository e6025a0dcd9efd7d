"""`OplogFile`: one file of an oplog."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.host.api import File, Files
from bascule.tables.oplog import _hot
from bascule.tables.oplog.file_header import (
    HEADER_BYTES,
    FileHeader,
    Mark,
    decode_header,
    encode_header,
    file_name,
    header_crc,
)

BLOCK_BYTES: Final = _hot.BLOCK_SLOTS * _hot.RECORD_BYTES
READ_BLOCKS: Final = 64
"""Blocks that are read at once, 400 KiB."""


class OplogFile:
    """One thread appends. Others read meanwhile, up to a mark."""

    def __init__(self, files: Files, directory: str, header: FileHeader, seed: int) -> None:
        """`seed` is the CRC32C of the header. See `create_file` and `open_file`."""
        self.header = header
        self.first = header.first
        self.path = f"{directory}/{file_name(header.first)}"
        self._files = files
        self._seed = seed
        self._file: File | None = None
        self._state = array("q", [seed, 0, seed, 0])
        """Of what was appended; see `_hot`."""
        self.slots = 0
        self._firsts = array("q")
        """The first id of each block. Only appended to."""
        self._has_firsts = False
        """Whether that is so of all blocks: the file was written, or read, by this object."""

    @property
    def mark(self) -> Mark:
        """All that was appended."""
        return Mark(self.first, self.slots, self._state[0])

    @property
    def last(self) -> int:
        """The last id, 0 if there is none."""
        return self._state[1]

    def create(self) -> None:
        """Raises: OSError."""
        self._file = self._files.open(self.path, create=True)
        self._file.truncate(0)
        self._file.append(encode_header(self.header))
        self._file.sync()
        self._has_firsts = True

    def append(self, operations: array[int]) -> None:
        """Raises: OSError; the file is to be opened again then."""
        count = len(operations) // _hot.OPERATION_FIELDS
        if not count:
            return
        out = bytearray(_hot.RECORD_BYTES * (count + count // (_hot.BLOCK_SLOTS - 1) + 2))
        table = self.header.table
        length = _hot.encode(operations, table, self.slots, out, self._state, self._firsts)
        self._opened().append(memoryview(out)[:length])
        self.slots += length // _hot.RECORD_BYTES

    def sync(self) -> None:
        """Raises: OSError."""
        self._opened().sync()

    def size(self) -> int:
        """In bytes, by what was appended, or by a mark of it."""
        return HEADER_BYTES + self.slots * _hot.RECORD_BYTES

    def recover(self, slots: int, crc: int) -> bool:
        """Take up to `slots` records, as far as they are good, and cut off the rest.

        Returns whether these are all, with that CRC32C. If not, whole blocks are left.

        Raises: OSError.
        """
        file = self._opened()
        self._state, self._firsts = array("q", [self._seed, 0, self._seed, 0]), array("q")
        self.slots = 0
        for data, count, _ in self._pieces(0, slots):
            good = _hot.check(data, count, self.header.table, self._state, self._firsts)
            self.slots += good
            if good < count:
                break
        is_whole = self.slots == slots and self._state[0] == crc
        if not is_whole and self.slots % _hot.BLOCK_SLOTS:
            self.slots -= self.slots % _hot.BLOCK_SLOTS
            self._state[0], self._state[1] = self._state[2], self._state[3]
            self._firsts.pop()
        if file.size() > self.size():
            file.truncate(self.size())
            file.sync()  # else a power loss may bring back what was cut, below what comes next
        self._has_firsts = True
        return is_whole

    def seal(self, slots: int, crc: int) -> bool:
        """Whether the file has as many records; they are checked when they are read.

        Raises: OSError.
        """
        self.slots = slots
        self._state[0] = crc
        return self._files.size(self.path) >= self.size()

    def find(self, since: int, mark: Mark) -> int:
        """The place of the first record with an id above `since`, of those up to the mark.

        Raises: CorruptData, OSError.
        """
        if not self._has_firsts:
            self._read_firsts(mark)
        blocks = -(-mark.slots // _hot.BLOCK_SLOTS)
        block = bisect_right(self._firsts, since, 0, blocks) - 1
        if block < 0:
            return 0
        data, count = self._read_block(block, mark)
        return block * _hot.BLOCK_SLOTS + _hot.find(data, count, since)

    def read(self, block: int, mark: Mark) -> Iterator[tuple[memoryview, int]]:
        """The records from a block on, up to the mark: pieces of whole blocks, and how many records
        they have. The *last* piece is first.

        Raises: CorruptData, OSError.
        """
        end = -(-mark.slots // _hot.BLOCK_SLOTS)
        while end > block:
            start = max(block, end - READ_BLOCKS)
            to = min(end * _hot.BLOCK_SLOTS, mark.slots)
            at = start * _hot.BLOCK_SLOTS
            data, count, seed = self._read_blocks(at, to)
            state = array("q", [seed])
            good = _hot.verify(data, count, state)
            if good < to - at:
                self._refuse(at + good, "a block with the CRC32C of its check", "another, or none")
            if to == mark.slots and state[0] != mark.crc:
                self._refuse(to, f"crc32c {mark.crc:#010x}", f"{state[0]:#010x}")
            yield data, count
            end = start

    def close(self) -> None:
        """What is read at the moment is read to its end."""
        self._file = None

    def _opened(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._files.open(self.path)
        return file

    def _pieces(self, start: int, end: int) -> Iterator[tuple[memoryview, int, int]]:
        """What the file has of the records from `start` to `end`, unchecked, in order."""
        while start < end:
            wanted = min(end - start, READ_BLOCKS * _hot.BLOCK_SLOTS)
            data, count = self._read(start, start + wanted)
            yield data, count, start
            if count < wanted:
                return
            start += count

    def _read(self, start: int, end: int) -> tuple[memoryview, int]:
        position = HEADER_BYTES + start * _hot.RECORD_BYTES
        data = self._opened().read_at(position, (end - start) * _hot.RECORD_BYTES)
        return memoryview(data), len(data) // _hot.RECORD_BYTES

    def _read_blocks(self, start: int, end: int) -> tuple[memoryview, int, int]:
        """As `_read`, and the CRC32C that the first block begins with.

        That is in the check before; where it is wrong, so is the block.
        """
        if not start:
            return *self._read(start, end), self._seed
        data, got = self._read(start - 1, end)
        return data[_hot.RECORD_BYTES :], max(got - 1, 0), int.from_bytes(data[8:12], "little")

    def _read_block(self, block: int, mark: Mark) -> tuple[memoryview, int]:
        """The records of one block, up to the mark, by their CRC32C alone."""
        start = block * _hot.BLOCK_SLOTS
        count = min(mark.slots - start, _hot.BLOCK_SLOTS)
        data, got, seed = self._read_blocks(start, start + count)
        if got < count:
            self._refuse(start + got, f"{mark.slots} records", "the end")
        crc = mark.crc
        covered = count * _hot.RECORD_BYTES
        if count == _hot.BLOCK_SLOTS:
            covered -= _hot.RECORD_BYTES
            crc = int.from_bytes(data[covered + 8 : covered + 16], "little")
        found = crc32c(data[:covered], seed)
        if found != crc:
            self._refuse(start, f"crc32c {crc:#010x}", f"{found:#010x}")
        return data, count

    def _read_firsts(self, mark: Mark) -> None:
        """Read a file that was written earlier, and check all of it."""
        state, firsts = array("q", [self._seed, 0, self._seed, 0]), array("q")
        seen = 0
        for data, count, at in self._pieces(0, mark.slots):
            good = _hot.check(data, count, self.header.table, state, firsts)
            if good < count:
                self._refuse(at + good, "a record of the table with a higher id", "other bytes")
            seen += count
        if seen < mark.slots or state[0] != mark.crc:
            expected = f"{mark.slots} records with crc32c {mark.crc:#010x}"
            self._refuse(seen, expected, f"{seen} with {state[0]:#010x}")
        self._firsts, self._has_firsts = firsts, True

    def _refuse(self, slot: int, expected: str, found: str) -> None:
        raise CorruptData(self.path, HEADER_BYTES + slot * _hot.RECORD_BYTES, expected, found)


def create_file(files: Files, directory: str, header: FileHeader) -> OplogFile:
    """A new file, synced. Raises: OSError."""
    made = OplogFile(files, directory, header, header_crc(encode_header(header)))
    made.create()
    files.sync_dir(directory)
    return made


def open_file(files: Files, directory: str, *, table: int, first: int) -> OplogFile:
    """A file that is there. Raises: CorruptData, OSError; FileNotFoundError is one."""
    path = f"{directory}/{file_name(first)}"
    data = files.open(path, write=False).read_at(0, HEADER_BYTES)
    header = decode_header(data, path=path, table=table, first=first)
    return OplogFile(files, directory, header, header_crc(data))
