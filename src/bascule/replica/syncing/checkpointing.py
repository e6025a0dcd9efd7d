"""Checkpoints of one partition, which its sync threads write."""

from __future__ import annotations

import logging
from typing import Final

from bascule.errors import BasculeError
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.replica")

CHECKPOINT_WAIT_SECONDS: Final = 0.01
"""For the lock of a log whose segments are changed: no longer, since acks wait for the thread."""


def write_checkpoint(partition: Partition) -> bool:
    """Write a checkpoint; False if a sync goes first, or the log is changed just now, then call it
    again. A failure is logged; the older checkpoint stays valid."""
    store, syncing = partition.log, partition.syncing
    if store is None or partition.failure is not None or partition.deleted:
        return True
    written = partition.counts.bytes
    if not partition.maintenance_lock.acquire(timeout=CHECKPOINT_WAIT_SECONDS):
        return False
    try:
        done = store.checkpoint(
            high_watermark=partition.committed_offset, breaks_off=syncing.on_saved
        )
    except (OSError, BasculeError) as error:
        if syncing.failed_checkpoints.on_failure(error):
            name = partition.definition.name
            extra = {"stream": name, "partition": partition.index, "error": str(error)}
            log.warning("checkpoint failed", extra=extra)
        return True
    finally:
        partition.maintenance_lock.release()
    if done:
        syncing.failed_checkpoints.end()
        partition.checkpointed_bytes = written
    return done
