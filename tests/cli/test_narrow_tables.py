"""What tables show on a terminal of 80 columns, and what they leave out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from bascule.cli.cluster import commands
from bascule.cli.streams.tables import partitions_table
from bascule.model import ClusterInfo, NodeRegistration, PartitionInfo

NODES = tuple(
    NodeRegistration(
        n, f"10.20.30.{n}:29093", f"10.20.30.{n}:29092", f"http://10.20.30.{n}:29080",
        version="1.0.0",
    )
    for n in (1, 2, 3)
)  # fmt: skip
CLUSTER = ClusterInfo("flights", 1, 1, 1, NODES, 30, (), (), (), voters=(1, 2, 3))
PARTITION = PartitionInfo(
    0, 0, 1_234_567, 1_234_567, 1_234_567, 3, 2_048,
    leader=1, replicas=(1, 2, 3), isr=(1, 2, 3),
)  # fmt: skip


def lines(table: Any, *, width: int) -> list[str]:
    console = Console(width=width, highlight=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_addresses_are_whole() -> None:
    shown = lines(commands._nodes_table(CLUSTER), width=80)
    assert max(map(len, shown)) <= 80
    assert shown[0].split() == ["node", "state", "rack", "peer", "client", "HTTP"]
    for number in (1, 2, 3):
        address = f"10.20.30.{number}"
        (line,) = (each for each in shown if address in each)
        assert line.split()[-3:] == [f"{address}:29093", f"{address}:29092", f"{address}:29080"]


def test_a_wide_terminal_has_all() -> None:
    shown = lines(commands._nodes_table(CLUSTER), width=200)
    assert shown[0].split() == [*commands.NODE_COLUMNS]
    assert "http://10.20.30.1:29080" in shown[1]


def test_a_version_that_one_node_has_is_shown() -> None:
    one, two, three = NODES
    mixed = replace(CLUSTER, nodes=(one, two, replace(three, version="1.1.0")))
    shown = lines(commands._nodes_table(mixed), width=80)
    assert "1.1.0" in shown[-1] + shown[-2]
    assert "10.20.30.3:29092" in shown[-1] + shown[-2]


@pytest.mark.parametrize("synced", [1_234_567, 1_234_000])
def test_leader_and_replicas_are_whole(synced: int) -> None:
    shown = lines(partitions_table([replace(PARTITION, synced_offset=synced)]), width=80)
    assert max(map(len, shown)) <= 80
    assert ("on disk" in shown[0]) is (synced != PARTITION.high_watermark)
    assert "leader  replicas  in sync  state" in shown[0]
    assert "1       1 2 3     1 2 3    ok" in shown[1]


def test_long_host_names_are_whole_beyond_the_width() -> None:
    node = NodeRegistration(1, f"{'h' * 30}:9093", f"{'h' * 30}:9092", f"http://{'h' * 30}:9080")
    shown = "\n".join(lines(commands._nodes_table(replace(CLUSTER, nodes=(node,))), width=80))
    for address in (node.peer, node.client, node.http.removeprefix("http://")):
        assert address in shown
