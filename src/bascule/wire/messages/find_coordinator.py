"""FindCoordinator (key 10): the coordinator of a consumer group. KIP-699 (several keys)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.schema import (
    Array,
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

KEYS_AT_ONCE: Final = 300
"""A key takes about 5 us to encode."""


@dataclass(slots=True)
class Coordinator(Structure):
    key: String = ""
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1
    error_code: Int16 = 0
    error_message: NullableString = None


@dataclass(slots=True)
class FindCoordinatorResponse(Message):
    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[Versions] = Versions("0-6")
    FLEXIBLE: ClassVar[Versions] = Versions("3+")
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Annotated[Int16, Versions("0-3")] = 0
    error_message: Annotated[NullableString, Versions("1-3")] = None
    node_id: Annotated[Int32, Versions("0-3")] = -1
    host: Annotated[String, Versions("0-3")] = ""
    port: Annotated[Int32, Versions("0-3")] = -1
    coordinators: Annotated[Array[Coordinator], Versions("4+")] = ()

    @property
    def is_large(self) -> bool:
        return len(self.coordinators) > KEYS_AT_ONCE


@dataclass(slots=True)
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[Versions] = Versions("0-6")
    FLEXIBLE: ClassVar[Versions] = Versions("3+")
    RESPONSE: ClassVar[type[Message]] = FindCoordinatorResponse
    key: Annotated[String, Versions("0-3")] = ""
    key_type: Annotated[Int8, Versions("1+")] = 0
    coordinator_keys: Annotated[Array[String], Versions("4+")] = ()
