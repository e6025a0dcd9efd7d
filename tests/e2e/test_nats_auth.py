"""Every way to prove oneself to a real NATS server: the node's connection and the client's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.client import Ack, Message
from support import commands
from support.nats_servers import Authority, Identity, Operator, configured_nats, eventually, metric
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node, running_node


@dataclass
class Way:
    """One method: the server's configuration, what the node and what the client are told."""

    server: str
    node: Mapping[str, str] = field(default_factory=dict)
    """Keys of [nats]."""
    client: Mapping[str, Any] = field(default_factory=dict)
    url: str = "nats://127.0.0.1:{}"
    nodes_url: str = ""
    """Where the node's URL is another than the client's: one with credentials."""


@dataclass
class Secrets:
    """Files made for the tests of this module."""

    directory: Path
    nkey: Identity
    operator: Operator
    authority: Authority

    def path(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    directory = tmp_path_factory.mktemp("secrets")
    made = Secrets(directory, Identity("user"), Operator(), Authority(directory))
    (directory / "user.nk").write_text(f"# a comment\n{made.nkey.seed}\n")
    (directory / "user.creds").write_text(made.operator.credentials())
    made.authority.issue("server")
    made.authority.issue("bascule")
    return made


def tls_section(secrets: Secrets, more: str = "") -> str:
    return (
        f'tls {{ cert_file: "{secrets.path("server.cert.pem")}", '
        f'key_file: "{secrets.path("server.key.pem")}", {more} }}\n'
    )


def client_context(secrets: Secrets, *, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(secrets.authority.ca))
    if certificate:
        context.load_cert_chain(secrets.path("bascule.cert.pem"), secrets.path("bascule.key.pem"))
    return context


def ways(secrets: Secrets) -> dict[str, Way]:
    trust = {"tls_ca": str(secrets.authority.ca)}
    shown = {
        **trust,
        "tls_cert": secrets.path("bascule.cert.pem"),
        "tls_key": secrets.path("bascule.key.pem"),
    }
    verify = f'ca_file: "{secrets.authority.ca}"'
    nkeys = f"authorization {{ users: [{{ nkey: {secrets.nkey.public} }}] }}"
    users = 'authorization { users: [{ user: "u", password: "p w" }] }'
    mapped = 'authorization { users: [{ user: "bascule@example.org" }] }'
    return {
        "user and password": Way(
            users, {"user": "u", "password": "p w"}, {"user": "u", "password": "p w"}
        ),
        "credentials in the URL": Way(
            users, {}, {"nats": "nats://u:p%20w@127.0.0.1:{}"},
            nodes_url="nats://u:p%20w@127.0.0.1:{}",
        ),
        "token": Way("authorization { token: tok }", {"token": "tok"}, {"token": "tok"}),
        "token in the URL": Way(
            "authorization { token: tok }", {}, {"nats": "tok@127.0.0.1:{}"},
            nodes_url="nats://tok@127.0.0.1:{}",
        ),
        "nkey seed": Way(
            nkeys, {"nkey_seed": secrets.nkey.seed}, {"nkey_seed": secrets.nkey.seed}
        ),
        "nkey file": Way(
            nkeys, {"nkey": secrets.path("user.nk")}, {"nkey": secrets.path("user.nk")}
        ),
        "credentials file": Way(
            secrets.operator.server_config(),
            {"creds": secrets.path("user.creds")},
            {"creds": secrets.path("user.creds")},
        ),
        "TLS with an authority": Way(
            tls_section(secrets), trust, {"tls": client_context(secrets, certificate=False)},
            url="tls://localhost:{}",
        ),
        "client certificate required": Way(
            tls_section(secrets, f"{verify}, verify: true"), shown,
            {"tls": client_context(secrets, certificate=True)},
        ),
        "client certificate as user": Way(
            tls_section(secrets, f"{verify}, verify_and_map: true") + mapped, shown,
            {"tls": client_context(secrets, certificate=True)},
        ),
        "TLS first": Way(
            tls_section(secrets, "handshake_first: true"), {**trust, "tls_first": "true"},
            {"tls": client_context(secrets, certificate=False), "tls_first": True},
        ),
        "credentials file over TLS": Way(
            tls_section(secrets) + secrets.operator.server_config(),
            {**trust, "creds": secrets.path("user.creds")},
            {
                "tls": client_context(secrets, certificate=False),
                "creds": secrets.path("user.creds"),
            },
        ),
    }  # fmt: skip


NAMES = (
    "user and password", "credentials in the URL", "token", "token in the URL", "nkey seed",
    "nkey file", "credentials file", "TLS with an authority", "client certificate required",
    "client certificate as user", "TLS first", "credentials file over TLS",
)  # fmt: skip


def environment(keys: Mapping[str, str]) -> dict[str, str]:
    return {f"BASCULE_NATS_{key.upper()}": value for key, value in keys.items()}


async def publish_and_read(node: Node, client: Mapping[str, Any]) -> tuple[Ack, list[Message]]:
    async with bascule.connect(node.addresses["http"], **client) as connected:
        ack = await connected.publish("s.x", b"hello", key="k")
        return ack, [message async for message in connected.read("s")]


def test_the_ways_are_all_run(secrets: Secrets) -> None:
    assert set(NAMES) == ways(secrets).keys()


@pytest.mark.parametrize("name", NAMES)
def test_node_and_client_are_let_in(tmp_path: Path, secrets: Secrets, name: str) -> None:
    way = ways(secrets)[name]
    with configured_nats(tmp_path / "nats", way.server) as server:
        url = (way.nodes_url or way.url).format(server.port)
        with running_node(tmp_path, nats=url, environment=environment(way.node)) as node:
            node.create("s", "s.>")
            told = {**way.client}
            if "nats" in told:
                told["nats"] = told["nats"].format(server.port)
            ack, messages = asyncio.run(publish_and_read(node, told))
            assert (ack.stream, ack.offset) == ("s", 0)
            assert [(m.value, m.key) for m in messages] == [(b"hello", b"k")]
            shown = str(node.call("GET", "/v1/node")) + node.log.read_text()
            for secret in ("p w", "p%20w", "tok@", "tok ", secrets.nkey.seed):
                assert secret not in shown


@pytest.fixture(scope="module")
def nkey_server(tmp_path_factory: pytest.TempPathFactory, secrets: Secrets) -> Iterator[NatsServer]:
    config = f"authorization {{ users: [{{ nkey: {secrets.nkey.public} }}] }}"
    with configured_nats(tmp_path_factory.mktemp("nkeys"), config) as server:
        yield server


def ended(tmp_path: Path, url: str, keys: Mapping[str, str], code: int) -> str:
    """What a node says that is not let in."""
    node = Node(tmp_path, nats=url, environment=environment(keys))
    node.spawn(tmp_path / "ready.json")
    assert node.process is not None
    assert node.process.wait(WAIT_SECONDS_MAX) == code, node.log.read_text()
    text = node.log.read_text()
    assert "Traceback" not in text
    return " ".join(text.split())


def test_an_nkey_that_is_not_known(tmp_path: Path, nkey_server: NatsServer) -> None:
    other = Identity("user")
    text = ended(tmp_path, nkey_server.url, {"nkey_seed": other.seed}, 5)
    assert "Authorization Violation" in text
    assert other.public in text
    assert other.seed not in text


def test_no_credentials_where_some_are_wanted(tmp_path: Path, nkey_server: NatsServer) -> None:
    text = ended(tmp_path, nkey_server.url, {}, 5)
    assert "no credentials are given" in text


def test_a_seed_of_the_wrong_kind(tmp_path: Path, nkey_server: NatsServer) -> None:
    text = ended(tmp_path, nkey_server.url, {"nkey_seed": Identity("account").seed}, 2)
    assert "kind account, expected user" in text


def test_a_file_that_is_not_there(tmp_path: Path, nkey_server: NatsServer) -> None:
    text = ended(tmp_path, nkey_server.url, {"creds": str(tmp_path / "gone.creds")}, 2)
    assert "gone.creds does not exist" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take a user's permission away")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    from bascule.errors import ConfigError
    from bascule.host.credential_files import read_secret

    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0)
    tmp_path.chmod(0o755)
    reader = os.fork()
    if reader == 0:  # pragma: no cover
        os.setuid(65534)
        try:
            read_secret(str(secret))
        except ConfigError as error:
            os._exit(0 if "lacks the permission" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0


def test_a_wrong_password(tmp_path: Path) -> None:
    config = 'authorization { users: [{ user: "u", password: "p" }] }'
    with configured_nats(tmp_path / "nats", config) as server:
        text = ended(tmp_path, server.url, {"user": "u", "password": "hunter2"}, 5)
        assert "user 'u' is unknown or the password is wrong" in text
        assert "hunter2" not in text


def test_a_server_without_tls_gets_no_credentials(tmp_path: Path, secrets: Secrets) -> None:
    with configured_nats(tmp_path / "nats", "") as server:
        text = ended(tmp_path, server.url, {"tls": "true", "token": "tok"}, 5)
        assert "offers no TLS" in text


def test_a_certificate_is_missing_or_of_a_stranger(tmp_path: Path, secrets: Secrets) -> None:
    config = tls_section(secrets, f'ca_file: "{secrets.authority.ca}", verify: true')
    stranger = Authority(tmp_path / "stranger", "stranger")
    cert, key = stranger.issue("bascule")
    trust = {"tls_ca": str(secrets.authority.ca)}
    with configured_nats(tmp_path / "nats", config) as server:
        text = ended(tmp_path, server.url, trust, 5)
        assert "tls_cert" in text
        shown = {**trust, "tls_cert": str(cert), "tls_key": str(key)}
        assert "tls_cert" in ended(tmp_path, server.url, shown, 5)
        text = ended(tmp_path, server.url, {**shown, "tls_key": secrets.path("server.key.pem")}, 2)
        assert "do not belong together" in text
        text = ended(tmp_path, server.url, {"tls_ca": str(stranger.ca)}, 5)
        assert "certificate verify failed" in text
        assert "tls_ca" in text


def test_a_jwt_that_expires_and_is_replaced(tmp_path: Path) -> None:
    """The node loses its connection when its JWT expires, says so, and reads the new file."""
    operator = Operator()
    creds = tmp_path / "user.creds"
    variables = environment({"creds": str(creds)})
    with contextlib.ExitStack() as stack:
        nats = configured_nats(tmp_path / "nats", operator.server_config())
        server = stack.enter_context(nats)
        # The JWT must outlast a start of the node, however slow the machine is.
        creds.write_text(operator.credentials())
        began = time.monotonic()
        with running_node(tmp_path, nats=server.url, environment=variables):
            lifetime = 5 + 4 * int(time.monotonic() - began)
        creds.write_text(operator.credentials(exp=int(time.time()) + lifetime))
        node = stack.enter_context(running_node(tmp_path, nats=server.url, environment=variables))
        node.create("s", "s.>")
        eventually(
            lambda: "expired" in node.log.read_text() and "put a new one there" in
            " ".join(node.log.read_text().split()),
            "no word of the expired JWT", lifetime + WAIT_SECONDS_MAX,
        )  # fmt: skip
        # The server says so first and closes the connection then.
        eventually(lambda: not node.call("GET", "/v1/node")["ready"], "still ready")
        eventually(lambda: metric(node, "bascule_nats_refusals_total") >= 1, "no refusal counted")
        creds.write_text(operator.credentials())
        eventually(lambda: node.call("GET", "/v1/node")["ready"], "the new file was not read")
        assert metric(node, "bascule_nats_server_errors_total", kind="authentication") >= 1
        client = {"creds": str(creds)}
        ack, _ = asyncio.run(publish_and_read(node, client))
        assert ack.offset == 0


def test_the_command_line_is_let_in_as_the_node_is(tmp_path: Path, secrets: Secrets) -> None:
    """The same variables serve both; the flags are there for a publisher elsewhere."""
    config = tls_section(secrets, f'ca_file: "{secrets.authority.ca}", verify: true')
    keys = {
        "tls_ca": str(secrets.authority.ca),
        "tls_cert": secrets.path("bascule.cert.pem"),
        "tls_key": secrets.path("bascule.key.pem"),
        "creds": secrets.path("user.creds"),
    }
    with (
        configured_nats(tmp_path / "nats", config + secrets.operator.server_config()) as server,
        running_node(tmp_path, nats=server.url, environment=environment(keys)) as node,
    ):
        node.create("s", "s.>")
        command = ("publish", "s.x", "hello", "--json")
        told = {"BASCULE_SERVER": node.addresses["http"]}
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in keys.items()]
        for offset, (more, variables) in enumerate([([], environment(keys)), (flags, {})]):
            run = commands.run(*command, *more, env={**told, **variables}, text=True)
            assert run.returncode == 0, run.stderr
            assert json.loads(run.stdout)["offset"] == offset
        run = commands.run(*command, env=told, text=True)
        assert run.returncode == 5
        assert "Traceback" not in run.stderr


def test_the_client_says_why_it_is_refused(tmp_path: Path, secrets: Secrets) -> None:
    from bascule.wire.nats import NatsRefused

    config = f"authorization {{ users: [{{ nkey: {secrets.nkey.public} }}] }}"
    with (
        configured_nats(tmp_path / "nats", config) as server,
        running_node(
            tmp_path, nats=server.url, environment=environment({"nkey_seed": secrets.nkey.seed})
        ) as node,
    ):
        node.create("s", "s.>")
        with pytest.raises(NatsRefused, match="no credentials are given"):
            asyncio.run(publish_and_read(node, {}))
