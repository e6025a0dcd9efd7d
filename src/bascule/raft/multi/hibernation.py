"""The set of hibernating groups between two processes, replicated over messages that may be lost.

The process with the leaders numbers the changes of the set. A bundle carries the changes from one
version to another. The other process takes them if it has everything up to the first version, and
replies with the version that it has. Unconfirmed changes are sent again, so the copy follows the
original even if bundles are lost, repeated or reordered. A confirmation is one number per bundle,
whatever the number of groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from bascule.raft.multi.bundle import Hibernation


class LedHibernations:
    """The hibernating groups that this process leads and one peer follows: the original set."""

    __slots__ = ("changes", "confirmed", "groups", "sent", "version")

    def __init__(self) -> None:
        self.groups: dict[int, Hibernation] = {}
        self.version = 0
        """Number of the last change; it never falls."""
        self.sent = 0
        """Changes up to here were sent since the last `resend_unconfirmed`."""
        self.confirmed = 0
        """The peer has the changes up to here."""
        self.changes: dict[int, int] = {}
        """Group -> version of its last change, for those after `confirmed`, oldest first."""

    @property
    def has_changes(self) -> bool:
        """Whether there are unconfirmed changes."""
        return bool(self.changes)

    @property
    def has_unsent(self) -> bool:
        return bool(self.changes) and self.sent < self.version

    def add(self, hibernation: Hibernation) -> None:
        self.groups[hibernation.group] = hibernation
        self._changed(hibernation.group)

    def remove(self, group: int) -> None:
        if self.groups.pop(group, None) is not None:
            self._changed(group)

    def _changed(self, group: int) -> None:
        self.version += 1
        self.changes.pop(group, None)
        self.changes[group] = self.version

    def take_changes(self, most: int) -> tuple[int, int, tuple[Hibernation, ...], tuple[int, ...]]:
        """(base, version, hibernating, awake) of the unsent changes, up to `most` groups."""
        base, changes, hibernating = self.sent, self.changes, self.groups
        groups = []
        for group in reversed(changes):
            if changes[group] <= base:
                break
            groups.append(group)
        groups.reverse()
        del groups[most:]
        if groups:
            self.sent = changes[groups[-1]]
        hibernated = tuple([hibernating[group] for group in groups if group in hibernating])
        woken = tuple([group for group in groups if group not in hibernating])
        return base, self.sent, hibernated, woken

    def confirm(self, version: int) -> None:
        """The peer has the changes up to `version`."""
        if not self.confirmed < version <= self.version:
            return
        self.confirmed = version
        self.sent = max(self.sent, version)
        changes = self.changes
        while changes and changes[group := next(iter(changes))] <= version:
            del changes[group]

    def resend_unconfirmed(self) -> None:
        """Send the unconfirmed changes again: they may have been lost."""
        self.sent = self.confirmed

    def reset(self) -> None:
        """The peer has an empty copy, and all these groups are being woken."""
        self.groups.clear()
        self.changes.clear()
        self.sent = self.confirmed = 0


class FollowedHibernations:
    """The hibernating groups that a peer leads and this process follows: the copy of the set."""

    __slots__ = ("groups", "refused", "version")

    def __init__(self) -> None:
        self.version = 0
        self.groups: dict[int, Hibernation] = {}
        """The peer's set as of `version`."""
        self.refused: dict[int, Hibernation] = {}
        """The ones among them that do not hibernate here."""

    def take(
        self, base: int, version: int, hibernated: Sequence[Hibernation], woken: Sequence[int]
    ) -> bool:
        """Take the changes, unless they are old or earlier ones are missing. Returns whether they
        were taken."""
        if not base <= self.version < version:
            return False
        self.version = version
        for group in woken:
            self.groups.pop(group, None)
            self.refused.pop(group, None)
        for hibernation in hibernated:
            self.groups[hibernation.group] = hibernation
            self.refused.pop(hibernation.group, None)
        return True

    def refuse(self, group: int) -> bool:
        """`group` does not hibernate here. Returns whether the peer must be informed."""
        hibernation = self.groups.get(group)
        if hibernation is None or self.refused.get(group) is hibernation:
            return False
        self.refused[group] = hibernation
        return True

    def reset(self) -> None:
        self.version = 0
        self.groups.clear()
        self.refused.clear()
