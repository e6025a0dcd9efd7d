"""Periodic checkpoints, and one check of every CRC after the start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from bascule.errors import BasculeError, CorruptData
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.storage.partition_log import VERIFY_BYTES

log = logging.getLogger("bascule.replica")

TICK_SECONDS: Final = 5.0
CHECKPOINT_TICKS: Final = 12
"""A changed partition gets a checkpoint every minute ..."""
CHECKPOINT_BYTES: Final = 128 << 20
"""... or after so many bytes: about 0.1 s of scanning at the next start."""
VERIFY_EAGER_BYTES: Final = 512 << 20
"""Checked at full speed after the start, so that small logs are checked within two seconds."""
VERIFY_BYTES_PER_SECOND: Final = 32 << 20
"""Beyond that, leave most of the disk and of the page cache to readers."""


async def checkpoint_periodically(partitions: Partitions, syncer: LogSyncer) -> None:
    """Request checkpoints after CHECKPOINT_BYTES or CHECKPOINT_TICKS. Runs until cancelled."""
    tick = 0
    while True:
        await asyncio.sleep(TICK_SECONDS)
        tick += 1
        for partition in _all(partitions):
            grown = partition.counts.bytes - partition.checkpointed_bytes
            if grown > CHECKPOINT_BYTES or (grown and tick % CHECKPOINT_TICKS == 0):
                syncer.request(partition, checkpoint=True)


async def verify_all(partitions: Partitions, syncer: LogSyncer) -> None:
    """Check the CRC of every synced batch once; stop a partition with a wrong one."""
    eager = VERIFY_EAGER_BYTES
    for partition in _all(partitions):
        async for _ in _verify_pieces(partition, syncer):
            eager -= VERIFY_BYTES
            if eager < 0:
                await asyncio.sleep(VERIFY_BYTES / VERIFY_BYTES_PER_SECOND)
    log.info("all logs checked")


async def verify(partition: Partition, syncer: LogSyncer) -> None:
    """Check the CRC of every synced batch at full speed; stop the partition with a wrong one."""
    async for _ in _verify_pieces(partition, syncer):
        pass
    await asyncio.to_thread(syncer.wait_idle, partition)


async def _verify_pieces(partition: Partition, syncer: LogSyncer) -> AsyncIterator[None]:
    """Check a log; yield after each piece of about VERIFY_BYTES but the last."""
    at = None
    while partition.log is not None and partition.failure is None and not partition.deleted:
        try:
            at = await asyncio.to_thread(partition.log.verify, at)
        except CorruptData as error:
            syncer.stop_partition(partition, error)
            return
        except (OSError, BasculeError) as error:
            log.warning(
                "check of a log broken off",
                extra={"stream": partition.definition.name, "error": str(error)},
            )
            return
        if at is None:
            return
        yield


def _all(partitions: Partitions) -> list[Partition]:
    return [p for ps in partitions.streams().values() for p in ps]
