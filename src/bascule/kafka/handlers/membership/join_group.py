"""JoinGroup: a member joins a group, and waits for the others."""

from __future__ import annotations

from typing import Final

from bascule.errors import InvalidName
from bascule.groups.classic import JoinAnswer, JoinRequest
from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from bascule.wire.offsets import check_consumer

REBALANCE_MS_MIN: Final = 1_000
"""A shorter time-out would make a group rebalance again and again."""
REQUIRED_IDS_SINCE: Final = 4
NULL_PROTOCOL_SINCE: Final = 7
SKIPPED_ASSIGNMENT_SINCE: Final = 9


async def handle_join_group(
    request: JoinGroupRequest, version: int, client_id: str | None, context: Context
) -> JoinGroupResponse:
    """Respond once all members have joined, or the time for it is up."""
    try:
        check_consumer(request.group_id)
    except InvalidName:
        answer = JoinAnswer(ErrorCode.INVALID_GROUP_ID, member_id=request.member_id)
    else:
        answer = await context.groups.join(
            request.group_id, _join(request, version, client_id, context)
        )
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol if version >= NULL_PROTOCOL_SINCE else answer.protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(each.member_id, each.instance_id, each.metadata)
            for each in answer.members
        ],
    )


def _join(
    request: JoinGroupRequest, version: int, client_id: str | None, context: Context
) -> JoinRequest:
    # Version 0 has no time-out for the rebalance.
    rebalance_ms = request.rebalance_timeout_ms if version else request.session_timeout_ms
    return JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=max(rebalance_ms, REBALANCE_MS_MIN),
        protocol_type=request.protocol_type,
        # Copied: the views are of the connection's buffer.
        protocols=tuple((each.name, bytes(each.metadata or b"")) for each in request.protocols),
        client_id=client_id or "",
        client_host=context.peer.rpartition(":")[0],
        knows_required_ids=version >= REQUIRED_IDS_SINCE,
        may_skip_assignment=version >= SKIPPED_ASSIGNMENT_SINCE,
    )
