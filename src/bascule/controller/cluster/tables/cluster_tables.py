"""Reads of tables at any node: this one, if it has a replica, else one that has."""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias, TypeVar

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import (
    Broken,
    NeedsClusterVersion,
    NotATable,
    NotLeader,
    PartitionFailed,
    UnknownKey,
)
from bascule.metadata.requests import Alter, Create
from bascule.model import NO_LEADER
from bascule.replica.partitions import Partitions
from bascule.table_results import TableEntry, TableInfo, TablePage
from bascule.tables import Tables
from bascule.tables.rows import Row
from bascule.wire.tables.keys import check_key, prefix_end

T = TypeVar("T")

TABLES: Final = "tables"
"""The kind of control request for reading a table."""
ANSWER_SECONDS_MAX: Final = 15.0
VERSION_SECONDS_MAX: Final = 5.0
VERSION_RETRY_SECONDS: Final = 0.05
PAGE_ROWS_MAX: Final = 10_000
PAGE_BYTES_MAX: Final = 4 << 20
"""Of the values of a page; the first entry is there whatever its size."""


async def submit(metadata: MetadataGroup, request: Create | Alter) -> int:
    """`MetadataGroup.submit` of a stream that may be a table.

    A cluster that has just begun takes a moment until the newest cluster version is in force: waits
    for it where all nodes support it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + VERSION_SECONDS_MAX
    while True:
        try:
            return await metadata.submit(request)
        except NeedsClusterVersion as error:
            if error.behind or loop.time() > deadline:
                raise
        await asyncio.sleep(VERSION_RETRY_SECONDS)


class _Get(msgspec.Struct, tag=True):
    table: str
    keys: list[bytes]
    at_least: int = 0


class _Scan(msgspec.Struct, tag=True):
    table: str
    first: bytes
    end: bytes | None
    limit: int
    at_least: int = 0


class _Describe(msgspec.Struct, tag=True):
    table: str


_Operation: TypeAlias = _Get | _Scan | _Describe


class ClusterTables:
    """Belongs to the event loop. `at_least` is a position: a replica waits until it is there."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        tables: Tables,
        views: ClusterViews,
        peers: Peers,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._tables = tables
        self._views = views
        self._peers = peers

    def names(self) -> list[str]:
        """The tables of the cluster, by name."""
        return self._views.table_names()

    async def get(self, table: str, key: bytes, *, at_least: int = 0) -> TableEntry:
        """Raises: UnknownKey, InvalidKey, UnknownStream, NotATable, PartitionFailed, Indeterminate,
        Broken."""
        check_key(key)
        found = await self._at_replica(_Get(table, [key], at_least), list[TableEntry])
        if not found:
            raise UnknownKey(table, key)
        return found[0]

    async def scan(
        self,
        table: str,
        *,
        prefix: bytes = b"",
        after: bytes | None = None,
        limit: int = PAGE_ROWS_MAX,
        at_least: int = 0,
    ) -> TablePage:
        """The entries whose keys begin with `prefix` and come after `after`, by key.

        Raises: as `get`, but for UnknownKey.
        """
        first = prefix if after is None else max(prefix, after + b"\0")
        operation = _Scan(table, first, prefix_end(prefix), limit, at_least)
        return await self._at_replica(operation, TablePage)

    async def describe(self, table: str) -> TableInfo:
        """As one replica sees it. Raises: as `get`, but for UnknownKey."""
        return await self._at_replica(_Describe(table), TableInfo)

    async def answer(self, body: bytes) -> bytes:
        """Answer a control request of another node. Raises: as the operations."""
        return await self._do(msgspec.msgpack.decode(body, type=_Operation))

    async def _at_replica(self, operation: _Operation, kind: type[T]) -> T:
        definition = self._views.definition(operation.table)
        if not definition.config.table:
            raise NotATable(operation.table, "open it with `bascule stream alter --table`")
        state = self._views.states(definition.id)[0]
        if self._node_id in state.replicas and self._is_held(operation.table):
            answer = await self._do(operation)
        else:
            body = msgspec.msgpack.encode(operation)
            answer = await self._ask_others(state.leader, state.isr, body)
        return msgspec.msgpack.decode(answer, type=kind)

    async def _ask_others(self, leader: int, isr: tuple[int, ...], body: bytes) -> bytes:
        nodes = dict.fromkeys((leader, *isr))
        error: Exception = NotLeader(None, 0)
        for node in nodes:
            if node in (NO_LEADER, self._node_id):
                continue
            try:
                return await self._peers.control(node, TABLES, body, timeout_s=ANSWER_SECONDS_MAX)
            except (Broken, PartitionFailed) as failed:
                error = failed
        raise error

    def _is_held(self, table: str) -> bool:
        found = self._partitions.stream(table)
        return found is not None and found[0].log is not None

    async def _do(self, operation: _Operation) -> bytes:
        replica = self._tables.replica(operation.table, 0)
        if isinstance(operation, _Describe):
            found = self._partitions.stream(operation.table)
            return msgspec.msgpack.encode(
                TableInfo(
                    operation.table,
                    self._node_id,
                    await replica.count(),
                    replica.position,
                    found[0].high_watermark.offset if found else 0,
                    replica.skipped,
                )
            )
        if operation.at_least:
            await replica.wait_position(operation.at_least)
        if isinstance(operation, _Get):
            rows = await replica.get(operation.keys)
            return msgspec.msgpack.encode([rows[key] for key in operation.keys if key in rows])
        limit = min(operation.limit, PAGE_ROWS_MAX)
        found_rows = await replica.scan(operation.first, operation.end, limit)
        return msgspec.msgpack.encode(_page(found_rows, limit))


def _page(rows: list[Row], limit: int) -> TablePage:
    """As many of the rows as PAGE_BYTES_MAX allows, at least one."""
    entries: list[TableEntry] = []
    size = 0
    for key, version, timestamp, value in rows:
        assert value is not None
        size += len(value)
        if entries and size > PAGE_BYTES_MAX:
            break
        entries.append(TableEntry(key, version, timestamp, value))
    return TablePage(entries, is_last=len(entries) == len(rows) < limit)
