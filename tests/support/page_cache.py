"""Files that have to be read from the disk again."""

from __future__ import annotations

import os


def drop_from_page_cache(fd: int) -> None:
    """Whoever reads the file next gets what is on the disk. Does nothing but on Linux."""
    os.fsync(fd)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
