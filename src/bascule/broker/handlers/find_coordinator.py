"""FindCoordinator: this node, although it serves no request of consumer groups.

It must be advertised: librdkafka reads LZ4 support off it. Measured against the other possible
answer, COORDINATOR_NOT_AVAILABLE: with that one, clients that have a group id and only assign
partitions keep asking (ten times a second), kafka-python never reads a record, and closing takes
librdkafka 46 s and aiokafka for ever, since they wait to commit. Being named, they find that the
group requests are not advertised: assignment works, closing is immediate, and subscribing fails
at once with an error that names the missing request.
"""

from __future__ import annotations

from bascule.broker.handlers.context import Context
from bascule.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)


def handle_find_coordinator(
    request: FindCoordinatorRequest, version: int, context: Context
) -> FindCoordinatorResponse:
    """This node for every key."""
    node_id, host, port = context.node.node_id, context.host, context.port
    if version < 4:
        return FindCoordinatorResponse(node_id=node_id, host=host, port=port)
    coordinators = [Coordinator(key, node_id, host, port) for key in request.coordinator_keys]
    return FindCoordinatorResponse(coordinators=coordinators)
