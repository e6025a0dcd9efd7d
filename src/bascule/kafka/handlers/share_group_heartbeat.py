"""ShareGroupHeartbeat: always refused, because the node runs no share groups.

It is advertised so that it can be refused. Where it is absent, a share consumer of librdkafka tells
its application nothing. UNSUPPORTED_VERSION is a fatal error to it.
"""

from __future__ import annotations

from typing import Final

from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

NO_SHARE_GROUPS: Final = "this node runs no share groups: read the topic with an ordinary consumer"


def handle_share_group_heartbeat(
    request: ShareGroupHeartbeatRequest, client_id: str | None, context: Context
) -> ShareGroupHeartbeatResponse:
    """UNSUPPORTED_VERSION with what to do instead."""
    context.refusals.note(
        context.peer, client_id, api="ShareGroupHeartbeat", reason=NO_SHARE_GROUPS
    )
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_SHARE_GROUPS
    )
