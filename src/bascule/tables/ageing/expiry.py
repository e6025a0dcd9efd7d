"""`TableExpiry`: removes the keys whose time to live is over, where this node leads their table.

A removal is a message as any other, and conditional: it expects the version that has expired. So
all replicas and watchers see one order of writes, and a key that was set meanwhile keeps its value.
Until then the key has its value everywhere; no replica compares a clock of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from bascule.errors import BasculeError, PublishRejected
from bascule.host.lasting_tasks import start_lasting
from bascule.replica.internal_publisher import ClientMessage, InternalPublisher
from bascule.replica.partition import Partition
from bascule.tables.ageing.deadlines import ExpiredKey
from bascule.tables.table_replica import TableReplica
from bascule.wire.ack_codes import last_sequence
from bascule.wire.tables.conditions import EXPIRY_HEADERS, SEQUENCE_HEADER
from bascule.wire.tables.keys import TableKeys

log = logging.getLogger("bascule.tables")

SWEEP_SECONDS: Final = 0.5
KEYS_AT_ONCE: Final = 500
"""Removed at a time; watchers and publishers of the table have their turn between."""


@dataclass(slots=True)
class ExpiryCounts:
    """Of a node since it has started, for its metrics."""

    expired: int = 0
    """Keys that were removed because their time to live was over."""
    failed: int = 0
    """Batches of removals that were not stored, or may not be; they are repeated."""


class TableExpiry:
    """Belongs to the event loop."""

    def __init__(
        self,
        leading: Callable[[], Iterable[tuple[Partition, TableReplica]]],
        publisher: InternalPublisher,
        counts: ExpiryCounts,
    ) -> None:
        self._leading = leading
        self._publisher = publisher
        self._counts = counts
        self._is_failing: set[str] = set()
        """Tables whose last removal was not stored, as far as they were logged."""
        self._sweeps: dict[TableReplica, asyncio.Task[None]] = {}
        """Those that run. A table that cannot commit now does not stop the others."""
        self._task = start_lasting("table expiry", self._run)

    async def close(self) -> None:
        tasks = [self._task, *self._sweeps.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for partition, replica in self._leading():
                if replica not in self._sweeps and replica.may_expire(partition.now_ms()):
                    sweep = asyncio.create_task(self._sweep(partition, replica))
                    self._sweeps[replica] = sweep
                    sweep.add_done_callback(partial(self._on_swept, replica))

    def _on_swept(self, replica: TableReplica, sweep: asyncio.Task[None]) -> None:
        del self._sweeps[replica]
        if not sweep.cancelled() and sweep.exception() is not None:
            replica.look_for_deadlines()
            sweep.result()  # the event loop reports what is raised here

    async def _sweep(self, partition: Partition, replica: TableReplica) -> None:
        """Remove what has expired in one table."""
        try:
            while await self._expire(partition, replica):
                pass
        except BasculeError as error:
            replica.look_for_deadlines()
            self._counts.failed += 1
            self._note_failure(replica.stream, error)

    async def _expire(self, partition: Partition, replica: TableReplica) -> bool:
        """Remove some expired keys; whether there may be more at once. Raises: BasculeError."""
        found = await replica.expired(partition.now_ms(), KEYS_AT_ONCE)
        if not found:
            return False
        keys = TableKeys(partition.definition.config)
        removals = [_removal(keys, each) for each in found]
        try:
            first, count = await self._publisher.publish_messages(partition, removals)
        except PublishRejected as error:
            if last_sequence(error) is None:
                raise
            return False  # all of them were set or removed since they were looked at
        self._counts.expired += count
        self._is_failing.discard(replica.stream)
        await replica.wait_position(first + count)
        return len(found) == KEYS_AT_ONCE

    def _note_failure(self, table: str, error: Exception) -> None:
        if table not in self._is_failing:
            self._is_failing.add(table)
            log.warning("keys do not expire", extra={"stream": table, "error": str(error)})


def _removal(keys: TableKeys, expired: ExpiredKey) -> ClientMessage:
    return ClientMessage(
        _without_wildcards(keys.subject(expired.key)),
        None if keys.prefix is not None else expired.key,
        None,
        ((SEQUENCE_HEADER, b"%d" % (expired.version + 1)), *EXPIRY_HEADERS),
    )


def _without_wildcards(subject: str) -> str:
    """A subject that the stream has, for keys that are in headers."""
    return ".".join("expired" if each in "*>" else each for each in subject.split("."))
