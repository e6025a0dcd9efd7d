"""CreatePartitions (key 37): more partitions for topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bascule.wire.schema import (
    ITEMS_AT_ONCE,
    Array,
    Bool,
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


@dataclass(slots=True)
class TopicWithPartitions(Structure):
    name: String = ""
    error_code: Int16 = 0
    error_message: NullableString = None


@dataclass(slots=True)
class CreatePartitionsResponse(Message):
    API_KEY: ClassVar[int] = 37
    VERSIONS: ClassVar[Versions] = Versions("0-3")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    throttle_time_ms: Int32 = 0
    results: Array[TopicWithPartitions] = ()

    @property
    def is_large(self) -> bool:
        return len(self.results) > ITEMS_AT_ONCE


@dataclass(slots=True)
class PartitionReplicas(Structure):
    broker_ids: Array[Int32] = ()


@dataclass(slots=True)
class TopicToExtend(Structure):
    name: String = ""
    count: Int32 = 0
    """The partitions that the topic is to have in all."""
    assignments: NullableArray[PartitionReplicas] = ()


@dataclass(slots=True)
class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    API_KEY: ClassVar[int] = 37
    VERSIONS: ClassVar[Versions] = Versions("0-3")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    RESPONSE: ClassVar[type[Message]] = CreatePartitionsResponse
    topics: Array[TopicToExtend] = ()
    timeout_ms: Int32 = 0
    validate_only: Bool = False
