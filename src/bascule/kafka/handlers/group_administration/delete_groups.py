"""DeleteGroups: groups without members are deleted, with their committed offsets."""

from __future__ import annotations

import logging

from bascule.errors import BasculeError
from bascule.groups import GroupAdministration
from bascule.kafka.handlers.administration.access import refusal
from bascule.kafka.handlers.context import Context, offsets_error_code
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.delete_groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

log = logging.getLogger(__name__)


async def handle_delete_groups(
    request: DeleteGroupsRequest, client_id: str | None, context: Context
) -> DeleteGroupsResponse:
    """Respond once the removal of their offsets is stored."""
    names = list(dict.fromkeys(request.groups_names))
    error = context.groups.error()
    if refusal(context, client_id, "DeleteGroups"):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not error:
        try:
            # A commit that was acknowledged is one of them.
            await context.offsets.wait_caught_up()
            deleted = await GroupAdministration(context.groups, context.offsets).delete(names)
            return _response(deleted)
        except BasculeError as failure:
            log.warning("groups not deleted", extra={"groups": len(names), "error": str(failure)})
            error = offsets_error_code(failure)
    return _response(dict.fromkeys(names, error))


def _response(errors: dict[str, ErrorCode]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletedGroup(name, error) for name, error in errors.items()]
    )
