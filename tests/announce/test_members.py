"""Which nodes of its own cluster a node hears on its NATS."""

from __future__ import annotations

from bascule.announce.members import MEMBERS_MAX, MS, ClusterMembers, MemberHeard, MemberUnheard

INTERVAL_MS = 10_000
PATIENCE_NS = 3 * INTERVAL_MS * MS


def test_a_node_that_is_never_heard_is_told_of_once() -> None:
    members = ClusterMembers(INTERVAL_MS)
    assert members.look([2, 3], now_ns=0) == []
    assert members.is_missing
    members.on_heard(3, INTERVAL_MS, now_ns=1)
    assert members.look([2, 3], now_ns=PATIENCE_NS - 1) == []
    assert members.look([2, 3], now_ns=PATIENCE_NS) == [MemberUnheard(2)]
    assert members.unheard == (2,)
    members.on_heard(3, INTERVAL_MS, now_ns=PATIENCE_NS)
    assert members.look([2, 3], now_ns=2 * PATIENCE_NS - 1) == []
    members.on_heard(2, INTERVAL_MS, now_ns=2 * PATIENCE_NS - 1)
    assert members.look([2, 3], now_ns=2 * PATIENCE_NS - 1) == [MemberHeard(2)]
    assert not members.is_missing


def test_a_node_that_is_not_heard_any_more_has_its_own_intervals() -> None:
    members = ClusterMembers(INTERVAL_MS)
    members.on_heard(2, 10 * INTERVAL_MS, now_ns=0)
    assert members.look([2], now_ns=10 * PATIENCE_NS - 1) == []
    assert members.look([2], now_ns=10 * PATIENCE_NS) == [MemberUnheard(2)]


def test_a_node_that_does_not_live_is_not_missed() -> None:
    members = ClusterMembers(INTERVAL_MS)
    assert members.look([2], now_ns=0) == []
    assert members.look([2], now_ns=PATIENCE_NS) == [MemberUnheard(2)]
    assert members.look([], now_ns=PATIENCE_NS + 1) == [MemberHeard(2)]
    # It has the whole time again.
    assert members.look([2], now_ns=PATIENCE_NS + 2) == []
    members.on_heard(2, INTERVAL_MS, now_ns=PATIENCE_NS + 3)
    members.on_stopped(2)
    assert members.look([2], now_ns=PATIENCE_NS + 4) == []


def test_a_node_that_returns_after_it_was_killed_has_the_whole_time_again() -> None:
    """Nothing said that it stops, and its last announcement is of long ago."""
    members = ClusterMembers(INTERVAL_MS)
    members.on_heard(2, INTERVAL_MS, now_ns=0)
    assert members.look([2], now_ns=1) == []
    assert members.look([], now_ns=2) == []
    back_ns = 5 * PATIENCE_NS
    assert members.look([2], now_ns=back_ns) == []
    assert members.look([2], now_ns=back_ns + PATIENCE_NS - 1) == []
    assert members.look([2], now_ns=back_ns + PATIENCE_NS) == [MemberUnheard(2)]


def test_nobody_is_missed_for_the_time_without_a_connection() -> None:
    members = ClusterMembers(INTERVAL_MS)
    members.on_heard(2, INTERVAL_MS, now_ns=0)
    members.look([2, 3], now_ns=0)
    members.on_connected(now_ns=5 * PATIENCE_NS)
    assert members.look([2, 3], now_ns=6 * PATIENCE_NS - 1) == []
    assert members.look([2, 3], now_ns=6 * PATIENCE_NS) == [MemberUnheard(2)]


def test_anybody_can_announce_a_bounded_number_of_nodes() -> None:
    members = ClusterMembers(INTERVAL_MS)
    for node in range(2 * MEMBERS_MAX):
        members.on_heard(node, INTERVAL_MS, now_ns=0)
    assert len(members._heard_until_ns) == MEMBERS_MAX
