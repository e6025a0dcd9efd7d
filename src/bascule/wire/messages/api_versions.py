"""ApiVersions (key 18): which requests a node serves. KIP-35, KIP-511, KIP-584."""

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
    Request,
    String,
    Structure,
    Tagged,
    Versions,
)


@dataclass(slots=True)
class ApiVersion(Structure):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(slots=True)
class SupportedFeature(Structure):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(slots=True)
class FinalizedFeature(Structure):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


@dataclass(slots=True)
class ApiVersionsResponse(Message):
    """Its response header always has version 0, because the client does not know the versions."""

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[Versions] = Versions("0-4")
    FLEXIBLE: ClassVar[Versions] = Versions("3+")
    error_code: Int16 = 0
    api_keys: Array[ApiVersion] = ()
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    supported_features: Annotated[Array[SupportedFeature], Versions("3+"), Tagged(0)] = ()
    finalized_features_epoch: Annotated[Int64, Versions("3+"), Tagged(1)] = -1
    finalized_features: Annotated[Array[FinalizedFeature], Versions("3+"), Tagged(2)] = ()
    zk_migration_ready: Annotated[Bool, Versions("3+"), Tagged(3)] = False


@dataclass(slots=True)
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[Versions] = Versions("0-4")
    FLEXIBLE: ClassVar[Versions] = Versions("3+")
    RESPONSE: ClassVar[type[Message]] = ApiVersionsResponse
    client_software_name: Annotated[String, Versions("3+")] = ""
    client_software_version: Annotated[String, Versions("3+")] = ""
