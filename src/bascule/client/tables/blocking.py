"""`SyncTableClient`: a table of the blocking client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from bascule.client.tables.table import PUBLISH_TIMEOUT_S, Key, TableClient
from bascule.client.tables.watch import WATCH_TIMEOUT_S, WatchStart
from bascule.table_results import TableChange, TableEntry, TableInfo

T = TypeVar("T")


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

    def set(self, key: Key, value: bytes, *, timeout: float = PUBLISH_TIMEOUT_S) -> int:
        """See `TableClient.set`."""
        return self._run(self._table.set(key, value, timeout=timeout))

    def remove(self, key: Key, *, timeout: float = PUBLISH_TIMEOUT_S) -> int:
        """See `TableClient.remove`."""
        return self._run(self._table.remove(key, timeout=timeout))

    def keys(self, prefix: Key = b"") -> Iterator[tuple[bytes, int]]:
        """See `TableClient.keys`."""
        found = self._table.keys(prefix)
        try:
            while (item := self._run(_next(found.__anext__))) is not None:
                yield item
        finally:
            self._run(found.aclose())

    def watch(
        self,
        pattern: Key = ">",
        *,
        start: WatchStart = "now",
        timeout: float = WATCH_TIMEOUT_S,
        on_current: Callable[[int], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> Iterator[TableChange]:
        """See `TableClient.watch`. Waits for each change."""
        found = self._table.watch(
            pattern, start=start, timeout=timeout, on_current=on_current, on_restart=on_restart
        )
        try:
            while (item := self._run(_next(found.__anext__))) is not None:
                yield item
        finally:
            self._run(found.aclose())

    def info(self) -> TableInfo:
        """See `TableClient.info`."""
        return self._run(self._table.info())


async def _next(step: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    try:
        return await step()
    except StopAsyncIteration:
        return None
