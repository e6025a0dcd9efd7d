"""Metadata (key 3): nodes, topics and the leaders of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.schema import (
    NO_ID,
    Array,
    Bool,
    Int16,
    Int32,
    Message,
    Nullable,
    NullableArray,
    NullableString,
    Request,
    String,
    Structure,
    Uuid,
    Versions,
)

OPERATIONS_UNKNOWN: Final = -(2**31)
"""The value of an authorized-operations field that was not requested."""


@dataclass(slots=True)
class MetadataBroker(Structure):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[NullableString, Versions("1+")] = None


@dataclass(slots=True)
class MetadataPartition(Structure):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, Versions("7+")] = -1
    replica_nodes: Array[Int32] = ()
    isr_nodes: Array[Int32] = ()
    offline_replicas: Annotated[Array[Int32], Versions("5+")] = ()


@dataclass(slots=True)
class MetadataTopic(Structure):
    error_code: Int16 = 0
    name: Annotated[NullableString, Nullable("12+")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_ID
    is_internal: Annotated[Bool, Versions("1+")] = False
    partitions: Array[MetadataPartition] = ()
    topic_authorized_operations: Annotated[Int32, Versions("8+")] = OPERATIONS_UNKNOWN


@dataclass(slots=True)
class MetadataResponse(Message):
    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[Versions] = Versions("0-13")
    FLEXIBLE: ClassVar[Versions] = Versions("9+")
    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    brokers: Array[MetadataBroker] = ()
    cluster_id: Annotated[NullableString, Versions("2+")] = None
    controller_id: Annotated[Int32, Versions("1+")] = -1
    topics: Array[MetadataTopic] = ()
    cluster_authorized_operations: Annotated[Int32, Versions("8-10")] = OPERATIONS_UNKNOWN
    error_code: Annotated[Int16, Versions("13+")] = 0


@dataclass(slots=True)
class MetadataRequestTopic(Structure):
    topic_id: Annotated[Uuid, Versions("10+")] = NO_ID
    name: Annotated[NullableString, Nullable("10+")] = None


@dataclass(slots=True)
class MetadataRequest(Request[MetadataResponse]):
    """`topics` None requests all topics; in version 0 an empty list does."""

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[Versions] = Versions("0-13")
    FLEXIBLE: ClassVar[Versions] = Versions("9+")
    RESPONSE: ClassVar[type[Message]] = MetadataResponse
    topics: Annotated[NullableArray[MetadataRequestTopic], Nullable("1+")] = ()
    allow_auto_topic_creation: Annotated[Bool, Versions("4+")] = True
    include_cluster_authorized_operations: Annotated[Bool, Versions("8-10")] = False
    include_topic_authorized_operations: Annotated[Bool, Versions("8+")] = False
