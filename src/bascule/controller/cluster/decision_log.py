"""What the log says of decisions on partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from bascule.metadata.commands import ChangePartitions, Command
from bascule.metadata.elections import unclean_elections
from bascule.metadata.image import Image
from bascule.raft_driver.group import Committed

log = logging.getLogger("bascule.controller")


def log_unclean_elections(before: Image, command: ChangePartitions) -> int:
    """Log the partitions that a replica leads which was not in sync; how many there are."""
    found = list(unclean_elections(before, command))
    for change in found:
        log.error(
            "unclean election",
            extra={
                "stream": before.index.names.get(change.stream_id, ""),
                "partition": change.partition,
                "leader": change.state.leader,
                "leader_epoch": change.state.leader_epoch,
                "isr_before": list(before.partitions[change.stream_id][change.partition].isr),
            },
        )
    return len(found)


def log_if_committed(
    before: Image, commands: Sequence[Command], proposed: asyncio.Future[Committed]
) -> None:
    """A step is committed, or is not known to be."""
    if not proposed.cancelled() and proposed.exception() is None:
        log_leaders(before, commands)


def log_lost_writes(before: Image, command: ChangePartitions) -> None:
    """Log the partitions of which no replica is sure to have every committed record any more."""
    for change in command.changes:
        state = change.state
        states = before.partitions.get(change.stream_id, ())
        was_known = any(each.isr or each.eligible for each in states[change.partition :][:1])
        if was_known and not state.isr and not state.eligible:
            log.error(
                "every replica in sync has lost writes",
                extra={
                    "stream": before.index.names.get(change.stream_id, ""),
                    "partition": change.partition,
                    "lossy": list(state.lossy),
                },
            )


def log_leaders(before: Image, commands: Sequence[Command]) -> None:
    """Log the partitions that another node leads although nothing has failed."""
    for command in commands:
        for change in command.changes if isinstance(command, ChangePartitions) else ():
            if change.reason:
                log.info(
                    "leader changed",
                    extra={
                        "stream": before.index.names[change.stream_id],
                        "partition": change.partition,
                        "leader": change.state.leader,
                        "before": before.partitions[change.stream_id][change.partition].leader,
                        "reason": change.reason,
                    },
                )
