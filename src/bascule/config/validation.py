"""Checks of configuration values: each by its key, then all of them together."""

from __future__ import annotations

import re
from typing import Final

from bascule.config.addresses import ALL_ADDRESSES, parse_address
from bascule.config.keys import Key
from bascule.config.sections import Config
from bascule.config.stream_validation import check_stream_values, contradictions
from bascule.errors import ConfigError

_TYPE_NAMES: Final = {
    bool: "true or false", int: "a whole number", str: "a string", tuple: "a list of strings",
}  # fmt: skip

_PREFIX: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
"""A NATS subject without wildcards."""
_CLUSTER_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")

_CREDENTIALS: Final = (("user", "password"), ("token",), ("nkey",), ("nkey_seed",), ("creds",))
"""The ways to authenticate to NATS, each with its keys."""

_NEEDS_URLS: Final = (
    "user", "password", "token", "nkey", "nkey_seed", "creds",
    "tls", "tls_first", "tls_ca", "tls_cert", "tls_key",
)  # fmt: skip
"""Keys of [nats] that apply to the servers of `nats.urls` only."""


def parse_value(key: Key, text: str, origin: str) -> object:
    """The value of an environment variable, converted to the type of its key.

    Raises: ConfigError naming `origin`, the variable.
    """
    if key.type is bool:
        lowered = text.strip().lower()
        if lowered in {"1", "true", "yes", "on"}:
            return True
        if lowered in {"0", "false", "no", "off"}:
            return False
        raise ConfigError(f"{origin} must be true or false, got {text!r}")
    if key.type is int:
        try:
            return int(text.strip().replace("_", ""))
        except ValueError:
            raise ConfigError(f"{origin} must be a whole number, got {text!r}") from None
    if key.type is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def check_value(key: Key, raw: object, origin: str) -> object:
    """The value with the type of its key, checked against the limits of the key.

    Raises: ConfigError naming `origin`, the place where the value was set.
    """
    shown = "(hidden)" if key.secret else repr(raw)
    if key.type is tuple:
        parts = [raw] if isinstance(raw, str) else raw
        if not isinstance(parts, list | tuple) or not all(isinstance(p, str) for p in parts):
            raise ConfigError(f"{origin} must be {_TYPE_NAMES[tuple]}, got {shown}")
        if wrong := [part for part in parts if key.choices and part not in key.choices]:
            raise ConfigError(f"{origin} may contain {', '.join(key.choices)}, got {wrong[0]!r}")
        return tuple(parts)
    if type(raw) is not key.type:
        raise ConfigError(f"{origin} must be {_TYPE_NAMES[key.type]}, got {shown}")
    if isinstance(raw, int) and not isinstance(raw, bool):
        _check_range(key, raw, origin)
    if key.choices and raw not in key.choices:
        raise ConfigError(f"{origin} must be one of {', '.join(key.choices)}, got {shown}")
    return raw


def check_config(config: Config) -> None:
    """Check the rules that concern several keys.

    Raises: ConfigError naming the keys and where they were set.
    """
    _check_stream_defaults(config)
    _check_credentials(config)
    _check_addresses(config)
    _check_founding(config)
    _check_groups(config)
    _check_topic_prefix(config)
    if config.nats.embedded:
        for key in _NEEDS_URLS:
            if getattr(config.nats, key):
                raise ConfigError(
                    f"{_origin(config, f'nats.{key}')} is set, but nats.urls is not: the embedded "
                    "server accepts all connections without it, on nats.host"
                )


def _check_addresses(config: Config) -> None:
    for section in ("nats",) * config.nats.embedded + ("http", "client", "peer"):
        if not getattr(config, section).host:
            raise ConfigError(
                f"{_origin(config, f'{section}.host')} is empty, expected an address of this "
                "machine to listen on: 127.0.0.1 for connections of this machine alone, 0.0.0.0 "
                "for those of everybody"
            )
    for key, texts in (
        ("cluster.join", config.cluster.join),
        ("peer.advertised", filter(None, (config.peer.advertised,))),
    ):
        for text in texts:
            try:
                parse_address(text)
            except ValueError as error:
                raise ConfigError(f"{_origin(config, key)} {error}") from None


def _check_topic_prefix(config: Config) -> None:
    prefix = config.client.topic_prefix
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"{_origin(config, 'client.topic_prefix')} is {prefix!r}, expected the beginning of a "
            "NATS subject, without wildcards and without a dot at its end"
        )


def _check_founding(config: Config) -> None:
    """Check that the founders can find each other over NATS, where they are to."""
    cluster = config.cluster
    if not cluster.bootstrap_expect:
        return
    expect = f"{_origin(config, 'cluster.bootstrap_expect')} is {cluster.bootstrap_expect}"
    if cluster.peers:
        raise ConfigError(
            f"{expect}, and {_origin(config, 'cluster.peers')} names the founding nodes, too: give "
            "one of them"
        )
    if cluster.join:
        raise ConfigError(
            f"{expect}, and {_origin(config, 'cluster.join')} is set: the one founds a cluster, "
            "the other enters one that exists; give one of them"
        )
    if config.nats.embedded:
        raise ConfigError(
            f"{expect}, but the nodes share no NATS server over which they could find each other: "
            "name it with --nats URL, or name the founding nodes with --peers"
        )
    if not 1 <= config.node_id <= cluster.bootstrap_expect:
        raise ConfigError(
            f"{expect}, and this is node {config.node_id}: the founding nodes are those with the "
            f"numbers 1 to {cluster.bootstrap_expect}; give one of these with --node-id"
        )
    if not _CLUSTER_NAME.fullmatch(cluster.name):
        raise ConfigError(
            f"{_origin(config, 'cluster.name')} is {cluster.name!r}: where nodes find each other "
            "over NATS it is a part of a subject, with 1 to 64 letters, digits, - and _"
        )
    _check_peer_address(config, f"{expect}, but other nodes cannot connect to")


def _check_peer_address(config: Config, problem: str) -> None:
    peer = config.peer
    if peer.advertised:
        return
    if not peer.port:
        raise ConfigError(f"{problem} port 0: give a port with --peer-port N")
    if peer.host in ALL_ADDRESSES:
        raise ConfigError(
            f"{problem} {peer.host}: give the address of this node as peer.advertised "
            "(BASCULE_PEER_ADVERTISED), such as 10.0.0.1:9093"
        )


def _check_credentials(config: Config) -> None:
    nats = config.nats
    methods = [keys for keys in _CREDENTIALS if any(getattr(nats, key) for key in keys)]
    if len(methods) > 1:
        one, two = (_origin(config, *(f"nats.{key}" for key in keys)) for keys in methods[:2])
        raise ConfigError(
            f"{one} and {two} are both set: authenticate in one way, with user and password, a "
            "token, an NKey or a credentials file"
        )
    if nats.password and not nats.user:
        raise ConfigError(f"{_origin(config, 'nats.password')} is set, but nats.user is not")
    if bool(nats.tls_cert) != bool(nats.tls_key):
        given, missing = ("tls_cert", "tls_key") if nats.tls_cert else ("tls_key", "tls_cert")
        raise ConfigError(f"{_origin(config, f'nats.{given}')} is set, but nats.{missing} is not")


def _check_groups(config: Config) -> None:
    groups = config.groups
    if groups.consumer_heartbeat_ms >= groups.consumer_session_ms:
        session = _origin(config, "groups.consumer_session_ms")
        interval = _origin(config, "groups.consumer_heartbeat_ms")
        raise ConfigError(
            f"{interval} is {groups.consumer_heartbeat_ms}, expected less than {session}, "
            f"{groups.consumer_session_ms}: members would be removed between two heartbeats"
        )
    if groups.session_ms_min > groups.session_ms_max:
        shortest = _origin(config, "groups.session_ms_min")
        longest = _origin(config, "groups.session_ms_max")
        raise ConfigError(
            f"{shortest} is {groups.session_ms_min}, more than {longest}, {groups.session_ms_max}: "
            "no member could have a session"
        )


def _check_stream_defaults(config: Config) -> None:
    """Refuse defaults with which no stream could be created."""
    defaults = config.streams.config(subject=">")
    try:
        check_stream_values(defaults)
    except ConfigError as error:
        raise ConfigError(f"{_origin(config, f'streams.{error.field}')}: {error}") from None
    for names, message in contradictions(defaults):
        keys = [f"streams.{name}" for name in names]
        set_by = [config.origins[key] for key in keys if key in config.origins]
        raise ConfigError(
            f"[streams] has contradictory settings: {message} (set by {', '.join(set_by)})"
        )


def _origin(config: Config, *keys: str) -> str:
    """Where the first of `keys` that is set was set; without one, the first key itself."""
    return next((config.origins[key] for key in keys if key in config.origins), keys[0])


def _check_range(key: Key, number: int, origin: str) -> None:
    if key.minimum is not None and key.maximum is not None:
        if not key.minimum <= number <= key.maximum:
            raise ConfigError(
                f"{origin} must be between {key.minimum} and {key.maximum}, got {number}"
            )
    elif key.minimum is not None and number < key.minimum:
        raise ConfigError(f"{origin} must be at least {key.minimum}, got {number}")
