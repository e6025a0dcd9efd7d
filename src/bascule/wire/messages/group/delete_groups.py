"""DeleteGroups (key 42): groups without members are deleted, with their offsets. KIP-229."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from bascule.wire.schema import (
    Array,
    Int16,
    Int32,
    Message,
    Request,
    String,
    Structure,
    Versions,
)

GROUPS_AT_ONCE: Final = 500
"""A group takes some us to encode."""


@dataclass(slots=True)
class DeletedGroup(Structure):
    group_id: String = ""
    error_code: Int16 = 0


@dataclass(slots=True)
class DeleteGroupsResponse(Message):
    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[Versions] = Versions("0-2")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    throttle_time_ms: Int32 = 0
    results: Array[DeletedGroup] = ()

    @property
    def is_large(self) -> bool:
        return len(self.results) > GROUPS_AT_ONCE


@dataclass(slots=True)
class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[Versions] = Versions("0-2")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    RESPONSE: ClassVar[type[Message]] = DeleteGroupsResponse
    groups_names: Array[String] = ()
