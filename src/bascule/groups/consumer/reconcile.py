"""Brings one member a step closer to its target, without a partition having two owners."""

from __future__ import annotations

from collections.abc import Callable

from bascule.groups.consumer.member import ConsumerMember, MemberState
from bascule.groups.consumer.messages import NOTHING, Partitions, TopicPartition


def reconcile(
    member: ConsumerMember,
    epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicPartition], bool],
) -> bool:
    """Whether `member` has changed. Its target is that of `epoch`.

    `owned` is what it says it owns; None: nothing new, so it may own all that it was told.
    A partition is given to it if nobody else may own it, which `is_free` says. The epoch is
    `epoch` from when on it has nothing to give up.
    """
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned & member.revoking:
            return False
    elif member.state is MemberState.STABLE and member.epoch == epoch:
        return False
    before = (member.state, member.epoch, member.assigned, member.revoking)
    kept = member.assigned & member.target
    lost = member.assigned - member.target
    member.revoking = NOTHING
    if lost and (owned is None or owned & lost):
        member.state, member.assigned, member.revoking = MemberState.UNREVOKED, kept, lost
    else:
        wanted = member.target - kept
        free = frozenset(filter(is_free, wanted))
        member.assigned = kept | free
        member.state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED
        if member.epoch != epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch
    return before != (member.state, member.epoch, member.assigned, member.revoking)
