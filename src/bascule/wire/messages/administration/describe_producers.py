"""DescribeProducers (key 61): the idempotent and transactional producers of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bascule.wire.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class ActiveProducer(Structure):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


@dataclass(slots=True)
class PartitionProducers(Structure):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    active_producers: Array[ActiveProducer] = ()


@dataclass(slots=True)
class TopicProducers(Structure):
    name: String = ""
    partitions: Array[PartitionProducers] = ()


@dataclass(slots=True)
class DescribeProducersResponse(Message):
    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[Versions] = Versions("0")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    throttle_time_ms: Int32 = 0
    topics: Array[TopicProducers] = ()


@dataclass(slots=True)
class TopicWithProducers(Structure):
    name: String = ""
    partition_indexes: Array[Int32] = ()


@dataclass(slots=True)
class DescribeProducersRequest(Request[DescribeProducersResponse]):
    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[Versions] = Versions("0")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    RESPONSE: ClassVar[type[Message]] = DescribeProducersResponse
    topics: Array[TopicWithProducers] = ()
