"""Conflicts with other clusters, as `/readyz` shows them."""

from __future__ import annotations

from bascule.http.app import _health_response
from bascule.http.health import streams_health
from bascule.model import DuplicateStream

OTHER = DuplicateStream("b", (1, 2), "orders.*", acks=True, shared=False, conflict=True)


def test_a_conflict_makes_the_node_not_ready_and_says_with_whom() -> None:
    part = streams_health({"orders": [OTHER]}, cluster_id="a", refusal=None)
    assert (part.part, part.state) == ("streams", "down")
    assert "1 streams are in conflict" in part.reason
    assert "orders: on orders.* in cluster b, nodes 1, 2; delete" in part.reason
    assert _health_response((part,)).status_code == 503


def test_only_some_of_many_conflicts_are_listed() -> None:
    conflicts = {f"s{number}": [OTHER] for number in range(5_000)}
    reason = streams_health(conflicts, cluster_id="a", refusal=None).reason
    assert "s2: on" in reason
    assert "s3: on" not in reason
    assert "and 4997 more" in reason


def test_a_copy_is_named_as_one() -> None:
    reason = streams_health({"orders": [OTHER]}, cluster_id="b", refusal=None).reason
    assert "orders: a copy of this node's data directory runs" in reason


def test_without_permission_the_node_is_ready_and_says_so() -> None:
    part = streams_health({}, cluster_id="a", refusal="Permissions Violation")
    assert part.state == "ok"
    assert "Permissions Violation" in part.reason
    assert streams_health({}, cluster_id="a", refusal=None).state == "ok"
