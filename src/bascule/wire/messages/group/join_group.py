"""JoinGroup (key 11): become a member of a classic group. KIP-345, KIP-394, KIP-800, KIP-814."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    Array,
    Bool,
    Bytes,
    Int16,
    Int32,
    Message,
    Nullable,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class JoinGroupResponseMember(Structure):
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions("5+")] = None
    metadata: Bytes = b""


@dataclass(slots=True)
class JoinGroupResponse(Message):
    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[Versions] = Versions("0-9")
    FLEXIBLE: ClassVar[Versions] = Versions("6+")
    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[NullableString, Versions("7+")] = None
    protocol_name: Annotated[NullableString, Nullable("7+")] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, Versions("9+")] = False
    member_id: String = ""
    members: Array[JoinGroupResponseMember] = ()


@dataclass(slots=True)
class JoinGroupRequestProtocol(Structure):
    name: String = ""
    metadata: Bytes = b""


@dataclass(slots=True)
class JoinGroupRequest(Request[JoinGroupResponse]):
    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[Versions] = Versions("0-9")
    FLEXIBLE: ClassVar[Versions] = Versions("6+")
    RESPONSE: ClassVar[type[Message]] = JoinGroupResponse
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, Versions("1+")] = -1
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions("5+")] = None
    protocol_type: String = ""
    protocols: Array[JoinGroupRequestProtocol] = ()
    reason: Annotated[NullableString, Versions("8+")] = None
