"""All that is to know of a node at one moment, for people and metrics."""

from __future__ import annotations

import msgspec

from bascule.raft.membership import NOBODY, Members
from bascule.raft.roles.member import Member


class MemberReport(msgspec.Struct, frozen=True):
    """What a leader knows of another member. Indices are of the log."""

    node: int
    pace: str
    match: int
    next: int
    is_active: bool
    """Heard since the leader last counted its quorum."""
    inflight_appends: int
    inflight_bytes: int


class LogReport(msgspec.Struct, frozen=True):
    """The sections of the log; `first - 1 <= snapshot_index <= commit <= last`."""

    first: int
    snapshot_index: int
    snapshot_term: int
    commit: int
    synced: int
    last: int
    last_term: int
    capacity: int
    pending_bytes: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node. Times are in ticks."""

    node: int
    role: str
    term: int
    voted_for: int
    leader: int
    members: Members
    """In force: effective on append."""
    is_members_committed: bool
    log: LogReport
    applied: int
    proposals_waiting: int
    reads_waiting: int
    transfer_target: int
    is_resting: bool
    leader_silent_ticks: int
    """Since a leader was last heard; 0 on the leader."""
    snapshots_taken: int
    snapshots_installed: int
    snapshot_fetch: tuple[int, int, int] | None
    """(index, chunks here, chunks) of the snapshot that is being fetched."""
    followers: tuple[MemberReport, ...]
    """On the leader: every other member."""


def report_of(member: Member) -> Report:
    """Everything about `member` now."""
    core, leading, log = member.core, member.leading, member.core.log
    collector = member.following.collector
    return Report(
        node=core.id,
        role=core.role.value,
        term=core.term,
        voted_for=core.voted_for,
        leader=core.leader,
        members=core.members,
        is_members_committed=core.members.index <= log.commit,
        log=LogReport(
            log.first,
            log.snapshot_index,
            log.snapshot_term,
            log.commit,
            core.synced,
            log.last,
            log.last_term,
            log.capacity,
            log.pending_bytes,
        ),
        applied=core.applied,
        proposals_waiting=len(core.proposals),
        reads_waiting=len(core.reads),
        transfer_target=NOBODY if leading is None else leading.target,
        is_resting=member.resting,
        leader_silent_ticks=0 if leading is not None else core.now - core.contact,
        snapshots_taken=member.snapshots_taken,
        snapshots_installed=member.snapshots_installed,
        snapshot_fetch=None
        if collector is None
        else (collector.index, collector.fetched, collector.count),
        followers=()
        if leading is None
        else tuple(
            MemberReport(
                member,
                found.pace.value,
                found.match,
                found.next,
                found.active,
                len(found.inflight),
                found.inflight_bytes,
            )
            for member, found in leading.progress.items()
        ),
    )
