"""ConsumerGroupHeartbeat: always refused, because groups are those of the classic protocol.

It is advertised so that it can be refused. Where it is absent, a consumer of librdkafka with
`group.protocol=consumer` takes the coordinator for dead, looks for another one for ever and tells
its application nothing. UNSUPPORTED_VERSION is a fatal error to every client that has been tried.
"""

from __future__ import annotations

from typing import Final

from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

REASON: Final = (
    "this node has groups of the classic protocol only: set group.protocol=classic, the default"
)


def handle_consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, client_id: str | None, context: Context
) -> ConsumerGroupHeartbeatResponse:
    """UNSUPPORTED_VERSION with what to do instead."""
    context.refusals.note(context.peer, client_id, api="ConsumerGroupHeartbeat", reason=REASON)
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=REASON
    )
