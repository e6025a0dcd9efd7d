"""The end of one leader's appends, and the beginning of the next one's."""

from __future__ import annotations

import logging

from bascule.errors import BasculeError
from bascule.replica.handover.comparison import TailContents, read_tail
from bascule.replica.handover.held_messages import HeldMessages, HoldingMemory
from bascule.replica.partition import Partition
from bascule.replica.roles import PartitionRole

log = logging.getLogger("bascule.replica")


def hold(partition: Partition, memory: HoldingMemory, tail_start: int | None) -> None:
    """Hold what arrives for a partition from now on, until its next role; see `HeldMessages`."""
    if partition.role is PartitionRole.LEADER or partition.log is None:
        return
    if partition.held is None:
        partition.held = HeldMessages(memory, tail_start)


def append_held(partition: Partition) -> bytes:
    """Append what was held and is not in the log; return the replies to send now.

    To be called once the partition has its role. Without leading it the messages are dropped,
    unanswered, as any that come then.
    """
    held, partition.held = partition.held, None
    if held is None:
        return b""
    replies, received, stored = b"", 0, 0
    is_leader = partition.role is PartitionRole.LEADER
    tail = _tail(partition, held.tail_start) if is_leader and held.batches else TailContents()
    for batch in held.batches:
        received += batch.record_count
        evaluation = tail.take(batch, partition.preconditions.hash_key) if is_leader else None
        if evaluation is not None:
            stored += evaluation.duplicate_count
            assert partition.log is not None
            end = partition.log.end.offset
            replies += partition.commitment.answer(
                evaluation, next_offset=end, end_offset=end, policies=batch.ack_policies
            )
        replies += partition.append(batch)
    held.end()
    partition.counts.handover_duplicates += stored
    if received:
        log.info(
            "messages of a handover",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "leads": is_leader,
                "messages": received,
                "compared": len(tail),
                "stored_before": stored,
            },
        )
    return replies


def _tail(partition: Partition, start: int | None) -> TailContents:
    """What the held messages are compared with; nothing if it cannot be read."""
    if start is None or partition.log is None or partition.failure is not None:
        return TailContents()
    try:
        return read_tail(partition.log, start)
    except (BasculeError, OSError) as error:
        # Rather twice in the log than lost.
        log.warning(
            "messages of a handover not compared with the log",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "error": str(error),
            },
        )
        return TailContents()


def end_appends(partition: Partition, leader_epoch: int) -> int:
    """Append nothing more: another node is to lead from `leader_epoch` on, and copies the rest.

    Returns the end of the log; -1 if this node does not lead, or leads such an epoch already.
    """
    if partition.role is not PartitionRole.LEADER or partition.log is None:
        return -1
    if partition.failure is not None or partition.leader_epoch >= leader_epoch:
        return -1
    partition.has_handed_over = True
    return partition.log.end.offset
