"""Which partitions a leader has to say something about soon.

An answer may be lost, and so may the reason for which an attempt ended: nobody else would begin
another one, and the replica would not come into sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bascule.replica.follower.followed_partition import FollowedPartition

UNHEARD_SECONDS: Final = 3.0
"""A partition about which the leader has said nothing since its attempt began is due then."""
UNCOUNTED_SECONDS: Final = 10.0
"""So is one whose replica here is not in sync, after so long without records or other news."""

Key = tuple[bytes, int]


class Unheard:
    """Not thread-safe: the fetcher's lock guards it."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._since_ns: dict[Key, int] = {}
        """When the attempts began that the leader has not answered."""
        self._heard_ns: dict[Key, int] = {}
        """When the leader has said something last about partitions that are not in sync here."""
        self._look_ns = 0

    def __len__(self) -> int:
        return len(self._since_ns)

    def begin(self, key: Key, now_ns: int) -> None:
        """An attempt is to begin: the leader has to say something."""
        self._since_ns[key] = now_ns
        self._heard_ns.pop(key, None)

    def begin_all(self, keys: Iterable[Key], now_ns: int) -> None:
        """As `begin`, for these, and for no others any more."""
        self._since_ns = dict.fromkeys(keys, now_ns)
        self._heard_ns.clear()

    def hear(self, followed: FollowedPartition, now_ns: int) -> None:
        """The leader has said something."""
        self._since_ns.pop(followed.key, None)
        if followed.is_in_sync(self._node_id):
            self._heard_ns.pop(followed.key, None)
        else:
            self._heard_ns[followed.key] = now_ns

    def on_state(self, followed: FollowedPartition, now_ns: int) -> None:
        """The partition has another state: it may not be in sync here any more."""
        if followed.key not in self._since_ns and not followed.is_in_sync(self._node_id):
            self._heard_ns.setdefault(followed.key, now_ns)

    def forget(self, key: Key) -> None:
        """The partition is not followed any more."""
        self._since_ns.pop(key, None)
        self._heard_ns.pop(key, None)

    def take_due(
        self, now_ns: int, followed: Mapping[Key, FollowedPartition]
    ) -> list[FollowedPartition]:
        """The partitions whose attempts are to begin again. Cheap if called often."""
        if now_ns < self._look_ns or not (self._since_ns or self._heard_ns):
            return []
        self._look_ns = now_ns + int(UNHEARD_SECONDS * 1e9) // 4
        unheard_ns = now_ns - int(UNHEARD_SECONDS * 1e9)
        uncounted_ns = now_ns - int(UNCOUNTED_SECONDS * 1e9)
        keys = [key for key, since_ns in self._since_ns.items() if since_ns <= unheard_ns]
        for key, heard_ns in list(self._heard_ns.items()):
            found = followed.get(key)
            if found is None or found.is_in_sync(self._node_id):
                del self._heard_ns[key]
            elif heard_ns <= uncounted_ns:
                keys.append(key)
        for key in keys:
            self.begin(key, now_ns)
        return [found for key in keys if (found := followed.get(key)) is not None]
