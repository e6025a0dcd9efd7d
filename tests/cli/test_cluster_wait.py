"""What `bascule cluster wait` waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.cli.cluster.whole import missing_parts
from bascule.model import ClusterInfo, LackingNode, NodeRegistration, PartitionRef

WHOLE = ClusterInfo(
    "flights", 1, 1, 1,
    tuple(NodeRegistration(n, f"h{n}:9093", f"h{n}:9092", "") for n in (1, 2, 3)), 30, (), (), (),
)  # fmt: skip


REF = PartitionRef("flights", 0, -1, (1, 2, 3), (1,))


def test_a_whole_cluster_lacks_nothing() -> None:
    assert missing_parts(WHOLE) == []


def test_nodes_that_are_away_are_named() -> None:
    one, *others = WHOLE.nodes
    away = replace(WHOLE, nodes=(one, *(replace(each, alive=False) for each in others)))
    assert missing_parts(away) == ["not alive: nodes 2, 3"]


def test_nodes_that_lack_nats_are_awaited_unless_all_do() -> None:
    lacking = tuple(LackingNode(node, 1, 0) for node in (1, 2, 3))
    assert missing_parts(replace(WHOLE, lacking_nats=lacking[1:])) == [
        "no NATS connection: nodes 2, 3"
    ]
    assert missing_parts(replace(WHOLE, lacking_nats=lacking)) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"controller": 0}, "no controller"),
        ({"leaderless_count": 2}, "2 partitions without a leader"),
        (
            {"under_replicated_count": 3},
            "3 partitions with a replica that is not in sync, or is yet to be made",
        ),
        ({"failed_count": 1}, "1 failed replica"),
    ],
)
def test_each_part_that_is_missing_is_named(changed: dict[str, int], text: str) -> None:
    assert missing_parts(replace(WHOLE, **changed)) == [text]  # type: ignore[arg-type]


@pytest.mark.parametrize("listed", ["leaderless", "under_replicated"])
def test_a_node_of_an_earlier_release_only_lists_what_is_missing(listed: str) -> None:
    """As the first node that is replaced in a rolling upgrade: its counts are 0."""
    assert missing_parts(replace(WHOLE, **{listed: (REF,)}))  # type: ignore[arg-type]


SHORT = replace(
    WHOLE,
    under_replicated=(
        PartitionRef(
            "flights", 0, 1, (1, 2), (1, 2), wanted=3,
            short="it has 2 of 3 replicas, for want of a node: add a node with `bascule node join`",
        ),
    ),
    under_replicated_count=2,
    short_count=2,
)  # fmt: skip


def test_replicas_that_there_is_no_node_for_are_missing_with_what_helps() -> None:
    assert missing_parts(SHORT) == [
        "2 partitions with fewer replicas than asked for, and no node for more: flights 0: it has "
        "2 of 3 replicas, for want of a node: add a node with `bascule node join`"
    ]


def test_a_cluster_may_be_known_to_run_short() -> None:
    assert missing_parts(SHORT, allow_short=True) == []
    also_behind = replace(SHORT, under_replicated_count=3)
    assert missing_parts(also_behind, allow_short=True) == [
        "1 partition with a replica that is not in sync, or is yet to be made"
    ]
