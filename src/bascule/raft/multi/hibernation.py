"""The groups at rest between a leading and a following hub, told in changes that may be lost.

The leading hub numbers the changes of its set. A bundle carries those from some version to another;
the following hub takes them if it has everything up to the first, and says which version it has.
What was not confirmed is sent again, so the copy follows the original whatever is lost, repeated or
reordered. The confirmation costs a number per bundle, however many groups rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from bascule.raft.multi.bundle import Rest


class LedGroups:
    """What this hub leads and has at rest, as one peer is to know it."""

    __slots__ = ("_changes", "confirmed", "resting", "sent", "version")

    def __init__(self) -> None:
        self.resting: dict[int, Rest] = {}
        self.version = 0
        """Number of the last change; never goes back."""
        self.sent = 0
        """Changes up to here were sent since `send_again`."""
        self.confirmed = 0
        """The peer has everything up to here."""
        self._changes: dict[int, int] = {}
        """Group -> version of its last change, those after `confirmed`, oldest first."""

    @property
    def has_changes(self) -> bool:
        """Whether the peer has not confirmed everything."""
        return bool(self._changes)

    @property
    def has_unsent(self) -> bool:
        return bool(self._changes) and self.sent < self.version

    def add(self, rest: Rest) -> None:
        self.resting[rest.group] = rest
        self._changed(rest.group)

    def remove(self, group: int) -> None:
        if self.resting.pop(group, None) is not None:
            self._changed(group)

    def _changed(self, group: int) -> None:
        self.version += 1
        self._changes.pop(group, None)
        self._changes[group] = self.version

    def take_changes(self, most: int) -> tuple[int, int, tuple[Rest, ...], tuple[int, ...]]:
        """(base, version, at rest, awake) of what was not sent, up to `most` groups."""
        base, changes, resting = self.sent, self._changes, self.resting
        groups = []
        for group in reversed(changes):
            if changes[group] <= base:
                break
            groups.append(group)
        groups.reverse()
        del groups[most:]
        if groups:
            self.sent = changes[groups[-1]]
        rested = tuple([resting[group] for group in groups if group in resting])
        woken = tuple([group for group in groups if group not in resting])
        return base, self.sent, rested, woken

    def confirm(self, version: int) -> None:
        """The peer has everything up to `version`."""
        if not self.confirmed < version <= self.version:
            return
        self.confirmed = version
        self.sent = max(self.sent, version)
        changes = self._changes
        while changes and changes[group := next(iter(changes))] <= version:
            del changes[group]

    def send_again(self) -> None:
        """What is not confirmed may be lost."""
        self.sent = self.confirmed

    def forget(self) -> None:
        """The peer has nothing, and is to be told of nothing: all these groups are being woken."""
        self.resting.clear()
        self._changes.clear()
        self.sent = self.confirmed = 0


class FollowedGroups:
    """What a peer leads and has at rest, as this hub has heard it."""

    __slots__ = ("refused", "resting", "version")

    def __init__(self) -> None:
        self.version = 0
        self.resting: dict[int, Rest] = {}
        """As the peer had it at `version`."""
        self.refused: dict[int, Rest] = {}
        """Those of it that do not rest here."""

    def take(self, base: int, version: int, rested: Sequence[Rest], woken: Sequence[int]) -> bool:
        """Follow the changes, or do nothing where some before them are missing or these are old.
        Whether they were taken."""
        if not base <= self.version < version:
            return False
        self.version = version
        for group in woken:
            self.resting.pop(group, None)
            self.refused.pop(group, None)
        for rest in rested:
            self.resting[rest.group] = rest
            self.refused.pop(rest.group, None)
        return True

    def refuse(self, group: int) -> bool:
        """`group` does not rest here. Whether that is news to the peer."""
        rest = self.resting.get(group)
        if rest is None or self.refused.get(group) is rest:
            return False
        self.refused[group] = rest
        return True

    def forget(self) -> None:
        self.version = 0
        self.resting.clear()
        self.refused.clear()
