"""The messages we speak, one module per API, each class good for all versions of its message.

Field order is wire order. The facts are those of Apache Kafka's message schemas (4.3).
"""

from __future__ import annotations

from typing import Any, Final

from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.fetch import FetchRequest
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest
from bascule.wire.messages.list_offsets import ListOffsetsRequest
from bascule.wire.messages.metadata import MetadataRequest
from bascule.wire.messages.offset_commit import OffsetCommitRequest
from bascule.wire.messages.offset_fetch import OffsetFetchRequest
from bascule.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from bascule.wire.messages.produce import ProduceRequest
from bascule.wire.schema import Request

REQUESTS: Final[dict[int, type[Request[Any]]]] = {
    request.API_KEY: request
    for request in (
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        FindCoordinatorRequest,
        ApiVersionsRequest,
        OffsetForLeaderEpochRequest,
    )
}
"""API key -> request class."""

__all__ = ["REQUESTS"]
