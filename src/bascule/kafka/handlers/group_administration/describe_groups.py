"""DescribeGroups: state, protocol and members of classic groups."""

from __future__ import annotations

import asyncio
from typing import Final

from bascule.groups import GroupAdministration
from bascule.groups.described import DescribedGroup, GroupType
from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.describe_groups import (
    MEMBERS_AT_ONCE,
    DescribedGroupMember,
    DescribeGroupsGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

NOT_FOUND_SINCE: Final = 6
"""Before, a group that does not exist is one in state Dead without an error (KIP-1043)."""


async def handle_describe_groups(
    request: DescribeGroupsRequest, version: int, context: Context
) -> DescribeGroupsResponse:
    """Each group once: a short request that repeats a group must not cause a huge response."""
    error = context.groups.error()
    administration = GroupAdministration(context.groups, context.offsets)
    described, members = [], 0
    for name in dict.fromkeys(request.groups):
        if error:
            described.append(DescribeGroupsGroup(error_code=error, group_id=name))
            continue
        found = administration.describe(name)
        described.append(_response(name, found, version))
        members += 1 + len(described[-1].members)
        if members >= MEMBERS_AT_ONCE:
            members = 0
            await asyncio.sleep(0)
    return DescribeGroupsResponse(groups=described)


def _response(name: str, group: DescribedGroup | None, version: int) -> DescribeGroupsGroup:
    if group is None or group.summary.type is not GroupType.CLASSIC:
        missing = DescribeGroupsGroup(group_id=name, group_state="Dead")
        if version >= NOT_FOUND_SINCE:
            missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            is_other = group is not None
            missing.error_message = (
                f"Group {name} is not a classic group." if is_other else f"Group {name} not found."
            )
        return missing
    return DescribeGroupsGroup(
        group_id=name,
        group_state=group.summary.state,
        protocol_type=group.summary.protocol_type,
        protocol_data=group.protocol,
        members=[
            DescribedGroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.metadata,
                each.assignment,
            )
            for each in group.members
        ],
    )
