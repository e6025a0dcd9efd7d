"""What operators do to nodes, leaders and replicas, over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from bascule.http.requests import NUMBER_MAX, MalformedRequest, decode_body, flag_of
from bascule.http.responses import json_response
from bascule.http.schemas import StreamBody, stream_body
from bascule.model import StreamDefinition, StreamInfo
from bascule.operation_results import BalancePlan, LeaderChange, NodeDrain, PartitionRecovery

DRAIN_REASON_CHARACTERS_MAX: Final = 200
"""It is kept in the metadata, and shown in a table."""


class ClusterAdmin(Protocol):
    """Operations on a running cluster; implemented by `controller.cluster.operations`."""

    async def reassign_stream(
        self, name: str, replicas: Sequence[int], *, partition: int | None
    ) -> StreamDefinition:
        """Raises: UnknownStream, UnknownPartition, ConfigError."""
        ...

    async def plan_reassign(
        self, name: str, replicas: Sequence[int], *, partition: int | None
    ) -> StreamInfo:
        """Raises: UnknownStream, UnknownPartition, ConfigError."""
        ...

    async def cancel_moves(self, name: str, *, partition: int | None) -> StreamDefinition:
        """Raises: UnknownStream, UnknownPartition, CannotCancel."""
        ...

    async def elect_leaders(
        self, name: str, *, partition: int | None, node: int | None
    ) -> list[LeaderChange]:
        """Raises: UnknownStream, UnknownPartition, CannotLead."""
        ...

    async def remove_node(self, number: int, *, force: bool) -> int:
        """How many replicas have to move first.

        Raises: UnknownNode, CannotRemoveNode.
        """
        ...

    async def cancel_removal(self, number: int) -> int:
        """How many replicas the node holds. Raises: UnknownNode."""
        ...

    async def drain_node(self, number: int, *, replicas: bool, reason: str) -> NodeDrain:
        """Raises: UnknownNode, CannotDrain, NeedsClusterVersion."""
        ...

    async def resume_node(self, number: int) -> NodeDrain:
        """Raises: UnknownNode."""
        ...

    async def node_drain(self, number: int) -> NodeDrain:
        """Raises: UnknownNode."""
        ...

    async def recover_stream(
        self, name: str, *, partition: int | None, accept_loss: bool
    ) -> list[PartitionRecovery]: ...

    async def balance_plan(self) -> BalancePlan: ...

    async def set_balancing(self, is_balancing: bool) -> BalancePlan: ...

    async def limit_catch_up(self, bytes_per_second: int) -> None: ...


class ReassignRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The nodes that are to hold a stream, or one of its partitions."""

    replicas: Annotated[
        list[int],
        Meta(description="Nodes, as many as the stream has replicas; the preferred leader first."),
    ]
    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None
    dry_run: Annotated[
        bool,
        Meta(
            description="Change nothing: the answer is the stream as it would be, with what new "
            "replicas would copy in `bytes_behind`."
        ),
    ] = False


class CancelRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The moves that are to be taken back."""

    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None


class ElectLeaderRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who is to lead."""

    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None
    node: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="A replica in sync, preferred from then on; default: the preferred one."),
    ] = None


class RecoverRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which partitions are to go on without the replicas that were in sync."""

    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None
    accept_loss: Annotated[
        bool, Meta(description="Elect leaders; otherwise only what would be lost is shown.")
    ] = False


class DrainRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a node is to give up."""

    replicas: Annotated[
        bool,
        Meta(description="Whether its replicas move to other nodes, too."),
    ] = False
    reason: Annotated[
        str,
        Meta(
            max_length=DRAIN_REASON_CHARACTERS_MAX,
            description="Shown with the node; needs cluster version 2.",
        ),
    ] = ""


class BalanceRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether replicas are to be balanced."""

    stop: Annotated[bool, Meta(description="Begin no more moves; those under way go on.")] = False


class ThrottleRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """How fast replicas that are not in sync may copy."""

    bytes_per_second: Annotated[
        int, Meta(description="What each node sends to all of them at most; 0: no limit.")
    ]

    def __post_init__(self) -> None:
        if self.bytes_per_second < 0:
            raise ValueError(f"bytes_per_second must be at least 0, got {self.bytes_per_second}")


class NodeRemoval(Struct, kw_only=True):
    """A node that is to be removed, or no longer."""

    node_id: int
    replicas: Annotated[
        int, Meta(description="Replicas that it holds; they move before it is removed.")
    ]


class LeaderChangeBody(Struct, kw_only=True):
    """What became of one partition."""

    partition: int
    before: Annotated[int, Meta(description="Node that led; -1: none.")]
    leader: Annotated[int, Meta(description="Node that leads; -1: none.")]
    leader_epoch: int
    why: Annotated[str, Meta(description="Why it is not who was asked for; empty: it is.")]


class ReplicaEndBody(Struct, kw_only=True):
    """Where the log of a replica ends that is alive."""

    node_id: int
    last_epoch: Annotated[int, Meta(description="The latest leader epoch in the log.")]
    end_offset: int
    committed_offset: Annotated[int, Meta(description="The end of what it knows to be committed.")]
    last_ms: Annotated[
        int, Meta(description="The largest timestamp in the log, Unix milliseconds; -1: none.")
    ]


class RecoveryBody(Struct, kw_only=True):
    """A partition that nobody leads."""

    partition: int
    why: Annotated[str, Meta(description="Why nobody leads it.")]
    leader: Annotated[int, Meta(description="Who leads now, or would; -1: nobody can.")]
    replicas: Annotated[
        list[ReplicaEndBody], Meta(description="Those that could lead, as far as they answer.")
    ]
    problem: Annotated[str, Meta(description="Why nobody can lead; empty: somebody can.")]
    is_done: Annotated[bool, Meta(description="Whether the leader was elected.")]


class Recoveries(Struct, kw_only=True):
    """The partitions of a stream that nobody led."""

    name: str
    partitions: list[RecoveryBody]


class LeaderChanges(Struct, kw_only=True):
    """The leaders of a stream after an election."""

    name: str
    partitions: list[LeaderChangeBody]


class LeftPartitionBody(Struct, kw_only=True):
    """A partition that is to leave a drained node, and has not left it."""

    stream: str
    partition: int
    leads: Annotated[bool, Meta(description="Whether the node leads it.")]
    why: str
    is_pending: Annotated[bool, Meta(description="Whether that changes by itself.")]


class NodeDrainBody(Struct, kw_only=True):
    """How far a node is drained."""

    node_id: int
    is_drained: bool
    is_emptied: Annotated[bool, Meta(description="Whether its replicas move to other nodes.")]
    leaders: Annotated[int, Meta(description="Partitions that it leads.")]
    replicas: Annotated[int, Meta(description="Replicas that it holds.")]
    left: Annotated[
        list[LeftPartitionBody], Meta(description="Up to 200 of those that have not left it.")
    ]
    pending_count: Annotated[int, Meta(description="Of all that leave it by themselves yet.")]
    stuck_count: Annotated[int, Meta(description="Of all that do not leave it.")]
    bytes_left: Annotated[int, Meta(description="About what other nodes have to copy yet.")]
    is_leaving: Annotated[bool, Meta(description="Whether it is to be removed.")]


class BalanceMoveBody(Struct, kw_only=True):
    """A replica that is to move, or a preferred leader that is to be another one."""

    stream: str
    partition: int
    source: Annotated[int, Meta(description="Node that gives it.")]
    destination: Annotated[int, Meta(description="Node that gets it.")]
    bytes: Annotated[int, Meta(description="Of the log to copy; 0 for a leader.")]
    is_copied: Annotated[bool, Meta(description="false: only the preferred leader changes.")]


class BalancePlanBody(Struct, kw_only=True):
    """The moves that would make all nodes hold about as many replicas."""

    is_balancing: Annotated[bool, Meta(description="Whether an operator has asked for them.")]
    moving: Annotated[int, Meta(description="Partitions that move now.")]
    moves: Annotated[list[BalanceMoveBody], Meta(description="Up to 200 of them.")]
    count: Annotated[int, Meta(description="Of all moves.")]
    bytes: Annotated[int, Meta(description="Of the listed moves.")]
    replicas: Annotated[dict[int, int], Meta(description="Node -> replicas that it holds.")]


class CatchUpLimit(Struct, kw_only=True):
    """How fast replicas that are not in sync may copy."""

    bytes_per_second: Annotated[int, Meta(description="Of each node; 0: no limit.")]


class ClusterApi:
    """The handlers of operations on a running cluster."""

    def __init__(self, cluster: ClusterAdmin) -> None:
        self._cluster = cluster

    async def _body(self, request: Request) -> bytes:
        raise NotImplementedError

    async def _describe(self, name: str) -> StreamInfo:
        raise NotImplementedError

    async def handle_remove_node(self, request: Request) -> Response:
        number = _node_number(request)
        held = await self._cluster.remove_node(number, force=flag_of(request, "force"))
        return json_response(NodeRemoval(node_id=number, replicas=held), 202)

    async def handle_cancel_removal(self, request: Request) -> Response:
        number = _node_number(request)
        held = await self._cluster.cancel_removal(number)
        return json_response(NodeRemoval(node_id=number, replicas=held))

    async def handle_drain_node(self, request: Request) -> Response:
        number = _node_number(request)
        asked = decode_body(await self._body(request) or b"{}", DrainRequest)
        found = await self._cluster.drain_node(number, replicas=asked.replicas, reason=asked.reason)
        return _drain_response(found)

    async def handle_resume_node(self, request: Request) -> Response:
        return _drain_response(await self._cluster.resume_node(_node_number(request)))

    async def handle_node_drain(self, request: Request) -> Response:
        return _drain_response(await self._cluster.node_drain(_node_number(request)))

    async def handle_reassign_stream(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), ReassignRequest)
        name, replicas, partition = request.path_params["name"], asked.replicas, asked.partition
        if asked.dry_run:
            planned = await self._cluster.plan_reassign(name, replicas, partition=partition)
            return json_response(stream_body(planned))
        definition = await self._cluster.reassign_stream(name, replicas, partition=partition)
        return await self._stream_response(definition)

    async def handle_cancel_moves(self, request: Request) -> Response:
        asked = decode_body(await self._body(request) or b"{}", CancelRequest)
        definition = await self._cluster.cancel_moves(
            request.path_params["name"], partition=asked.partition
        )
        return await self._stream_response(definition)

    async def handle_elect_leader(self, request: Request) -> Response:
        asked = decode_body(await self._body(request) or b"{}", ElectLeaderRequest)
        name = request.path_params["name"]
        changes = await self._cluster.elect_leaders(
            name, partition=asked.partition, node=asked.node
        )
        bodies = msgspec.convert(changes, list[LeaderChangeBody], from_attributes=True)
        return json_response(LeaderChanges(name=name, partitions=bodies))

    async def handle_recover_stream(self, request: Request) -> Response:
        asked = decode_body(await self._body(request) or b"{}", RecoverRequest)
        name = request.path_params["name"]
        found = await self._cluster.recover_stream(
            name, partition=asked.partition, accept_loss=asked.accept_loss
        )
        bodies = msgspec.convert(found, list[RecoveryBody], from_attributes=True)
        return json_response(Recoveries(name=name, partitions=bodies))

    async def handle_balance_plan(self, request: Request) -> Response:
        return _plan_response(await self._cluster.balance_plan())

    async def handle_balance(self, request: Request) -> Response:
        asked = decode_body(await self._body(request) or b"{}", BalanceRequest)
        return _plan_response(await self._cluster.set_balancing(not asked.stop))

    async def handle_throttle(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), ThrottleRequest)
        await self._cluster.limit_catch_up(asked.bytes_per_second)
        return json_response(CatchUpLimit(bytes_per_second=asked.bytes_per_second))

    async def _stream_response(self, definition: StreamDefinition) -> Response:
        body: StreamBody = stream_body(await self._describe(definition.name))
        return json_response(body)


def _drain_response(found: NodeDrain) -> Response:
    return json_response(msgspec.convert(found, NodeDrainBody, from_attributes=True))


def _plan_response(plan: BalancePlan) -> Response:
    return json_response(msgspec.convert(plan, BalancePlanBody, from_attributes=True))


def _node_number(request: Request) -> int:
    """Raises: MalformedRequest."""
    number: str = request.path_params["number"]
    if not (number.isascii() and number.isdigit() and len(number) <= len(str(NUMBER_MAX))):
        raise MalformedRequest(f"{number[:40]!r} is not the number of a node")
    return int(number)
