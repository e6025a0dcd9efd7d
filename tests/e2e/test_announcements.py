"""Nodes of several clusters on one nats-server, and a server that does not permit announcements."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import commands
from support.clusters import running_cluster
from support.http_calls import troubled_parts
from support.nats_servers import configured_nats, eventually, metric
from support.processes import NatsServer, Node, RawNats, running_nats, running_node

QUICK = {"BASCULE_NATS_ANNOUNCE_INTERVAL_MS": "2000"}
"""A node may be silent for 6 s: longer than a loaded machine holds one up."""
SUBJECT = "_bascule.announce"
CONFLICT = "another cluster on this NATS has the same streams"
ENDED = "conflict with the streams of another cluster ended"
NOT_PERMITTED = "announcements are not permitted"


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def pair(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Node]]:
    """Two nodes of two clusters on one server."""
    home = tmp_path_factory.mktemp("pair")
    with (
        running_node(home / "a", nats=nats.url, environment=QUICK) as a,
        running_node(home / "b", nats=nats.url, environment=QUICK) as b,
    ):
        yield a, b


def ready(node: Node) -> tuple[int, str]:
    """The status of /readyz, and the reason of its part `streams`."""
    try:
        status, body = 200, node.call("GET", "/readyz")
    except urllib.error.HTTPError as error:
        status, body = error.code, json.loads(error.__notes__[0])
    (reason,) = [part["reason"] for part in body["parts"] if part["part"] == "streams"]
    return status, reason


def is_ready(node: Node) -> bool:
    return ready(node)[0] == 200


def cluster_of(node: Node) -> str:
    found: str = node.call("GET", "/v1/node")["cluster_id"]
    return found


def logged(node: Node, event: str, *more: str) -> list[str]:
    return [
        line
        for line in node.log.read_text().splitlines()
        if event in line and all(text in line for text in more)
    ]


def duplicates(node: Node, stream: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.call("GET", f"/v1/streams/{stream}")["duplicates"]
    return found


def bascule(node: Node, *arguments: str) -> str:
    done = commands.run(*arguments, "--server", node.addresses["http"], text=True, check=True)
    return " ".join(done.stdout.split())


def test_two_clusters_with_one_stream_are_not_ready_until_one_says_that_it_is_expected(
    pair: Sequence[Node],
) -> None:
    a, b = pair
    a.create("orders", "orders.>")
    b.create("other", "orders.>")
    assert is_ready(a)
    assert is_ready(b)
    b.create("orders", "orders.*")
    for node in pair:
        eventually(lambda node=node: not is_ready(node), "the conflict is noticed")  # type: ignore[misc]
    status, reason = ready(a)
    assert status == 503
    assert f"orders: on orders.* in cluster {cluster_of(b)}, node 1" in reason
    assert "--shared" in reason
    assert duplicates(a, "orders") == [
        {
            "cluster_id": cluster_of(b), "nodes": [1], "subject": "orders.*",
            "acks": True, "shared": False, "conflict": True,
        }
    ]  # fmt: skip
    assert duplicates(b, "other") == []
    assert metric(a, "bascule_stream_conflict", stream="orders") == 1
    assert metric(b, "bascule_stream_conflict", stream="orders") == 1
    assert metric(b, "bascule_stream_conflict", stream="other") == 0
    assert metric(a, "bascule_announced_nodes") == 1
    assert metric(a, "bascule_ready") == 0
    told = bascule(a, "stream", "info", "orders")
    assert f"in conflict with cluster {cluster_of(b)}" in told, told
    assert "in conflict with another cluster" in bascule(a, "stream", "list")
    # The publisher's view: two acks, and each from a stream of this name.
    raw = RawNats(int(a.call("GET", "/v1/node")["nats"].rsplit(":", 1)[1]))
    raw.send(b"SUB in.x 1\r\nPUB orders.1 in.x 1\r\nx\r\n")
    acks: list[tuple[bytes, bytes]] = []
    while len(acks) < 3:
        acks += raw.messages()
    assert sorted(json.loads(body)["stream"] for _, body in acks) == ["orders", "orders", "other"]

    bascule(a, "stream", "alter", "orders", "--shared")
    eventually(lambda: is_ready(a), "a shared stream is no conflict")
    assert not is_ready(b), "the other cluster has not said so"
    (still,) = duplicates(a, "orders")
    assert not still["conflict"]
    assert f"also in cluster {cluster_of(b)}" in bascule(a, "stream", "info", "orders")
    eventually(lambda: duplicates(b, "orders")[0]["shared"], "b hears of it")
    b.call("PATCH", "/v1/streams/orders", {"shared": True})
    eventually(lambda: is_ready(b), "b shares it, too")
    assert metric(a, "bascule_stream_conflict", stream="orders") == 0
    for node in pair:
        assert len(logged(node, CONFLICT, "warning", "orders")) == 1
        assert len(logged(node, ENDED, "info", "orders")) == 1


def test_a_stream_that_does_not_answer_is_no_conflict(pair: Sequence[Node]) -> None:
    a, b = pair
    a.create("audit", "audited.>")
    b.create("audit", "audited.>", acks=False)
    eventually(lambda: duplicates(a, "audit"), "the duplicate is known")
    eventually(lambda: duplicates(b, "audit"), "the duplicate is known")
    assert is_ready(a)
    assert is_ready(b)
    b.call("PATCH", "/v1/streams/audit", {"acks": True})
    eventually(lambda: not is_ready(a) and not is_ready(b), "both answer now")
    b.call("DELETE", "/v1/streams/audit")
    eventually(lambda: is_ready(a) and is_ready(b), "it is deleted")
    assert duplicates(a, "audit") == []


def test_the_conflict_ends_with_the_other_node(
    pair: Sequence[Node], nats: NatsServer, tmp_path: Path
) -> None:
    a, _ = pair
    a.create("short", "short")
    for number, how in ((15, "the node of that cluster stopped"), (9, "not heard of for")):
        with running_node(tmp_path, nats=nats.url, environment=QUICK) as third:
            if number == 15:
                third.create("short", "short")
            eventually(lambda: not is_ready(a), "the conflict is noticed")
            eventually(lambda: not is_ready(third), "by the new node, too")
            third.stop(number)
            eventually(lambda: is_ready(a), "it ends")
        assert len(logged(a, ENDED, "short", how)) == 1
        assert logged(a, "node of another cluster is gone", how)


def test_a_copy_of_a_data_directory_is_noticed(nats: NatsServer, tmp_path: Path) -> None:
    first = tmp_path / "first"
    with running_node(first, nats=nats.url, environment=QUICK) as node:
        node.create("copied", "copied")
    shutil.copytree(first / "data", tmp_path / "second" / "data")
    with (
        running_node(first, nats=nats.url, environment=QUICK) as node,
        running_node(tmp_path / "second", nats=nats.url, environment=QUICK) as copy,
    ):
        for each in (node, copy):
            eventually(lambda each=each: not is_ready(each), "the copy is noticed")  # type: ignore[misc]
            assert "a copy of this node's data directory runs" in ready(each)[1]
            assert logged(each, CONFLICT, "a copy of its data directory runs")


@pytest.mark.long
def test_a_lost_server_is_no_end_of_a_conflict(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path / "a", nats=server.url, environment=QUICK) as a,
        running_node(tmp_path / "b", nats=server.url, environment=QUICK) as b,
    ):
        a.create("s", "s")
        b.create("s", "s")
        eventually(lambda: not is_ready(a) and not is_ready(b), "the conflict is noticed")
        server.stop()
        eventually(lambda: metric(a, "bascule_nats_connected") == 0, "it is gone")
        time.sleep(7)  # Longer than a node may be silent.
        assert metric(a, "bascule_stream_conflict", stream="s") == 1
        server.start()
        eventually(lambda: metric(a, "bascule_nats_connected") == 1, "it is back")
        sent = metric(b, "bascule_announcements_sent_total")
        eventually(lambda: metric(b, "bascule_announcements_sent_total") > sent + 2, "b goes on")
        assert not is_ready(a)
        assert not is_ready(b)
        for node in (a, b):
            assert len(logged(node, CONFLICT)) == 1
            assert not logged(node, ENDED)
        b.call("DELETE", "/v1/streams/s")
        eventually(lambda: is_ready(a), "b's stream is gone")


def test_strange_announcements_hurt_nobody(pair: Sequence[Node]) -> None:
    a, _ = pair
    raw = RawNats(int(a.call("GET", "/v1/node")["nats"].rsplit(":", 1)[1]))
    for payload in (b"", b"hello", b"[" * 50_000, b"\0" * 200_000, b'{"v":7}'):
        for line in (b"PUB %s %d\r\n" % (SUBJECT.encode(), len(payload)),):
            raw.send(line + payload + b"\r\n")
    raw.flush()
    wanted = {"malformed": 3, "too_large": 1, "version": 1}
    name = "bascule_announcements_refused_total"
    for reason, count in wanted.items():
        eventually(lambda r=reason, c=count: metric(a, name, reason=r) == c, reason)  # type: ignore[misc]
    received = metric(a, "bascule_announcements_received_total")
    eventually(lambda: metric(a, "bascule_announcements_received_total") > received, "it goes on")
    # The readers of announcements are not a stream's.
    assert metric(a, "bascule_ingest_unrouted_messages_total") == 0


PERMISSIONS = {
    "subscribe": 'publish: ">", subscribe: { deny: "_bascule.announce" }',
    "publish": 'publish: { deny: "_bascule.announce" }, subscribe: ">"',
}


@pytest.mark.parametrize("operation", sorted(PERMISSIONS))
def test_a_node_goes_on_where_announcements_are_not_permitted(
    operation: str, tmp_path: Path
) -> None:
    users = (
        'authorization { users: [{ user: "n", password: "p", permissions: { '
        f'{PERMISSIONS[operation]} }} }}, {{ user: "o", password: "p" }}] }}'
    )
    with configured_nats(tmp_path / "nats", users) as server:
        limited = {**QUICK, "BASCULE_NATS_USER": "n", "BASCULE_NATS_PASSWORD": "p"}
        other = {**limited, "BASCULE_NATS_USER": "o"}
        with (
            running_node(tmp_path / "a", nats=server.url, environment=limited) as a,
            running_node(tmp_path / "b", nats=server.url, environment=other) as b,
        ):
            hears, silent = (b, a) if operation == "subscribe" else (a, b)
            # A node that may not ask for a list hears what others announce of themselves.
            hears.create("s", "s")
            silent.create("s", "s")
            eventually(lambda: not is_ready(hears), "who hears the other notices the conflict")
            eventually(lambda: logged(a, NOT_PERMITTED), "it is logged")
            assert is_ready(silent)
            if operation == "subscribe":
                assert "Permissions Violation" in ready(a)[1]
            # Longer than several intervals, and over another connection.
            server.stop()
            server.start()
            eventually(lambda: metric(a, "bascule_nats_connected") == 1, "connected again")
            sent = metric(b, "bascule_announcements_sent_total")
            eventually(
                lambda: metric(b, "bascule_announcements_sent_total") > sent + 2, "intervals"
            )
            (line,) = logged(a, NOT_PERMITTED)
            assert f"operation={operation}" in line
            assert not logged(a, "nats server error")
            assert metric(a, "bascule_stream_subscription_refused", stream="s") == 0


def test_announcements_can_be_turned_off(nats: NatsServer, tmp_path: Path) -> None:
    off = {"BASCULE_NATS_ANNOUNCE": "false"}
    with running_node(tmp_path, nats=nats.url, environment=off) as node:
        node.create("orders", "orders.>")
        body = node.call("GET", "/readyz")
        assert troubled_parts(body) == []
        assert "streams" not in [part["part"] for part in body["parts"]]
        assert metric(node, "bascule_announcements_sent_total") == 0


def test_nodes_of_a_cluster_on_different_nats_are_told_of(nats: NatsServer, tmp_path: Path) -> None:
    """What was published at one did not reach leaders at the other. Both were ready."""
    with running_cluster(tmp_path, count=2, environment=QUICK) as cluster:
        one, two = cluster.nodes[1], cluster.nodes[2]

        def move(url: str | None) -> None:
            two.stop()
            two.nats = url
            two.start()

        def miss(count: int) -> bool:
            return all(metric(node, "bascule_nodes_unheard") == count for node in (one, two))

        move(nats.url)
        eventually(lambda: miss(1), "not noticed")
        for node, other in ((one, 2), (two, 1)):
            (part,) = [p for p in node.call("GET", "/readyz")["parts"] if p["part"] == "nats"]
            assert part["state"] == "degraded"
            assert f"where nodes {other} of this cluster are not heard" in part["reason"]
            assert "node of this cluster not heard on this NATS" in node.log.read_text()
        move(None)
        eventually(lambda: miss(0), "does not end")
        eventually(
            lambda: "node of this cluster not missed any more" in one.log.read_text(), "not logged"
        )
