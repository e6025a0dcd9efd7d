"""What `bascule node join` prints, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.cli.cluster.joining import serve_command
from bascule.errors import ConfigError
from bascule.model import ClusterInfo, NodeInfo, NodeRegistration

ASKED = NodeInfo(1, "c", "", "", 1, "/data", "nats://n1:4222", False, "h1:9092", "http://h1:9080")


def info(*nodes: NodeRegistration) -> ClusterInfo:
    return ClusterInfo("flights", 1, 1, 1, nodes, 0, (), (), ())


def node(number: int) -> NodeRegistration:
    return NodeRegistration(number, f"h{number}:9093", f"h{number}:9092", "")


def test_the_command_has_what_belongs_to_the_cluster() -> None:
    number, command = serve_command(info(node(1), node(2)), ASKED, options=["--rack", "a"])
    assert number == 3
    assert " ".join(command) == (
        "bascule serve --node-id 3 --join h1:9093,h2:9093 --data node3 --cluster flights "
        "--nats nats://n1:4222 --rack a"
    )


def test_each_node_has_a_nats_server_of_its_own() -> None:
    _, command = serve_command(info(node(1)), replace(ASKED, nats_embedded=True), data="/d")
    assert command[-4:] == ["--data", "/d", "--cluster", "flights"]


def test_ports_of_another_node_of_this_machine_are_not_taken() -> None:
    here = replace(node(1), peer="127.0.0.1:9093")
    _, command = serve_command(info(here), ASKED, options=["--http-port", "9081"])
    assert command[-6:] == ["--peer-port", "0", "--client-port", "0", "--http-port", "9081"]
    _, command = serve_command(info(here), replace(ASKED, nats_embedded=True))
    assert command[-2:] == ["--nats-port", "0"]


def test_nodes_that_are_gone_or_go_are_not_asked_for_admission() -> None:
    lost, leaving = replace(node(2), alive=False), replace(node(3), is_leaving=True)
    number, command = serve_command(info(node(1), lost, leaving), ASKED)
    assert (number, command[command.index("--join") + 1]) == (4, "h1:9093")


@pytest.mark.parametrize(
    ("nodes", "number", "text"),
    [
        ((node(1), node(2)), 2, "the cluster has a node 2: give another number"),
        ((replace(node(1), peer="0.0.0.0:9093"),), None, "peer.advertised"),
    ],
)
def test_what_cannot_join_is_said_before(
    nodes: tuple[NodeRegistration, ...], number: int | None, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        serve_command(info(*nodes), ASKED, number=number)
