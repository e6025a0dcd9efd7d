"""Heartbeat: a member of a group is alive, and asks whether it has to join again."""

from __future__ import annotations

from bascule.kafka.handlers.context import Context
from bascule.wire.messages.group.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle_heartbeat(request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
    """REBALANCE_IN_PROGRESS: join again."""
    error = context.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=error)
