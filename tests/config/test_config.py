"""Layers of configuration: precedence, origins, and errors with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.config import (
    KEYS,
    Config,
    layer_from_environment,
    layer_from_flags,
    layer_from_toml,
    merge,
)
from bascule.config.addresses import at_host_of, format_address, parse_address
from bascule.errors import ConfigError
from bascule.model import StreamConfig, SyncPolicy

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def error_of(text: str = "", environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        merge(layer_from_toml(text, "b.toml"), layer_from_environment(environment or {}))
    return str(caught.value)


def test_defaults() -> None:
    config = merge()
    assert config == Config()
    assert config.nats.embedded
    assert config.origins == {}


def test_flags_override_the_environment_and_the_environment_the_file() -> None:
    file = layer_from_toml("[client]\nport = 1\nhost = '::1'\n[http]\nport = 1\n", "b.toml")
    environment = layer_from_environment({"BASCULE_CLIENT_PORT": "2", "BASCULE_HTTP_PORT": "2"})
    flags = layer_from_flags({"client.port": ("--client-port", 3), "data": ("--data", None)})
    config = merge(file, environment, flags)
    assert (config.client.host, config.client.port, config.http.port) == ("::1", 3, 2)
    assert config.origins == {
        "client.host": "client.host in b.toml",
        "client.port": "--client-port",
        "http.port": "BASCULE_HTTP_PORT",
    }


def test_environment_values_are_converted_to_the_type_of_their_key() -> None:
    layer = layer_from_environment(
        {
            "BASCULE_NATS_URLS": "nats://a:4222, nats://b:4222",
            "BASCULE_NATS_TLS": "yes",
            "BASCULE_LIMITS_FETCH_BYTES_MAX": "1_048_576",
            "BASCULE_SERVER": "http://elsewhere:9080",
            "HOME": "/root",
        }
    )
    config = merge(layer)
    assert config.nats.urls == ("nats://a:4222", "nats://b:4222")
    assert config.nats.tls is True
    assert config.limits.fetch_bytes_max == 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[nats]\nurl = 'x'", "unknown key 'nats.url' in b.toml; did you mean nats.urls?"),
        ("[clients]\nport = 1", "unknown section [clients] in b.toml; did you mean [client]?"),
        ("dat = 'x'", "unknown key 'dat' in b.toml; did you mean data?"),
        ("[log]\nport = 1", "unknown key 'log.port' in b.toml; did you mean nats.port?"),
        ("client = 9092", "client in b.toml must be a section: write [client]"),
        ("[client]\nport = 70000", "client.port in b.toml must be between 0 and 65535, got 70000"),
        ("[client]\nport = '1'", "client.port in b.toml must be a whole number, got '1'"),
        ("[client]\nport = true", "client.port in b.toml must be a whole number, got True"),
        ("[nats]\nurls = [1]", "nats.urls in b.toml must be a list of strings, got [1]"),
        ("[nats]\ntls = 1", "nats.tls in b.toml must be true or false, got 1"),
        (
            "[streams]\nsync = 'often'",
            "streams.sync in b.toml must be one of always, interval, never, got 'often'",
        ),
        (
            "[limits]\nconnections_max = 0",
            "limits.connections_max in b.toml must be at least 1, got 0",
        ),
        ("[nats", "b.toml is not valid TOML: Expected ']' at the end of a table declaration"),
    ],
)
def test_errors_of_a_file(text: str, expected: str) -> None:
    assert error_of(text).startswith(expected)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"BASCULE_CLIENT_PROT": "1"},
            "unknown variable BASCULE_CLIENT_PROT in the environment; did you mean "
            "BASCULE_CLIENT_PORT?",
        ),
        (
            {"BASCULE_FOO": "1"},
            "unknown variable BASCULE_FOO in the environment; docs/configuration.md lists those "
            "that are known",
        ),
        ({"BASCULE_CLIENT_PORT": "x"}, "BASCULE_CLIENT_PORT must be a whole number, got 'x'"),
        ({"BASCULE_NATS_TLS": "maybe"}, "BASCULE_NATS_TLS must be true or false, got 'maybe'"),
    ],
)
def test_errors_of_the_environment(environment: dict[str, str], expected: str) -> None:
    assert error_of(environment=environment) == expected


@pytest.mark.parametrize("section", ["nats", "http", "client", "peer"])
def test_a_listener_needs_a_host(section: str) -> None:
    """With an empty one the embedded server and the HTTP listener took connections of everybody."""
    found = error_of(f"[{section}]\nhost = ''")
    assert f"{section}.host" in found
    assert "is empty, expected an address of this machine to listen on" in found


def test_contradictory_credentials_are_refused() -> None:
    urls = "[nats]\nurls = ['nats://a']\n"
    assert "both set" in error_of(urls + "token = 't'\nuser = 'u'")
    assert "nats.user is not" in error_of(urls + "password = 'p'")
    assert "nats.tls_key is not" in error_of(urls + "tls_cert = 'c.pem'")
    assert "nats.urls is not" in error_of("[nats]\ntoken = 't'")


def test_secrets_are_never_shown() -> None:
    text = "[nats]\nurls = ['nats://a']\nuser = 'u'\npassword = 'hunter2'"
    config = merge(layer_from_toml(text, "b.toml"))
    assert config.nats.password == "hunter2"
    assert "hunter2" not in repr(config)
    assert "77" not in error_of("[nats]\npassword = 77")


def test_stream_defaults_agree_with_the_model() -> None:
    assert Config().streams.config("a.>") == StreamConfig(subject="a.>")
    assert KEYS["streams.sync"].choices == tuple(policy.value for policy in SyncPolicy)


def test_every_key_is_documented() -> None:
    text = DOCUMENT.read_text()
    for key in KEYS.values():
        assert f"`{key.name}`" in text, f"docs/configuration.md lacks {key.name}"
        assert f"`{key.variable}`" in text, f"docs/configuration.md lacks {key.variable}"


def test_contradictory_stream_defaults_are_refused() -> None:
    text = "[streams]\ncleanup = ['compact']\n"
    assert error_of(text, {"BASCULE_STREAMS_RETENTION_MS_MAX": "5"}) == (
        "[streams] has contradictory settings: retention_ms_max is 5, but cleanup is compact only, "
        "so nothing enforces it: add delete to cleanup, or set it to 0 (set by "
        "BASCULE_STREAMS_RETENTION_MS_MAX, streams.cleanup in b.toml)"
    )
    both = error_of(
        "[streams]\nmin_compaction_lag_ms = 9\n", {"BASCULE_STREAMS_MAX_COMPACTION_LAG_MS": "8"}
    )
    assert both.endswith(
        "(set by BASCULE_STREAMS_MAX_COMPACTION_LAG_MS, streams.min_compaction_lag_ms in b.toml)"
    )
    assert error_of("[streams]\ncleanup = []").startswith(
        "streams.cleanup in b.toml: cleanup is empty"
    )
    merge(layer_from_toml("[streams]\nretention_bytes_max = 1048576\n", "b.toml"))


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, "the nodes share no NATS server"),
        ({"nats.urls": ["n"], "cluster.peers": ["1@h:1"]}, "give one of them"),
        ({"nats.urls": ["n"], "node_id": 4}, "those with the numbers 1 to 3"),
        ({"nats.urls": ["n"], "node_id": 0}, "must be at least 1"),
        ({"nats.urls": ["n"], "cluster.name": "a.b"}, "letters, digits, - and _"),
        ({"nats.urls": ["n"], "peer.port": 0}, "give a port with --peer-port"),
        ({"nats.urls": ["n"], "peer.host": "0.0.0.0"}, "BASCULE_PEER_ADVERTISED"),
        ({"nats.urls": ["n"], "peer.advertised": "::1:9"}, "an IPv6 host in brackets"),
    ],
)
def test_founders_that_could_not_find_each_other_are_refused(
    settings: dict[str, object], found: str
) -> None:
    flags = {key: (f"--{key}", value) for key, value in settings.items()}
    flags["cluster.bootstrap_expect"] = ("--bootstrap-expect", 3)
    with pytest.raises(ConfigError, match=found):
        merge(layer_from_flags(flags))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1", ("host", 1)),
        ("[::1]:9092", ("::1", 9092)),
        ("127.0.0.1:65535", ("127.0.0.1", 65_535)),
    ],
)
def test_addresses_are_read_as_they_are_written(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert format_address(*address) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:9092", "[host]:1",
             "[::1]", "a]:1", "host:²"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port with a port from 1 to 65535"):
        parse_address(text)


def test_sessions_of_which_none_is_possible_are_refused() -> None:
    assert "groups.session_ms_min" in error_of(
        "[groups]\nsession_ms_min = 20000\nsession_ms_max = 10000\n"
    )


@pytest.mark.parametrize(
    ("text", "administers"),
    [
        ("", True),
        ('host = "localhost"', True),
        ('host = "::1"', True),
        ('host = "0.0.0.0"', False),
        ('host = "log-1.example.org"', False),
        ('host = "::"\nadministration = "on"', True),
        ('administration = "off"', False),
    ],
)
def test_clients_change_streams_where_only_their_machine_can_connect(
    text: str, administers: bool
) -> None:
    config = merge(layer_from_toml(f"[client]\n{text}\n", "b.toml"))
    assert config.client.administers is administers


@pytest.mark.parametrize("prefix", ["a.", ".a", "a..b", "a.>", "a b", "*"])
def test_a_prefix_of_topics_is_the_beginning_of_a_subject(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"topic_prefix .* expected the beginning of a NATS"):
        merge(layer_from_toml(f'[client]\ntopic_prefix = "{prefix}"\n', "b.toml"))
    merge(layer_from_toml('[client]\ntopic_prefix = "from.kafka-1"\n', "b.toml"))


@pytest.mark.parametrize(
    ("listener", "named"),
    [
        ("0.0.0.0:9092", "node1.example.org:9092"),
        ("http://0.0.0.0:9080", "http://node1.example.org:9080"),
        ("http://[::]:9080", "http://node1.example.org:9080"),
        ("10.0.0.7:9092", "10.0.0.7:9092"),
        ("http://[::1]:9080", "http://[::1]:9080"),
    ],
)
def test_others_are_told_an_address_that_they_can_use(listener: str, named: str) -> None:
    assert at_host_of("node1.example.org:9093", listener) == named
