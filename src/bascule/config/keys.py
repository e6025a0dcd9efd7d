"""The table of all configuration keys, made from the sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from bascule.config.sections import (
    ClientConfig,
    ClusterConfig,
    Config,
    GroupsConfig,
    HttpConfig,
    LimitsConfig,
    LoggingConfig,
    NatsConfig,
    PeerConfig,
    StreamDefaults,
    TablesConfig,
)

ENVIRONMENT_PREFIX: Final = "BASCULE_"
SECTIONS: Final[Mapping[str, type]] = {
    "nats": NatsConfig,
    "client": ClientConfig,
    "http": HttpConfig,
    "peer": PeerConfig,
    "cluster": ClusterConfig,
    "log": LoggingConfig,
    "groups": GroupsConfig,
    "limits": LimitsConfig,
    "streams": StreamDefaults,
    "tables": TablesConfig,
}


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key: its dotted name, its type and its limits."""

    name: str
    type: type
    default: Any
    about: str
    minimum: int | None
    maximum: int | None
    choices: tuple[str, ...]
    secret: bool

    @property
    def variable(self) -> str:
        """The environment variable: `nats.tls_ca` is BASCULE_NATS_TLS_CA."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()


def _keys_of(section: str, cls: type) -> Iterator[Key]:
    for item in fields(cls):
        if "about" not in item.metadata:
            continue
        assert item.default is not MISSING, f"{cls.__name__}.{item.name} has no default"
        yield Key(
            name=f"{section}.{item.name}" if section else item.name,
            type=type(item.default),
            default=item.default,
            **item.metadata,
        )


KEYS: Final[Mapping[str, Key]] = {
    key.name: key
    for section, cls in [("", Config), *SECTIONS.items()]
    for key in _keys_of(section, cls)
}
