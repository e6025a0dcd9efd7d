"""Syncs that no message asks for: on a timer for streams with `sync = interval`, and once where a
stream has `sync = always` from now on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from bascule.host.lasting_tasks import start_lasting
from bascule.model import SyncPolicy
from bascule.replica.partition import Partition
from bascule.replica.syncing.log_syncer import LogSyncer


class IntervalSyncs:
    """One timer for each partition with `sync = interval`. Belongs to the event loop."""

    def __init__(self, syncer: LogSyncer) -> None:
        self._syncer = syncer
        self._timers: dict[Partition, asyncio.Task[None]] = {}

    def configure(self, partitions: Iterable[Partition]) -> None:
        """Start, change or end the timers of these partitions as their definitions say."""
        for partition in partitions:
            self.end([partition])
            config = partition.definition.config
            if config.sync is SyncPolicy.INTERVAL:
                seconds = config.sync_interval_ms / 1000
                self._timers[partition] = start_lasting(
                    "interval sync", partial(self._sync_every, partition, seconds)
                )
            elif config.sync is SyncPolicy.ALWAYS and partition.is_dirty:
                # Nothing else syncs what was stored before, until the next message comes.
                self._syncer.request(partition)

    def end(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            if timer := self._timers.pop(partition, None):
                timer.cancel()

    def close(self) -> None:
        """End all timers."""
        self.end(list(self._timers))

    async def _sync_every(self, partition: Partition, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            if partition.is_dirty:
                self._syncer.request(partition)
