"""The disk of a machine, as one process of it sees it: syncs take virtual time.

The contents are those of `bascule.sim.disk`. What is appended while a sync runs is not part of it,
and a crash in the middle of one keeps random parts. The event loop must not wait for the disk: any
call that may do so is reported, unless a thread makes it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from greenlet import getcurrent

from bascule.host.api import Buffer, Random
from bascule.node.last_run import BOOT_ID_PATH
from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.store import PersistentState
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.data_directory import DATABASE_NAME
from bascule.raft_driver.sqlite_store import KnownCommits
from bascule.sim.cluster.world.loop import NS, LoopProcess, process_now
from bascule.sim.cluster.world.threads import Waiter, sleep
from bascule.sim.disk import SimFile, SimFiles
from bascule.sim.prng import Prng
from bascule.storage.payloads import payload_files

T = TypeVar("T")

FREE_BYTES: Final = 1 << 40
PAYLOADS: Final = f"/{payload_files.DIRECTORY}/"


class MachineFiles(SimFiles):
    """The contents of a disk. It keeps no list of its operations, which would be long."""

    has_operations = False

    def begin(self, what: str, path: str, rest: str = "", *fields: object) -> None:
        """See `SimFiles.begin`."""


class DiskTimes:
    """How long the disk of a machine takes, and whether it answers at all."""

    def __init__(self, prng: Prng, sync_ns: int, jitter_ns: int) -> None:
        self._prng = prng
        self._sync_ns, self._jitter_ns = sync_ns, jitter_ns
        self.factor = 1
        """How much slower it is than usual."""
        self.free_bytes = FREE_BYTES
        self.is_stalled = False
        """Whether it hangs."""
        self.failed_renames = 0.0
        """The share of the renames of payloads that fail."""
        self.errors = 0.0
        """The share of the calls that fail with EIO."""
        self.errors_in = ""
        """Only where the path has this in it."""
        self.has_failed = False
        """Whether there was such a call for a payload, since the process has started."""
        self._waiting: list[Waiter] = []

    def wait_sync(self) -> None:
        """Have the calling thread wait as long as a sync takes."""
        sleep((self._sync_ns + self._prng.word() % self._jitter_ns) * self.factor / NS)
        self.wait_answer()

    def wait_answer(self) -> None:
        """Have the calling thread wait while the disk hangs."""
        while self.is_stalled:
            waiter = Waiter()
            self._waiting.append(waiter)
            waiter.wait(None, "a disk that hangs")

    def stall(self) -> None:
        """Answer nothing any more."""
        self.is_stalled = True

    def rename(self, path: str) -> None:
        """A file is about to be renamed. Raises: OSError where that fails."""
        if self.failed_renames and PAYLOADS in path and self._prng.happens(self.failed_renames):
            raise OSError(errno.EIO, "Input/output error", path)

    def fail_sometimes(self, path: str) -> None:
        """Raises: OSError for a share of the calls."""
        if self.errors_in in path and self._prng.happens(self.errors):
            self.has_failed = self.has_failed or PAYLOADS in path
            raise OSError(errno.EIO, "Input/output error", path)

    def heal(self) -> None:
        """Work as usual, but for `errors`; answer what waits."""
        self.factor, self.free_bytes, self.failed_renames = 1, FREE_BYTES, 0.0
        self.is_stalled = False
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.wake()


class FileNumber(int):
    """The descriptor of a file, which leads `sendfile` to it."""

    file: ProcessFile

    def __new__(cls, file: ProcessFile) -> FileNumber:
        found = super().__new__(cls, 3)
        found.file = file
        return found


class ProcessFile:
    """A file that a process has open."""

    def __init__(self, files: ProcessFiles, file: SimFile) -> None:
        self._files = files
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def fileno(self) -> int:
        return FileNumber(self)

    def append(self, *data: Buffer) -> None:
        joined = b"".join(data)
        self._files.enter("append", self.path, writes=len(joined))
        self._file.append(joined)

    def write_at(self, position: int, data: Buffer) -> None:
        self._files.enter("write", self.path, writes=len(data))
        self._file.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        self._files.enter("read", self.path)
        return self._file.read_at(position, length)

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        self._files.check_alive()
        return self._file.read_at_nowait(position, length)

    def is_cached(self, start: int, end: int) -> bool:
        self._files.check_alive()
        return self._file.is_cached(start, end)

    def load(self, start: int, end: int) -> None:
        self._files.enter("load", self.path)
        self._file.load(start, end)

    def size(self) -> int:
        self._files.check_alive()
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._files.enter("truncate", self.path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._files.enter("sync", self.path)
        flight = self._file.begin_sync()
        self._files.times.wait_sync()
        self._files.check_alive()
        self._file.finish_sync(flight)

    def write_back(self, start: int, end: int) -> None:
        self._files.enter("write back", self.path)
        self._file.write_back(start, end)

    def write_again(self, position: int, length: int) -> None:
        self._files.enter("write again", self.path)
        self._file.write_again(position, length)

    def close(self) -> None:
        if not self._files.process.is_dead:
            self._file.close()


class ProcessFiles:
    """The `Files` of one process."""

    def __init__(self, process: LoopProcess, files: MachineFiles, times: DiskTimes) -> None:
        self.process = process
        self.times = times
        self._files = files

    def check_alive(self) -> None:
        """Raises: OSError where the process was killed: what remains of it changes nothing."""
        if self.process.is_dead:
            raise OSError(errno.EBADF, "the process was killed")

    def enter(self, what: str, path: str, *, writes: int = 0) -> None:
        """A call that may wait for the disk begins. Raises: OSError."""
        if self.process.is_dead:
            self.check_alive()
        loop = self.process.loop
        if getcurrent() is loop.hub:
            text = f"{self.process.name}: {what} {path} on the event loop"
            loop.report("asyncio never waits for a disk", text, with_stack=True)
        times = self.times
        if times.is_stalled:
            times.wait_answer()
        if times.errors:
            times.fail_sometimes(path)
        if writes > times.free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> ProcessFile:
        self.enter("open", path)
        return ProcessFile(self, self._files.open(path, create=create, write=write))

    def read_bytes(self, path: str) -> bytes:
        self.enter("read", path)
        if path == BOOT_ID_PATH:
            return b"boot-%d\n" % self.process.machine.boots
        return self._files.read_bytes(path)

    def size(self, path: str) -> int:
        self.enter("size", path)
        return self._files.size(path)

    def exists(self, path: str) -> bool:
        self.enter("exists", path)
        return self._files.exists(path)

    def room(self, path: str) -> tuple[int, int]:
        self.check_alive()
        return self.times.free_bytes, FREE_BYTES

    def list_dir(self, path: str) -> list[str]:
        self.enter("list", path)
        return self._files.list_dir(path)

    def make_dirs(self, path: str) -> None:
        self.enter("make", path)
        self._files.make_dirs(path)

    def remove(self, path: str) -> None:
        self.enter("remove", path)
        self._files.remove(path)

    def remove_tree(self, path: str) -> None:
        self.enter("remove", path)
        self._files.remove_tree(path)

    def rename(self, source: str, target: str) -> None:
        self.enter("rename", source)
        self.times.rename(source)
        self._files.rename(source, target)

    def sync_dir(self, path: str) -> None:
        self.enter("sync", path)
        self.times.wait_sync()
        self.check_alive()
        self._files.sync_dir(path)


class ProcessStore:
    """A Raft store, as one process has it open: what makes writes durable takes virtual time."""

    def __init__(self, process: LoopProcess, store: MemoryStore, times: DiskTimes) -> None:
        self._process = process
        self._store = store
        self._times = times

    def _call(self, function: Callable[..., T], *args: Any, waits: bool = False) -> T:
        if not self._process.loop.is_in_thread:
            text = f"{self._process.name}: {function.__name__} of the Raft store on the event loop"
            self._process.loop.report("asyncio never waits for a disk", text, with_stack=True)
        if waits:
            self._times.wait_sync()
        if self._process.is_dead:
            raise OSError(errno.EBADF, "the process was killed")
        return function(*args)

    def load(self) -> PersistentState:
        return self._call(self._store.load)

    def bootstrap(self, members: Members) -> None:
        self._call(self._store.bootstrap, members, waits=True)

    def persist_term(self, term: int, voted_for: int) -> None:
        self._call(self._store.persist_term, term, voted_for, waits=True)

    def buffer_term(self, term: int, voted_for: int) -> None:
        self._call(self._store.buffer_term, term, voted_for)

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        self._call(self._store.persist_entries, entries)

    def truncate_from(self, index: int) -> None:
        self._call(self._store.truncate_from, index)

    def persist_chunk(self, chunk: Chunk) -> None:
        self._call(self._store.persist_chunk, chunk)

    def truncate_until(self, index: int) -> None:
        self._call(self._store.truncate_until, index)

    def delete_chunks(self, index: int, count: int) -> None:
        self._call(self._store.delete_chunks, index, count)

    def flush(self) -> None:
        self._call(self._store.flush, waits=True)

    def close(self) -> None:
        self._call(self._store.close)


class RaftDirectory:
    """In place of `raft_driver.data_directory.DataDirectory`, whose database needs real files."""

    def __init__(self, path: str, *, node_id: int, known: KnownCommits) -> None:
        self._process = process_now()
        known.check(f"{path}/{DATABASE_NAME}", self.commits)

    @property
    def commits(self) -> int:
        """Of all stores of the machine."""
        found: int = self._process.machine.raft_commits()
        return found

    def store(self, group: int) -> ProcessStore:
        machine = self._process.machine
        return ProcessStore(self._process, machine.raft_store(group), machine.times)

    def statistics(self) -> None:
        """There is no database."""

    def close(self) -> None:
        """Nothing is open."""


def open_again(stores: dict[int, MemoryStore], random: Random) -> None:
    """Another process opens the stores: what the one before had buffered is lost or kept."""
    for number in sorted(stores):
        stores[number].crash(random)
