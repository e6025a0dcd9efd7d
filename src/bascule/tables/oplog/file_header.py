"""The header of an oplog's file, and what says where an oplog ends.

::

    0          8         12         20         28         36          40         44         48
    +----------+---------+----------+----------+----------+-----------+----------+----------+
    | magic    | version | table id | first id | first id | records   | crc      | crc      |
    | BscOplog | u32     | u64      | u64      | u64      | u32       | u32      | u32      |
    +----------+---------+----------+----------+----------+-----------+----------+----------+
                                                `- of the file before: its mark -'  of the above
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from bascule.errors import CorruptData

MAGIC: Final = b"BscOplog"
VERSION: Final = 1
_HEADER: Final = Struct("<8sIQQQII")
_CRC: Final = Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
SUFFIX: Final = ".oplog"


class Mark(NamedTuple):
    """An oplog up to a record, or the part of it that is in one file."""

    first: int
    """The first id of the file that has the last records."""
    slots: int
    """The records of that file, checks included."""
    crc: int
    """CRC32C of these, and of the file's header."""


class FileHeader(NamedTuple):
    """The header of one file."""

    table: int
    """The first 8 bytes of the stream's id."""
    first: int
    """The file has every operation from this id on; 1 or more."""
    before: Mark | None
    """All of the file before; None where an oplog begins."""


def encode_header(header: FileHeader) -> bytes:
    before = header.before or (0, 0, 0)
    data = _HEADER.pack(MAGIC, VERSION, header.table, header.first, *before)
    return data + _CRC.pack(crc32c(data))


def header_crc(data: bytes) -> int:
    """The CRC32C that the records' begins with."""
    return int(_CRC.unpack_from(data, _HEADER.size)[0])


def decode_header(data: bytes, *, path: str, table: int, first: int) -> FileHeader:
    """Raises: CorruptData, also if it is not the header of that table and first id."""
    if len(data) < HEADER_BYTES:
        raise CorruptData(path, len(data), f"a header of {HEADER_BYTES} bytes", "the end")
    found_crc = crc32c(data[: _HEADER.size])
    if header_crc(data) != found_crc:
        expected = f"crc32c {header_crc(data):#010x}"
        raise CorruptData(path, _HEADER.size, expected, f"{found_crc:#010x}")
    magic, version, *ids = _HEADER.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise CorruptData(path, 0, f"{MAGIC!r}, version {VERSION}", f"{magic!r}, {version}")
    if ids[:2] != [table, first]:
        expected = f"table {table:016x}, first id {first}"
        raise CorruptData(path, 12, expected, f"{ids[0]:016x}, {ids[1]}")
    return FileHeader(table, first, Mark(*ids[2:]) if ids[2] else None)


def file_name(first: int) -> str:
    return f"{first:020d}{SUFFIX}"


def first_of_name(name: str) -> int | None:
    """The first id in a file's name; None if it is not such a name."""
    number = name.removesuffix(SUFFIX)
    if name != number + SUFFIX or len(number) != 20 or not number.isdecimal():
        return None
    return int(number)
