"""The state of a node at one moment, for people and metrics."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bascule.raft.membership import NOBODY, Members
from bascule.raft.roles.core import Core
from bascule.raft.roles.follower import FollowerRole
from bascule.raft.roles.leader import LeaderRole


class FollowerReport(msgspec.Struct, frozen=True):
    """What a leader knows of another member. Indices are of the log."""

    node: int
    state: str
    """How entries are sent to it: probe, replicate or snapshot."""
    match: int
    next: int
    is_active: bool
    """Whether a message from it arrived since the leader's last quorum check."""
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


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node. Times are in ticks."""

    node: int
    role: str
    term: int
    voted_for: int
    leader: int
    members: Members
    """The members in force, committed or not."""
    is_members_committed: bool
    log: LogReport
    applied: int
    proposals_waiting: int
    reads_waiting: int
    transfer_target: int
    is_hibernating: bool
    leader_silent_ticks: int
    """Ticks since the last message from a leader; 0 on the leader."""
    snapshots_taken: int
    snapshots_installed: int
    snapshot_fetch: tuple[int, int, int] | None
    """(index, chunks fetched, chunks in all) of the snapshot that is being fetched."""
    followers: tuple[FollowerReport, ...]
    """Every other member, on the leader; empty elsewhere."""


def report_of(
    core: Core, leader: LeaderRole | None, follower: FollowerRole, *, is_hibernating: bool
) -> NodeReport:
    """The report of the node that these are the parts of."""
    log, fetcher = core.log, follower.fetcher
    return NodeReport(
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
        applied=log.applied,
        proposals_waiting=len(core.proposals),
        reads_waiting=len(core.reads),
        transfer_target=NOBODY if leader is None else leader.transfer_target,
        is_hibernating=is_hibernating,
        leader_silent_ticks=0 if leader is not None else core.now - core.leader_heard_at,
        snapshots_taken=core.snapshots_taken,
        snapshots_installed=core.snapshots_installed,
        snapshot_fetch=None if fetcher is None else (fetcher.index, fetcher.fetched, fetcher.count),
        followers=() if leader is None else tuple(_follower_reports(leader)),
    )


def _follower_reports(leader: LeaderRole) -> Iterator[FollowerReport]:
    for member, progress in leader.progress.items():
        yield FollowerReport(
            member,
            progress.state.value,
            progress.match,
            progress.next,
            progress.recently_active,
            len(progress.inflight),
            progress.inflight_bytes,
        )
