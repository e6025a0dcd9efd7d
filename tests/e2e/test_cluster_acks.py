"""Ack policies on three nodes: what the ack waits for, and what it says."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import bascule
from support.clusters import RunningCluster, running_cluster
from support.processes import WAIT_SECONDS_MAX, NatsServer, RawNats, wait_for

pytestmark = pytest.mark.tier3


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("nodes"), nats=nats_server.url) as running:
        yield running


class Publisher:
    """Publishes with a reply subject for each message, and keeps the answers in order."""

    def __init__(self, server: NatsServer) -> None:
        self.nats = RawNats(int(server.url.rsplit(":", 1)[1]))
        self.nats.send(b"SUB in.* 1\r\n")
        self.nats.flush()

    def send(self, subject: str, inbox: str, policy: str = "", **headers: str) -> None:
        lines = {name.replace("_", "-"): value for name, value in headers.items()}
        if policy:
            lines["Bascule-Ack"] = policy
        block = "NATS/1.0\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items()) + "\r\n"
        size = len(block)
        self.nats.send(f"HPUB {subject} in.{inbox} {size} {size + 1}\r\n{block}x\r\n".encode())

    def answers(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """The next `count` answers: the inbox of each without its prefix, and what it says."""
        found: list[tuple[str, dict[str, Any]]] = []
        while len(found) < count:
            found += [
                (inbox.decode().removeprefix("in."), json.loads(payload))
                for inbox, payload in self.nats.messages()
            ]
        assert len(found) == count
        return found


def bystander(cluster: RunningCluster, leader: int) -> int:
    """A node that neither leads the stream nor controls the cluster."""
    controller = cluster.alive()[0].call("GET", "/v1/cluster")["controller"]
    return next(node for node in cluster.nodes if node not in (leader, controller))


def test_under_leader_the_ack_does_not_wait_for_followers(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    cluster.nodes[1].create("clicks", "clicks.>", replicas=3)
    leader = cluster.leader("clicks")
    cluster.wait_in_sync("clicks")
    publisher = Publisher(nats_server)
    publisher.send("clicks.a", "first", "leader", Nats_Msg_Id="a")
    ((_, ack),) = publisher.answers(1)
    assert (ack["replicas"], ack["synced"], ack["offset"]) == (1, True, 0)
    process = cluster.nodes[bystander(cluster, leader)].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        publisher.send("clicks.a", "all")
        publisher.send("clicks.a", "none", "none")
        publisher.send("clicks.a", "refused", "none", Nats_Expected_Last_Sequence="99")
        publisher.send("clicks.a", "leader", "leader")
        publisher.send("clicks.a", "again", "leader", Nats_Msg_Id="a")
        # The others have to wait until the follower that stands still has left the ISR.
        answers = dict(publisher.answers(2))
        assert answers.keys() == {"leader", "again"}
        assert (answers["leader"]["offset"], answers["leader"]["replicas"]) == (3, 1)
        assert (answers["again"]["offset"], answers["again"]["duplicate"]) == (0, True)
        answers = dict(publisher.answers(2))
        assert answers.keys() == {"all", "refused"}
        assert (answers["all"]["offset"], answers["all"]["replicas"]) == (1, 2)
        assert answers["refused"]["error"]["err_code"] == 10071
    finally:
        process.send_signal(signal.SIGCONT)
    cluster.wait_in_sync("clicks")


def test_the_policy_of_a_stream_can_be_altered(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    publisher = Publisher(nats_server)
    with bascule.connect_sync(servers) as client:
        client.create_stream("taps", "taps.>", replicas=3, ack_policy="leader")
        leader = cluster.leader("taps")
        cluster.wait_in_sync("taps")
        publisher.send("taps.a", "leader")
        publisher.send("taps.a", "named", "all")
        answers = {inbox: ack["replicas"] for inbox, ack in publisher.answers(2)}
        assert answers == {"leader": 1, "named": 3}
        config = cluster.nodes[leader].call("PATCH", "/v1/streams/taps", {"ack_policy": "none"})
        assert config["config"]["ack_policy"] == "none"

        def acked(policy: str) -> int:
            return client.publish("taps.a", b"", headers={"Bascule-Ack": policy}).replicas

        assert (acked("all"), acked("leader")) == (3, 1)
        publisher.send("taps.a", "silent")
        publisher.send("taps.a", "named", "leader")
        assert [inbox for inbox, _ in publisher.answers(1)] == ["named"]
        stored = [message.offset for message in client.read("taps")]
        assert stored == list(range(6))


def test_fewer_replicas_in_sync_are_enough_as_soon_as_an_operator_says_so(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    publisher = Publisher(nats_server)
    cluster.nodes[1].create("gates", "gates.>", replicas=2)
    leader = cluster.leader("gates")
    cluster.wait_in_sync("gates")
    follower = next(n for n in cluster.partition("gates")["replicas"] if n != leader)
    cluster.nodes[follower].stop(signal.SIGKILL)

    def answer(inbox: str) -> dict[str, Any]:
        publisher.send("gates.a", inbox)
        while True:
            # One of those before may be answered late.
            found = dict(publisher.nats.messages())
            if (said := found.get(f"in.{inbox}".encode())) is not None:
                ack: dict[str, Any] = json.loads(said)
                return ack

    def is_refused() -> bool | None:
        """What was appended before the ISR has shrunk is not answered."""
        publisher.nats.socket.settimeout(0.5)
        try:
            return answer(f"early{next(numbers)}")["error"]["err_code"] == 20008 or None
        except TimeoutError:
            return None
        finally:
            publisher.nats.socket.settimeout(WAIT_SECONDS_MAX)

    numbers = itertools.count()
    node = cluster.nodes[leader]
    wait_for(is_refused, node.process, node.log)
    node.call("PATCH", "/v1/streams/gates", {"min_isr": 1})
    assert answer("one")["replicas"] == 1
    node.call("PATCH", "/v1/streams/gates", {"min_isr": 2})
    assert answer("two")["error"]["err_code"] == 20008
    cluster.start(follower)
    cluster.wait_in_sync("gates")
    assert answer("both")["replicas"] == 2
