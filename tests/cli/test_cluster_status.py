"""What `bascule cluster status` says of lost nodes, moves and voters, and what goes on after."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.cli.cluster import commands
from bascule.cli.cluster.operations import show_moves_away
from bascule.model import ClusterInfo, LackingNode, NodeRegistration, PartitionRef

WHOLE = ClusterInfo(
    "flights", 1, 1, 1,
    tuple(NodeRegistration(n, f"h{n}:9093", f"h{n}:9092", "") for n in (1, 2, 3)), 30, (), (), (),
    voters=(1, 2, 3),
)  # fmt: skip
MOVE = PartitionRef("flights", 0, 1, (1, 2, 3, 4), (1, 2, 3), target=(4, 2, 3))


def test_the_voter_that_answers_is_not_to_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    commands._show_lost(replace(WHOLE, controller=0), answering=3)
    said = capsys.readouterr().out
    assert "start the voters 1, 2, or mend the network between them and node 3" in said


def test_a_node_that_is_lost_has_its_document(capsys: pytest.CaptureFixture[str]) -> None:
    commands._show_lost(WHOLE, answering=0)
    assert capsys.readouterr().out == ""
    one, two, three = WHOLE.nodes
    commands._show_lost(replace(WHOLE, nodes=(one, two, replace(three, alive=False))), answering=0)
    said = capsys.readouterr().out
    assert "start node 3 again; if it is lost for good: docs/operations.md" in said


def test_moves_are_shown_with_their_targets(capsys: pytest.CaptureFixture[str]) -> None:
    waits = replace(MOVE, partition=1, move_waits="its move waits for a leader")
    commands._show_moving(replace(WHOLE, moving=(MOVE, waits), moving_count=2))
    assert capsys.readouterr().out.splitlines() == [
        "2 partitions on the way to other nodes",
        "  flights 0: 1 2 3 4 → 4 2 3",
        "  flights 1: 1 2 3 4 → 4 2 3; its move waits for a leader",
    ]


def test_moves_off_a_node_that_stays_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    info = replace(WHOLE, moving=(MOVE,), moving_count=1)
    show_moves_away(info, 2)
    assert capsys.readouterr().out == "", "it stays a replica"
    show_moves_away(info, 1)
    assert capsys.readouterr().out.splitlines() == [
        "moves away from it that had begun go on (1 partition):",
        "  flights 0: 1 2 3 4 → 4 2 3",
        "`bascule stream reassign flights --cancel` takes those of one stream back",
    ]


def test_nodes_without_nats_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = LackingNode(2, 1_700_000_000_000, 0), LackingNode(3, 1_700_000_001_000, 4)
    commands._show_lacking_nats(replace(WHOLE, lacking_nats=lacking))
    assert " ".join(capsys.readouterr().out.split()) == (
        "node 2 has had no NATS connection since 2023-11-14 22:13:20 UTC: it leads no partition "
        "node 3 has had no NATS connection since 2023-11-14 22:13:21 UTC: it leads 4 partitions, "
        "where no other replica in sync has NATS"
    )
    node = replace(WHOLE.nodes[1], lacks_nats_since_ms=1)
    assert "no NATS" in commands._state(node, WHOLE)
    assert "no NATS" not in commands._state(replace(node, alive=False), WHOLE)
