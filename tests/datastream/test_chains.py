"""Chains by racks and by what was measured between nodes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.datastream.protocol import routes
from bascule.datastream.protocol.chains import Links, NodeLink, link_between, order_chain
from bascule.heartbeats.round_trips import RoundTrips

MS = 1_000_000
ONE_RACK = dict.fromkeys((1, 2, 3, 4), "")


def trips(**times_ms: float) -> Links:
    """`trips(_12=0.3)`: node 1 has measured 0.3 ms to node 2."""
    return {(int(name[1]), int(name[2])): NodeLink(int(ms * MS)) for name, ms in times_ms.items()}


def test_without_measurements_the_order_is_that_of_numbers_and_the_leader_is_last() -> None:
    assert order_chain(2, 1, ONE_RACK, {}) == [2, 3, 4, 1]
    assert order_chain(2, 2, ONE_RACK, {}) == [2, 1, 3, 4]


def test_a_distant_node_is_last_and_the_way_to_it_is_used_once() -> None:
    links = trips(_12=50, _13=0.2, _14=0.3, _32=51, _34=0.2, _42=50)
    assert order_chain(1, 4, ONE_RACK, links) == [1, 3, 4, 2]
    # As seen from the distant one: its way is the first, then they are near.
    assert order_chain(2, 4, ONE_RACK, links) == [2, 1, 3, 4]


def test_two_sites_without_racks() -> None:
    far = {(a, b): NodeLink(50 * MS) for a in (1, 3) for b in (2, 4)}
    links = {**far, (1, 3): NodeLink(MS // 5), (2, 4): NodeLink(MS // 5)}
    assert order_chain(1, 3, ONE_RACK, links) == [1, 3, 2, 4]
    assert order_chain(4, 3, ONE_RACK, links) == [4, 2, 1, 3]


def test_small_differences_do_not_matter() -> None:
    links = trips(_21=0.05, _23=0.9, _24=0.4, _31=0.1, _34=0.7, _41=0.05)
    assert order_chain(2, 1, ONE_RACK, links) == [2, 3, 4, 1]


@pytest.mark.parametrize(("ways", "order"), [((90, 120), [1, 2, 3]), ((20, 120), [1, 3, 2])])
def test_rates_that_differ_by_less_than_four_times_are_equal(
    ways: tuple[int, int], order: list[int]
) -> None:
    """As the measured rates of a busy disk are: the leader stays the last."""
    links = {
        (1, node): NodeLink(0, rate * 1_000_000) for node, rate in zip((2, 3), ways, strict=True)
    }
    assert order_chain(1, 3, dict.fromkeys((1, 2, 3), ""), links) == order


def test_racks_come_before_round_trips() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    links = trips(_12=90, _13=0.1, _14=30, _23=90, _24=5, _34=30)
    assert order_chain(1, 1, racks, links) == [1, 2, 4, 3], "from 2 the rack of 4 is nearer"
    assert order_chain(1, 4, racks, links) == [1, 2, 3, 4], "the rack of the leader is last"


def test_a_slow_way_is_avoided() -> None:
    near = trips(_12=0.1, _13=0.1, _14=0.1, _23=0.1, _24=0.1, _34=0.1)
    slow = {**near, (1, 2): NodeLink(MS // 10, 2_000_000)}
    assert order_chain(1, 4, ONE_RACK, slow) == [1, 3, 2, 4]
    fast = {**near, (1, 2): NodeLink(MS // 10, 400_000_000)}
    assert order_chain(1, 4, ONE_RACK, fast) == [1, 2, 3, 4]


def test_what_neither_has_measured_follows_from_a_third_node() -> None:
    links = trips(_12=50, _13=1)
    assert link_between(links, 2, 3) == NodeLink(49 * MS)
    assert link_between(links, 3, 1) == NodeLink(MS)
    assert link_between(links, 2, 4) == NodeLink()


@given(
    st.dictionaries(st.integers(1, 7), st.sampled_from(["", "a", "b", "c"]), min_size=1),
    st.dictionaries(
        st.tuples(st.integers(1, 8), st.integers(1, 8)),
        st.builds(NodeLink, st.integers(-1, 10**12), st.integers(-1, 10**12)),
    ),
    st.data(),
)
def test_any_chain_reaches_each_node_once_and_enters_each_rack_once(
    racks: dict[int, str], links: Links, data: st.DataObject
) -> None:
    primary = data.draw(st.sampled_from(sorted(racks)))
    leader = data.draw(st.integers(0, 8))
    order = order_chain(primary, leader, racks, links)
    assert order[0] == primary
    assert sorted(order) == sorted(racks)
    crossings = sum(racks[one] != racks[other] for one, other in pairwise(order))
    assert crossings == len(set(racks.values())) - 1
    if leader in racks and racks[leader] != racks[primary]:
        assert racks[order[-1]] == racks[leader]


def test_why_says_what_was_measured() -> None:
    links = {(1, 3): NodeLink(MS // 5), (3, 2): NodeLink(50 * MS, 8_000_000)}
    planned = routes.plan("auto", primary=1, leader=2, racks={1: "", 2: "", 3: ""}, links=links)
    assert planned.route == ((1, (3,)), (3, (2,)))
    assert planned.why == ("chain: one rack, the leader last; 1-3 0.2 ms, 3-2 50.0 ms at 8.0 MB/s")
    near = routes.plan(
        "auto", primary=1, leader=2, racks={1: "", 2: "", 3: ""}, links=trips(_12=0.1, _13=70)
    )
    assert near.route == ((1, (2,)), (2, (3,)))
    assert "the leader in its place by distance" in near.why


def test_round_trips_keep_the_shortest_of_the_last_ones() -> None:
    measured = RoundTrips()
    measured.on_answer(2, 5 * MS)
    measured.on_answer(2, MS)
    measured.on_answer(2, 80 * MS)  # a busy process
    assert MS < measured.of()[2] < 1.1 * MS
    for _ in range(3_000):
        measured.on_answer(2, 80 * MS)  # another way
    assert measured.of() == {2: 80 * MS}
    measured.forget(2)
    assert measured.of() == {}


@pytest.mark.parametrize(
    ("link", "distance"),
    [
        (NodeLink(), 1),
        (NodeLink(MS - 1), 1),
        (NodeLink(4 * MS), 4),
        (NodeLink(0, 200_000_000), 1),
        (NodeLink(MS, 1 << 20), 100),
        (NodeLink(200 * MS, 1 << 20), 200),
    ],
)
def test_distances(link: NodeLink, distance: float) -> None:
    assert link.distance == distance
