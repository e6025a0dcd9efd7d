"""What the log says of decisions on partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from bascule.metadata.commands import ChangePartitions, Command, PartitionChange
from bascule.metadata.elections import unclean_elections
from bascule.metadata.image import Image
from bascule.metadata.requests import (
    Alter,
    ControllerRequest,
    ElectLongest,
    ElectUncleanly,
    LoseNode,
    RegisterProcess,
    ReplaceLeader,
    Resign,
    StepDown,
)
from bascule.model import NO_LEADER, PartitionState
from bascule.raft_driver.group import Committed

log = logging.getLogger("bascule.controller")

LOGGED_MAX: Final = 20
UNFINISHED: Final = "the controller before had not finished a decision"


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
    before: Image, commands: Sequence[Command], cause: str, proposed: asyncio.Future[Committed]
) -> None:
    """A step is committed, or is not known to be."""
    if not proposed.cancelled() and proposed.exception() is None:
        log_changes(before, commands, cause)


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


def cause_of(request: ControllerRequest) -> str:
    """Why the controller changes leaders and in-sync replica sets at a request; empty: it does not,
    or whoever asks for that logs it."""
    match request:
        case LoseNode():
            return f"node {request.node_id} is lost"
        case RegisterProcess():
            return f"node {request.node.node_id} has started, or is back"
        case Resign():
            return f"node {request.node_id} cannot use its replica"
        case ReplaceLeader():
            return f"node {request.node_id} does not answer its followers"
        case StepDown():
            return f"node {request.node_id} stops"
        case ElectUncleanly():
            if request.by_operator:
                return "no replica in sync is alive, and an operator accepts the loss"
            return "no replica in sync is alive, and unclean_election is on"
        case ElectLongest():
            return "the machines of the replicas in sync went down; their logs were compared"
        case Alter():
            return "settings of the stream have changed"
    return ""


def log_changes(before: Image, commands: Sequence[Command], cause: str) -> None:
    """Log which partitions have another leader or another in-sync replica set, and why.

    `cause` is that of the request. The loss of a node may concern every partition: of those that
    one command changes for its cause the first ones are logged, and how many there are.
    """
    for command in commands:
        logged = 0
        for change in command.changes if isinstance(command, ChangePartitions) else ():
            states = before.partitions.get(change.stream_id, ())
            if change.partition >= len(states):
                continue  # it is created by the same entry
            old = states[change.partition]
            if change.reason:
                _log_moved(before, change, old)
            elif cause and (old.leader, old.isr) != (change.state.leader, change.state.isr):
                logged += 1
                if logged <= LOGGED_MAX:
                    _log_changed(before, change, old, cause)
        if logged > LOGGED_MAX:
            extra = {"count": logged, "logged": LOGGED_MAX, "reason": cause}
            log.info("more leaders and in-sync replica sets changed", extra=extra)


def _log_moved(before: Image, change: PartitionChange, old: PartitionState) -> None:
    """Another node leads although nothing has failed."""
    log.info(
        "leader changed",
        extra={
            "stream": before.index.names[change.stream_id],
            "partition": change.partition,
            "leader": change.state.leader,
            "before": old.leader,
            "reason": change.reason,
        },
    )


def _log_changed(before: Image, change: PartitionChange, old: PartitionState, cause: str) -> None:
    stream, state = before.index.names[change.stream_id], change.state
    if old.leader == state.leader:
        log.info(
            "isr changed",
            extra={
                "stream": stream,
                "partition": change.partition,
                "isr": list(state.isr),
                "before": list(old.isr),
                "reason": cause,
            },
        )
    elif state.leader == NO_LEADER:
        log.warning(
            "no leader can be elected",
            extra={
                "stream": stream,
                "partition": change.partition,
                "before": old.leader,
                "isr": list(state.isr),
                "reason": cause,
            },
        )
    else:
        log.info(
            "leader elected",
            extra={
                "stream": stream,
                "partition": change.partition,
                "leader": state.leader,
                "before": old.leader,
                "leader_epoch": state.leader_epoch,
                "isr": list(state.isr),
                "reason": cause,
            },
        )
