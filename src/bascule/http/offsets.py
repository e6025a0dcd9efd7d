"""Committed offsets over HTTP: list, reset, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from bascule.http.requests import MalformedRequest, decode_body
from bascule.http.responses import json_response
from bascule.model import CommittedOffset


class OffsetsAdmin(Protocol):
    """Operations on committed offsets; implemented by `controller.cluster.offsets`."""

    async def find(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """Raises: PartitionFailed, Indeterminate, NotLeader."""
        ...

    async def reset(
        self, consumer: str, stream: str, partition: int | None, to: int | str, *, at_ms: int = 0
    ) -> Sequence[CommittedOffset]:
        """Raises: UnknownStream, UnknownPartition, OffsetOutOfRange, InvalidName."""
        ...

    async def remove(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> int:
        """Raises: PartitionFailed, Indeterminate, NotLeader."""
        ...


class Offset(Struct, kw_only=True):
    """The committed offset of a consumer in one partition."""

    consumer: str
    stream: str
    partition: int
    offset: Annotated[int, Meta(description="The next offset that the consumer processes.")]
    lag: Annotated[
        int | None,
        Meta(description="Offsets up to the high watermark; null if the partition does not exist."),
    ]
    leader_epoch: Annotated[int, Meta(description="As the consumer sent it, or -1.")]
    metadata: str
    committed_ms: Annotated[int, Meta(description="Unix time, milliseconds.")]
    start_offset: Annotated[int | None, Meta(description="First offset the partition holds.")]
    high_watermark: Annotated[int | None, Meta(description="End of the committed records.")]


class OffsetList(Struct, kw_only=True):
    """Committed offsets, ordered by consumer, stream and partition."""

    offsets: list[Offset]


class OffsetsRemoved(Struct, kw_only=True):
    """The number of removed commits."""

    removed: int


class ResetOffsetsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The new position of a consumer: exactly one of `to`, `offset` and `timestamp_ms`."""

    consumer: str
    stream: str
    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None
    to: Annotated[
        Literal["earliest", "latest"] | None, Meta(description="Start or end of the partition.")
    ] = None
    offset: int | None = None
    timestamp_ms: Annotated[
        int | None, Meta(description="The first record at or after this Unix time.")
    ] = None

    def __post_init__(self) -> None:
        positions = (self.to, self.offset, self.timestamp_ms)
        if sum(position is not None for position in positions) != 1:
            raise ValueError("exactly one of to, offset and timestamp_ms must be given")
        for name in ("partition", "offset", "timestamp_ms"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")

    @property
    def target(self) -> int | str:
        if self.timestamp_ms is not None:
            return "time"
        return self.offset if self.offset is not None else str(self.to)


class OffsetsApi:
    """The handlers of committed offsets."""

    def __init__(self, offsets: OffsetsAdmin) -> None:
        self._offsets = offsets

    async def _body(self, request: Request) -> bytes:
        raise NotImplementedError

    async def handle_list_offsets(self, request: Request) -> Response:
        query = request.query_params
        found = await self._offsets.find(consumer=query.get("consumer"), stream=query.get("stream"))
        # There may be a million commits: too slow for the event loop.
        return await asyncio.to_thread(lambda: json_response(offset_list(found)))

    async def handle_reset_offsets(self, request: Request) -> Response:
        reset = decode_body(await self._body(request), ResetOffsetsRequest)
        done = await self._offsets.reset(
            reset.consumer,
            reset.stream,
            reset.partition,
            reset.target,
            at_ms=reset.timestamp_ms or 0,
        )
        return json_response(offset_list(done))

    async def handle_remove_offsets(self, request: Request) -> Response:
        query = request.query_params
        consumer, partition = query.get("consumer"), query.get("partition")
        if not consumer:
            raise MalformedRequest("the parameter `consumer` is required", field="consumer")
        if partition is not None and not (partition.isascii() and partition.isdecimal()):
            raise MalformedRequest(f"partition {partition!r} is not a number", field="partition")
        removed = await self._offsets.remove(
            consumer=consumer,
            stream=query.get("stream"),
            partition=None if partition is None else int(partition),
        )
        return json_response(OffsetsRemoved(removed=removed))


def offset_list(entries: Sequence[CommittedOffset]) -> OffsetList:
    return OffsetList(
        offsets=[msgspec.convert(entry, Offset, from_attributes=True) for entry in entries]
    )
