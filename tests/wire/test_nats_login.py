"""Credentials, addresses, errors and the handshake of NATS, without a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bascule.errors import ConfigError, RemoteProtocolError
from bascule.host.real import RealRandom
from bascule.wire.nats import (
    ConnectOptions,
    ErrorKind,
    Login,
    NatsHandshake,
    NatsRefused,
    ServerAddress,
    ServerError,
    ServerPool,
    Step,
    decode_info,
    load_login,
    parse_server_url,
)
from bascule.wire.nats.nkeys import decode_claims, decode_seed, find_seed, parse_credentials
from support.nats_servers import Identity, Operator

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
"""A key pair from the documentation of NATS."""

ADDRESS = ServerAddress("h", 4222)


def no_file(path: str) -> str:
    raise ConfigError(f"file {path} does not exist")


def reader(**files: str) -> Callable[[str], str]:
    return lambda path: files[path]


# NKeys


def test_a_seed_gives_its_public_key_and_signatures_that_verify() -> None:
    key = decode_seed(SEED, origin="test")
    assert key.public == PUBLIC
    raw = base64.b32decode(PUBLIC)[1:33]
    signature = base64.urlsafe_b64decode(key.sign("the nonce") + "==")
    Ed25519PublicKey.from_public_bytes(raw).verify(signature, b"the nonce")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        ("", "contains other text, expected an NKey seed"),
        ("not base32!", "not base32 text"),
        ("ü", "not base32 text"),
        (PUBLIC, "contains a public key, expected an NKey seed"),
        (SEED[:-1], "expected an NKey seed|not base32"),
        (SEED[:-2] + "AA", "wrong checksum"),
        (SEED.replace("HUDX", "HUDY"), "wrong checksum"),
        (Identity("account").seed, "kind account, expected user"),
        (Identity("operator").seed, "kind operator, expected user"),
    ],
    # Each process draws new seeds, so the cases need fixed names.
    ids=[
        "empty", "ascii", "not ascii", "public key", "cut short", "other checksum", "one letter",
        "account", "operator",
    ],
)  # fmt: skip
def test_text_that_is_not_a_user_seed_is_refused(seed: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        decode_seed(seed, origin="the file")
    assert str(caught.value).startswith("the file")
    assert not seed or seed not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        SEED, f"{SEED}\n", f"# comment\n\n  {SEED}  \n",
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n",
    ],
)  # fmt: skip
def test_a_seed_is_found_in_its_file(text: str) -> None:
    assert find_seed(text) == SEED


# Credentials files


def test_a_credentials_file_is_parsed() -> None:
    text = Operator().credentials(name="me", exp=77)
    for written in (text, text.replace("\n", "\r\n"), "notes before\n" + text + "and after\n"):
        found = parse_credentials(written, origin="f")
        claims = decode_claims(found.jwt, origin="f")
        assert (claims.name, claims.exp) == ("me", 77)
        assert decode_seed(found.seed, origin="f").public == claims.sub
        assert found.seed not in repr(found)


def test_a_bearer_token_needs_no_seed() -> None:
    operator = Operator()
    jwt = operator.account.sign(Identity("user"), {"bearer_token": True})
    assert parse_credentials(f"{jwt}\n", origin="f").seed == ""
    login = load_login(ConnectOptions("n", creds="c"), ADDRESS, reader(c=jwt))
    assert login.fields("") == {"jwt": jwt}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "contains no user JWT"),
        (SEED, "contains no user JWT"),
        ("-----BEGIN NATS USER JWT-----\na.b\n------END NATS USER JWT------", "2 parts"),
        ("-----BEGIN NATS USER JWT-----\na.!.c\n------END NATS USER JWT------", "malformed JWT"),
        ("-----BEGIN NATS USER JWT-----\na.bm8.c\n------END NATS USER JWT------", "malformed JWT"),
        (Identity("account").sign(Identity("user"), {}), "without its NKey seed"),
    ],
)
def test_text_that_is_not_a_credentials_file_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_credentials(text, origin="f")


# Logins


def test_credentials_of_the_url_take_precedence() -> None:
    address = parse_server_url("nats://u:p@h")
    assert load_login(ConnectOptions("n", token="t"), address, no_file).fields("") == {
        "user": "u", "pass": "p",
    }  # fmt: skip


def test_files_are_read_for_every_login() -> None:
    files = {"f": SEED}
    options = ConnectOptions("n", nkey="f")
    first = load_login(options, ADDRESS, lambda path: files[path])
    assert first.fields("nonce")["nkey"] == PUBLIC
    files["f"] = Identity("user").seed
    assert load_login(options, ADDRESS, lambda path: files[path]).fields("x")["nkey"] != PUBLIC
    with pytest.raises(ConfigError, match="does not exist"):
        load_login(options, ADDRESS, no_file)
    with pytest.raises(ConfigError, match="expected a line SU"):
        load_login(options, ADDRESS, reader(f="nothing here"))


def test_no_repr_contains_a_secret() -> None:
    options = ConnectOptions("n", "u", "secret1", "secret2", SEED)
    login = load_login(options, ADDRESS, no_file)
    shown = repr(options) + repr(login) + repr(parse_server_url("nats://u:secret3@h"))
    for secret in ("secret", SEED):
        assert secret not in shown


def test_an_nkey_needs_a_nonce() -> None:
    login = load_login(ConnectOptions("n", nkey_seed=SEED), ADDRESS, no_file)
    with pytest.raises(ConfigError, match="asks for no NKey"):
        login.fields("")


REFUSED = ServerError.decode(b"-ERR 'Authorization Violation'")


def test_refusals_explain_the_likely_reason() -> None:
    operator = Operator()

    def said(options: ConnectOptions, now_s: int = 100, **files: str) -> str:
        login = load_login(options, ADDRESS, reader(**files) if files else no_file)
        return login.explain(REFUSED, now_s=now_s)

    creds = ConnectOptions("n", creds="c")
    text = operator.credentials(exp=90)
    assert "in credentials file c expired 10 s ago" in said(creds, c=text)
    assert "does not accept the user JWT" in said(creds, now_s=80, c=text)
    later = operator.credentials(nbf=150)
    assert "in credentials file c is not valid for another 50 s" in said(creds, c=later)
    assert f"no user with NKey {PUBLIC}" in said(ConnectOptions("n", nkey_seed=SEED))
    assert "user 'u' is unknown or" in said(ConnectOptions("n", user="u", password="geheim"))
    assert "geheim" not in said(ConnectOptions("n", user="u", password="geheim"))
    assert "the token is wrong" in said(ConnectOptions("n", token="geheim"))
    assert "no credentials are given" in said(ConnectOptions("n"))
    limit = ServerError.decode(b"-ERR 'maximum connections exceeded'")
    assert "max_connections" in Login().explain(limit, now_s=0)


# Errors


@pytest.mark.parametrize(
    ("line", "kind", "is_fatal", "subject"),
    [
        ("Unknown Protocol Operation", ErrorKind.PROTOCOL, True, ""),
        ("Attempted To Connect To Route Port", ErrorKind.PROTOCOL, True, ""),
        ("Authorization Violation", ErrorKind.AUTHENTICATION, True, ""),
        ("Authorization Timeout", ErrorKind.AUTHENTICATION, True, ""),
        ("Authentication Timeout", ErrorKind.AUTHENTICATION, True, ""),
        ("User Authentication Expired", ErrorKind.AUTHENTICATION, True, ""),
        ("User Authentication Revoked", ErrorKind.AUTHENTICATION, True, ""),
        ("Account Authentication Expired", ErrorKind.AUTHENTICATION, True, ""),
        ("Invalid Client Protocol", ErrorKind.PROTOCOL, True, ""),
        ("Maximum Control Line Exceeded", ErrorKind.PROTOCOL, True, ""),
        ("Parser Error", ErrorKind.PROTOCOL, True, ""),
        ("Secure Connection - TLS Required", ErrorKind.AUTHENTICATION, True, ""),
        ("Stale Connection", ErrorKind.STALE, True, ""),
        ("maximum connections exceeded", ErrorKind.CONNECTIONS, True, ""),
        ("maximum account active connections exceeded", ErrorKind.CONNECTIONS, True, ""),
        ("Connection throttling is active", ErrorKind.CONNECTIONS, True, ""),
        ("Slow Consumer", ErrorKind.SLOW_CONSUMER, True, ""),
        ("Maximum Payload Violation", ErrorKind.PAYLOAD, True, ""),
        ("Server Shutdown", ErrorKind.SHUTDOWN, True, ""),
        ("maximum subscriptions exceeded", ErrorKind.SUBSCRIPTIONS, False, ""),
        ("Invalid Subject", ErrorKind.OTHER, False, ""),
        ('Permissions Violation for Subscription to "a.>"',
         ErrorKind.SUBSCRIBE_PERMISSION, False, "a.>"),
        ('Permissions Violation for Subscription to "a" using queue "q"',
         ErrorKind.SUBSCRIBE_PERMISSION, False, "a"),
        ('Permissions Violation for Publish to "_INBOX.x"',
         ErrorKind.PUBLISH_PERMISSION, False, "_INBOX.x"),
        ("something new", ErrorKind.OTHER, False, ""),
    ],
)  # fmt: skip
def test_errors_are_decoded(line: str, kind: ErrorKind, is_fatal: bool, subject: str) -> None:
    error = ServerError.decode(f"-ERR '{line}'".encode())
    assert error == ServerError(line, kind, is_fatal, subject)
    assert str(error).startswith(line)


# Addresses and the pool


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("h", ServerAddress("h", 4222)),
        ("nats://h:1", ServerAddress("h", 1)),
        ("tls://h", ServerAddress("h", 4222, tls=True)),
        ("nats://[::1]:5", ServerAddress("::1", 5)),
        ("tok@h", ServerAddress("h", 4222, token="tok")),
        ("nats://u:p%20w%40@h", ServerAddress("h", 4222, user="u", password="p w@")),
    ],
)
def test_urls(url: str, expected: ServerAddress) -> None:
    assert parse_server_url(url) == expected


@pytest.mark.parametrize("url", ["ws://h", "nats://", "nats://u:secret@h:x", "nats://u:secret@"])
def test_the_error_of_an_invalid_url_has_no_credentials(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server_url(url)
    assert "secret" not in str(caught.value)


def pool(*urls: str, discover: bool = True) -> ServerPool:
    return ServerPool([parse_server_url(u) for u in urls], RealRandom(1), discover=discover)


def test_servers_of_a_cluster_are_discovered_and_replaced() -> None:
    known = pool("tls://u:p@a.example:1")
    (first,) = known.all_servers()
    known.update_discovered(
        first, ["10.0.0.1:1", "b.example:2", "a.example:1", "not a url:x", "[::1]:3"]
    )
    learned = known.all_servers()[1:]
    assert [a.endpoint for a in learned] == [("10.0.0.1", 1), ("b.example", 2), ("::1", 3)]
    assert all((a.tls, a.user, a.password) == (True, "u", "p") for a in learned)
    # A server that is announced by IP address must present a certificate for the known name.
    assert [a.tls_name for a in learned] == ["a.example", None, "a.example"]
    known.update_discovered(learned[0], ["10.0.0.9:1"])
    assert [a.endpoint for a in known.all_servers()] == [("a.example", 1), ("10.0.0.9", 1)]
    assert known.all_servers()[1].tls_name == "a.example"


def test_discovery_can_be_disabled() -> None:
    known = pool("a", discover=False)
    known.update_discovered(known.all_servers()[0], ["b:1"])
    assert len(known) == 1


def test_the_lost_server_and_lame_ducks_come_last() -> None:
    known = pool("a", "b", "c", "d")
    a, b, c, d = known.all_servers()
    orders = {tuple(known.candidates(a)) for _ in range(100)}
    assert {order[-1] for order in orders} == {a}
    assert {order[0] for order in orders} == {b, c, d}
    known.mark_lame_duck(b)
    assert known.candidates(a)[-2:] == [a, b]
    assert b not in known.migration_candidates(a)
    known.clear_lame_duck(b)
    assert b in known.migration_candidates(a)


def test_the_backoff_grows_to_a_bound() -> None:
    pauses = pool("a").backoff_seconds()
    found = [next(pauses) for _ in range(30)]
    assert 0.01 <= found[0] <= 0.02
    assert all(1.0 <= pause <= 2.0 for pause in found[10:])
    assert len({round(pause, 6) for pause in found[10:]}) > 10


# INFO and the handshake


def test_unknown_fields_of_info_are_ignored() -> None:
    info = decode_info(
        b'INFO {"max_payload":5,"connect_urls":["a:1"],"ldm":true,"nonce":"n","xkey":"new"} '
    )
    assert (info.max_payload, info.connect_urls, info.ldm, info.nonce) == (5, ["a:1"], True, "n")
    for line in (b"INFO {", b"INFO []", b'INFO {"max_payload":"x"}', b"INFO \xff"):
        with pytest.raises(RemoteProtocolError):
            decode_info(line)


def handshake(options: ConnectOptions | None = None, url: str = "h") -> NatsHandshake:
    return NatsHandshake(
        options or ConnectOptions("n"), parse_server_url(url), version="1", read=no_file,
        now_s=lambda: 0,
    )  # fmt: skip


def connect_of(data: bytes) -> dict[str, object]:
    line, _, rest = data.partition(b"\r\n")
    assert rest == b"PING\r\n"
    found: dict[str, object] = json.loads(line.removeprefix(b"CONNECT "))
    return found


def test_a_nonce_is_signed() -> None:
    shaking = handshake(ConnectOptions("n", nkey_seed=SEED))
    assert shaking.receive(b"") is Step.NEED_DATA
    assert shaking.receive(b'INFO {"nonce":"abc"}\r\n') is Step.NEED_DATA
    told = connect_of(shaking.to_send())
    assert told["nkey"] == PUBLIC
    assert told["sig"] == decode_seed(SEED, origin="").sign("abc")
    assert told["tls_required"] is False
    assert shaking.receive(b"PO") is Step.NEED_DATA
    assert shaking.receive(b"NG\r\nMSG rest") is Step.READY
    assert shaking.trailing_bytes == b"MSG rest"


def test_tls_first_comes_before_info() -> None:
    shaking = handshake(ConnectOptions("n", tls_first=True))
    assert shaking.receive(b"") is Step.START_TLS
    shaking.tls_started()
    assert shaking.to_send() == b""
    assert shaking.receive(b'INFO {"tls_required":true}\r\n') is Step.NEED_DATA
    assert connect_of(shaking.to_send())["tls_required"] is True


def test_nothing_secret_is_sent_before_tls() -> None:
    for options, url in ((None, "tls://u:p@h"), (ConnectOptions("n", tls=True, token="t"), "h")):
        shaking = handshake(options, url)
        assert shaking.receive(b'INFO {"tls_available":true}\r\n') is Step.START_TLS
        assert shaking.to_send() == b""
        with pytest.raises(NatsRefused, match="offers no TLS"):
            handshake(options, url).receive(b"INFO {}\r\n")


def test_a_refusal_in_the_packet_of_info_is_handled() -> None:
    with pytest.raises(NatsRefused, match="maximum connections") as caught:
        handshake().receive(b"INFO {}\r\n-ERR 'maximum connections exceeded'\r\n")
    assert caught.value.kind is ErrorKind.CONNECTIONS


def test_a_server_that_does_not_speak_nats_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="is it a NATS"):
        handshake().receive(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(RemoteProtocolError, match="no line end"):
        handshake().receive(b"x" * (2 << 20))
