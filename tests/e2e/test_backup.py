"""Backups of real clusters: each acknowledged message is in the cluster that is made of one."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import bascule
from bascule.cluster_version import NEWEST
from bascule.errors import BasculeError
from support import commands
from support.clusters import RunningCluster, running_cluster
from support.ports import reserve_ports
from support.processes import Node, running_node, wait_for

pytestmark = pytest.mark.tier3

Stored = dict[tuple[int, int], bytes]
"""(partition, offset) -> value."""


def run(*command: object, server: str = "") -> Any:
    """The JSON that a command prints."""
    done = commands.run(*command, "--json", env={"BASCULE_SERVER": server}, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def servers(cluster: RunningCluster) -> str:
    return ",".join(node.addresses["http"] for node in cluster.alive())


class Publisher:
    """Publishes with keys and ids, and waits for each ack, until it is stopped."""

    def __init__(self, cluster: RunningCluster, stream: str, *, first: int = 0) -> None:
        self.acked: Stored = {}
        self._first = first
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(servers(cluster), stream))

    def _run(self, server: str, stream: str) -> None:
        with bascule.connect_sync(server) as client:
            number = self._first
            while not self._stopped.is_set():
                value = b"%s %d" % (stream.encode(), number)
                key, identity = b"k%d" % (number % 20), f"{stream}-{number}"
                try:
                    ack = client.publish(
                        f"{stream}.x", value, key=key, message_id=identity, timeout=20
                    )
                except BasculeError:
                    continue
                self.acked[ack.partition, ack.offset] = value
                number += 1

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def wait(self, count: int) -> None:
        """Return when this many more messages are acknowledged."""
        wanted = len(self.acked) + count
        while len(self.acked) < wanted:
            assert self._thread.is_alive()
            self._thread.join(0.02)


@contextmanager
def restored(directory: Path, *places: Path) -> Iterator[RunningCluster]:
    """A cluster of one node that was restored."""
    place = directory / "restored"
    place.mkdir()
    run("restore", *places, "--data", place / "data")
    cluster = RunningCluster(directory=directory / "new")
    peer, *ports = reserve_ports(4)
    node = Node(
        place, None, ["--node-id", "1", "--peer-port", str(peer)], keep_ports=True, ports=ports
    )
    cluster.nodes[1], cluster.peer_ports[1] = node, peer
    try:
        cluster.start()
        yield cluster
    finally:
        for each in cluster.nodes.values():
            if each.process is not None:
                each.stop()


def has_three_in_sync(node: Node, stream: str) -> bool | None:
    found = node.call("GET", f"/v1/streams/{stream}")["partitions"]
    return all(len(each["isr"]) == 3 for each in found) or None


def places(committed: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    """Which offsets are committed."""
    return {(each["stream"], each["partition"], each["offset"]) for each in committed}


def read_all(node: Node, stream: str) -> Stored:
    """What a foreign Kafka client reads."""
    partitions = node.call("GET", f"/v1/streams/{stream}")["partitions"]
    left = sum(each["high_watermark"] - each["start_offset"] for each in partitions)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.addresses["client"],
            "group.id": "no",
            "check.crcs": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign(
        [
            confluent_kafka.TopicPartition(stream, each["partition"], each["start_offset"])
            for each in partitions
        ]
    )
    found: Stored = {}
    while len(found) < left:
        messages = consumer.consume(1_000, timeout=30)
        assert messages, f"{left - len(found)} records do not come"
        for message in messages:
            assert message.error() is None, message.error()
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


CONTENTS = (b"0123456789abcdef" * 300_000, b"", b"small")


def put_payloads(client: bascule.SyncClient) -> None:
    client.create_stream("models", "models.>", replicas=3)
    for number, content in enumerate(CONTENTS):
        with client.open_payload("models", subject=f"models.{number}") as out:
            out.write(content)


def get_payloads(node: Node) -> tuple[bytes, ...]:
    with connected(node) as client:
        found = []
        for offset in range(len(CONTENTS)):
            with client.read_payload("models", offset) as payload:
                found.append(payload.read())
        with client.read_payload("models", 0, start=2_000_000, end=2_000_010) as payload:
            assert payload.read() == CONTENTS[0][2_000_000:2_000_010]
        return tuple(found)


def test_a_restored_cluster_has_what_the_backup_of_a_failing_one_has(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with running_cluster(tmp_path) as cluster:
        with bascule.connect_sync(servers(cluster)) as client:
            client.create_stream("orders", "orders.>", partitions=3, replicas=3, partition_by="key")
            client.create_stream("idle", "idle.>", replicas=3)
            put_payloads(client)
        with Publisher(cluster, "orders") as publisher:
            publisher.wait(60)
            first = run("backup", place, server=servers(cluster))
            committed = run(
                "group", "reset-offsets", "billing", "--stream", "orders", "--partition", 1,
                "--to-offset", 3, server=servers(cluster),
            )["partitions"]  # fmt: skip
            cluster.nodes[cluster.leader("orders")].stop(signal.SIGKILL)
            publisher.wait(60)
            before = dict(publisher.acked)
            second = run("backup", place, server=servers(cluster))
            publisher.wait(50)
        assert (first["streams"], second["streams"]) == (4, 4), "and the committed offsets"
        assert (first["payloads"], second["payloads"]) == (3, 3)
        assert first["incomplete"] == second["incomplete"] == second["read_anew"] == []
        assert 0 < second["bytes_written"] < second["bytes"]
        old_id = cluster.alive()[0].call("GET", "/v1/node")["cluster_id"]
        acked = publisher.acked
    assert run("backup", place, "--verify")["damaged"] == []
    listed = run("backup", place, "--list")
    assert [each["id"] for each in listed["backups"]] == [first["id"], second["id"]]

    with restored(tmp_path, place) as cluster:
        node = cluster.nodes[1]
        found = read_all(node, "orders")
        assert before.items() <= found.items(), "acknowledged before the backup began"
        assert {each: acked[each] for each in found if each in acked}.items() <= found.items()
        assert node.call("GET", "/v1/node")["cluster_id"] != old_id
        assert committed
        group = run("group", "info", "billing", server=node.addresses["http"])
        assert places(group["offsets"]) == places(committed)
        for number in (2, 3):
            cluster.join(number, 1)
        assert get_payloads(node) == CONTENTS
        for stream in ("orders", "idle", "models"):
            wait_for(partial(has_three_in_sync, node, stream), node.process, node.log)
        with Publisher(cluster, "orders") as publisher:
            publisher.wait(5)
        assert publisher.acked.items() <= found.items(), "their ids are known"
        with Publisher(cluster, "orders", first=10_000) as publisher:
            publisher.wait(20)
        assert not publisher.acked.keys() & found.keys(), "they go on behind what was restored"


@pytest.mark.long
def test_what_one_node_of_three_has_makes_a_new_cluster(tmp_path: Path) -> None:
    """A majority is lost for good: what was acknowledged is on the disk that is left."""
    with running_cluster(tmp_path) as cluster:
        with bascule.connect_sync(servers(cluster)) as client:
            client.create_stream("orders", "orders.>", partitions=2, replicas=3, partition_by="key")
            put_payloads(client)
        with Publisher(cluster, "orders") as publisher:
            publisher.wait(80)
        for node in cluster.nodes.values():
            node.stop(signal.SIGKILL)
        for number in (1, 3):
            shutil.rmtree(cluster.nodes[number].directory / "data")
        data = cluster.nodes[2].directory / "data"
        taken = run("backup", tmp_path / "place", "--data", data)
        assert (taken["streams"], taken["payloads"], taken["incomplete"]) == (3, 3, [])
    with restored(tmp_path, tmp_path / "place") as alone:
        found = read_all(alone.nodes[1], "orders")
        assert publisher.acked.items() <= found.items()
        assert get_payloads(alone.nodes[1]) == CONTENTS
        with Publisher(alone, "orders", first=10_000) as publisher:
            publisher.wait(5)


def test_a_data_directory_in_use_and_another_cluster_are_refused(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "a", count=1) as cluster:
        command = ("backup", tmp_path / "place")
        data = cluster.nodes[1].directory / "data"
        used = commands.run(*command, "--data", data, text=True)
        assert used.returncode == 4
        assert "data" in used.stderr
        run("backup", tmp_path / "place", server=servers(cluster))
        (manifest,) = (tmp_path / "place/manifests").iterdir()
        damaged = tmp_path / "damaged/manifests" / manifest.name
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(manifest.read_bytes()[:-20])
        command = ("backup", tmp_path / "damaged", "--server", servers(cluster))
        refused = commands.run(*command, text=True)
        assert refused.returncode == 6
        assert manifest.name in refused.stderr
        assert "--full" in refused.stderr
        anew = commands.run(*command, "--full", text=True)
        assert (anew.returncode, manifest.name in anew.stderr) == (0, True), anew.stderr
    command = ("backup", tmp_path / "place")
    with running_cluster(tmp_path / "b", count=1) as cluster:
        other = commands.run(*command, "--server", servers(cluster), text=True)
        assert other.returncode == 2
        assert "name another place" in other.stderr


def test_a_table_is_there_again_with_its_values(tmp_path: Path) -> None:
    """The new node begins with the metadata of a table, which the first cluster version has not."""
    with running_node(tmp_path / "before") as node, connected(node) as client:
        client.create_table("stock", table_ttl_ms=3_600_000)
        version = client.table("stock").set("apples", b"7")
        run("backup", tmp_path / "place", server=node.addresses["http"])
    with restored(tmp_path, tmp_path / "place") as cluster, connected(cluster.nodes[1]) as client:
        found = client.table("stock").get("apples")
        assert found is not None
        assert (found.value, found.version) == (b"7", version)


def test_a_backup_through_a_node_that_is_cut_off_has_streams_that_were_made_since(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, linked=True) as cluster:
        assert cluster.links is not None
        first = cluster.nodes[1]
        wait_for(
            lambda: cluster.info()["cluster_version"] == NEWEST or None, first.process, first.log
        )
        cut_off = cluster.info()["controller"]
        others = [number for number in cluster.nodes if number != cut_off]
        cluster.links.hold([(cut_off, n) for n in others] + [(n, cut_off) for n in others])
        address = cluster.nodes[others[0]].addresses["http"]
        with bascule.connect_sync(address) as client:

            def created() -> bool | None:
                with suppress(BasculeError):
                    client.create_stream("new", "new.>", replicas=2)
                    return True
                return None

            wait_for(created, first.process, first.log)
        both = f"{cluster.nodes[cut_off].addresses['http']},{address}"
        taken = run("backup", tmp_path / "place", server=both)
    assert taken["failure"] == ""
    manifest = json.loads((tmp_path / f"place/manifests/{taken['id']}.json").read_bytes())["backup"]
    assert "new" in [each["definition"]["name"] for each in manifest["streams"]]
    assert manifest["names_all_streams"]


def connected(node: Node) -> bascule.SyncClient:
    return bascule.connect_sync(node.addresses["http"])
