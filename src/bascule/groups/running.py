"""A group that this node coordinates, and how it is stored and restored."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TypeAlias

from bascule.errors import BasculeError, NotLeader
from bascule.groups.classic import ClassicGroup, GroupLimits, GroupState, Store
from bascule.groups.classic.snapshot import decode_snapshot, encode_snapshot
from bascule.groups.committed_offsets import CommittedOffsetStore
from bascule.groups.consumer import ConsumerGroup, StoreRecords, Topics, is_consumer_group
from bascule.wire.error_codes import ErrorCode

log = logging.getLogger("bascule.groups")

Group: TypeAlias = ClassicGroup | ConsumerGroup
Records: TypeAlias = tuple[tuple[str | None, bytes | None], ...]
"""Id of a member, None for the group, and its record; without one the record is removed."""


@dataclass(slots=True)
class GroupCounts:
    """Counters for metrics; `states` and `members` are of now."""

    rebalances: int = 0
    expired: int = 0
    """Members removed because they were not heard of, or did not join in time."""
    states: dict[str, int] = field(default_factory=dict)
    """State -> groups in it."""
    members: int = 0
    size_bytes: int = 0
    """What the groups take in memory, about, with their stored states."""
    refusals: int = 0
    """Requests that were refused because the groups take as much memory as they may."""


@dataclass(slots=True, eq=False)
class RunningGroup:
    """A group, and what the coordinator knows about it."""

    name: str
    group: Group
    due_ms: int | None = None
    """Its entry in the deadlines."""
    size_bytes: int = 0
    """What it counted for the memory of all groups the last time."""
    generation: int = 0
    """The last one that was logged."""

    def convert(self, group: Group, protocol: str) -> None:
        """Go on as a group of the other protocol."""
        self.group, self.due_ms = group, None
        log.info(
            "group converted",
            extra={
                "group": self.name,
                "to_protocol": protocol,
                "members": len(group.members),
                "generation": group.generation,
            },
        )

    def log_changes(self) -> None:
        """Log the members that have expired since they were counted, and a new generation."""
        group = self.group
        if group.expired:
            log.info(
                "members of a group expired",
                extra={"group": self.name, "members": group.expired},
            )
        if group.state == GroupState.STABLE and self.generation != group.generation:
            self.generation = group.generation
            log.info(
                "generation of a group",
                extra={
                    "group": self.name,
                    "generation": group.generation,
                    "members": len(group.members),
                    "protocol": group.protocol,
                },
            )


def records_of(effect: Store | StoreRecords) -> Records:
    """What a group asks to store, encoded."""
    if isinstance(effect, StoreRecords):
        return effect.records
    return ((None, None if effect.snapshot is None else encode_snapshot(effect.snapshot)),)


async def store_group(offsets: CommittedOffsetStore, name: str, records: Records) -> ErrorCode:
    """Store what a group asks for; why it may not be stored, or NONE once it is committed."""
    try:
        (member_id, state), *others = records
        if member_id is None and not others:
            await offsets.store_group(name, state)
        else:
            await offsets.store_members(name, records)
    except BasculeError as failure:
        log.warning("members of a group not stored", extra={"group": name, "error": str(failure)})
        is_elsewhere = isinstance(failure, NotLeader)
        return ErrorCode.NOT_COORDINATOR if is_elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def restore_group(
    offsets: CommittedOffsetStore, name: str, limits: GroupLimits, topics: Topics, now_ms: int
) -> Group | None:
    """The group as it was stored; None if its records cannot be read."""
    state = offsets.group_states[name]
    try:
        if is_consumer_group(state):
            members = offsets.member_states.get(name, {}).items()
            return ConsumerGroup.restore(state, members, limits, topics, now_ms)
        return ClassicGroup.restore(decode_snapshot(state), limits, now_ms)
    except ValueError as error:
        log.warning("members of a group cannot be read", extra={"group": name, "error": str(error)})
        return None
