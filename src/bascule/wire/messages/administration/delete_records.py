"""DeleteRecords (key 21): remove the oldest records of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bascule.wire.schema import (
    ITEMS_AT_ONCE,
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class PartitionWithoutRecords(Structure):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    """The first offset now; -1 with an error."""
    error_code: Int16 = 0


@dataclass(slots=True)
class TopicWithoutRecords(Structure):
    name: String = ""
    partitions: Array[PartitionWithoutRecords] = ()


@dataclass(slots=True)
class DeleteRecordsResponse(Message):
    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[Versions] = Versions("0-2")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    throttle_time_ms: Int32 = 0
    topics: Array[TopicWithoutRecords] = ()

    @property
    def is_large(self) -> bool:
        return sum(1 + len(each.partitions) for each in self.topics) > ITEMS_AT_ONCE


@dataclass(slots=True)
class PartitionToPurge(Structure):
    partition_index: Int32 = 0
    offset: Int64 = 0
    """The first offset to keep; -1: the high watermark."""


@dataclass(slots=True)
class TopicToPurge(Structure):
    name: String = ""
    partitions: Array[PartitionToPurge] = ()


@dataclass(slots=True)
class DeleteRecordsRequest(Request[DeleteRecordsResponse]):
    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[Versions] = Versions("0-2")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    RESPONSE: ClassVar[type[Message]] = DeleteRecordsResponse
    topics: Array[TopicToPurge] = ()
    timeout_ms: Int32 = 0
