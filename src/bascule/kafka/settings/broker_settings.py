"""The configuration of a node under Kafka's names of a broker's; clients cannot change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from bascule.config import KEYS, Config
from bascule.config.addresses import format_address
from bascule.kafka.settings.kinds import ConfigSource, ConfigType, DescribedSetting
from bascule.kafka.settings.topic_settings import TOPIC_SETTINGS
from bascule.model import min_isr_in_force

_SECONDS: Final = 1_000

BROKER_SETTINGS: Final[Mapping[str, tuple[str, ConfigType, Callable[[Any], str]]]] = {
    "auto.leader.rebalance.enable": (
        "cluster.leader_balance_ms", ConfigType.BOOLEAN, lambda ms: str(bool(ms)).lower()
    ),
    "broker.rack": ("cluster.rack", ConfigType.STRING, str),
    "connections.max.idle.ms": ("limits.idle_ms_max", ConfigType.LONG, str),
    "default.replication.factor": ("streams.replicas", ConfigType.INT, str),
    "fetch.max.bytes": ("limits.fetch_bytes_max", ConfigType.INT, str),
    "leader.imbalance.check.interval.seconds": (
        "cluster.leader_balance_ms", ConfigType.LONG, lambda ms: str(ms // _SECONDS)
    ),
    "max.connections": ("limits.connections_max", ConfigType.INT, str),
    "node.id": ("node_id", ConfigType.INT, str),
    "num.partitions": ("streams.partitions", ConfigType.INT, str),
    "replica.lag.time.max.ms": ("cluster.replica_lag_ms_max", ConfigType.LONG, str),
    "socket.request.max.bytes": ("limits.request_bytes_max", ConfigType.INT, str),
}  # fmt: skip
"""Kafka's name -> the configuration key, the type, and how its value is shown. The defaults of new
topics are in `TOPIC_SETTINGS`."""


def broker_settings(config: Config, *, host: str, port: int) -> Iterator[DescribedSetting]:
    """The settings of a node whose client listener is reached at `host` and `port`."""
    address = f"PLAINTEXT://{format_address(host, port)}"
    for name, text, kind, about in (
        ("advertised.listeners", address, ConfigType.STRING, "Address of the client listener."),
        ("auto.create.topics.enable", "false", ConfigType.BOOLEAN, "Reading creates no stream."),
        ("broker.id", str(config.node_id), ConfigType.INT, KEYS["node_id"].about),
        ("log.message.timestamp.type", "LogAppendTime", ConfigType.STRING,
         "A record has the time at which it was appended."),
    ):  # fmt: skip
        yield _setting(name, text, kind, ConfigSource.DEFAULT, about)
    values: dict[str, Any] = asdict(config)
    for name, (key, kind, show) in BROKER_SETTINGS.items():
        section, _, field = key.rpartition(".")
        value = (values[section] if section else values)[field]
        yield _setting(name, show(value), kind, _source(config, key), KEYS[key].about)
    streams = values["streams"]
    for setting in TOPIC_SETTINGS.values():
        value = streams[setting.field]
        if setting.field == "min_isr":
            value = min_isr_in_force(value, streams["replicas"])
        yield _setting(
            setting.broker_name,
            setting.show(value),
            setting.type,
            _source(config, f"streams.{setting.field}"),
            setting.about,
        )


def _setting(
    name: str, value: str, kind: ConfigType, source: ConfigSource, about: str
) -> DescribedSetting:
    return DescribedSetting(name, value, kind, source, about, default=(name, value, source))


def _source(config: Config, key: str) -> ConfigSource:
    return ConfigSource.STATIC_BROKER if key in config.origins else ConfigSource.DEFAULT
