"""`SyncTableClient`: a table of the blocking client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

from bascule.client.loop_thread import iterate
from bascule.client.tables.table import PUBLISH_TIMEOUT_S, Key, TableClient, Values
from bascule.client.tables.watch import WATCH_TIMEOUT_S, WatchStart
from bascule.table_results import TableChange, TableEntry, TableInfo

T = TypeVar("T")

SCANNED_AT_ONCE: Final = 500
"""Items of a scan. Each change to the client's thread costs some 50 us."""


class Run(Protocol):
    """Runs a coroutine on the client's loop and waits for it."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class SyncTableClient:
    """See `TableClient`."""

    def __init__(self, table: TableClient, run: Run) -> None:
        self.name = table.name
        self._table = table
        self._run = run

    def get(self, key: Key) -> TableEntry | None:
        """See `TableClient.get`."""
        return self._run(self._table.get(key))

    def get_many(self, keys: Iterable[Key]) -> Values:
        """See `TableClient.get_many`."""
        return self._run(self._table.get_many(keys))

    def set(
        self,
        key: Key,
        value: bytes,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        content_type: str | None = None,
        ttl: float | None = None,
        timeout: float = PUBLISH_TIMEOUT_S,
    ) -> int:
        """See `TableClient.set`."""
        return self._run(
            self._table.set(
                key,
                value,
                if_version=if_version,
                if_absent=if_absent,
                content_type=content_type,
                ttl=ttl,
                timeout=timeout,
            )
        )

    def remove(
        self, key: Key, *, if_version: int | None = None, timeout: float = PUBLISH_TIMEOUT_S
    ) -> int:
        """See `TableClient.remove`."""
        return self._run(self._table.remove(key, if_version=if_version, timeout=timeout))

    def increment(
        self, key: Key, by: int = 1, *, timeout: float = PUBLISH_TIMEOUT_S
    ) -> tuple[int, int]:
        """See `TableClient.increment`."""
        return self._run(self._table.increment(key, by, timeout=timeout))

    def keys(self, pattern: Key = b"", *, prefix: Key | None = None) -> Iterator[tuple[bytes, int]]:
        """See `TableClient.keys`."""
        return iterate(self._run, self._table.keys(pattern, prefix=prefix), SCANNED_AT_ONCE)

    def entries(self, pattern: Key = b"", *, prefix: Key | None = None) -> Iterator[TableEntry]:
        """See `TableClient.entries`."""
        return iterate(self._run, self._table.entries(pattern, prefix=prefix), SCANNED_AT_ONCE)

    def range(
        self, first: Key = b"", end: Key | None = None, limit: int | None = None
    ) -> Iterator[TableEntry]:
        """See `TableClient.range`."""
        return iterate(self._run, self._table.range(first, end, limit), SCANNED_AT_ONCE)

    def info(self) -> TableInfo:
        """See `TableClient.info`."""
        return self._run(self._table.info())

    def watch(
        self,
        pattern: Key = ">",
        *,
        key: Key | None = None,
        start: WatchStart = "now",
        timeout: float = WATCH_TIMEOUT_S,
        on_current: Callable[[int], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> Generator[TableChange, None, None]:
        """See `TableClient.watch`. Waits for each change; `close` it to stop."""
        return iterate(
            self._run,
            self._table.watch(
                pattern,
                key=key,
                start=start,
                timeout=timeout,
                on_current=on_current,
                on_restart=on_restart,
            ),
        )
