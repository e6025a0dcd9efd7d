"""What a server or an account does not allow stops what it is about, says so, and nothing else."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import LimitExceeded
from support.nats_servers import Operator, configured_nats, eventually, metric, reload
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node, RawNats, running_node


def restart(server: NatsServer, config: str) -> None:
    server.stop(signal.SIGKILL)
    (server.directory / "nats.conf").write_text(config)
    server.start()


def refusal(node: Node, name: str) -> str | None:
    found: str | None = node.call("GET", f"/v1/streams/{name}")["refusal"]
    return found


def readiness(node: Node) -> dict[str, Any]:
    parts = node.call("GET", "/readyz")["parts"]
    return {part["part"]: part for part in parts}


def acked(port: int, subject: str) -> dict[str, Any]:
    """The ack of one message."""
    publisher = RawNats(port)
    publisher.send(b"SUB in 1\r\nPUB %s in 1\r\nx\r\n" % subject.encode())
    ((_, payload),) = publisher.messages()
    publisher.close()
    found: dict[str, Any] = json.loads(payload)
    return found


def denying(subject: str, publish: str = ">") -> str:
    """A server whose only user may not subscribe to `subject`."""
    return (
        "authorization { users: [{ user: u, password: p, permissions: {"
        f' subscribe: {{ allow: ">", deny: "{subject}" }}, publish: "{publish}" }} }}] }}'
    )


def test_a_subscription_that_is_no_longer_permitted(tmp_path: Path) -> None:
    """At a restart of the node, of the server, and by a reload: one stream stops, and says so."""
    with configured_nats(tmp_path / "nats", denying("none")) as server:
        url = f"nats://u:p@127.0.0.1:{server.port}"
        node = Node(tmp_path, nats=url)
        node.start()
        node.create("open", "open")
        node.create("shut", "shut", group="g")
        assert refusal(node, "shut") is None
        reload(server, denying("shut"))
        eventually(lambda: refusal(node, "shut") is not None, "no word of the reload")
        assert node.stop() == 0

        node.start()
        try:
            why = refusal(node, "shut")
            assert why is not None
            assert "Permissions Violation" in why
            assert refusal(node, "open") is None
            assert metric(node, "bascule_stream_subscription_refused", stream="shut") == 1
            assert metric(node, "bascule_stream_subscription_refused", stream="open") == 0
            assert (
                metric(node, "bascule_nats_server_errors_total", kind="subscribe_permission") >= 1
            )
            nats = readiness(node)["nats"]
            assert nats["state"] == "degraded"
            assert "shut" in nats["reason"]
            text = node.log.read_text()
            assert "streams=shut" in text
            assert "permit this user to subscribe" in text

            restart(server, denying("none"))
            eventually(lambda: refusal(node, "shut") is None, "the stream does not come back")
            eventually(lambda: readiness(node)["nats"]["state"] == "ok", "not ready")
            assert "nats subscription works again" in node.log.read_text()
        finally:
            node.stop()


def test_acks_that_may_not_be_published(tmp_path: Path) -> None:
    """The messages are stored; the log and a metric say why nobody hears of it."""
    users = (
        "authorization { users: [{ user: u, password: p, permissions: "
        '{ subscribe: ">", publish: "nothing" } }, { user: v, password: p }] }'
    )
    with configured_nats(tmp_path / "nats", users) as server:
        url = f"nats://u:p@127.0.0.1:{server.port}"
        with running_node(tmp_path, nats=url) as node:
            node.create("s", "s")

            async def publish() -> None:
                async with bascule.connect(
                    node.addresses["http"], user="v", password="p"
                ) as client:
                    with pytest.raises(bascule.errors.Indeterminate):
                        await client.publish("s", b"x", timeout=0.5)

            asyncio.run(publish())
            node.wait_stored("s", 1)
            assert metric(node, "bascule_nats_server_errors_total", kind="publish_permission") >= 1
            assert "_INBOX.> or allow_responses" in node.log.read_text()
            assert node.call("GET", "/v1/node")["ready"] is True


def test_more_subscriptions_than_the_server_takes(tmp_path: Path) -> None:
    with (
        configured_nats(tmp_path / "nats", "max_subscriptions: 4") as server,
        running_node(tmp_path, nats=server.url) as node,
    ):
        made = []
        with pytest.raises(urllib.error.HTTPError) as caught:
            for number in range(6):
                node.create(f"s{number}", f"s.{number}")
                made.append(number)
        assert "raise max_subscriptions" in str(caught.value.__notes__)
        assert 2 <= len(made) <= 4
        assert acked(server.port, "s.1")["offset"] == 0
        assert metric(node, "bascule_nats_server_errors_total", kind="subscriptions") == 1

        restart(server, "max_subscriptions: 2")
        eventually(lambda: node.call("GET", "/v1/node")["ready"], "not connected again")
        eventually(lambda: readiness(node)["nats"]["state"] == "degraded", "nobody says so")
        refused = [n for n in made if refusal(node, f"s{n}") is not None]
        served = [n for n in made if n not in refused]
        assert refused
        assert served
        assert acked(server.port, f"s.{served[0]}")["offset"] >= 0

        restart(server, "max_subscriptions: 100")
        eventually(
            lambda: all(refusal(node, f"s{n}") is None for n in made), "they do not come back"
        )
        assert acked(server.port, f"s.{refused[0]}")["offset"] >= 0


def test_no_connection_left_for_the_node(tmp_path: Path) -> None:
    with configured_nats(tmp_path / "nats", "") as server:
        with running_node(tmp_path, nats=server.url) as node:
            node.create("s", "s")
            server.stop(signal.SIGKILL)
            (server.directory / "nats.conf").write_text("max_connections: 1")
            taken = StubbornNats(server)
            eventually(
                lambda: metric(node, "bascule_nats_refusals_total") >= 1, "the node was not refused"
            )
            assert "maximum connections exceeded" in node.log.read_text()
            assert "raise max_connections" in node.log.read_text()
            taken.close()
            eventually(lambda: node.call("GET", "/v1/node")["ready"], "not connected again")
        other = Node(tmp_path / "other", nats=server.url)
        other.directory.mkdir()
        taken = StubbornNats(server)
        other.spawn(tmp_path / "other" / "ready.json")
        assert other.process is not None
        assert other.process.wait(WAIT_SECONDS_MAX) == 5
        assert "maximum connections exceeded" in other.log.read_text()
        taken.close()


class StubbornNats:
    """Takes the only connection that a server grants, also against a node that tries as well."""

    def __init__(self, server: NatsServer) -> None:
        self.connection: RawNats | None = None
        if server.process is None or server.process.poll() is not None:
            server.start()
        eventually(lambda: self.take(server), "the connection could not be had")

    def take(self, server: NatsServer) -> bool:
        try:
            self.connection = RawNats(server.port)
        except OSError:
            # The node was faster: its server goes once more.
            server.stop(signal.SIGKILL)
            server.start()
            return False
        return True

    def close(self) -> None:
        assert self.connection is not None
        self.connection.close()


def test_an_account_s_limits(tmp_path: Path) -> None:
    """The payload and connection limits of an account, which only the server knows of."""
    operator = Operator(limits={"payload": 1000, "conn": 3})  # a node has two
    creds = tmp_path / "user.creds"
    creds.write_text(operator.credentials())
    with (
        configured_nats(tmp_path / "nats", operator.server_config()) as server,
        running_node(
            tmp_path, nats=server.url, environment={"BASCULE_NATS_CREDS": str(creds)}
        ) as node,
    ):
        node.create("s", "s")
        assert metric(node, "bascule_nats_max_payload_bytes") == 1000

        async def publish() -> None:
            async with bascule.connect(node.addresses["http"], creds=str(creds)) as client:
                with pytest.raises(LimitExceeded, match="max_payload"):
                    await client.publish("s", b"x" * 1001)
                assert (await client.publish("s", b"x" * 900)).offset == 0
                async with bascule.connect(node.addresses["http"], creds=str(creds)) as third:
                    with pytest.raises(bascule.errors.Broken, match="active connections exceeded"):
                        await third.publish("s", b"x")
                assert (await client.publish("s", b"y")).offset == 1

        asyncio.run(publish())
        assert node.call("GET", "/v1/node")["ready"] is True
