"""`TableReadBatches`: many reads by key together, for the client listener."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Final

from bascule.controller.cluster.tables.reads import GET_KEYS_MAX, PAGE_BYTES_MAX, TableReads
from bascule.errors import BasculeError
from bascule.table_results import TableEntry, TableValues
from bascule.tables import Tables
from bascule.wire.tables.keys import check_key
from bascule.wire.tables.read_batches import KEYS_MAX, KeyRead

WAIT_SECONDS_MAX: Final = 0.25
"""The reads of a connection wait for each other. What takes longer is asked for over HTTP."""


class TableReadBatches:
    """Belongs to the event loop. An answer of None: ask over HTTP, which waits, or says why not."""

    def __init__(self, reads: TableReads, tables: Tables) -> None:
        self._reads = reads
        self._tables = tables

    def read_now(self, reads: Sequence[KeyRead]) -> list[TableValues | None] | None:
        """The answers, if the replicas of this node have them and nothing has to be waited for."""
        if not reads:
            return []
        first = reads[0]
        if len(reads) == 1:
            keys, at_least = first.keys, first.at_least
            if first.linearizable:
                return None
        elif any(each.table != first.table or each.linearizable for each in reads):
            return None
        else:
            keys = list(dict.fromkeys(chain.from_iterable(each.keys for each in reads)))
            at_least = max(each.at_least for each in reads)
        try:
            replica = self._tables.replica(first.table, 0)
            for key in keys:
                check_key(key)
        except BasculeError:
            return None
        if not keys or at_least > replica.complete_position or replica.ended is not None:
            return None
        found = replica.read_now(keys, bytes_max=PAGE_BYTES_MAX)
        if found is None or found[0] < at_least:
            return None
        return _split(reads, *found)

    async def read(self, reads: Sequence[KeyRead]) -> list[TableValues | None]:
        """The answers. Reads of one table that wait for nothing are made together."""
        if sum(len(each.keys) for each in reads) > KEYS_MAX and len(reads) > 1:
            return [None] * len(reads)
        together: dict[tuple[str, bool, int], list[int]] = {}
        for number, each in enumerate(reads):
            waits = each.at_least if each.at_least > self._position(each.table) else 0
            together.setdefault((each.table, each.linearizable, waits), []).append(number)
        answers: list[TableValues | None] = [None] * len(reads)
        groups = list(together.values())
        found = await asyncio.gather(
            *(self._together([reads[number] for number in numbers]) for numbers in groups)
        )
        for numbers, values in zip(groups, found, strict=True):
            for number, answer in zip(numbers, values, strict=True):
                answers[number] = answer
        return _within(answers)

    def _position(self, table: str) -> int:
        try:
            return self._tables.replica(table, 0).complete_position
        except BasculeError:
            return 0

    async def _together(self, reads: Sequence[KeyRead]) -> Sequence[TableValues | None]:
        """Of one table and consistency."""
        keys = list(dict.fromkeys(chain.from_iterable(each.keys for each in reads)))
        at_least = max(each.at_least for each in reads)
        whole = KeyRead(reads[0].table, keys, at_least, reads[0].linearizable)
        if len(keys) <= GET_KEYS_MAX and (found := await self._one(whole)) is not None:
            return _split(reads, found.position, {each.key: each for each in found.entries})
        if len(reads) == 1:
            return [None]
        # One of them is refused, or they are large.
        return await asyncio.gather(*(self._one(each) for each in reads))

    async def _one(self, read: KeyRead) -> TableValues | None:
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                return await self._reads.get_many(
                    read.table, read.keys, at_least=read.at_least, linearizable=read.linearizable
                )
        except (BasculeError, TimeoutError):
            return None


def _split(
    reads: Sequence[KeyRead], position: int, found: dict[bytes, TableEntry]
) -> list[TableValues | None]:
    return [
        TableValues(position, [found[key] for key in dict.fromkeys(each.keys) if key in found])
        for each in reads
    ]


def _within(answers: list[TableValues | None]) -> list[TableValues | None]:
    """The answers, of which those beyond PAGE_BYTES_MAX are left out; the first one stays."""
    left = PAGE_BYTES_MAX
    for number, answer in enumerate(answers):
        size = 0 if answer is None else sum(len(each.value) for each in answer.entries)
        if size > left and left < PAGE_BYTES_MAX:
            answers[number] = None
        else:
            left -= size
    return answers
