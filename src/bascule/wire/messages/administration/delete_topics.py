"""DeleteTopics (key 20): by name, and since version 6 by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    ITEMS_AT_ONCE,
    NO_ID,
    Array,
    Int16,
    Int32,
    Message,
    Nullable,
    NullableString,
    Request,
    String,
    Structure,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class DeletedTopic(Structure):
    name: Annotated[NullableString, Nullable("6+")] = ""
    topic_id: Annotated[Uuid, Versions("6+")] = NO_ID
    error_code: Int16 = 0
    error_message: Annotated[NullableString, Versions("5+")] = None


@dataclass(slots=True)
class DeleteTopicsResponse(Message):
    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[Versions] = Versions("1-6")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    throttle_time_ms: Int32 = 0
    responses: Array[DeletedTopic] = ()

    @property
    def is_large(self) -> bool:
        return len(self.responses) > ITEMS_AT_ONCE


@dataclass(slots=True)
class TopicToDelete(Structure):
    name: Annotated[NullableString, Versions("6+")] = None
    topic_id: Annotated[Uuid, Versions("6+")] = NO_ID


@dataclass(slots=True)
class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[Versions] = Versions("1-6")
    FLEXIBLE: ClassVar[Versions] = Versions("4+")
    RESPONSE: ClassVar[type[Message]] = DeleteTopicsResponse
    topics: Annotated[Array[TopicToDelete], Versions("6+")] = ()
    topic_names: Annotated[Array[String], Versions("0-5")] = ()
    timeout_ms: Int32 = 0
