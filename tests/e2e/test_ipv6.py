"""Nodes whose listeners have IPv6 addresses, as real processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import bascule
from support.ports import reserve_ports
from support.processes import Node, wait_for

HOST = "::1"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((HOST, 0))
    except OSError:
        return False
    return True


pytestmark = [pytest.mark.tier3, pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6")]


def test_a_cluster_on_ipv6(tmp_path: Path) -> None:
    """Founders, other nodes' clients, Kafka clients, routes of NATS and the Python client."""
    peer_ports = reserve_ports(2)
    peers = ",".join(f"{n}@[{HOST}]:{port}" for n, port in enumerate(peer_ports, 1))
    sections = ("CLIENT", "HTTP", "PEER", "NATS")
    nodes = [
        Node(
            tmp_path / f"node{n}",
            options=["--node-id", str(n), "--peer-port", str(port), "--peers", peers],
            environment={f"BASCULE_{section}_HOST": HOST for section in sections},
            keep_ports=True,
        )
        for n, port in enumerate(peer_ports, 1)
    ]
    try:
        for node in nodes:
            node.directory.mkdir()
            node.spawn_again()
        for node in nodes:
            node.wait_ready()
        assert nodes[0].addresses["client"].startswith("[::1]:")
        servers = ",".join(node.addresses["http"] for node in nodes)
        with bascule.connect_sync(servers) as client:
            client.create_stream("flights", "flights.>", replicas=2)
            assert client.publish("flights.a", b"1").replicas == 2
            assert [m.value for m in client.read("flights", start="earliest")] == [b"1"]
        admin = AdminClient({"bootstrap.servers": nodes[1].addresses["client"]})
        brokers = admin.list_topics(timeout=60).brokers.values()
        assert {broker.host for broker in brokers} == {HOST}
        wait_for(
            lambda: (
                f"[{HOST}]" in (nodes[0].directory / "data/nats/nats-server.conf").read_text()
                or None
            ),
            nodes[0].process,
            nodes[0].log,
        )
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.terminate()
        for node in nodes:
            if node.process is not None:
                node.stop()
