"""LeaveGroup: members leave a group, so that the others get their partitions at once."""

from __future__ import annotations

from typing import Final

from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

SEVERAL_SINCE: Final = 3
_OF_COORDINATOR: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
"""Errors of the whole request."""


async def handle_leave_group(
    request: LeaveGroupRequest, version: int, context: Context
) -> LeaveGroupResponse:
    """From version 3 on several members leave, and each has an error of its own.

    Where there is another coordinator, they are to leave there.
    """
    members = request.members if version >= SEVERAL_SINCE else [MemberIdentity(request.member_id)]
    leaving = [(each.member_id, each.group_instance_id) for each in members]
    error = await context.groups.confirmed_error(request.group_id)
    if error:
        errors = [error] * len(leaving)
    else:
        errors = context.groups.leave(request.group_id, leaving)
    if version < SEVERAL_SINCE:
        return LeaveGroupResponse(error_code=errors[0])
    if errors and errors[0] in _OF_COORDINATOR:  # then each has it
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(each.member_id, each.group_instance_id, error)
            for each, error in zip(members, errors, strict=True)
        ]
    )
