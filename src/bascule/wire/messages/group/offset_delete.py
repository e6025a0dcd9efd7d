"""OffsetDelete (key 47): committed offsets of a group are removed. KIP-496."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bascule.wire.schema import (
    ITEMS_AT_ONCE,
    Array,
    Int16,
    Int32,
    Message,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class PartitionWithoutOffset(Structure):
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True)
class TopicWithoutOffsets(Structure):
    name: String = ""
    partitions: Array[PartitionWithoutOffset] = ()


@dataclass(slots=True)
class OffsetDeleteResponse(Message):
    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[Versions] = Versions("0")
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Array[TopicWithoutOffsets] = ()

    @property
    def is_large(self) -> bool:
        return sum(1 + len(each.partitions) for each in self.topics) > ITEMS_AT_ONCE


@dataclass(slots=True)
class OffsetDeletePartition(Structure):
    partition_index: Int32 = 0


@dataclass(slots=True)
class OffsetDeleteTopic(Structure):
    name: String = ""
    partitions: Array[OffsetDeletePartition] = ()


@dataclass(slots=True)
class OffsetDeleteRequest(Request[OffsetDeleteResponse]):
    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[Versions] = Versions("0")
    RESPONSE: ClassVar[type[Message]] = OffsetDeleteResponse
    group_id: String = ""
    topics: Array[OffsetDeleteTopic] = ()
