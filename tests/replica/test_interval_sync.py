"""The timers of streams with `sync = interval`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from bascule.host.real import RealRandom
from bascule.model import SyncPolicy
from bascule.replica.maintenance.interval_sync import IntervalSyncs
from bascule.replica.partition import Partition
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFiles
from support.replicas import open_partition


def test_a_partition_has_one_timer_while_its_policy_is_interval() -> None:
    async def run() -> None:
        partition = open_partition(SimFiles(RealRandom(1)))
        timers = IntervalSyncs(LogSyncer(clock=SimClock(1_000)))

        def configure(policy: SyncPolicy) -> None:
            config = replace(partition.definition.config, sync=policy, sync_interval_ms=60_000)
            partition.configure(replace(partition.definition, config=config))
            timers.configure([partition])

        def running() -> int:
            return len([task for task in asyncio.all_tasks() if not task.cancelling()]) - 1

        for policy, expected in (
            (SyncPolicy.ALWAYS, 0), (SyncPolicy.INTERVAL, 1), (SyncPolicy.INTERVAL, 1),
            (SyncPolicy.NEVER, 0), (SyncPolicy.INTERVAL, 1),
        ):  # fmt: skip
            configure(policy)
            assert running() == expected
        timers.close()
        assert running() == 0

    asyncio.run(run())


def test_what_is_not_synced_is_when_the_policy_becomes_always() -> None:
    partition = open_partition(SimFiles(RealRandom(1)))
    asked: list[Partition] = []
    timers = IntervalSyncs(cast(LogSyncer, SimpleNamespace(request=asked.append)))
    assert partition.definition.config.sync is SyncPolicy.ALWAYS
    timers.configure([partition])
    assert asked == []
    dirty = SimpleNamespace(definition=partition.definition, is_dirty=True)
    timers.configure([cast(Partition, dirty)])
    assert asked == [dirty]
