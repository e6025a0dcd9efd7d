"""Heartbeat (key 12): a member of a classic group is alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import Int16, Int32, Message, NullableString, Request, String, Versions


@dataclass(slots=True)
class HeartbeatResponse(Message):
    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[Versions] = Versions("0-4")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0


@dataclass(slots=True)
class HeartbeatRequest(Request[HeartbeatResponse]):
    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[Versions] = Versions("0-4")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    RESPONSE: ClassVar[type[Message]] = HeartbeatResponse
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions("3+")] = None
