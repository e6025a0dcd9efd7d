"""Routing tables: the tree of nodes along which a payload goes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from bascule.datastream.protocol.chains import Links, measured, order_chain
from bascule.errors import InvalidRoute

Route: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Each node that forwards, and the nodes that it forwards to."""
TOPOLOGIES: Final = ("auto", "star", "chain", "tree")
TREE_SUCCESSORS: Final = 2


class PlannedRoute(NamedTuple):
    """A route, and why it was chosen."""

    route: Route
    why: str


def as_route(pairs: Iterable[tuple[int, Sequence[int]]]) -> Route:
    """The form that messages have. Raises: InvalidRoute if a node is named twice."""
    found: dict[int, tuple[int, ...]] = {}
    for node, successors in pairs:
        if node in found:
            raise InvalidRoute(f"node {node} is listed twice")
        found[node] = tuple(successors)
    return tuple(found.items())


def check(
    route: Route, *, primary: int, nodes: Collection[int], lost: Collection[int] = ()
) -> None:
    """`lost` have replicas and are not alive. Raises: InvalidRoute unless each of `nodes` is
    reached exactly once, from `primary`, and no other one."""
    successors = dict(route)
    reached = {primary}
    waiting = [primary]
    while waiting:
        for each in successors.pop(waiting.pop(), ()):
            if each in reached:
                raise InvalidRoute(f"node {each} is reached twice")
            reached.add(each)
            waiting.append(each)
    if successors:
        unreached = min(successors)
        raise InvalidRoute(f"node {unreached} forwards, and nothing leads to it from {primary}")
    if foreign := reached.difference(nodes):
        node = min(foreign)
        why = "is not alive" if node in lost else "has no replica"
        raise InvalidRoute(f"node {node} {why}, expected {_listed(nodes)}")
    if missing := set(nodes).difference(reached):
        raise InvalidRoute(f"node {min(missing)} has a replica and is not reached")


def head(route: Route) -> int:
    """The node where a route begins. Raises: InvalidRoute if there is not exactly one."""
    later = {each for _, successors in route for each in successors}
    first = [node for node, _ in route if node not in later]
    if len(first) != 1:
        raise InvalidRoute(f"{len(first)} nodes have none before them, expected one")
    return first[0]


def below(route: Route, node: int) -> Route:
    """The part of a route that begins at `node`."""
    successors = dict(route)
    found: list[tuple[int, tuple[int, ...]]] = []
    waiting = [node]
    while waiting:
        each = waiting.pop(0)
        if each in successors:
            found.append((each, successors[each]))
            waiting += successors[each]
    return tuple(found)


def next_nodes(route: Route, node: int) -> tuple[int, ...]:
    """The nodes that `node` forwards to."""
    return dict(route).get(node, ())


def star(nodes: Sequence[int]) -> Route:
    """The first node forwards to all others."""
    return ((nodes[0], tuple(nodes[1:])),) if len(nodes) > 1 else ()


def chain(nodes: Sequence[int]) -> Route:
    """Each node forwards to the next one."""
    return tuple((node, (after,)) for node, after in pairwise(nodes))


def tree(nodes: Sequence[int]) -> Route:
    """Each node forwards to at most two others."""
    wide = TREE_SUCCESSORS
    found = (
        (node, tuple(nodes[wide * at + 1 : wide * at + 1 + wide])) for at, node in enumerate(nodes)
    )
    return tuple(each for each in found if each[1])


def plan(
    topology: str,
    *,
    primary: int,
    leader: int,
    racks: Mapping[int, str],
    quorum: bool = False,
    links: Links = {},  # noqa: B006
) -> PlannedRoute:
    """A route over the nodes of `racks` that begins at `primary`.

    `auto` goes along a chain: through the rack of the primary first, then from rack to rack, each
    of which is entered once, to the nearest node each time (`chains`). With `quorum` each node must
    answer for itself, which is a star.

    Raises: InvalidRoute for an unknown topology.
    """
    nodes = order_chain(primary, leader, racks, links)
    if quorum:
        return PlannedRoute(star(nodes), "star: a quorum is counted by the first node")
    if topology == "star":
        return PlannedRoute(star(nodes), "star, as asked")
    if topology == "chain":
        return PlannedRoute(chain(nodes), "chain, as asked")
    if topology == "tree":
        return PlannedRoute(tree(nodes), "tree, as asked")
    if topology != "auto":
        raise InvalidRoute(f"topology {topology!r}, expected {', '.join(TOPOLOGIES)}")
    return PlannedRoute(chain(nodes), _why(nodes, leader, racks, links))


def first_follower(leader: int, racks: Mapping[int, str], links: Links = {}) -> int:  # noqa: B006
    """The node of `racks` that is nearest to the leader; -1 if there is no other one."""
    return next(iter(order_chain(leader, leader, racks, links)[1:]), -1)


def _why(nodes: Sequence[int], leader: int, racks: Mapping[int, str], links: Links) -> str:
    crossings = len(set(racks.values())) - 1
    if len(nodes) == 1:
        return "one replica"
    where = f"{crossings} crossings between racks" if crossings else "one rack"
    if crossings == 1:
        where = "one crossing between racks"
    place = ""
    if nodes[0] == leader:
        place = ", from the leader on"
    elif nodes[-1] == leader:
        place = ", the leader last"
    elif leader in racks:
        place = ", the leader in its place by distance"
        if racks[nodes[-1]] == racks[leader] and crossings:
            place = ", the rack of the leader last"
    distances = measured(nodes, links)
    return f"chain: {where}{place}{f'; {distances}' if distances else ''}"


def _listed(nodes: Collection[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
