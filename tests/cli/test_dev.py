"""The ports and files of `bascule dev`."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

import pytest

from bascule.cli.dev.layout import (
    FILE_NAME,
    check_directory,
    choose_ports,
    open_layout,
    own_variables,
)
from bascule.config import layer_from_toml, merge
from bascule.errors import ConfigError, CorruptData
from support.ports import reserve_port_range


def test_ports_are_consecutive_from_the_base(tmp_path: Path) -> None:
    ports = choose_ports(2, 0)
    numbers = [port for _, port in ports.named()]
    assert numbers == list(range(numbers[0], numbers[0] + 7))


def test_a_layout_is_kept(tmp_path: Path) -> None:
    first = open_layout(tmp_path, nodes=2, port_base=0)
    again = open_layout(tmp_path, nodes=None, port_base=None)
    assert again.ports == first.ports
    assert open_layout(tmp_path, nodes=2, port_base=first.ports.nats).ports == first.ports


def test_another_cluster_than_the_kept_one_is_refused(tmp_path: Path) -> None:
    first = open_layout(tmp_path, nodes=2, port_base=0)
    with pytest.raises(ConfigError, match="is of a cluster of 2 nodes, and --nodes is 3"):
        open_layout(tmp_path, nodes=3, port_base=None)
    with pytest.raises(ConfigError, match=f"whose ports begin at {first.ports.nats}"):
        open_layout(tmp_path, nodes=None, port_base=first.ports.nats + 1)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"has files but no {FILE_NAME}"):
        check_directory(tmp_path)
    (tmp_path / FILE_NAME).write_text("{}")
    check_directory(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(CorruptData, match=FILE_NAME):
        open_layout(tmp_path, nodes=None, port_base=0)


def test_a_port_that_is_taken_is_named_with_its_use() -> None:
    base = reserve_port_range(4)
    said = f"port {base + 1}, for node 1's client listener"
    with (
        socket.create_server(("127.0.0.1", base + 1)),
        pytest.raises(ConfigError, match=said),
    ):
        choose_ports(1, base)


def test_each_node_has_a_configuration_that_serves(tmp_path: Path) -> None:
    layout = open_layout(tmp_path, nodes=3, port_base=0)
    layout.write_configs()
    for node in layout.nodes:
        text = node.config.read_text()
        config = merge(layer_from_toml(text, str(node.config)))
        assert config.node_id == node.number
        assert config.peer.port == node.ports.peer
        assert config.nats.urls == (layout.nats_url,)
        assert len(config.cluster.peers) == 3
        for key in tomllib.loads(text):
            variables = own_variables()
            assert any(each.startswith(f"BASCULE_{key.upper()}") for each in variables), key
    assert "BASCULE_STREAMS_REPLICAS" not in own_variables()
