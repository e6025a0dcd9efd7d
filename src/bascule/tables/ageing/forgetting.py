"""`TableForgetting`: has the tables of a node forget the rows that nobody needs any more.

Each replica forgets on its own, from time to time, some rows in one transaction. One table at a
time does, on a thread of its own turn; what a replica applies has its turn between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from bascule.errors import BasculeError
from bascule.host.lasting_tasks import start_lasting
from bascule.replica.partition import Partition
from bascule.tables.ageing.forgotten import ForgetLimits, Walk
from bascule.tables.table_replica import TableReplica

log = logging.getLogger("bascule.tables")

LOOK_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.02
"""After each transaction."""
ROWS_AT_ONCE: Final = 1_000
"""Of a transaction, which takes some 20 ms where the rows are small. `forgotten.BYTES_AT_ONCE` is
its other limit."""
TURNS_MAX: Final = 50
"""Transactions of a table before others have their turn."""


@dataclass(slots=True)
class ForgettingCounts:
    """Of a node since it has started, for its metrics."""

    rows: int = 0
    """Rows of tables that were deleted: of purged records, and of keys that were removed."""


class _Looked:
    """What the last look at a replica has found."""

    __slots__ = ("due_ms", "has_to_wait", "is_failing", "seen", "walk")

    def __init__(self) -> None:
        self.seen: tuple[int, int, int] | None = None
        """What it depends on; None: it was not done."""
        self.due_ms: float = inf
        """When the first removal will be old enough, Unix time."""
        self.walk: Walk | None = None
        self.has_to_wait = False
        self.is_failing = False


class TableForgetting:
    """Belongs to the event loop."""

    def __init__(
        self,
        held: Callable[[], Iterable[tuple[Partition, TableReplica]]],
        counts: ForgettingCounts,
    ) -> None:
        """`held` are the replicas of this node."""
        self._held = held
        self._counts = counts
        self._looked: dict[TableReplica, _Looked] = {}
        self._task = start_lasting("table forgetting", self._run)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        is_done = True
        while True:
            await asyncio.sleep(LOOK_SECONDS if is_done else PAUSE_SECONDS)
            is_done = await self._look()

    async def _look(self) -> bool:
        """Look at all tables; whether nothing more can be forgotten now, or for a while."""
        held = list(self._held())
        before = self._looked
        self._looked = {replica: before.get(replica) or _Looked() for _, replica in held}
        is_done = True
        for partition, replica in held:
            looked = self._looked[replica]
            if not replica.position:
                continue
            seen = _seen(partition, replica)
            if looked.seen == seen and partition.now_ms() < looked.due_ms:
                continue
            try:
                looked.seen = seen if await self._forget(partition, replica, looked) else None
                looked.is_failing = False
            except BasculeError as error:
                self._note_failure(looked, replica.stream, error)
                continue
            is_done = is_done and (looked.seen is not None or looked.has_to_wait)
        return is_done

    async def _forget(self, partition: Partition, replica: TableReplica, looked: _Looked) -> bool:
        """Forget some rows; whether there are no more now.

        Where it has to wait for others it tries so often, and then at the next look.

        Raises: BasculeError.
        """
        for _ in range(TURNS_MAX):
            retention_ms = partition.definition.config.tombstone_retention_ms
            limits = ForgetLimits(partition.start_offset, partition.now_ms() - retention_ms)
            found = await replica.forget(limits, looked.walk, ROWS_AT_ONCE)
            self._counts.rows += found.rows
            looked.walk, looked.has_to_wait = found.walk, found.has_to_wait
            looked.due_ms = inf if found.due_ms is None else found.due_ms + retention_ms + 1
            if found.is_done:
                return True
            await asyncio.sleep(PAUSE_SECONDS)
        return False

    def _note_failure(self, looked: _Looked, table: str, error: Exception) -> None:
        looked.seen, looked.walk = None, None
        if not looked.is_failing:
            looked.is_failing = True
            log.warning(
                "rows of a table not forgotten", extra={"stream": table, "error": str(error)}
            )


def _seen(partition: Partition, replica: TableReplica) -> tuple[int, int, int]:
    retention_ms = partition.definition.config.tombstone_retention_ms
    return replica.position, partition.start_offset, retention_ms
