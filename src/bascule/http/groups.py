"""Groups and their committed offsets over HTTP: list, describe, reset, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Annotated, Final, Literal, Protocol

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from bascule.group_results import (
    CommittedOffset,
    GroupInfo,
    GroupListing,
    OffsetReset,
)
from bascule.groups.classic.messages import GroupState
from bascule.groups.consumer.group import ConsumerGroupState
from bascule.groups.described import GroupType
from bascule.http.requests import MalformedRequest, decode_body, partition_number
from bascule.http.responses import json_response

GROUP_TYPES: Final = tuple(map(str, GroupType))
GROUP_STATES: Final = tuple(dict.fromkeys(map(str, (*GroupState, *ConsumerGroupState))))
"""Of groups of either type."""


class GroupsAdmin(Protocol):
    """Operations on groups; implemented by `controller.cluster.groups`.

    All raise PartitionFailed, Indeterminate, NotLeader where `_offsets` cannot be read or written.
    """

    async def find(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]: ...

    async def list_groups(
        self,
        *,
        stream: str | None = None,
        states: Collection[str] = (),
        types: Collection[str] = (),
    ) -> list[GroupListing]: ...

    async def describe(self, group: str) -> GroupInfo:
        """Raises: UnknownGroup."""
        ...

    async def reset(
        self,
        group: str,
        *,
        to: int | str,
        stream: str | None = None,
        partition: int | None = None,
        at_ms: int = 0,
        is_dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Raises: UnknownGroup, UnknownStream, UnknownPartition, OffsetOutOfRange, InvalidName,
        GroupHasMembers."""
        ...

    async def shift(
        self,
        group: str,
        *,
        by: int,
        stream: str | None = None,
        partition: int | None = None,
        is_dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Raises: as `reset`, and ConfigError."""
        ...

    async def delete(
        self, group: str, *, stream: str | None = None, partition: int | None = None
    ) -> int:
        """Raises: UnknownGroup, GroupHasMembers."""
        ...


_Lag = Annotated[
    int | None, Meta(description="Records up to the high watermark; null if that is not known.")
]
_Start = Annotated[
    int | None,
    Meta(
        description="First offset the partition holds; null if it does not exist, or its leader "
        "does not answer."
    ),
]
_End = Annotated[int | None, Meta(description="End of the committed records.")]


class Offset(Struct, kw_only=True):
    """The committed offset of a consumer in one partition."""

    consumer: str
    stream: str
    partition: int
    offset: Annotated[int, Meta(description="The next offset that the consumer processes.")]
    lag: _Lag
    leader_epoch: Annotated[int, Meta(description="As the consumer sent it, or -1.")]
    metadata: str
    committed_ms: Annotated[int, Meta(description="Unix time, milliseconds.")]
    start_offset: _Start
    high_watermark: _End


class OffsetList(Struct, kw_only=True):
    """Committed offsets, ordered by consumer, stream and partition."""

    offsets: list[Offset]


class GroupListingBody(Struct, kw_only=True):
    """A group."""

    name: str
    type: Annotated[str, Meta(description="classic, or consumer (KIP-848).")]
    state: Annotated[str, Meta(description="Kafka's name; Empty without members.")]
    members: int
    partitions: Annotated[int, Meta(description="With a committed offset.")]
    lag: _Lag


class GroupList(Struct, kw_only=True):
    """Groups, ordered by name."""

    groups: list[GroupListingBody]


class GroupMemberBody(Struct, kw_only=True):
    """A member of a group."""

    member_id: str
    instance_id: Annotated[str | None, Meta(description="Of a static member.")]
    client_id: str
    host: str
    partitions: Annotated[
        list[tuple[str, int]] | None,
        Meta(description="Streams and partitions that it owns; null if that cannot be read."),
    ]


class GroupOffsetBody(Struct, kw_only=True):
    """A partition that has a committed offset, or an owner."""

    stream: str
    partition: int
    offset: Annotated[int | None, Meta(description="The next offset that the group processes.")]
    lag: _Lag
    start_offset: _Start
    high_watermark: _End
    member_id: Annotated[str, Meta(description="Of its owner, or empty.")]
    committed_ms: Annotated[int, Meta(description="Unix time, milliseconds; 0: not committed.")]
    metadata: str


class GroupBody(Struct, kw_only=True):
    """A group with its members and offsets."""

    name: str
    type: Annotated[str, Meta(description="classic, or consumer (KIP-848).")]
    state: Annotated[str, Meta(description="Kafka's name; Empty without members.")]
    protocol_type: str
    protocol: Annotated[str, Meta(description="The assignor in force.")]
    coordinator: Annotated[int, Meta(description="The node that coordinates the group.")]
    lag: _Lag
    members: list[GroupMemberBody]
    offsets: list[GroupOffsetBody]


class OffsetResetBody(Struct, kw_only=True):
    """What a reset does to one partition."""

    stream: str
    partition: int
    before: Annotated[int | None, Meta(description="The offset before; null: there was none.")]
    offset: Annotated[int, Meta(description="The offset now, or after it.")]
    lag: int
    start_offset: int
    high_watermark: int


class OffsetResets(Struct, kw_only=True):
    """What a reset has done, or would do."""

    group: str
    dry_run: bool
    partitions: list[OffsetResetBody]


class OffsetsRemoved(Struct, kw_only=True):
    """The number of removed offsets."""

    removed: int


class ResetOffsetsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The new position: exactly one of `to`, `offset`, `timestamp_ms` and `shift_by`."""

    stream: Annotated[
        str | None,
        Meta(description="Only this stream; default: all for which the group has offsets."),
    ] = None
    partition: Annotated[
        int | None, Meta(description="Only this partition of the stream; default: all.")
    ] = None
    to: Annotated[
        Literal["earliest", "latest"] | None, Meta(description="Start or end of the partition.")
    ] = None
    offset: int | None = None
    timestamp_ms: Annotated[
        int | None, Meta(description="The first record at or after this Unix time.")
    ] = None
    shift_by: Annotated[
        int | None,
        Meta(description="So many records further, or back, within what the partition holds."),
    ] = None
    dry_run: Annotated[bool, Meta(description="Commit nothing.")] = False

    def __post_init__(self) -> None:
        positions = (self.to, self.offset, self.timestamp_ms, self.shift_by)
        if sum(position is not None for position in positions) != 1:
            raise ValueError("exactly one of to, offset, timestamp_ms and shift_by must be given")
        for name in ("partition", "offset", "timestamp_ms"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")
        if self.partition is not None and self.stream is None:
            raise ValueError("partition needs stream: the partitions of which stream are meant")

    @property
    def target(self) -> int | str:
        if self.timestamp_ms is not None:
            return "time"
        return self.offset if self.offset is not None else str(self.to)


class GroupsApi:
    """The handlers of groups and committed offsets."""

    def __init__(self, groups: GroupsAdmin) -> None:
        self._groups = groups

    async def _body(self, request: Request) -> bytes:
        raise NotImplementedError

    async def handle_list_offsets(self, request: Request) -> Response:
        query = request.query_params
        found = await self._groups.find(consumer=query.get("consumer"), stream=query.get("stream"))
        # There may be a million commits: too slow for the event loop.
        return await asyncio.to_thread(lambda: json_response(offset_list(found)))

    async def handle_list_groups(self, request: Request) -> Response:
        query = request.query_params
        found = await self._groups.list_groups(
            stream=query.get("stream"),
            states=_one_of("state", query.get("state"), GROUP_STATES),
            types=_one_of("type", query.get("type"), GROUP_TYPES),
        )
        return await asyncio.to_thread(lambda: json_response(_group_list(found)))

    async def handle_group(self, request: Request) -> Response:
        found = await self._groups.describe(request.path_params["group"])
        return await asyncio.to_thread(
            lambda: json_response(msgspec.convert(found, GroupBody, from_attributes=True))
        )

    async def handle_reset_offsets(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), ResetOffsetsRequest)
        group = request.path_params["group"]
        if asked.shift_by is not None:
            done = await self._groups.shift(
                group,
                by=asked.shift_by,
                stream=asked.stream,
                partition=asked.partition,
                is_dry_run=asked.dry_run,
            )
        else:
            done = await self._groups.reset(
                group,
                to=asked.target,
                stream=asked.stream,
                partition=asked.partition,
                at_ms=asked.timestamp_ms or 0,
                is_dry_run=asked.dry_run,
            )
        partitions = [msgspec.convert(each, OffsetResetBody, from_attributes=True) for each in done]
        return json_response(
            OffsetResets(group=group, dry_run=asked.dry_run, partitions=partitions)
        )

    async def handle_delete_group(self, request: Request) -> Response:
        query = request.query_params
        stream, partition = query.get("stream"), query.get("partition")
        number = None if partition is None else partition_number(partition)
        if partition is not None and stream is None:
            raise MalformedRequest("partition needs stream", field="stream")
        removed = await self._groups.delete(
            request.path_params["group"], stream=stream, partition=number
        )
        return json_response(OffsetsRemoved(removed=removed))


def _one_of(name: str, value: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """The value of a parameter, if it is given; case does not matter. Raises: MalformedRequest."""
    if value is None:
        return ()
    if value.lower() not in map(str.lower, known):
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        raise MalformedRequest(f"{name} {value[:40]!r}, expected {expected}", field=name)
    return (value,)


def _group_list(found: Sequence[GroupListing]) -> GroupList:
    return GroupList(
        groups=[msgspec.convert(each, GroupListingBody, from_attributes=True) for each in found]
    )


def offset_list(entries: Sequence[CommittedOffset]) -> OffsetList:
    return OffsetList(
        offsets=[msgspec.convert(entry, Offset, from_attributes=True) for entry in entries]
    )
