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


class NodeLink(NamedTuple):
    """What was measured between two nodes."""

    round_trip_ns: int = -1
    """-1: not known."""
    bytes_per_s: int = -1
    """-1: not known, or faster than what was to be sent."""

    @property
    def level(self) -> int:
        """0 for near and fast; each further level is four times as far, or as slow."""
        packet_ns = PACKET_BYTES * 1_000_000_000 // max(self.bytes_per_s, 1)
        slow = 0 if self.bytes_per_s < 0 else _level(packet_ns // FAST_NS)
        return max(_level(max(self.round_trip_ns, 0) // NEAR_NS), slow)

    def __str__(self) -> str:
        trip = f"{self.round_trip_ns / 1e6:.1f} ms" if self.round_trip_ns >= 0 else "unknown"
        return trip if self.bytes_per_s < 0 else f"{trip} at {self.bytes_per_s / 1e6:.1f} MB/s"


UNKNOWN: Final = NodeLink()
Links: TypeAlias = Mapping[tuple[int, int], NodeLink]
"""By the node that has measured, and the other one."""


def _level(times: int) -> int:
    return (times.bit_length() + 1) // 2


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
        rack = racks.get(here, "")

        def rank(node: int, here: int = here, rack: str = rack) -> tuple[object, ...]:
            is_other = racks[node] != rack
            return (
                is_other,
                is_other and racks[node] == racks.get(leader),
                link_between(links, here, node).level,
                racks[node],
                node == leader,
                node,
            )

        following = min(left, key=rank)
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
