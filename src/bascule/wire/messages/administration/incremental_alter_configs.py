"""IncrementalAlterConfigs (key 44): change some settings, leave the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from bascule.wire.schema import (
    ITEMS_AT_ONCE,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)

SET: Final = 0
DELETE: Final = 1
"""Return to the default."""
APPEND: Final = 2
"""Add to a list."""
SUBTRACT: Final = 3
"""Remove from a list."""


@dataclass(slots=True)
class AlteredResource(Structure):
    error_code: Int16 = 0
    error_message: NullableString = ""
    resource_type: Int8 = 0
    resource_name: String = ""


@dataclass(slots=True)
class IncrementalAlterConfigsResponse(Message):
    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    FLEXIBLE: ClassVar[Versions] = Versions("1+")
    throttle_time_ms: Int32 = 0
    responses: Array[AlteredResource] = ()

    @property
    def is_large(self) -> bool:
        return len(self.responses) > ITEMS_AT_ONCE


@dataclass(slots=True)
class AlterableConfig(Structure):
    name: String = ""
    config_operation: Int8 = 0
    value: NullableString = ""


@dataclass(slots=True)
class ResourceToAlter(Structure):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Array[AlterableConfig] = ()


@dataclass(slots=True)
class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse]):
    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    FLEXIBLE: ClassVar[Versions] = Versions("1+")
    RESPONSE: ClassVar[type[Message]] = IncrementalAlterConfigsResponse
    resources: Array[ResourceToAlter] = ()
    validate_only: Bool = False
