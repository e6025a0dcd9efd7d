"""Reads of tables at any node: this one, if it has a replica, else one that has.

A linearizable read is one of the leader; see `confirmation`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from bascule.controller.cluster.confirmation import LeaderConfirmation
from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.controller.cluster.tables.operations import (
    TABLES,
    DescribeTable,
    ReadKeys,
    ReadOperation,
    ReadRange,
)
from bascule.controller.cluster.views import ClusterViews, other_replicas
from bascule.errors import (
    Broken,
    CannotReplicate,
    CorruptData,
    Indeterminate,
    LaggingIndex,
    LimitExceeded,
    LogFailed,
    NeedsClusterVersion,
    NotATable,
    NotLeader,
    OffsetOutOfRange,
    PartitionFailed,
    UnknownKey,
)
from bascule.metadata.requests import Alter, Create
from bascule.model import NO_LEADER, StreamDefinition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.table_results import (
    KeyChoice,
    TableEntry,
    TableInfo,
    TableKeyPage,
    TablePage,
    TableValues,
)
from bascule.tables import Tables
from bascule.tables.key_ranges import PageRange
from bascule.tables.rows import Row
from bascule.tables.table_replica import WAIT_SECONDS_MAX, TableReplica
from bascule.wire.tables.keys import check_key, prefix_end, why_not_opened
from bascule.wire.tables.patterns import KeyPattern

T = TypeVar("T")

READ_SECONDS_MAX: Final = 8.0
"""For a read, also while the partition gets another leader. Below the time-out of clients, 10 s."""
BEHIND_SECONDS_MAX: Final = 1.0
"""For a replica that is behind to reach what a read has to have; then the leader is asked."""
ATTEMPT_SECONDS_MAX: Final = 2.0
"""For one leader to answer it: that one may be paused, and another be elected."""
RETRY_SECONDS: Final = 0.05
VERSION_SECONDS_MAX: Final = 5.0
GET_KEYS_MAX: Final = 10_000
PAGE_ROWS_MAX: Final = 10_000
PAGE_BYTES_MAX: Final = 4 << 20
"""Of the values of a page; the first entry is there whatever its size."""
_FAILED: Final = (PartitionFailed, CorruptData, LogFailed)
"""A replica has stopped, or its table cannot be read or does not follow the log."""
_NOT_HERE: Final = (*_FAILED, Indeterminate)
"""Or it is behind."""
_TRY_AGAIN: Final = (*_NOT_HERE, NotLeader, Broken, CannotReplicate, LaggingIndex)


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
        await asyncio.sleep(RETRY_SECONDS)


@dataclass(slots=True)
class ReadCounts:
    """Of a node since it has started. Counts only grow."""

    elsewhere: int = 0
    """Reads that this node's replica should have answered, and others were asked for."""


class TableReads:
    """Belongs to the event loop. `at_least` is a position: a replica waits until it is there.

    Every read may raise UnknownStream, NotATable, PartitionFailed, Indeterminate, Broken and
    NotLeader; OffsetOutOfRange for a position beyond the end of the leader's log, such as one of
    another table that had the name.
    """

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        tables: Tables,
        views: ClusterViews,
        peers: Peers,
        confirmation: LeaderConfirmation,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._tables = tables
        self._views = views
        self._peers = peers
        self._confirmation = confirmation
        self.counts = ReadCounts()

    def names(self) -> list[str]:
        """The tables of the cluster, by name."""
        return self._views.table_names()

    def definition(self, table: str) -> StreamDefinition:
        """Raises: UnknownStream, NotATable."""
        definition = self._views.definition(table)
        if not definition.config.table:
            raise NotATable(table, why_not_opened(definition.config))
        return definition

    async def get(
        self, table: str, key: bytes, *, at_least: int = 0, linearizable: bool = False
    ) -> tuple[int, TableEntry]:
        """The value of a key, and the position of the replica. Raises: UnknownKey, InvalidKey."""
        found = await self.get_many(table, [key], at_least=at_least, linearizable=linearizable)
        if not found.entries:
            raise UnknownKey(table, key, position=found.position)
        return found.position, found.entries[0]

    async def get_many(
        self, table: str, keys: Sequence[bytes], *, at_least: int = 0, linearizable: bool = False
    ) -> TableValues:
        """The values of those of the keys that have one, in the order of the keys.

        Raises: InvalidKey; LimitExceeded for more than GET_KEYS_MAX keys, or if the values have
        more than PAGE_BYTES_MAX bytes and there are several.
        """
        for key in keys:
            check_key(key)
        if len(keys) > GET_KEYS_MAX:
            raise LimitExceeded("keys of one request", GET_KEYS_MAX, len(keys))
        operation = ReadKeys(table, list(dict.fromkeys(keys)), at_least, linearizable)
        return await self._ask(operation, TableValues)

    async def entries(
        self, table: str, chosen: KeyChoice, *, at_least: int = 0, linearizable: bool = False
    ) -> TablePage:
        """A page of entries by key. Raises: InvalidPattern."""
        operation = _range(table, chosen, at_least, linearizable, has_values=True)
        return await self._ask(operation, TablePage)

    async def keys(
        self, table: str, chosen: KeyChoice, *, at_least: int = 0, linearizable: bool = False
    ) -> TableKeyPage:
        """As `entries`, without the values."""
        operation = _range(table, chosen, at_least, linearizable, has_values=False)
        return await self._ask(operation, TableKeyPage)

    async def describe(self, table: str) -> TableInfo:
        """As one replica sees it."""
        return await self._ask(DescribeTable(table), TableInfo)

    async def answer(self, body: bytes) -> bytes:
        """Answer a control request of another node. Raises: as the operations."""
        return await self._do(msgspec.msgpack.decode(body, type=ReadOperation))

    async def _ask(self, operation: ReadOperation, kind: type[T]) -> T:
        if not isinstance(operation, DescribeTable) and operation.linearizable:
            return msgspec.msgpack.decode(await self._ask_leader(operation), type=kind)
        definition = self.definition(operation.table)
        state = self._views.states(definition.id)[0]
        others = other_replicas(state, self._node_id)
        if self._node_id in state.replicas and self._is_held(operation.table, others):
            is_leader = state.leader == self._node_id
            try:
                answer = await self._do(
                    operation, WAIT_SECONDS_MAX if is_leader else BEHIND_SECONDS_MAX
                )
            except _NOT_HERE as error:
                state = self._views.states(definition.id)[0]  # meanwhile maybe another one leads
                others = other_replicas(state, self._node_id)
                is_behind = isinstance(error, Indeterminate)
                if not others or (is_behind and state.leader in (self._node_id, NO_LEADER)):
                    raise
                self.counts.elsewhere += 1
                answer = await self._ask_others(operation, others)
        else:
            answer = await self._ask_others(operation, others)
        return msgspec.msgpack.decode(answer, type=kind)

    async def _ask_leader(self, operation: ReadKeys | ReadRange) -> bytes:
        """Ask whoever leads, until one answers. Raises: the last error of these."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_SECONDS_MAX
        body = msgspec.msgpack.encode(operation)
        while True:
            definition = self.definition(operation.table)
            leader = self._views.states(definition.id)[0].leader
            left = max(deadline - loop.time(), RETRY_SECONDS)
            try:
                if leader == self._node_id:
                    return await self._do(operation, min(left, WAIT_SECONDS_MAX))
                if leader == NO_LEADER:
                    raise NotLeader(None, 0)
                return await self._peers.control(
                    leader, TABLES, body, timeout_s=min(left, ATTEMPT_SECONDS_MAX)
                )
            except _TRY_AGAIN:
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_others(self, operation: ReadOperation, nodes: Sequence[int]) -> bytes:
        """Ask the nodes, one after another, until one answers. Raises: the last error of these."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_SECONDS_MAX - BEHIND_SECONDS_MAX
        body = msgspec.msgpack.encode(operation)
        error: Exception = NotLeader(None, 0)
        for node in nodes:
            left = deadline - loop.time()
            if left <= 0:
                break
            try:
                return await self._peers.control(node, TABLES, body, timeout_s=left)
            except (*_FAILED, Broken) as failed:
                error = failed
        raise error

    def _is_held(self, table: str, others: Sequence[int]) -> bool:
        """Whether this node has a replica; one that has stopped is read where no other one is."""
        found = self._partitions.stream(table)
        if found is None or found[0].log is None:
            return False
        return found[0].failure is None or not others

    async def _do(self, operation: ReadOperation, seconds: float = WAIT_SECONDS_MAX) -> bytes:
        """Read here; wait so long for what has to be there. Raises: as `_check_range`."""
        replica = self._tables.replica(operation.table, 0)
        found = self._partitions.stream(operation.table)
        if isinstance(operation, DescribeTable):
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
        at_least = operation.at_least
        if at_least > replica.complete_position and found and found[0].is_leader:
            await self._check_range(at_least, found[0])
        if not operation.linearizable:
            return await self._read_here(operation, replica, at_least, seconds)
        if not found:
            raise NotLeader(None, 0)
        at_least = max(at_least, await self._confirmation.position(found[0]))
        others = self._others(operation.table)
        if others:
            seconds = min(seconds, BEHIND_SECONDS_MAX)
        try:
            return await self._read_here(operation, replica, at_least, seconds)
        except _NOT_HERE:
            if not others:
                raise
        # What is confirmed is the position: any replica may be read that is there.
        self.counts.elsewhere += 1
        behind = msgspec.structs.replace(operation, at_least=at_least, linearizable=False)
        return await self._ask_others(behind, others)

    async def _read_here(
        self,
        operation: ReadKeys | ReadRange,
        replica: TableReplica,
        at_least: int,
        seconds: float,
    ) -> bytes:
        """Raises: PartitionFailed also where the table does not follow its log, if there is another
        replica."""
        if (ended := replica.ended) is not None and self._others(operation.table):
            raise ended
        while True:
            if at_least > replica.complete_position:
                await replica.wait_position(at_least, seconds)
            position, answer = await _read(replica, operation)
            if position >= at_least:
                return answer
            # The file was damaged, and is made anew.

    def _others(self, table: str) -> list[int]:
        """Other nodes with a replica in sync, the leader first."""
        return other_replicas(self._views.states(self.definition(table).id)[0], self._node_id)

    async def _check_range(self, at_least: int, partition: Partition) -> None:
        """Raises: OffsetOutOfRange if the log which this node leads ends before that; Indeterminate
        if another node may lead: it has acknowledged what this one does not have."""
        log = partition.log
        if log is None or at_least <= log.end.offset:
            return
        try:
            await self._confirmation.position(partition)
        except _TRY_AGAIN as error:
            raise Indeterminate(
                f"the log of {partition.definition.name} ends at offset {log.end.offset} here, not "
                f"{at_least}, and another node may lead: {error}"
            ) from error
        if at_least > log.end.offset:
            raise OffsetOutOfRange(at_least, partition.start_offset, log.end.offset)


async def _read(replica: TableReplica, operation: ReadKeys | ReadRange) -> tuple[int, bytes]:
    """The position, and the encoded answer."""
    if isinstance(operation, ReadKeys):
        if now := replica.read_now(operation.keys, bytes_max=PAGE_BYTES_MAX):
            position, found_now = now
            entries = [found_now[key] for key in operation.keys if key in found_now]
            return position, msgspec.msgpack.encode(TableValues(position, entries))
        position, rows = await replica.read(operation.keys, bytes_max=PAGE_BYTES_MAX)
        entries = [_entry(rows[key]) for key in operation.keys if key in rows]
        return position, msgspec.msgpack.encode(TableValues(position, entries))
    pattern = None if operation.pattern is None else KeyPattern(operation.pattern)
    asked = PageRange(operation.first, operation.end, pattern)
    limit = min(operation.limit, PAGE_ROWS_MAX)
    if not operation.has_values:
        position, keys, after = await replica.key_page(asked, limit)
        return position, msgspec.msgpack.encode(TableKeyPage(position, keys, after))
    position, found, after = await replica.page(asked, limit, bytes_max=PAGE_BYTES_MAX)
    page = TablePage(position, [_entry(row) for row in found], after)
    return position, msgspec.msgpack.encode(page)


def _range(
    table: str, chosen: KeyChoice, at_least: int, linearizable: bool, *, has_values: bool
) -> ReadRange:
    """Raises: InvalidPattern."""
    first = [chosen.prefix, chosen.first or b""]
    ends = [prefix_end(chosen.prefix), chosen.end]
    if chosen.after is not None:
        first.append(chosen.after + b"\0")
    if chosen.pattern is not None:
        prefix = KeyPattern(chosen.pattern).prefix
        first.append(prefix)
        ends.append(prefix_end(prefix))
    return ReadRange(
        table,
        max(first),
        min((end for end in ends if end is not None), default=None),
        chosen.limit,
        at_least,
        chosen.pattern,
        linearizable,
        has_values,
    )


def _entry(row: Row) -> TableEntry:
    assert row.value is not None
    return TableEntry(row.key, row.version, row.timestamp, row.value, row.content_type)
