"""Who belongs to a group, and what a majority of it has: arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import msgspec

NOBODY: Final = 0
"""Where a node id would stand: no vote given, no leader known."""


class Change(IntEnum):
    """A change of the members; one at a time."""

    ADD_LEARNER = 1
    ADD_VOTER = 2
    """Add a voter, or promote a learner."""
    REMOVE = 3


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The members of a group from log index `index` on (0: as the group was founded).

    `voters` and `learners` are sorted node ids (1 or more) without a common one. Learners get the
    log and count in no majority.
    """

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    index: int = 0

    @property
    def all(self) -> tuple[int, ...]:
        return self.voters + self.learners

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def __contains__(self, node: int) -> bool:
        return node in self.voters or node in self.learners

    def changed(self, change: Change, node: int, index: int) -> Members:
        """The members after `change` of `node` by the entry at `index`; equal where it is one
        already, but for `index`."""
        voters, learners = set(self.voters), set(self.learners)
        if change is Change.ADD_VOTER:
            learners.discard(node)
            voters.add(node)
        elif change is Change.ADD_LEARNER:
            learners |= {node} - voters
        else:
            voters.discard(node)
            learners.discard(node)
        return Members(tuple(sorted(voters)), tuple(sorted(learners)), index)

    def reached(self, values: Mapping[int, int]) -> int:
        """The largest value that a majority of voters has or passes; a missing voter has 0."""
        voters = self.voters
        if not voters:
            return 0
        found = sorted([values.get(voter, 0) for voter in voters], reverse=True)
        return found[len(voters) // 2]

    def is_majority(self, says: Callable[[int], bool]) -> bool:
        """Whether `says` is true of a majority of voters."""
        return sum(map(says, self.voters)) >= self.majority if self.voters else False


def founded(*voters: int) -> Members:
    """The members a group begins with."""
    return Members(tuple(sorted(set(voters))))


def encode_members(members: Members) -> bytes:
    """The payload of a members entry."""
    return msgspec.msgpack.encode(members)


_members = msgspec.msgpack.Decoder(Members)


def decode_members(payload: bytes) -> Members:
    """Raises: msgspec.MsgspecError where the payload is not that of a members entry."""
    return _members.decode(payload)
