"""DescribeGroups (key 15): state and members of classic groups. KIP-1043 (error messages)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.schema import (
    Array,
    Bool,
    Bytes,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)

OPERATIONS_UNKNOWN: Final = -(1 << 31)
"""In place of the operations that a client may do: there is no authorization."""
MEMBERS_AT_ONCE: Final = 300
"""A member, or a group, takes some us to encode."""


@dataclass(slots=True)
class DescribedGroupMember(Structure):
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions("4+")] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


@dataclass(slots=True)
class DescribeGroupsGroup(Structure):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, Versions("6+")] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: Array[DescribedGroupMember] = ()
    authorized_operations: Annotated[Int32, Versions("3+")] = OPERATIONS_UNKNOWN


@dataclass(slots=True)
class DescribeGroupsResponse(Message):
    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[Versions] = Versions("0-6")
    FLEXIBLE: ClassVar[Versions] = Versions("5+")
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    groups: Array[DescribeGroupsGroup] = ()

    @property
    def is_large(self) -> bool:
        return sum(1 + len(group.members) for group in self.groups) > MEMBERS_AT_ONCE


@dataclass(slots=True)
class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[Versions] = Versions("0-6")
    FLEXIBLE: ClassVar[Versions] = Versions("5+")
    RESPONSE: ClassVar[type[Message]] = DescribeGroupsResponse
    groups: Array[String] = ()
    include_authorized_operations: Annotated[Bool, Versions("3+")] = False
