"""DescribeLogDirs (key 35): the size of each replica that a node holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from bascule.wire.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    NullableArray,
    Request,
    String,
    Structure,
    Versions,
)


@dataclass(slots=True)
class DescribedReplica(Structure):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


@dataclass(slots=True)
class DescribedLogTopic(Structure):
    name: String = ""
    partitions: Array[DescribedReplica] = ()


@dataclass(slots=True)
class DescribedLogDir(Structure):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: Array[DescribedLogTopic] = ()
    total_bytes: Annotated[Int64, Versions("4+")] = -1
    usable_bytes: Annotated[Int64, Versions("4+")] = -1
    is_cordoned: Annotated[Bool, Versions("5+")] = False


@dataclass(slots=True)
class DescribeLogDirsResponse(Message):
    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[Versions] = Versions("1-5")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("3+")] = 0
    results: Array[DescribedLogDir] = ()


@dataclass(slots=True)
class DescribableLogTopic(Structure):
    topic: String = ""
    partitions: Array[Int32] = ()


@dataclass(slots=True)
class DescribeLogDirsRequest(Request[DescribeLogDirsResponse]):
    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[Versions] = Versions("1-5")
    FLEXIBLE: ClassVar[Versions] = Versions("2+")
    RESPONSE: ClassVar[type[Message]] = DescribeLogDirsResponse
    topics: NullableArray[DescribableLogTopic] = ()
    """None: all."""
