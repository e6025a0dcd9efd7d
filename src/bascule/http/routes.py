"""The route table. Routing and documentation are both generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.http.cluster import (
    BalancePlanBody,
    BalanceRequest,
    CancelRequest,
    CatchUpLimit,
    DrainRequest,
    ElectLeaderRequest,
    LeaderChanges,
    NodeDrainBody,
    NodeRemoval,
    ReassignRequest,
    Recoveries,
    RecoverRequest,
    ThrottleRequest,
)
from bascule.http.groups import (
    GroupBody,
    GroupList,
    OffsetList,
    OffsetResets,
    OffsetsRemoved,
    ResetOffsetsRequest,
)
from bascule.http.openapi import ApiOperation
from bascule.http.payloads.reads import PAYLOAD_OPERATIONS
from bascule.http.requests import (
    AcknowledgeLossRequest,
    AlterStreamRequest,
    CreateStreamRequest,
    EmptyRequest,
    PurgeRequest,
    RepairRequest,
    ScrubRequest,
)
from bascule.http.schemas import (
    ClusterBody,
    Health,
    NodeBody,
    Purged,
    Repaired,
    Scrubbed,
    StreamBody,
    StreamList,
)
from bascule.http.tables.operations import TABLE_OPERATIONS

_BODY: Final = (
    (400, "malformed_request"),
    (413, "limit_exceeded"),
    (415, "unsupported_media_type"),
)
"""Errors of every operation with a body."""
_CHANGE: Final = (
    (404, "unknown_stream"),
    (409, "internal_stream"),
    (409, "request_expired"),
    (507, "disk_full"),
)
"""Errors of every operation that changes a stream."""
_DECISION: Final = (
    (409, "request_expired"),
    (503, "indeterminate"),
)
"""Errors of every operation on which the controller decides."""
_NODE: Final = ((404, "unknown_node"), *_DECISION)
"""Errors of every operation that changes a node."""
_OFFSETS: Final = (
    (500, "partition_failed"),
    (503, "indeterminate"),
    (503, "not_stored"),
    (503, "not_leader"),
)
"""Errors of every operation on committed offsets."""

OPERATIONS: Final[Mapping[str, ApiOperation]] = {
    "node": ApiOperation(
        "GET",
        "/v1/node",
        "The node: its addresses, versions and state",
        {200: ("The node.", NodeBody)},
        example="curl $SERVER/v1/node",
    ),
    "cluster": ApiOperation(
        "GET",
        "/v1/cluster",
        "The cluster: its controller, its nodes, and the partitions in trouble",
        {200: ("The cluster as this node sees it.", ClusterBody)},
        example="curl $SERVER/v1/cluster",
    ),
    "remove_node": ApiOperation(
        "DELETE",
        "/v1/nodes/{number}",
        "Remove a node from the cluster; its replicas move to other nodes first",
        {202: ("The node leaves; it has left when the cluster does not list it.", NodeRemoval)},
        query=(("force", "true: give its replicas up at once; for a node that is dead for good."),),
        errors=(
            (400, "malformed_request"),
            (404, "unknown_node"),
            (409, "cannot_remove_node"),
            (501, "not_supported"),
            (503, "indeterminate"),
            (409, "request_expired"),
        ),
        example="curl -X DELETE $SERVER/v1/nodes/4",
    ),
    "cancel_removal": ApiOperation(
        "POST",
        "/v1/nodes/{number}/cancel-removal",
        "Take the removal of a node back while it is in progress; idempotent",
        {200: ("The node stays. Replicas that move already go on to do so.", NodeRemoval)},
        errors=(
            (400, "malformed_request"),
            (403, "forbidden_host"),
            (404, "unknown_node"),
            (501, "not_supported"),
            (503, "indeterminate"),
        ),
        example="curl -X POST $SERVER/v1/nodes/4/cancel-removal",
    ),
    "drain_node": ApiOperation(
        "POST",
        "/v1/nodes/{number}/drain",
        "Have others lead for a node, and give it nothing more until it is resumed; idempotent",
        {200: ("The node is drained; `left` is what it still leads or holds.", NodeDrainBody)},
        request=DrainRequest,
        errors=(*_BODY, *_NODE, (409, "cannot_drain"), (409, "needs_cluster_version")),
        example="curl --json '{\"replicas\": false}' $SERVER/v1/nodes/2/drain",
    ),
    "node_drain": ApiOperation(
        "GET",
        "/v1/nodes/{number}/drain",
        "How far a node is drained, and what is in the way",
        {200: ("What it still leads or holds.", NodeDrainBody)},
        errors=((400, "malformed_request"), (404, "unknown_node")),
        example="curl $SERVER/v1/nodes/2/drain",
    ),
    "resume_node": ApiOperation(
        "POST",
        "/v1/nodes/{number}/resume",
        "A drained node leads and gets replicas again; idempotent",
        {200: ("The node goes on.", NodeDrainBody)},
        errors=((400, "malformed_request"), (403, "forbidden_host"), *_NODE),
        example="curl -X POST $SERVER/v1/nodes/2/resume",
    ),
    "balance_plan": ApiOperation(
        "GET",
        "/v1/cluster/balance",
        "The moves that would make all nodes hold about as many replicas",
        {200: ("The plan; nothing moves for that.", BalancePlanBody)},
        example="curl $SERVER/v1/cluster/balance",
    ),
    "balance": ApiOperation(
        "POST",
        "/v1/cluster/balance",
        "Have nodes hold about as many replicas, a few partitions at a time; idempotent",
        {200: ("The moves that are left.", BalancePlanBody)},
        request=BalanceRequest,
        errors=(*_BODY, *_DECISION),
        example="curl --json '{\"stop\": false}' $SERVER/v1/cluster/balance",
    ),
    "throttle": ApiOperation(
        "PUT",
        "/v1/cluster/throttle",
        "Limit what each node sends to replicas that are not in sync",
        {200: ("The limit is in force.", CatchUpLimit)},
        request=ThrottleRequest,
        errors=(*_BODY, *_DECISION),
        example="curl -X PUT --json '{\"bytes_per_second\": 20000000}' $SERVER/v1/cluster/throttle",
    ),
    "list_streams": ApiOperation(
        "GET",
        "/v1/streams",
        "List the streams",
        {200: ("All streams, by name, or the selected ones.", StreamList)},
        errors=(
            (400, "invalid_name"),
            (400, "malformed_request"),
            (503, "not_leader"),
            (503, "cannot_replicate"),
            (503, "unavailable"),
        ),
        query=(
            ("subject", "Only those that store messages on this subject; may have wildcards."),
            (
                "confirmed",
                "`true`: the node asks the controller whether it knows all streams; "
                "without an answer the request fails. Default: what this node knows.",
            ),
        ),
        example="curl '$SERVER/v1/streams?subject=flights.ams'",
    ),
    "create_stream": ApiOperation(
        "POST",
        "/v1/streams",
        "Create a stream; idempotent",
        {
            201: ("The stream was created.", StreamBody),
            200: ("The stream already exists with this configuration.", StreamBody),
        },
        request=CreateStreamRequest,
        errors=(
            *_BODY,
            (400, "invalid_name"),
            (400, "invalid_config"),
            (409, "stream_conflict"),
            (409, "request_expired"),
            (503, "not_enough_nodes"),
            (507, "disk_full"),
        ),
        example='curl --json \'{"name": "flights", "subject": "flights.>"}\' $SERVER/v1/streams',
    ),
    "stream": ApiOperation(
        "GET",
        "/v1/streams/{name}",
        "One stream",
        {200: ("The stream.", StreamBody)},
        errors=((404, "unknown_stream"),),
        example="curl $SERVER/v1/streams/flights",
    ),
    "alter_stream": ApiOperation(
        "PATCH",
        "/v1/streams/{name}",
        "Change settings of a stream; omitted settings stay",
        {200: ("The stream, altered.", StreamBody)},
        request=AlterStreamRequest,
        errors=(
            *_BODY,
            *_CHANGE,
            (400, "invalid_config"),
            (409, "cannot_alter"),
            (503, "not_enough_nodes"),
        ),
        example="curl -X PATCH --json '{\"retention_ms_max\": 604800000}' "
        "$SERVER/v1/streams/flights",
    ),
    "reassign_stream": ApiOperation(
        "POST",
        "/v1/streams/{name}/reassign",
        "Move a stream or a partition to other nodes; messages go on",
        {200: ("The stream; `target` of its partitions says what moves.", StreamBody)},
        request=ReassignRequest,
        errors=(
            *_BODY,
            (400, "invalid_config"),
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (409, "request_expired"),
            (501, "not_supported"),
            (503, "indeterminate"),
        ),
        example="curl --json '{\"replicas\": [1, 2, 4]}' $SERVER/v1/streams/flights/reassign",
    ),
    "cancel_moves": ApiOperation(
        "POST",
        "/v1/streams/{name}/cancel-reassignment",
        "Move a stream or a partition back to the nodes that it had before the move",
        {200: ("The stream; `target` says what new replicas are needed until then.", StreamBody)},
        request=CancelRequest,
        errors=(
            *_BODY,
            *_DECISION,
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (409, "cannot_cancel"),
        ),
        example="curl --json '{}' $SERVER/v1/streams/flights/cancel-reassignment",
    ),
    "elect_leader": ApiOperation(
        "POST",
        "/v1/streams/{name}/elect-leader",
        "Give a stream or a partition another leader, by a handover that loses nothing",
        {200: ("The leaders; those that could not change say why.", LeaderChanges)},
        request=ElectLeaderRequest,
        errors=(
            *_BODY,
            *_DECISION,
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (409, "cannot_lead"),
        ),
        example='curl --json \'{"partition": 0, "node": 2}\' '
        "$SERVER/v1/streams/flights/elect-leader",
    ),
    "recover_stream": ApiOperation(
        "POST",
        "/v1/streams/{name}/recover",
        "Go on without replicas in sync that are lost, or show what that would lose",
        {200: ("The partitions that nobody led, and where the logs of replicas end.", Recoveries)},
        request=RecoverRequest,
        errors=(
            *_BODY,
            *_DECISION,
            (404, "unknown_stream"),
            (404, "unknown_partition"),
        ),
        example="curl --json '{\"accept_loss\": false}' $SERVER/v1/streams/flights/recover",
    ),
    "acknowledge_loss": ApiOperation(
        "POST",
        "/v1/streams/{name}/acknowledge-loss",
        "Show the unclean elections of a stream no longer; idempotent",
        {200: ("The stream; `unclean_epoch` of its partitions is 0.", StreamBody)},
        request=AcknowledgeLossRequest,
        errors=(
            *_BODY,
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (501, "not_supported"),
            (503, "indeterminate"),
        ),
        example="curl --json '{\"partition\": 0}' $SERVER/v1/streams/flights/acknowledge-loss",
    ),
    "pause_stream": ApiOperation(
        "POST",
        "/v1/streams/{name}/pause",
        "Refuse messages until resumed; publishers that ask for an ack get an error",
        {200: ("The stream is paused.", StreamBody)},
        request=EmptyRequest,
        errors=(*_BODY, *_CHANGE),
        example="curl --json '{}' $SERVER/v1/streams/flights/pause",
    ),
    "resume_stream": ApiOperation(
        "POST",
        "/v1/streams/{name}/resume",
        "Store messages again",
        {200: ("The stream stores messages.", StreamBody)},
        request=EmptyRequest,
        errors=(*_BODY, *_CHANGE),
        example="curl --json '{}' $SERVER/v1/streams/flights/resume",
    ),
    "purge_stream": ApiOperation(
        "POST",
        "/v1/streams/{name}/purge",
        "Remove the oldest records permanently",
        {200: ("The removed range of each partition.", Purged)},
        request=PurgeRequest,
        errors=(
            *_BODY,
            *_CHANGE,
            (400, "offset_out_of_range"),
            (404, "unknown_partition"),
            (500, "partition_failed"),
            (503, "indeterminate"),
            (503, "not_leader"),
        ),
        example='curl --json \'{"to_offset": 1000, "partition": 0}\' '
        "$SERVER/v1/streams/flights/purge",
    ),
    "repair_stream": ApiOperation(
        "POST",
        "/v1/streams/{name}/repair",
        "Open the failed partitions of a stream again",
        {200: ("The partitions that had failed, and what became of them.", Repaired)},
        request=RepairRequest,
        errors=(
            *_BODY,
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (501, "not_supported"),
        ),
        example="curl --json '{\"accept_loss\": false}' $SERVER/v1/streams/flights/repair",
    ),
    "scrub_stream": ApiOperation(
        "POST",
        "/v1/streams/{name}/scrub",
        "Read all replicas of a stream from now on, check all CRCs and compare the replicas",
        {202: ("How far each replica is.", Scrubbed)},
        request=ScrubRequest,
        errors=(*_BODY, (404, "unknown_stream"), (404, "unknown_partition")),
        example="curl --json '{}' $SERVER/v1/streams/flights/scrub",
    ),
    "scrub_results": ApiOperation(
        "GET",
        "/v1/streams/{name}/scrub",
        "What the last scrub of each replica has found, or how far it is",
        {200: ("The replicas.", Scrubbed)},
        errors=(
            (400, "malformed_request"),
            (404, "unknown_stream"),
            (404, "unknown_partition"),
        ),
        query=(("partition", "Only this partition."),),
        example="curl $SERVER/v1/streams/flights/scrub",
    ),
    "delete_stream": ApiOperation(
        "DELETE",
        "/v1/streams/{name}",
        "Delete a stream and all its records",
        {204: ("Deleted.", None)},
        errors=_CHANGE,
        example="curl -X DELETE $SERVER/v1/streams/flights",
    ),
    "list_offsets": ApiOperation(
        "GET",
        "/v1/offsets",
        "List committed offsets of all groups",
        {200: ("All commits, or the selected ones.", OffsetList)},
        errors=_OFFSETS,
        query=(("consumer", "Only of this consumer."), ("stream", "Only for this stream.")),
        example="curl '$SERVER/v1/offsets?consumer=billing'",
    ),
    "list_groups": ApiOperation(
        "GET",
        "/v1/groups",
        "List the consumer groups: those with members, and those with committed offsets",
        {200: ("All groups, by name, or the selected ones.", GroupList)},
        errors=((400, "malformed_request"), *_OFFSETS),
        query=(
            ("stream", "Only those with offsets for this stream; lag is that of this stream."),
            ("state", "Only those in this state, such as Stable or Empty."),
            ("type", "Only those of this type: classic or consumer."),
        ),
        example="curl '$SERVER/v1/groups?state=Empty'",
    ),
    "group": ApiOperation(
        "GET",
        "/v1/groups/{group}",
        "One group: its members, and per partition the committed offset, end, lag and owner",
        {200: ("The group.", GroupBody)},
        errors=((404, "unknown_group"), *_OFFSETS),
        example="curl $SERVER/v1/groups/billing",
    ),
    "reset_offsets": ApiOperation(
        "POST",
        "/v1/groups/{group}/reset-offsets",
        "Reset the committed offsets of a group without members, or show what that would do",
        {200: ("The offset of each partition, before and after.", OffsetResets)},
        request=ResetOffsetsRequest,
        errors=(
            *_BODY,
            *_OFFSETS,
            (400, "invalid_name"),
            (400, "invalid_config"),
            (400, "offset_out_of_range"),
            (404, "unknown_group"),
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (409, "group_has_members"),
        ),
        example='curl --json \'{"stream": "flights", "to": "earliest", "dry_run": true}\' '
        "$SERVER/v1/groups/billing/reset-offsets",
    ),
    "delete_group": ApiOperation(
        "DELETE",
        "/v1/groups/{group}",
        "Delete a group without members, or only its committed offsets for a stream",
        {200: ("The number of removed offsets.", OffsetsRemoved)},
        errors=(
            (400, "malformed_request"),
            (404, "unknown_group"),
            *_OFFSETS,
            (409, "group_has_members"),
        ),
        query=(
            ("stream", "Only the offsets for this stream."),
            ("partition", "Only the offset of this partition of the stream."),
        ),
        example="curl -X DELETE '$SERVER/v1/groups/billing?stream=flights'",
    ),
    **TABLE_OPERATIONS,
    **PAYLOAD_OPERATIONS,
    "metrics": ApiOperation(
        "GET",
        "/metrics",
        "Metrics in the Prometheus text format",
        {200: ("All metrics.", None)},
        example="curl $SERVER/metrics",
        media_type="text/plain",
    ),
    "health": ApiOperation(
        "GET",
        "/healthz",
        "Liveness; `parts` lists the checks",
        {
            200: ("The node is alive.", Health),
            503: ("A required thread has ended: restart the node.", Health),
        },
        example="curl $SERVER/healthz",
    ),
    "ready": ApiOperation(
        "GET",
        "/readyz",
        "Readiness; `parts` lists the checks with their reasons",
        {
            200: ("The node serves; `degraded` means that a part does not fully work.", Health),
            503: (
                "The node is opening or draining, is not connected to NATS, is reached by no "
                "controller, or another cluster has one of its streams.",
                Health,
            ),
        },
        example="curl $SERVER/readyz",
    ),
}
"""Name -> operation; `AdminApi.handle_<name>` handles it."""
