"""The order of nodes in a chain: by racks, and by what was measured between nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from bascule.wire.datastream.frames import PACKET_BYTES

NEAR_NS: Final = 1_000_000
"""Round trips below this are equal: they differ more by what processes do than by the network."""
FAST_NS: Final = 10_000_000
"""So are rates at which a packet of 1 MiB takes less than this, 100 MB/s."""
FAR_TIMES: Final = 4
"""Ways that differ by less than so many times are equal as well."""


class NodeLink(NamedTuple):
    """What was measured between two nodes."""

    round_trip_ns: int = -1
    """-1: not known."""
    bytes_per_s: int = -1
    """-1: not known, or faster than what was to be sent."""

    @property
    def distance(self) -> float:
        """1 for near and fast; otherwise how many times as far, or as slow."""
        packet_ns = PACKET_BYTES * 1e9 / max(self.bytes_per_s, 1)
        slow = 0.0 if self.bytes_per_s < 0 else packet_ns / FAST_NS
        return max(1.0, self.round_trip_ns / NEAR_NS, slow)

    def __str__(self) -> str:
        trip = f"{self.round_trip_ns / 1e6:.1f} ms" if self.round_trip_ns >= 0 else "unknown"
        return trip if self.bytes_per_s < 0 else f"{trip} at {self.bytes_per_s / 1e6:.1f} MB/s"


UNKNOWN: Final = NodeLink()
Links: TypeAlias = Mapping[tuple[int, int], NodeLink]
"""By the node that has measured, and the other one."""


def link_between(links: Links, one: int, other: int) -> NodeLink:
    """What is known of the way between two nodes, in either direction.

    Where neither has measured it, it is at least as long as a third node is nearer to the one than
    to the other.
    """
    there, back = links.get((one, other), UNKNOWN), links.get((other, one), UNKNOWN)
    trips = [each.round_trip_ns for each in (there, back) if each.round_trip_ns >= 0]
    if trips:
        return NodeLink(min(trips), there.bytes_per_s)
    least = -1
    for (source, target), link in links.items():
        third = links.get((source, other))
        if target == one and third is not None and min(link[0], third[0]) >= 0:
            least = max(least, abs(link.round_trip_ns - third.round_trip_ns))
    return NodeLink(least, there.bytes_per_s)


def order_chain(primary: int, leader: int, racks: Mapping[int, str], links: Links) -> list[int]:
    """The nodes of `racks`, from `primary` on, so that each rack is entered once.

    The rack of the leader is the last one. Within a rack, and among racks, the nearest node is
    next. Of equally near ones the leader is the last, so that it forwards as little as possible.
    """
    left = {node for node in racks if node != primary}
    order = [primary]
    while left:
        here = order[-1]
        candidates = [node for node in left if racks[node] == racks.get(here, "")]
        candidates = candidates or [node for node in left if racks[node] != racks.get(leader)]
        distances = {node: link_between(links, here, node).distance for node in candidates or left}
        near = FAR_TIMES * min(distances.values())
        following = min(
            (node for node, distance in distances.items() if distance < near),
            key=lambda node: (racks[node], node == leader, node),
        )
        left.remove(following)
        order.append(following)
    return order


def measured(order: Sequence[int], links: Links) -> str:
    """What is known of the ways between the nodes of a chain."""
    known = [
        f"{one}-{other} {link}"
        for one, other in pairwise(order)
        if (link := link_between(links, one, other)) != UNKNOWN
    ]
    return ", ".join(known)
