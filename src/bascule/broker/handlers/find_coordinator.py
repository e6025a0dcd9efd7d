"""FindCoordinator: advertised because librdkafka reads LZ4 support off it; groups have none yet."""

from __future__ import annotations

from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_WHY = "this node coordinates no consumer groups; assign partitions instead of subscribing"


def handle_find_coordinator(
    request: FindCoordinatorRequest, version: int
) -> FindCoordinatorResponse:
    """Not available, which clients take quietly and retry only if they want a group."""
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=_WHY)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, error_code=code, error_message=_WHY)
            for key in request.coordinator_keys
        ]
    )
