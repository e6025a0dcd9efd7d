"""Produce (key 0): decoded so that it can be refused with the right response.

Versions 0 to 2 contain old message sets. Record bytes are opaque here, so these versions differ
only by one field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    NO_ID,
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Records,
    Request,
    String,
    Structure,
    Tagged,
    Uuid,
    Versions,
)


@dataclass(slots=True)
class ProduceRecordError(Structure):
    batch_index: Int32 = 0
    batch_index_error_message: NullableString = None


@dataclass(slots=True)
class ProduceLeader(Structure):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@dataclass(slots=True)
class ProducePartitionResponse(Structure):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = -1
    log_append_time_ms: Annotated[Int64, Versions("2+")] = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    record_errors: Annotated[Array[ProduceRecordError], Versions("8+")] = ()
    error_message: Annotated[NullableString, Versions("8+")] = None
    current_leader: Annotated[ProduceLeader | None, Versions("10+"), Tagged(0)] = None


@dataclass(slots=True)
class ProduceTopicResponse(Structure):
    name: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_ID
    partition_responses: Array[ProducePartitionResponse] = ()


@dataclass(slots=True)
class ProduceNodeEndpoint(Structure):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: NullableString = None


@dataclass(slots=True)
class ProduceResponse(Message):
    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[Versions] = Versions("0-13")
    FLEXIBLE: ClassVar[Versions] = Versions("9+")
    responses: Array[ProduceTopicResponse] = ()
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    node_endpoints: Annotated[Array[ProduceNodeEndpoint], Versions("10+"), Tagged(0)] = ()


@dataclass(slots=True)
class ProducePartition(Structure):
    index: Int32 = 0
    records: Records = None


@dataclass(slots=True)
class ProduceTopic(Structure):
    name: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_ID
    partition_data: Array[ProducePartition] = ()


@dataclass(slots=True)
class ProduceRequest(Request[ProduceResponse]):
    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[Versions] = Versions("0-13")
    FLEXIBLE: ClassVar[Versions] = Versions("9+")
    RESPONSE: ClassVar[type[Message]] = ProduceResponse
    transactional_id: Annotated[NullableString, Versions("3+")] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: Array[ProduceTopic] = ()
