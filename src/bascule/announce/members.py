"""Which nodes of the own cluster are heard on this NATS, as far as others say that they live."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

MS: Final = 1_000_000
INTERVALS_MISSED_MAX: Final = 3
"""A node that is not heard of for so many of its intervals is gone, or not on this NATS any more;
one of the own cluster that was never heard, for so many of this node's."""
MEMBERS_MAX: Final = 1024
"""Nodes that are remembered; anybody can announce more."""


@dataclass(frozen=True, slots=True)
class MemberUnheard:
    """Effect: a node of this cluster lives, and is not heard on this NATS."""

    node_id: int


@dataclass(frozen=True, slots=True)
class MemberHeard:
    """Effect: such a node is heard now, or does not live any more."""

    node_id: int


class ClusterMembers:
    """Of one node. Times are monotonic nanoseconds."""

    def __init__(self, interval_ms: int) -> None:
        self._patience_ns = INTERVALS_MISSED_MAX * interval_ms * MS
        self._heard_until_ns: dict[int, tuple[int, int]] = {}
        """Node -> until when it counts as heard, and its patience."""
        self._missed_since_ns: dict[int, int] = {}
        self.unheard: tuple[int, ...] = ()
        """Nodes that live and are not heard, by number."""

    @property
    def is_missing(self) -> bool:
        """Whether a node that lives has not been heard, if only for a moment."""
        return bool(self._missed_since_ns)

    def on_heard(self, node: int, interval_ms: int, *, now_ns: int) -> None:
        if node in self._heard_until_ns or len(self._heard_until_ns) < MEMBERS_MAX:
            patience_ns = INTERVALS_MISSED_MAX * interval_ms * MS
            self._heard_until_ns[node] = now_ns + patience_ns, patience_ns
            self._missed_since_ns.pop(node, None)

    def on_stopped(self, node: int) -> None:
        self._heard_until_ns.pop(node, None)

    def on_connected(self, *, now_ns: int) -> None:
        """Nothing was heard without a connection, so nobody is missed."""
        for node, (_, patience_ns) in self._heard_until_ns.items():
            self._heard_until_ns[node] = now_ns + patience_ns, patience_ns
        self._missed_since_ns.clear()

    def look(self, alive: Collection[int], *, now_ns: int) -> list[MemberUnheard | MemberHeard]:
        """What has changed, where these other nodes of the cluster live."""
        # One that returns has the whole time again: what was heard was of the run before.
        for node in (self._heard_until_ns.keys() | self._missed_since_ns.keys()).difference(alive):
            self._heard_until_ns.pop(node, None)
            self._missed_since_ns.pop(node, None)
        unheard = []
        for node in sorted(alive):
            until_ns, _ = self._heard_until_ns.get(node, (None, 0))
            if until_ns is not None and now_ns < until_ns:
                continue
            # One that was heard before has been missed for long enough already.
            since_ns = now_ns if until_ns is None else now_ns - self._patience_ns
            if now_ns - self._missed_since_ns.setdefault(node, since_ns) >= self._patience_ns:
                unheard.append(node)
        before, self.unheard = self.unheard, tuple(unheard)
        return [
            *(MemberUnheard(node) for node in unheard if node not in before),
            *(MemberHeard(node) for node in before if node not in unheard),
        ]
