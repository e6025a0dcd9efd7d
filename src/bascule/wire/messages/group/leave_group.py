"""LeaveGroup (key 13): members leave a classic group. KIP-345 (several members), KIP-800."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    Array,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class MemberResponse(Structure):
    member_id: String = ""
    group_instance_id: NullableString = None
    error_code: Int16 = 0


@dataclass(slots=True)
class LeaveGroupResponse(Message):
    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[Versions] = Versions("0-5")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0
    members: Annotated[Array[MemberResponse], Versions("3+")] = ()


@dataclass(slots=True)
class MemberIdentity(Structure):
    member_id: String = ""
    group_instance_id: NullableString = None
    reason: Annotated[NullableString, Versions("5+")] = None


@dataclass(slots=True)
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[Versions] = Versions("0-5")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    RESPONSE: ClassVar[type[Message]] = LeaveGroupResponse
    group_id: String = ""
    member_id: Annotated[String, Versions("0-2")] = ""
    members: Annotated[Array[MemberIdentity], Versions("3+")] = ()
