"""`LocalReplica`: a copy of a table on this machine, which reads and writes offline."""

# Timeouts bound a wait of the caller.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple

from bascule.client.admin import Admin, server_url
from bascule.client.tables.replica.conflicts import (
    Conflicts,
    LocalWrite,
    checked_value,
    resolver_of,
)
from bascule.client.tables.replica.copy_rows import (
    CopyState,
    RefusedWrite,
    ReplicaEntry,
    ReplicaValues,
)
from bascule.client.tables.replica.follower import ReplicaFollower
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.client.tables.replica.rescue import begin_anew, finish_begun, is_begun
from bascule.client.tables.replica.watching import watch_copy
from bascule.client.tables.watch import watched_keys
from bascule.errors import (
    Closed,
    ConfigError,
    CopyDamaged,
    Indeterminate,
    LogFailed,
    NotATable,
    UnknownStream,
)
from bascule.host.real import DirectoryLock, RealClock, RealRandom
from bascule.table_results import TableChange
from bascule.wire.tables.keys import check_key, prefix_end
from bascule.wire.tables.patterns import KeyPattern, is_pattern

Key = bytes | str

FILE_NAME: Final = "table.db"
REQUEST_TIMEOUT_S: Final = 10.0
WAIT_TIMEOUT_S: Final = 60.0
SCANNED_AT_ONCE: Final = 1_000
ID_BYTES: Final = 8
POLL_SECONDS: Final = 0.2
"""A watcher looks so often for what another process has applied."""
IDLE_SECONDS: Final = 1.0
"""A watcher notices within it that the copy was closed."""


class ReplicaStatus(NamedTuple):
    """How far a copy of a table is."""

    table: str
    is_connected: bool
    is_current: bool
    """Whether it has everything that was committed, as far as the node knew a moment ago."""
    is_whole: bool
    """Whether it has all keys; not before all of the first pages have come."""
    position: int
    """The first offset that the copy does not have."""
    high_watermark: int
    """What was committed below it when the last page was sent."""
    keys_expected: int
    """About how many keys the table had when all of them began to come."""
    received: int
    """Keys that have come since it was opened; one may come several times."""
    pending: int
    """Writes that were made here and are to be offered."""
    refused: int
    """Writes that the cluster has not taken."""
    trouble: str | None
    """Why it is not connected, or why writes are not taken now."""


class LocalReplica:
    """A copy of a table in a directory of this machine. Made by `bascule.open_replica`.

    It is read without the cluster. While a node can be reached it follows the table: it gets the
    last state of each key that has changed, and offers the writes that were made here, each under
    the condition that the key is as it was here.
    """

    def __init__(
        self,
        table: str,
        directory: str | Path,
        server: str | None = None,
        *,
        follow: bool = True,
        conflicts: Conflicts = "reject",
        on_refused: Callable[[RefusedWrite], None] | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        anew: bool = False,
    ) -> None:
        """`server` as for `bascule.connect`. With `follow=False` the copy is read and written as it
        is, also while another process follows. For `anew` see `open_replica`. Raises: ConfigError.
        """
        if anew and not follow:
            raise ConfigError("a copy begins anew only where it follows: leave out follow=False")
        self._anew = anew
        self.table = table
        self._directory = Path(directory)
        self._server = server_url(server)
        self._follow = follow
        self._resolver = resolver_of(conflicts)
        self._on_refused = on_refused
        self._timeout = timeout
        self._clock = RealClock()
        self._lock: DirectoryLock | None = None
        self._file: ReplicaFile | None = None
        self._admin: Admin | None = None
        self._follower: ReplicaFollower | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> LocalReplica:
        """Raises: DataDirectoryInUse if another process follows there; CopyDamaged, LogFailed."""
        try:
            await asyncio.to_thread(self._open_file)
            if self._follow:
                assert self._file is not None
                self._admin = Admin(self._server, timeout=self._timeout)
                self._follower = ReplicaFollower(
                    self.table, self._file, self._admin,
                    resolver=self._resolver, on_refused=self._on_refused,
                )  # fmt: skip
                self._task = asyncio.create_task(self._follower.run(), name="follow table")
        except BaseException:
            await self.close()
            raise
        return self

    def _open_file(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._follow:
            self._lock = DirectoryLock(str(self._directory))
        id = RealRandom().bytes(ID_BYTES).hex()
        path = self._directory / FILE_NAME
        if self._anew:
            begin_anew(path, self.table, id)
        elif self._follow:
            finish_begun(path)
        elif is_begun(path):
            raise LogFailed(str(path), "it was being begun anew: open it once with follow=True")
        self._file = ReplicaFile(path, self.table, id, follows=self._follow)

    async def close(self) -> None:
        """Writes that are not taken yet stay in the directory. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._admin is not None:
            await self._admin.close()
        file, lock = self._file, self._lock
        self._task = self._admin = self._file = self._lock = None
        if file is not None:
            await asyncio.to_thread(file.close)
        if lock is not None:
            lock.release()

    async def __aenter__(self) -> LocalReplica:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Reading

    async def get(self, key: Key) -> ReplicaEntry | None:
        """The value of a key as it is here, with what was written here. Raises: InvalidKey."""
        name = _bytes(key)
        check_key(name)
        return await asyncio.to_thread(self._opened().get, name)

    async def get_many(self, keys: Iterable[Key]) -> ReplicaValues:
        """The values of several keys, all of one state of the copy. Raises: InvalidKey."""
        names = [_bytes(key) for key in keys]
        for name in names:
            check_key(name)
        return await asyncio.to_thread(self._opened().get_many, names)

    async def keys(
        self, pattern: Key = b"", *, prefix: Key | None = None
    ) -> AsyncGenerator[bytes, None]:
        """All keys that match, in the order of their bytes; see `TableClient.keys`."""
        async for entry in self.entries(pattern, prefix=prefix):
            yield entry.key

    async def entries(
        self, pattern: Key = b"", *, prefix: Key | None = None
    ) -> AsyncGenerator[ReplicaEntry, None]:
        """As `keys`, with the values. Raises: InvalidPattern."""
        text = _bytes(pattern)
        wanted = KeyPattern(text) if prefix is None and is_pattern(text) else None
        first = _bytes(prefix) if prefix is not None else text
        first = first if wanted is None else wanted.prefix
        async for entry in self.range(first, prefix_end(first)):
            if wanted is None or wanted.matches(entry.key):
                yield entry

    async def range(
        self, first: Key = b"", end: Key | None = None, limit: int | None = None
    ) -> AsyncGenerator[ReplicaEntry, None]:
        """The entries with keys from `first` on and below `end`, at most `limit`, by key."""
        at, below, left = _bytes(first), None if end is None else _bytes(end), limit
        while left is None or left > 0:
            some = SCANNED_AT_ONCE if left is None else min(left, SCANNED_AT_ONCE)
            found = await asyncio.to_thread(self._opened().scan, at, below, some)
            for entry in found:
                yield entry
            if len(found) < some:
                return
            at = found[-1].key + b"\0"
            left = None if left is None else left - len(found)

    def watch(
        self,
        pattern: Key = ">",
        *,
        key: Key | None = None,
        start: Literal["now", "state"] = "now",
        on_current: Callable[[int], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> AsyncGenerator[TableChange, None]:
        """The changes of the keys that match, as they come to the copy, without end; see
        `TableClient.watch`. It works offline, and whichever process follows the table.

        A change is one of the table: what was written here is seen once the table has taken it,
        with its version. A watcher begins once the copy has all keys. With `start="state"` the
        present values come first, by key; what changes meanwhile comes between. Changes have no
        position: a watcher does not go on where another one has ended.

        `on_restart` is called where it is not known what has changed: the copy got all keys again,
        or the watcher was too slow for `recent_changes.CHANGES_BYTES_MAX` of keys. The present
        values follow, and what is not among them was removed.

        Raises: InvalidPattern, InvalidKey, ConfigError; CopyDamaged; LogFailed where the copy was
        begun anew by another process.
        """
        return watch_copy(
            self._opened, self._advances(), watched_keys(pattern, key),
            start=start, on_current=on_current, on_restart=on_restart,
        )  # fmt: skip

    def _advances(self) -> Callable[[], Awaitable[None]]:
        """A wait until the file may have changed since it returned last. Raises: CopyDamaged."""
        seen = -1

        async def wait() -> None:
            nonlocal seen
            self._check()
            follower = self._follower
            if follower is None:
                await asyncio.sleep(POLL_SECONDS)
                return
            await follower.wait(lambda: follower.advances != seen, IDLE_SECONDS)
            seen = follower.advances

        return wait

    # Writing

    async def set(self, key: Key, value: bytes, *, content_type: str | None = None) -> None:
        """Set the value of a key here; it is kept across crashes, and offered to the cluster.

        Raises: InvalidKey, LogFailed; TypeError for a value that is no bytes; ConfigError for a
        content type that is not 1 to 255 printable ASCII characters.
        """
        await self._queue(_bytes(key), value, content_type)

    async def remove(self, key: Key) -> None:
        """Remove a key here, as `set`."""
        await self._queue(_bytes(key), None, None)

    async def _queue(self, key: bytes, value: bytes | None, content_type: str | None) -> None:
        check_key(key)
        value = checked_value(value, content_type)
        write = LocalWrite(key, value, self._clock.now_ms(), content_type)
        await asyncio.to_thread(self._opened().queue, write)
        if self._follower is not None:
            self._follower.offers.set()

    async def flush(self, timeout: float = WAIT_TIMEOUT_S) -> None:
        """Return once each write that was made here is taken or refused, and the copy has what
        others have written before it.

        Raises: Indeterminate after `timeout` seconds; the writes are still offered then.
        """
        file, loop = self._opened(), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if self._follower is not None:
            self._follower.offers.set()
        while left := await asyncio.to_thread(file.count_pending):
            self._check()
            if self._follower is None or loop.time() > deadline:
                raise Indeterminate(
                    f"{left} writes on the copy of {self.table} are not taken yet{self._why()}"
                )
            await self.wait_changed(min(1.0, max(deadline - loop.time(), 0.01)))
        if (follower := self._follower) is not None:
            left_s = max(deadline - loop.time(), 0.01)
            await self._wait_position(lambda: follower.settled, left_s)

    async def refused(self, limit: int = 100) -> list[RefusedWrite]:
        """The latest writes that the cluster has not taken, the newest first."""
        return await asyncio.to_thread(self._opened().refused, limit)

    async def forget_refused(self, number: int) -> None:
        """Forget refused writes up to a number."""
        await asyncio.to_thread(self._opened().forget_refused, number)

    # Following

    async def wait_current(self, timeout: float = WAIT_TIMEOUT_S) -> None:
        """Return once the copy has everything that was committed when it was connected.

        Raises: Indeterminate after `timeout` seconds; UnknownStream, NotATable, CopyDamaged.
        """
        follower = self._follower

        def is_settled() -> bool:
            assert follower is not None
            return follower.is_current or isinstance(
                follower.failure, UnknownStream | NotATable | CopyDamaged
            )

        if follower is None or not await follower.wait(is_settled, timeout):
            raise Indeterminate(f"the copy of {self.table} has not caught up{self._why()}")
        if not follower.is_current:
            assert follower.failure is not None
            raise follower.failure

    async def wait_position(self, position: int, timeout: float = WAIT_TIMEOUT_S) -> None:
        """Return once the copy has everything below an offset.

        Raises: Indeterminate after `timeout` seconds.
        """
        await self._wait_position(lambda: position, timeout)

    async def _wait_position(self, position: Callable[[], int], timeout: float) -> None:
        """As `wait_position`; where the table is made anew, the position may be another one."""
        follower = self._follower
        reached = follower is not None and await follower.wait(
            lambda: follower.state.position >= position() or follower.has_ended, timeout
        )
        self._check()
        if not reached:
            raise Indeterminate(
                f"the copy of {self.table} has not reached offset {position()}{self._why()}"
            )

    async def wait_changed(self, timeout: float = WAIT_TIMEOUT_S) -> None:
        """Return when the status has changed, or after `timeout` seconds. Raises: CopyDamaged."""
        self._check()
        if self._follower is None:
            await asyncio.sleep(timeout)
            return
        try:
            async with asyncio.timeout(timeout), self._follower.advanced:
                await self._follower.advanced.wait()
        except TimeoutError:
            pass

    async def status(self) -> ReplicaStatus:
        """How far the copy is."""
        file, follower = self._opened(), self._follower
        failure = None if follower is None else follower.failure
        state: CopyState = await asyncio.to_thread(file.state)
        return ReplicaStatus(
            table=self.table,
            is_connected=follower is not None and follower.is_connected,
            is_current=follower is not None and follower.is_current,
            is_whole=state.is_whole,
            position=state.position,
            high_watermark=state.high_watermark,
            keys_expected=state.keys,
            received=0 if follower is None else follower.received,
            pending=await asyncio.to_thread(file.count_pending),
            refused=await asyncio.to_thread(file.count_refused),
            trouble=None if failure is None else str(failure),
        )

    async def verify(self) -> int:
        """Read all of the copy, and compare all checksums; return how many rows it has.

        Reads compare those of what they return. Raises: CopyDamaged.
        """
        return await asyncio.to_thread(self._opened().verify)

    async def count(self) -> int:
        """How many keys the copy has, without what was written here; reads all keys."""
        return await asyncio.to_thread(self._opened().count)

    def _check(self) -> None:
        """Raises: CopyDamaged if following has ended for that."""
        if self._follower is not None and self._follower.has_ended:
            assert self._follower.failure is not None
            raise self._follower.failure

    def _why(self) -> str:
        if self._follower is None:
            return ": it does not follow"
        return "" if self._follower.failure is None else f": {self._follower.failure}"

    def _opened(self) -> ReplicaFile:
        if self._file is None:
            raise Closed("the copy of the table is closed")
        return self._file


def open_replica(
    table: str,
    directory: str | Path,
    server: str | None = None,
    *,
    follow: bool = True,
    conflicts: Conflicts = "reject",
    on_refused: Callable[[RefusedWrite], None] | None = None,
    timeout: float = REQUEST_TIMEOUT_S,
    anew: bool = False,
) -> LocalReplica:
    """A copy of a table in a directory: `async with bascule.open_replica("prices", "prices") as
    replica: ...`. It opens without the cluster, too.

    `server` as for `connect`. `conflicts` says what becomes of a write that was made here when
    others have changed the key meanwhile: "reject" refuses it, "newer" takes the one with the later
    time, and a function gets a `Conflict` and returns what is to be written, or None. A write that
    is refused is handed to `on_refused`, and kept for `refused()`. With `follow=False` the copy is
    read and written as it is, also while another process follows. With `anew` the copy drops what
    it has of the table and gets all keys again, as is needed after `CopyDamaged`. Writes that were
    made on it are kept as far as they can be read, and the files of before are, too.

    Raises: ConfigError.
    """
    return LocalReplica(
        table, directory, server,
        follow=follow, conflicts=conflicts, on_refused=on_refused, timeout=timeout, anew=anew,
    )  # fmt: skip


def _bytes(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else key
