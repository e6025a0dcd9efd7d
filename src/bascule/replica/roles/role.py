"""The role of this node for one partition."""

from __future__ import annotations

import logging
from enum import Enum

from bascule.model import PartitionState

log = logging.getLogger("bascule.replica")


class PartitionRole(Enum):
    """What this node does for a partition."""

    LEADER = "leader"
    """Gives offsets, acknowledges, and serves followers and readers."""
    FOLLOWER = "follower"
    """Copies the leader's log."""
    NONE = "none"
    """Neither: nobody leads, another node holds the partition, or no state is applied yet."""


def is_older(state: PartitionState, known: PartitionState) -> bool:
    """Whether `known` has taken the place of `state`."""
    ordered = state.leader_epoch, state.version
    return ordered < (known.leader_epoch, known.version)


def log_role(
    stream: str,
    partition: int,
    role: PartitionRole,
    state: PartitionState,
    *,
    high_watermark: int,
    end_offset: int,
) -> None:
    """Log that this node has the role now."""
    log.info(
        "role of a partition",
        extra={
            "stream": stream,
            "partition": partition,
            "role": role.value,
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
            "high_watermark": high_watermark,
            "end_offset": end_offset,
        },
    )


def log_loss(stream: str, partition: int, start: int, end: int, high_watermark: int) -> None:
    """Log that this node has removed records that the leader of an unclean election lacks."""
    log.error(
        "records removed after an unclean election",
        extra={
            "stream": stream,
            "partition": partition,
            "start": start,
            "end": end,
            "high_watermark": high_watermark,
        },
    )


def log_stop(stream: str, partition: int, cause: str) -> None:
    """Log that the partition has failed on this node."""
    log.error("partition stopped", extra={"stream": stream, "partition": partition, "cause": cause})
