"""ListGroups (key 16): the groups of a coordinator. KIP-518 (states), KIP-848 (types)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

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
"""A group takes about 3 us to encode."""


@dataclass(slots=True)
class ListedGroup(Structure):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, Versions("4+")] = ""
    group_type: Annotated[String, Versions("5+")] = ""


@dataclass(slots=True)
class ListGroupsResponse(Message):
    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[Versions] = Versions("0-5")
    FLEXIBLE: ClassVar[Versions] = Versions("3+")
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0
    groups: Array[ListedGroup] = ()

    @property
    def is_large(self) -> bool:
        return len(self.groups) > GROUPS_AT_ONCE


@dataclass(slots=True)
class ListGroupsRequest(Request[ListGroupsResponse]):
    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[Versions] = Versions("0-5")
    FLEXIBLE: ClassVar[Versions] = Versions("3+")
    RESPONSE: ClassVar[type[Message]] = ListGroupsResponse
    states_filter: Annotated[Array[String], Versions("4+")] = ()
    types_filter: Annotated[Array[String], Versions("5+")] = ()
