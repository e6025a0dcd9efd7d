"""DescribeConfigs (key 32): the settings of topics and brokers, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.schema import (
    ITEMS_AT_ONCE,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)

TOPIC: Final = 2
"""The resource type of topics."""
BROKER: Final = 4
"""The resource type of nodes."""
SUBJECT: Final = "bascule.subject"
"""The NATS subject of a stream. Without wildcards it is that of records without such a header."""
STREAM_ID: Final = "bascule.stream.id"
"""Hexadecimal; the topic id too."""


@dataclass(slots=True)
class ConfigSynonym(Structure):
    name: String = ""
    value: NullableString = ""
    source: Int8 = 0


@dataclass(slots=True)
class DescribedConfig(Structure):
    name: String = ""
    value: NullableString = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: Array[ConfigSynonym] = ()
    config_type: Annotated[Int8, Versions("3+")] = 0
    documentation: Annotated[NullableString, Versions("3+")] = ""


@dataclass(slots=True)
class DescribedResource(Structure):
    error_code: Int16 = 0
    error_message: NullableString = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Array[DescribedConfig] = ()


@dataclass(slots=True)
class DescribeConfigsResponse(Message):
    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[Versions] = Versions("1-4")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    throttle_time_ms: Int32 = 0
    results: Array[DescribedResource] = ()

    @property
    def is_large(self) -> bool:
        return sum(1 + len(each.configs) for each in self.results) > ITEMS_AT_ONCE


@dataclass(slots=True)
class ConfigResource(Structure):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: NullableArray[String] = ()
    """None or empty: all settings."""


@dataclass(slots=True)
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[Versions] = Versions("1-4")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    RESPONSE: ClassVar[type[Message]] = DescribeConfigsResponse
    resources: Array[ConfigResource] = ()
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Versions("3+")] = False
