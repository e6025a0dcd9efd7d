"""The members of a group, and the majority of its voters."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

NOBODY: Final = 0
"""In place of a node id: no vote given, no leader known."""


class MemberChange(IntEnum):
    """A change of the members, one member at a time."""

    ADD_LEARNER = 1
    ADD_VOTER = 2
    """Add a voter, or promote a learner."""
    REMOVE = 3
    DEMOTE = 4
    """Make a voter a learner. The log has the members after a change, so nodes of earlier releases
    follow it."""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The members of a group from log index `index` on (0: the initial members).

    `voters` and `learners` are sorted node ids (1 or more) without a common one. Learners get the
    log and count in no majority.
    """

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    index: int = 0

    @staticmethod
    def of(*voters: int) -> Members:
        """The initial members of a group with these voters."""
        return Members(tuple(sorted(set(voters))))

    @property
    def all(self) -> tuple[int, ...]:
        return self.voters + self.learners

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def __contains__(self, node: int) -> bool:
        return node in self.voters or node in self.learners

    def changed(self, change: MemberChange, node: int, index: int) -> Members:
        """The members after `change` of `node` by the entry at `index`. Where the change has no
        effect they differ from these in `index` only."""
        voters, learners = set(self.voters), set(self.learners)
        if change is MemberChange.ADD_VOTER:
            learners.discard(node)
            voters.add(node)
        elif change is MemberChange.ADD_LEARNER:
            learners |= {node} - voters
        elif change is MemberChange.DEMOTE:
            learners |= {node} & voters
            voters.discard(node)
        else:
            voters.discard(node)
            learners.discard(node)
        return Members(tuple(sorted(voters)), tuple(sorted(learners)), index)

    def is_majority(self, predicate: Callable[[int], bool]) -> bool:
        """Whether `predicate` is true of a majority of the voters."""
        return sum(map(predicate, self.voters)) >= self.majority if self.voters else False


def majority_value(values: list[int]) -> int:
    """The largest number that a majority of `values`, one for each voter, reach; 0 without voters.
    Sorts `values`."""
    if not values:
        return 0
    values.sort(reverse=True)
    return values[len(values) // 2]


def encode_members(members: Members) -> bytes:
    """The payload of a membership entry."""
    return msgspec.msgpack.encode(members)


_members = msgspec.msgpack.Decoder(Members)


def decode_members(payload: bytes) -> Members:
    """Raises: msgspec.MsgspecError where the payload is not that of a membership entry."""
    return _members.decode(payload)
