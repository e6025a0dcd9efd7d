"""SyncGroup: the assignment of a member of a group."""

from __future__ import annotations

from bascule.kafka.handlers.context import Context
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle_sync_group(request: SyncGroupRequest, context: Context) -> SyncGroupResponse:
    """Respond once the group's leader has brought the assignments, and they are stored."""
    answer = await context.groups.sync(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        [(each.member_id, bytes(each.assignment or b"")) for each in request.assignments],
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
    )
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
