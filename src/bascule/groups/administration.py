"""Lists, describes and deletes the groups that this node coordinates.

A group exists while it has members or committed offsets. Without members its state is Empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

from bascule.groups.described import DescribedGroup, GroupSummary, RunningGroups
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_protocol import PROTOCOL_TYPE
from bascule.wire.offsets import OffsetKey

SLICE: Final = 500
"""Groups that are looked at before other work of the event loop comes in between: about 1 ms."""
REMOVED_AT_ONCE: Final = 100
"""Offsets that are removed in one batch, unless one group has more: some ms of the event loop."""


class GroupOffsets(Protocol):
    """The committed offsets of groups; implemented by `committed_offsets`."""

    def consumers(self) -> list[str]:
        """The names of those that may have offsets."""
        ...

    def has_commits(self, consumer: str) -> bool: ...

    def keys(self, consumer: str) -> list[OffsetKey]:
        """Of all offsets of a consumer."""
        ...

    async def remove_keys(self, keys: Sequence[OffsetKey]) -> None:
        """Return once they are removed. Raises: BasculeError."""
        ...


class GroupAdministration:
    """Used on the event loop, of the node that leads `_offsets`."""

    def __init__(self, groups: RunningGroups, offsets: GroupOffsets) -> None:
        self._groups = groups
        self._offsets = offsets

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupSummary]:
        """The groups in one of these states and of one of these types; empty: any.

        The case of letters does not matter. Other work comes between slices of the list.
        """
        wanted = {state.lower() for state in states}, {kind.lower() for kind in types}
        found = []
        names = dict.fromkeys((*self._groups.names(), *self._offsets.consumers()))
        for number, name in enumerate(names):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            summary = self.summary(name)
            if (
                summary is not None
                and (not wanted[0] or summary.state.lower() in wanted[0])
                and (not wanted[1] or summary.type in wanted[1])
            ):
                found.append(summary)
        return found

    def summary(self, name: str) -> GroupSummary | None:
        """The group as it is listed; None: it does not exist."""
        running = self._groups.summary(name)
        if running is None and self._offsets.has_commits(name):
            return GroupSummary(name)
        return running

    def describe(self, name: str) -> DescribedGroup | None:
        """The group with its members; None: it does not exist."""
        running = self._groups.describe(name)
        if running is None and self._offsets.has_commits(name):
            return DescribedGroup(GroupSummary(name))
        return running

    async def delete(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        """Delete groups without members, which are their offsets; the error of each.

        Raises: BasculeError; then some of them may be deleted.
        """
        errors: dict[str, ErrorCode] = {}
        keys: list[OffsetKey] = []
        pending: list[str] = []
        for number, name in enumerate(dict.fromkeys(names)):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            errors[name] = self._deletion_error(name)
            if errors[name]:
                continue
            pending.append(name)
            keys += self._offsets.keys(name)
            if len(keys) >= REMOVED_AT_ONCE:
                await self._remove(pending, keys, errors)
                keys, pending = [], []
        await self._remove(pending, keys, errors)
        return errors

    def _deletion_error(self, name: str) -> ErrorCode:
        found = self.summary(name)
        if found is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if found.members else ErrorCode.NONE

    async def _remove(
        self, names: Sequence[str], keys: Sequence[OffsetKey], errors: dict[str, ErrorCode]
    ) -> None:
        # Members may have come since, while other offsets were removed. They may have committed.
        for name in names:
            if self._groups.summary(name) is not None:
                errors[name] = ErrorCode.NON_EMPTY_GROUP
        removed = [key for key in keys if not errors[key.consumer]]
        if removed:
            await self._offsets.remove_keys(removed)


def removal_error(group: DescribedGroup | None, topic: str | None = None) -> ErrorCode:
    """Why offsets of a group cannot be removed, or with `topic` those of this stream; or NONE.

    A group with members keeps the offsets of what they subscribe to (KIP-496).
    """
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if not group.members:
        return ErrorCode.NONE
    if group.summary.protocol_type != PROTOCOL_TYPE:
        return ErrorCode.NON_EMPTY_GROUP
    if topic is not None and (group.topics is None or topic in group.topics):
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE
