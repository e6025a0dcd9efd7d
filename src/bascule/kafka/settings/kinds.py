"""A setting as Kafka clients see it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

LONG_MAX: Final = (1 << 63) - 1
"""Kafka's way to say never, or no limit, where -1 is not allowed."""


class ConfigType(IntEnum):
    """Kafka's types of values (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Where a value comes from (KIP-226)."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One setting, its value, and the default that it has or would have."""

    name: str
    value: str
    type: ConfigType
    source: ConfigSource
    about: str
    read_only: bool = True
    default: tuple[str, str, ConfigSource] | None = None
    """Name, value and source of what is in force without a value for the topic; None: nothing."""
