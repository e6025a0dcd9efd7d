"""What the handlers of tables need; implemented by `controller`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bascule.http.table_watch import WatchedTables
from bascule.table_results import (
    KeyChoice,
    PageAsked,
    TableEntry,
    TableInfo,
    TableKeyPage,
    TablePage,
    TableValues,
)
from bascule.wire.tables.sync_pages import SyncPage


class TableWriter(Protocol):
    """Writes of tables."""

    def message_bytes_max(self, table: str) -> int:
        """Raises: UnknownStream, NotATable."""
        ...

    async def set(
        self,
        table: str,
        key: bytes,
        value: bytes | None,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        content_type: str | None = None,
        ttl: float | None = None,
        message_id: str | None = None,
    ) -> int:
        """Set the value of a key, or remove it; return the version.

        Raises: WrongVersion, InvalidKey, UnknownStream, NotATable, PublishRejected, Indeterminate.
        """
        ...

    async def increment(
        self, table: str, key: bytes, by: int, *, message_id: str | None = None
    ) -> tuple[int, int | None]:
        """The version and the number; None: a repetition, and the key has another value since.

        Raises: NotANumber, and as `set`.
        """
        ...


class TableFollowers(Protocol):
    """Serves copies of tables outside the cluster."""

    def where(self, table: str) -> str:
        """Raises: UnknownStream, NotATable, PartitionFailed."""
        ...

    async def page(self, table: str, asked: PageAsked) -> SyncPage:
        """Raises: UnknownStream, NotATable, PartitionFailed, CorruptData, Indeterminate."""
        ...


class TablesAdmin(WatchedTables, Protocol):
    """Reads of tables. Each raises UnknownStream and NotATable."""

    @property
    def writes(self) -> TableWriter: ...

    @property
    def followers(self) -> TableFollowers: ...

    def names(self) -> list[str]: ...

    async def get(
        self, table: str, key: bytes, *, at_least: int = 0, linearizable: bool = False
    ) -> tuple[int, TableEntry]:
        """The position and the entry. Raises: UnknownKey, InvalidKey."""
        ...

    async def get_many(
        self, table: str, keys: Sequence[bytes], *, at_least: int = 0, linearizable: bool = False
    ) -> TableValues:
        """Raises: InvalidKey, LimitExceeded."""
        ...

    async def entries(
        self, table: str, chosen: KeyChoice, *, at_least: int = 0, linearizable: bool = False
    ) -> TablePage:
        """Raises: InvalidPattern."""
        ...

    async def keys(
        self, table: str, chosen: KeyChoice, *, at_least: int = 0, linearizable: bool = False
    ) -> TableKeyPage:
        """Raises: InvalidPattern."""
        ...

    async def describe(self, table: str) -> TableInfo: ...
