"""DescribeCluster (key 60): the nodes, and which of them is the controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.messages.metadata import OPERATIONS_UNKNOWN
from bascule.wire.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Structure,
    Versions,
)

BROKERS: Final = 1
"""The endpoint type of a listener for clients (KIP-919)."""


@dataclass(slots=True)
class ClusterBroker(Structure):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: NullableString = None
    is_fenced: Annotated[Bool, Versions("2+")] = False


@dataclass(slots=True)
class DescribeClusterResponse(Message):
    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[Versions] = Versions("0-2")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    endpoint_type: Annotated[Int8, Versions("1+")] = BROKERS
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: Array[ClusterBroker] = ()
    cluster_authorized_operations: Int32 = OPERATIONS_UNKNOWN


@dataclass(slots=True)
class DescribeClusterRequest(Request[DescribeClusterResponse]):
    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[Versions] = Versions("0-2")
    FLEXIBLE: ClassVar[Versions] = Versions("0+")
    RESPONSE: ClassVar[type[Message]] = DescribeClusterResponse
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, Versions("1+")] = BROKERS
    include_fenced_brokers: Annotated[Bool, Versions("2+")] = False
