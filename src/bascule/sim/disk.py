"""`SimFiles`: a file system in memory that crashes. Synced data survives, other data at random.

It is modelled on Pebble's crashable file system. For every 4 KiB page written since the last sync
of its file, a crash keeps the new page, the old page, or the old page with the first sectors of the
new one. It also keeps a random part of a change of size, and random ones of the unsynced creations,
renames and removals in a directory. A lost page below the kept size reads as zeros.

A failed sync behaves as on Linux: some pages are written, no page is dirty afterwards, and the next
sync succeeds without writing the others.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, Final, NoReturn, ParamSpec, TypeAlias, TypeVar

from bascule.host.api import Buffer, Random

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
SHORT: Final = -1
"""In place of an errno: an append writes a part of its bytes and then reports ENOSPC."""


@dataclass(slots=True, eq=False)
class Inode:
    """The bytes of a file in memory and on disk."""

    data: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    """Pages written since the last sync."""
    flights: list[SyncInFlight] = field(default_factory=list)
    """Syncs that have begun."""

    def touch(self, start: int, end: int) -> None:
        first, last = start // PAGE_BYTES, (max(end, start + 1) - 1) // PAGE_BYTES
        if first == last:
            self.dirty.add(first)
        else:
            self.dirty.update(range(first, last + 1))

    def put(self, position: int, data: bytes) -> None:
        held = self.data
        if position == len(held):
            held += data
        else:
            held.extend(bytes(max(position - len(held), 0)))
            held[position : position + len(data)] = data
        if data:
            self.touch(position, position + len(data))

    def write_back(self) -> None:
        """Write all dirty pages and the size to disk.

        Another thread may append meanwhile. What it has appended is dirty afterwards, or on disk.
        """
        pages = list(self.dirty)
        self.dirty.difference_update(pages)
        if len(self.disk) > len(self.data):
            del self.disk[len(self.data) :]
        self.disk.extend(bytes(len(self.data) - len(self.disk)))
        for page in pages:
            part = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
            self.disk[part] = self.data[part]

    def begin_sync(self) -> SyncInFlight:
        """Begin to write what is dirty now; it is dirty again if the sync does not finish."""
        pages = self.dirty.union(*(each.pages for each in self.flights))
        flight = SyncInFlight(pages, len(self.data))
        self.dirty = set()
        self.flights.append(flight)
        return flight

    def finish_sync(self, flight: SyncInFlight) -> None:
        """What was dirty at the beginning is on disk. What was appended meanwhile is not."""
        self.flights.remove(flight)
        data, disk = self.data, self.disk
        size = min(flight.size, len(data))
        if len(disk) > len(data):
            del disk[len(data) :]
        if size > len(disk):
            disk.extend(bytes(size - len(disk)))
        for page in flight.pages:
            start = page * PAGE_BYTES
            end = min(start + PAGE_BYTES, size)
            if end > start:
                disk[start:end] = data[start:end]

    def break_syncs(self) -> None:
        """The syncs that have begun will not finish."""
        for flight in self.flights:
            self.dirty |= flight.pages
        self.flights.clear()

    def write_back_randomly(self, choices: RandomChoices) -> None:
        """Write random parts of the dirty pages to disk; nothing is dirty afterwards."""
        self.break_syncs()
        size = self._random_size(choices)
        del self.disk[size:]
        self.disk.extend(bytes(size - len(self.disk)))
        for page in sorted(self.dirty):
            start = page * PAGE_BYTES
            new = self.data[start : start + PAGE_BYTES]
            kept = choices.pick(
                (len(new), 0, choices.below(PAGE_BYTES // SECTOR_BYTES) * SECTOR_BYTES)
            )
            end = min(start + min(kept, len(new)), size)
            if end > start:
                self.disk[start:end] = new[: end - start]
        self.dirty.clear()

    def _random_size(self, choices: RandomChoices) -> int:
        low, high = sorted((len(self.disk), len(self.data)))
        inside = low + choices.below(high - low + 1)
        at_page = min(max(-(-inside // PAGE_BYTES) * PAGE_BYTES, low), high)
        return choices.pick((len(self.disk), len(self.data), inside, at_page))


@dataclass(slots=True, eq=False)
class SyncInFlight:
    """A sync that takes time."""

    pages: set[int]
    size: int
    """Of the file when the sync began."""


NameChange: TypeAlias = "Callable[[dict[str, Inode | Directory]], None]"


@dataclass
class CrashOutcome:
    """Whether a change of names survives a crash. The two parts of a move between directories share
    one outcome: a journal makes the move atomic."""

    survives: bool | None = None
    """None until a sync or a crash decides."""


@dataclass(slots=True, eq=False)
class Directory:
    """The names in memory and on disk, and the changes since the last sync."""

    names: dict[str, Inode | Directory] = field(default_factory=dict)
    disk: dict[str, Inode | Directory] = field(default_factory=dict)
    changes: list[tuple[NameChange, CrashOutcome]] = field(default_factory=list)

    def change(self, change: NameChange, outcome: CrashOutcome | None = None) -> None:
        change(self.names)
        self.changes.append((change, outcome or CrashOutcome()))

    def write_back(self) -> None:
        self.disk = dict(self.names)
        for _, outcome in self.changes:
            outcome.survives = True
        self.changes.clear()


class RandomChoices:
    """Random choices from a `Random`."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def below(self, limit: int) -> int:
        return min(int(self._random.uniform(0, limit)), limit - 1) if limit > 1 else 0

    def pick(self, choices: tuple[int, ...]) -> int:
        return choices[self.below(len(choices))]

    def happens(self) -> bool:
        return self._random.uniform(0, 1) < 0.5


class SimFile:
    """A file of `SimFiles`. It is unusable after a crash.

    As `host.api.File` promises, other threads may read and sync while one appends.
    """

    def __init__(self, files: SimFiles, path: str, inode: Inode, *, write: bool) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._write = write
        self._boots = files.boots

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "a file in memory has no descriptor", self._path)

    def append(self, *data: Buffer) -> None:
        joined = b"".join(data) if len(data) != 1 else bytes(data[0])
        with self._files.lock:
            position = len(self._inode.data)
            self._put("append", position, joined)

    def write_at(self, position: int, data: Buffer) -> None:
        with self._files.lock:
            self._put("write", position, bytes(data))

    def _put(self, what: str, position: int, data: bytes) -> None:
        try:
            self._begin(what, " {} at {}", len(data), position, changes=True)
        except ShortWrite as error:
            self._inode.put(position, data[: self._files.choices.below(len(data) + 1)])
            raise OSError(errno.ENOSPC, "no space left on device", self._path) from error
        self._inode.put(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        self._begin("read", " {} at {}", length, position)
        return self._read(position, length)

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        self._begin("read-nowait", " {} at {}", length, position)
        return None if self._files.cold else self._read(position, length)

    def is_cached(self, start: int, end: int) -> bool:
        return end <= len(self._inode.data) and not self._files.cold

    def load(self, start: int, end: int) -> None:
        self._begin("load", " {} at {}", end - start, start)

    def _read(self, position: int, length: int) -> bytes:
        if position < 0:
            raise OSError(errno.EINVAL, "negative position", self._path)
        with memoryview(self._inode.data) as data:
            return bytes(data[position : position + length])

    def size(self) -> int:
        self._begin("size")
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        with self._files.lock:
            self._begin("truncate", " to {}", size, changes=True)
            data = self._inode.data
            if size < len(data):
                del data[size:]
                self._inode.touch(size, size + 1)
            elif size > len(data):
                self._inode.touch(len(data), size)
                data.extend(bytes(size - len(data)))

    def sync(self) -> None:
        with self._files.lock:
            try:
                self._begin("sync")
            except OSError:
                if self._boots == self._files.boots:
                    self._inode.write_back_randomly(self._files.choices)
                raise
            self._inode.write_back()

    def begin_sync(self) -> SyncInFlight:
        """Begin a sync that takes time; see `Inode`."""
        with self._files.lock:
            self._begin("begin-sync")
            return self._inode.begin_sync()

    def finish_sync(self, flight: SyncInFlight) -> None:
        """The sync has ended. Raises: OSError after a crash."""
        with self._files.lock:
            self._begin("finish-sync")
            self._inode.finish_sync(flight)

    def write_back(self, start: int, end: int) -> None:
        """The pages may be on the disk after a crash, as they may be without it."""
        with self._files.lock:
            self._begin(f"write-back {{}} {start} to {end}")

    def write_again(self, position: int, length: int) -> None:
        with self._files.lock:
            self._begin("write-again", " {} at {}", length, position, changes=True)
            end = min(position + length, len(self._inode.data))
            if end > position:
                self._inode.touch(position, end)

    def close(self) -> None:
        self._boots = -1

    def _begin(self, what: str, rest: str = "", *numbers: int, changes: bool = False) -> None:
        if self._boots != self._files.boots:
            raise OSError(errno.EBADF, "bad file descriptor", self._path)
        if changes and not self._write:
            raise OSError(errno.EBADF, "opened for reading", self._path)
        if self._files.has_operations:
            self._files.begin(what, self._path, rest, *numbers)


class ShortWrite(OSError):
    """An append has to be cut short; not raised outside this module."""


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _exclusive(
    method: Callable[Concatenate[SimFiles, _P], _T],
) -> Callable[Concatenate[SimFiles, _P], _T]:
    """Hold the lock of the files during the method."""

    @wraps(method)
    def call(self: SimFiles, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self.lock:
            return method(self, *args, **kwargs)

    return call


class SimFiles:
    """A file system in memory, with faults on request and a log of its operations."""

    has_operations = True
    """Whether operations on open files are logged, and fail on request."""

    def __init__(self, random: Random) -> None:
        self.choices = RandomChoices(random)
        self.lock = threading.RLock()
        """Held by each operation, so that several threads may use the files."""
        self.root = Directory()
        self.boots = 0
        self.cold = False
        """Whether the page cache is empty, so that reads without waiting return nothing."""
        self.operations: list[str] = []
        """All operations in order, with the last part of their paths."""
        self._faults: dict[int, int] = {}

    def fail(self, operation: int, error: int) -> None:
        """Make operation number `operation` from now (1 is the next) fail with errno `error`.

        With `SHORT`, an append is cut short; any other operation reports ENOSPC.
        """
        self._faults[len(self.operations) + operation] = error

    def fault_pending(self) -> bool:
        """Whether a requested fault has not happened yet."""
        return bool(self._faults)

    def forget_faults(self) -> None:
        self._faults.clear()

    @_exclusive
    def begin(self, what: str, path: str, rest: str = "", *fields: object) -> None:
        """Log one operation, and fail if its number is due. `rest` goes behind the path, with
        `fields` in it."""
        name = path.rpartition("/")[2] or "/"
        self.operations.append(f"{what} {name}{rest.format(*fields)}")
        error = self._faults.pop(len(self.operations), None)
        if error is None:
            return
        self.operations[-1] += f" -> {errno.errorcode[error] if error > 0 else 'short'}"
        if error == SHORT:
            raise ShortWrite(errno.ENOSPC, "no space left on device", path)
        raise OSError(error, errno.errorcode[error], path)

    @_exclusive
    def crash(self) -> None:
        """Lose power: keep synced data and random parts of the rest."""
        self.boots += 1
        self._faults.clear()
        self._crash(self.root, set())

    def _crash(self, directory: Directory, seen: set[Inode]) -> None:
        names = dict(directory.disk)
        for change, outcome in directory.changes:
            if outcome.survives is None:
                outcome.survives = self.choices.happens()
            if outcome.survives:
                change(names)
        directory.names = names
        directory.write_back()
        for entry in names.values():
            if isinstance(entry, Directory):
                self._crash(entry, seen)
            elif entry not in seen:
                seen.add(entry)
                entry.write_back_randomly(self.choices)
                entry.data = bytearray(entry.disk)

    @_exclusive
    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimFile:
        directory, name = self._parent(path)
        entry = directory.names.get(name)
        missing = create and entry is None
        self.begin("create" if missing else "open", path)
        if missing:
            entry = Inode()
            _link(directory, name, entry)
        if entry is None:
            _missing(path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return SimFile(self, path, entry, write=write)

    @_exclusive
    def read_bytes(self, path: str) -> bytes:
        self.begin("read", path)
        return bytes(self._inode(path).data)

    @_exclusive
    def size(self, path: str) -> int:
        self.begin("size", path)
        return len(self._inode(path).data)

    def room(self, path: str) -> tuple[int, int]:
        """Without an end: full disks are drawn as faults."""
        return 1 << 40, 1 << 40

    @_exclusive
    def exists(self, path: str) -> bool:
        self.begin("exists", path)
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in directory.names

    @_exclusive
    def list_dir(self, path: str) -> list[str]:
        self.begin("list", path)
        return sorted(self._directory(path).names)

    @_exclusive
    def make_dirs(self, path: str) -> None:
        directory = self.root
        walked = ""
        for name in path.strip("/").split("/"):
            walked += f"/{name}"
            entry = directory.names.get(name)
            if entry is None:
                self.begin("mkdir", walked)
                entry = Directory()
                _link(directory, name, entry)
                self.begin("sync-dir", walked.rpartition("/")[0])
                directory.write_back()
            if not isinstance(entry, Directory):
                raise FileExistsError(errno.EEXIST, "not a directory", walked)
            directory = entry

    @_exclusive
    def remove(self, path: str) -> None:
        self.begin("remove", path)
        directory, name = self._parent(path)
        if isinstance(directory.names.get(name), Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if name not in directory.names:
            _missing(path)
        directory.change(lambda names: _drop(names, name))

    @_exclusive
    def remove_tree(self, path: str) -> None:
        self.begin("remove-tree", path)
        self._directory(path)
        directory, name = self._parent(path)
        directory.change(lambda names: _drop(names, name))

    @_exclusive
    def rename(self, source: str, target: str) -> None:
        self.begin("rename", source, " to {}", target.rpartition("/")[2])
        directory, name = self._parent(source)
        other, new_name = self._parent(target)
        entry = directory.names.get(name)
        if entry is None:
            _missing(source)
        if directory is other:
            directory.change(lambda names: _move(names, name, new_name))
            return
        outcome = CrashOutcome()
        directory.change(lambda names: _drop(names, name), outcome)
        other.change(lambda names: names.update({new_name: entry}), outcome)

    @_exclusive
    def sync_dir(self, path: str) -> None:
        self.begin("sync-dir", path)
        self._directory(path).write_back()

    def _directory(self, path: str) -> Directory:
        directory = self.root
        for name in path.split("/"):
            entry = directory.names.get(name) if name else directory
            if entry is None:
                _missing(path)
            if not isinstance(entry, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            directory = entry
        return directory

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _inode(self, path: str) -> Inode:
        directory, name = self._parent(path)
        entry = directory.names.get(name)
        if entry is None:
            _missing(path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return entry


def _missing(path: str) -> NoReturn:
    raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)


def _link(directory: Directory, name: str, entry: Inode | Directory) -> None:
    directory.change(lambda names: names.update({name: entry}))


def _drop(names: dict[str, Inode | Directory], name: str) -> None:
    names.pop(name, None)


def _move(names: dict[str, Inode | Directory], name: str, new_name: str) -> None:
    """Rename an entry. If the crash lost the source, the target is unchanged."""
    if name in names:
        names[new_name] = names.pop(name)


class SimClock:
    """A clock that moves only when it is set."""

    def __init__(self, now_ms: int = 0) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000
