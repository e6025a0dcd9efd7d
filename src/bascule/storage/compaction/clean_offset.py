"""The file with a log's clean offset. If it exists, offsets may be missing in the log."""

from __future__ import annotations

from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.checkpoint import CheckedStruct, replace_file

FILE_NAME: Final = "clean-offset"
MAGIC: Final = b"BscClen1"
NO_HORIZON: Final = -1
_FORMAT: Final = CheckedStruct(MAGIC, "qq")


class CleanOffset(NamedTuple):
    """Up to where a log is compacted."""

    offset: int
    """Below it every key has one record."""
    horizon_ms: int | None
    """The earliest delete horizon of the tombstones below `offset`, None if there are none."""


NOTHING_CLEAN: Final = CleanOffset(0, None)


def encode_clean_offset(clean: CleanOffset) -> bytes:
    horizon = NO_HORIZON if clean.horizon_ms is None else clean.horizon_ms
    return _FORMAT.encode(clean.offset, horizon)


def decode_clean_offset(data: bytes, *, path: str) -> CleanOffset:
    """Read a whole file.

    Raises: CorruptData.
    """
    offset, horizon = _FORMAT.decode(data, path=path)
    return CleanOffset(offset, None if horizon == NO_HORIZON else horizon)


def read_clean_offset(files: Files, directory: str) -> CleanOffset:
    """The clean offset; `NOTHING_CLEAN` if the file is missing or damaged.

    That is safe: compacting a clean part again changes nothing. Raises: OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        return decode_clean_offset(files.read_bytes(path), path=path)
    except (FileNotFoundError, CorruptData):
        return NOTHING_CLEAN


def write_clean_offset(files: Files, directory: str, clean: CleanOffset) -> None:
    """Write and sync the file. Raises: OSError."""
    replace_file(files, f"{directory}/{FILE_NAME}", encode_clean_offset(clean))


def lower_clean_offset(files: Files, directory: str, offset: int) -> None:
    """Lower the clean offset to `offset`, before a truncation to it. Raises: OSError."""
    if has_gaps(files, directory):
        clean = read_clean_offset(files, directory)
        if clean.offset > offset:
            write_clean_offset(files, directory, clean._replace(offset=offset))


def has_gaps(files: Files, directory: str) -> bool:
    """Whether the log was ever compacted, so that offsets may be missing. Raises: OSError."""
    return files.exists(f"{directory}/{FILE_NAME}")
