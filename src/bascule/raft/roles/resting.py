"""Groups at rest: nothing to do, so no ticks and no messages of their own until something happens.

Who puts groups to rest sees to it that members notice when another falls silent (`raft.multi`).
"""

from __future__ import annotations

from collections.abc import Collection

from bascule.raft.effects import Role
from bascule.raft.membership import NOBODY
from bascule.raft.roles.member import Member
from bascule.raft.roles.progress import Pace


def may_rest(member: Member, away: Collection[int] = ()) -> bool:
    """Whether this leader has nothing to do until something happens: all is committed, on the disk
    of every member but those `away` and known to be, and nobody waits."""
    core, leading = member.core, member.leading
    if leading is None or leading.target != NOBODY or core.reads or core.proposals:
        return False
    last = core.log.last
    if core.log.commit != last or core.synced != last or core.applied != last:
        return False
    return (
        not core.outbox
        and not core.answers
        and all(
            (
                progress.pace is Pace.REPLICATE
                and progress.match == last
                and progress.commit_sent == last
            )
            or other in away
            for other, progress in leading.progress.items()
        )
    )


def rest_as_leader(member: Member) -> None:
    """Send no heartbeats and count no quorum until something happens."""
    assert member.leading is not None
    member.resting = True


def rest_as_follower(member: Member, leader: int, term: int, index: int) -> bool:
    """Wait for no heartbeat of `leader` until something happens; False where this node is not
    its follower in `term` with all up to `index` committed and nothing else."""
    core = member.core
    agrees = (core.role, core.leader, core.term, core.log.last, core.log.commit) == (
        Role.FOLLOWER, leader, term, index, index,
    )  # fmt: skip
    if agrees and not core.reads and not core.proposals and core.synced == index:
        member.resting = True
    return member.resting and agrees
