"""Runs `bascule`, and notes for each file how much of it was synced: `synced_journal.py FILE ARGS`.

A test cannot take the power from a machine. It kills a process instead, and then cuts from its logs
what the disk would not have, which is what was written after the last sync began. Only the process
itself knows when that was. An entry is written after a sync returned and before the program sees
that, so nothing that relies on a sync is ever cut.

The variable TORTURE_MUTANT puts a defect of `bascule.sim.mutants` into the process, which a run has
to find.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

ENTRY: Final = struct.Struct("<qqq")
"""Inode, kind, size."""
SYNCED: Final = 0
TRUNCATED: Final = 1
SYNC_SECONDS: Final = 0.003
"""A sync takes as long as on a usual disk: on a tmpfs nothing would ever be unsynced for long."""
MUTANT: Final = "TORTURE_MUTANT"


def watch(path: str) -> None:
    """Append an entry to the file at `path` for each sync and each truncation from now on."""
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    datasync, truncate = os.fdatasync, os.ftruncate

    def fdatasync(fd: int) -> None:
        found = os.fstat(fd)
        time.sleep(SYNC_SECONDS)
        datasync(fd)
        os.write(journal, ENTRY.pack(found.st_ino, SYNCED, found.st_size))

    def ftruncate(fd: int, length: int) -> None:
        truncate(fd, length)
        os.write(journal, ENTRY.pack(os.fstat(fd).st_ino, TRUNCATED, length))

    os.fdatasync, os.ftruncate = fdatasync, ftruncate


def synced_sizes(path: Path) -> dict[int, int]:
    """Inode -> how many bytes from its beginning are certainly on the disk."""
    found: dict[int, int] = {}
    data = path.read_bytes() if path.exists() else b""
    for inode, kind, size in ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size]):
        before = found.get(inode, 0)
        found[inode] = max(before, size) if kind == SYNCED else min(before, size)
    return found


def mutated() -> AbstractContextManager[None]:
    """Puts in the defect of `MUTANT`, if there is one."""
    name = os.environ.get(MUTANT)
    if not name:
        return nullcontext()
    from bascule.sim.mutants.cluster import CLUSTER_MUTANTS

    return CLUSTER_MUTANTS[name].patch()


if __name__ == "__main__":
    watch(sys.argv[1])
    from bascule.cli.main import main

    sys.argv[:2] = ["bascule"]
    with mutated():
        sys.exit(main())
