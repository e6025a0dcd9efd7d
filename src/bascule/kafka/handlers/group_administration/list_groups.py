"""ListGroups: the groups that this node coordinates."""

from __future__ import annotations

import asyncio

from bascule.groups import GroupAdministration
from bascule.groups.administration import SLICE
from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)


async def handle_list_groups(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    """All groups, or those in one of the states and of one of the types."""
    error = context.groups.error()
    if error is ErrorCode.NOT_COORDINATOR:
        return ListGroupsResponse()
    if error:
        return ListGroupsResponse(error_code=error)
    administration = GroupAdministration(context.groups, context.offsets)
    found = await administration.list_groups(
        states=request.states_filter, types=request.types_filter
    )
    groups = []
    for number, each in enumerate(found):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        groups.append(ListedGroup(each.name, each.protocol_type, each.state, str(each.type)))
    return ListGroupsResponse(groups=groups)
