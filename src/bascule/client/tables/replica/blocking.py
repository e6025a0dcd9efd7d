"""`SyncLocalReplica`: the blocking face of `LocalReplica`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from bascule.client.loop_thread import LoopThread, iterate
from bascule.client.tables.replica.conflicts import Conflicts
from bascule.client.tables.replica.copy_rows import RefusedWrite, ReplicaEntry, ReplicaValues
from bascule.client.tables.replica.local_replica import (
    REQUEST_TIMEOUT_S,
    WAIT_TIMEOUT_S,
    Key,
    LocalReplica,
    ReplicaStatus,
)
from bascule.table_results import TableChange

SCANNED_AT_ONCE: Final = 500
"""Items of a scan. Each change to the other thread costs some 50 us."""


class SyncLocalReplica:
    """See `LocalReplica`. Thread-safe; functions handed in are called on another thread."""

    def __init__(self, replica: Callable[[], LocalReplica]) -> None:
        """Raises: as `LocalReplica.open`."""
        self._loop = LoopThread("bascule-replica")
        self._run = self._loop.run

        async def start() -> LocalReplica:
            return await replica().open()

        try:
            self._replica = self._run(start())
        except BaseException:
            self._loop.stop()
            raise
        self.table = self._replica.table

    def close(self) -> None:
        """See `LocalReplica.close`."""
        if not self._loop.is_stopped:
            try:
                self._run(self._replica.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> SyncLocalReplica:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, key: Key) -> ReplicaEntry | None:
        """See `LocalReplica.get`."""
        return self._run(self._replica.get(key))

    def get_many(self, keys: Iterable[Key]) -> ReplicaValues:
        """See `LocalReplica.get_many`."""
        return self._run(self._replica.get_many(keys))

    def keys(self, pattern: Key = b"", *, prefix: Key | None = None) -> Iterator[bytes]:
        """See `LocalReplica.keys`."""
        return iterate(self._run, self._replica.keys(pattern, prefix=prefix), SCANNED_AT_ONCE)

    def entries(self, pattern: Key = b"", *, prefix: Key | None = None) -> Iterator[ReplicaEntry]:
        """See `LocalReplica.entries`."""
        return iterate(self._run, self._replica.entries(pattern, prefix=prefix), SCANNED_AT_ONCE)

    def range(
        self, first: Key = b"", end: Key | None = None, limit: int | None = None
    ) -> Iterator[ReplicaEntry]:
        """See `LocalReplica.range`."""
        return iterate(self._run, self._replica.range(first, end, limit), SCANNED_AT_ONCE)

    def watch(
        self,
        pattern: Key = ">",
        *,
        key: Key | None = None,
        start: Literal["now", "state"] = "now",
        on_current: Callable[[int], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> Generator[TableChange, None, None]:
        """See `LocalReplica.watch`. Waits for each change; `close` it to stop."""
        found = self._replica.watch(
            pattern, key=key, start=start, on_current=on_current, on_restart=on_restart
        )
        return iterate(self._run, found)

    def set(self, key: Key, value: bytes, *, content_type: str | None = None) -> None:
        """See `LocalReplica.set`."""
        self._run(self._replica.set(key, value, content_type=content_type))

    def remove(self, key: Key) -> None:
        """See `LocalReplica.remove`."""
        self._run(self._replica.remove(key))

    def flush(self, timeout: float = WAIT_TIMEOUT_S) -> None:
        """See `LocalReplica.flush`."""
        self._run(self._replica.flush(timeout))

    def refused(self, limit: int = 100) -> list[RefusedWrite]:
        """See `LocalReplica.refused`."""
        return self._run(self._replica.refused(limit))

    def forget_refused(self, number: int) -> None:
        """See `LocalReplica.forget_refused`."""
        self._run(self._replica.forget_refused(number))

    def wait_current(self, timeout: float = WAIT_TIMEOUT_S) -> None:
        """See `LocalReplica.wait_current`."""
        self._run(self._replica.wait_current(timeout))

    def wait_position(self, position: int, timeout: float = WAIT_TIMEOUT_S) -> None:
        """See `LocalReplica.wait_position`."""
        self._run(self._replica.wait_position(position, timeout))

    def wait_changed(self, timeout: float = WAIT_TIMEOUT_S) -> None:
        """See `LocalReplica.wait_changed`."""
        self._run(self._replica.wait_changed(timeout))

    def status(self) -> ReplicaStatus:
        """See `LocalReplica.status`."""
        return self._run(self._replica.status())

    def verify(self) -> int:
        """See `LocalReplica.verify`."""
        return self._run(self._replica.verify())

    def count(self) -> int:
        """See `LocalReplica.count`."""
        return self._run(self._replica.count())


def open_replica_sync(
    table: str,
    directory: str | Path,
    server: str | None = None,
    *,
    follow: bool = True,
    conflicts: Conflicts = "reject",
    on_refused: Callable[[RefusedWrite], None] | None = None,
    timeout: float = REQUEST_TIMEOUT_S,
    anew: bool = False,
) -> SyncLocalReplica:
    """See `open_replica`: `with bascule.open_replica_sync("prices", "prices") as replica: ...`"""
    return SyncLocalReplica(
        lambda: LocalReplica(
            table, directory, server,
            follow=follow, conflicts=conflicts, on_refused=on_refused, timeout=timeout, anew=anew,
        )
    )  # fmt: skip
