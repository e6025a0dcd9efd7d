"""A file of some megabytes that is given back when the disk is full.

What makes room on a full disk needs a little room itself: a purge, a lower retention, a pause and a
deletion each write a file before anything is removed. They run with the blocks of this file.
Appends get none of them: they are refused from then on, until the file has its size again.

A node writes some small files before it serves. Where the disk is full it starts with the blocks of
the reserve that the process before has left, so that it serves reads and what makes room.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from bascule.errors import DiskFull
from bascule.host.api import NO_SPACE, Files, Random

log = logging.getLogger("bascule.replica")

FILE_NAME: Final = "reserve"
_WRITE_BYTES: Final = 1 << 20

MARGIN_BYTES: Final = 2 << 20
"""Less than this is next to nothing: what a decision writes, and what is appended meanwhile."""
DECISION_BYTES: Final = 256 << 10
"""What the metadata log may write for a decision."""
HOLD_SECONDS: Final = 5.0
"""How often a reserve that was given back is tried to be held again."""

START_BYTES: Final = 1 << 20
"""What a node may write before it serves: a tenth of it, as measured, and as much for its logs."""

P = ParamSpec("P")
R = TypeVar("R")


def give_back_at_start(files: Files, data_directory: str) -> None:
    """Give back the reserve that the process before has left, if a node cannot start without it.

    Must come before anything is written, and before `DiskReserve.hold`, which notices it.

    Raises: OSError.
    """
    path, held = f"{data_directory}/{FILE_NAME}", 0
    free_bytes, _ = files.room(data_directory)
    if files.exists(path):
        held = files.size(path)
    if held and free_bytes < START_BYTES:
        file = files.open(path)
        file.truncate(0)
        file.close()
        log.warning(
            "disk full: the reserve is given back so that the node can start; appends are refused",
            extra={"bytes": held},
        )


class DiskReserve:
    """The reserve of one data directory. Any thread may call it. Blocks on the disk."""

    def __init__(
        self, files: Files, data_directory: str, random: Random, *, size_bytes: int
    ) -> None:
        """`size_bytes` 0: there is no reserve."""
        self._files = files
        self._data = data_directory
        self._path = f"{data_directory}/{FILE_NAME}"
        self._random = random
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._is_held = False
        self._is_missed = False
        """Whether the last attempt to hold it failed."""
        self.is_released = False
        """Whether the reserve was given back, and appends must not use it up."""

    def hold(self) -> bool:
        """Make the file as large as it should be; return whether it is.

        A disk without room for it leaves the file empty, which is logged once.
        """
        with self._lock:
            if self._is_held or not self._size_bytes:
                return True
            try:
                if not self._is_missed and self._was_given_back():
                    self.is_released = True
                self._check_fits()
                self._fill()
            except OSError as error:
                if not self.is_released and not self._is_missed:
                    log.warning(
                        "no room for the disk reserve; it is tried again",
                        extra={"bytes": self._size_bytes, "error": str(error)},
                    )
                self._is_missed = True
                return False
            self._is_held, self._is_missed = True, False
            if self.is_released:
                self.is_released = False
                log.info("disk reserve is held again; appends go on")
            return True

    def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call something that makes room; on a full disk give the reserve back and repeat it.

        Raises: DiskFull where that does not help either, and whatever the call raises.
        """
        try:
            return call(*args, **kwargs)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            if not self._release():
                raise self._disk_full() from error
        return self.check(call, *args, **kwargs)

    def is_needed(self) -> bool:
        """Whether little is free besides the reserve, or it was given back for that."""
        if not self._size_bytes:
            return False
        return self.is_released or (
            self._is_held and self._files.room(self._data)[0] < MARGIN_BYTES
        )

    def keep_room(self) -> None:
        """Give the reserve back where little else is free: before a write that must not fail."""
        if self._is_held and self._files.room(self._data)[0] < MARGIN_BYTES:
            self._release()

    def make_room(self) -> None:
        """Give the reserve back where that is needed for a decision. Raises: DiskFull without."""
        self.keep_room()
        if self._files.room(self._data)[0] < DECISION_BYTES:
            raise self._disk_full()

    def cannot_decide(self) -> bool:
        """Whether there is no room for a decision, with what the reserve would give back."""
        return not self._is_held and self._files.room(self._data)[0] < DECISION_BYTES

    def check_room(self) -> None:
        """Raises: DiskFull where little is free, for what does not make room."""
        if self.is_released or self._files.room(self._data)[0] < MARGIN_BYTES:
            raise self._disk_full()

    def check(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call something that does not make room. Raises: DiskFull where the disk is full."""
        try:
            return call(*args, **kwargs)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise self._disk_full() from error

    def _disk_full(self) -> DiskFull:
        try:
            free_bytes, _ = self._files.room(self._data)
        except OSError:
            free_bytes = 0
        return DiskFull(self._data, free_bytes)

    def _release(self) -> bool:
        """Give the blocks back; return whether that was done now or before."""
        with self._lock:
            if not self._is_held:
                return self.is_released
            # First, so that no append takes what is about to be free.
            self.is_released = True
            self._is_held = False
            try:
                self._files.open(self._path).truncate(0)
            except OSError as error:
                self.is_released, self._is_held = False, True
                log.warning("disk reserve cannot be given back", extra={"error": str(error)})
                return False
        log.warning(
            "disk full: the reserve is given back for changes that make room; appends are refused",
            extra={"bytes": self._size_bytes},
        )
        return True

    def _was_given_back(self) -> bool:
        """Whether the file says so: the process before, or this one at its start, did that."""
        return self._files.exists(self._path) and not self._files.size(self._path)

    def _check_fits(self) -> None:
        """Raises: OSError where there is no room, since an attempt takes the last of it from others
        for a moment; or where the reserve would have to be given back at once."""
        held = self._files.size(self._path) if self._files.exists(self._path) else 0
        needed = self._size_bytes - held + (MARGIN_BYTES if self.is_released else 0)
        if self._files.room(self._data)[0] < needed:
            raise OSError(errno.ENOSPC, "no room for the reserve and what it leaves free")

    def _fill(self) -> None:
        """Write the file up to its size. Not zeros, which some file systems do not store."""
        file = self._files.open(self._path, create=True)
        try:
            if file.size() == self._size_bytes:
                return
            file.truncate(0)
            left = self._size_bytes
            while left:
                size = min(left, _WRITE_BYTES)
                file.append(self._random.bytes(size))
                left -= size
            file.sync()
        except OSError:
            file.truncate(0)
            if not self.is_released:
                self._files.remove(self._path)  # one that is empty was given back
            raise
        finally:
            file.close()


async def hold_reserve(reserve: DiskReserve) -> None:
    """Hold the reserve again once there is room. Runs until cancelled."""
    while True:
        await asyncio.sleep(HOLD_SECONDS)
        await asyncio.to_thread(reserve.hold)
