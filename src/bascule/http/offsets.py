"""What HTTP offers of committed offsets: list, reset, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from bascule.http.requests import MalformedRequest, decode_body
from bascule.http.responses import json_response
from bascule.model import CommittedOffset
from bascule.wire.offsets import OffsetKey


class OffsetsAdmin(Protocol):
    """How far consumers have come, as the HTTP listener asks for it; see `groups`."""

    def entries(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]: ...

    async def caught_up(self) -> None:
        """Raises: PartitionFailed, Indeterminate."""
        ...

    async def reset(
        self, consumer: str, stream: str, partition: int | None, to: int | str, *, at_ms: int = 0
    ) -> list[CommittedOffset]:
        """Raises: UnknownStream, UnknownPartition, OffsetOutOfRange, InvalidName."""
        ...

    async def remove(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> Sequence[OffsetKey]:
        """Raises: PartitionFailed, Indeterminate."""
        ...


class Offset(Struct, kw_only=True):
    """How far a consumer has come in one partition."""

    consumer: str
    stream: str
    partition: int
    offset: Annotated[int, Meta(description="The first offset it has not yet done.")]
    lag: Annotated[
        int | None, Meta(description="Offsets it has still to do; null without the partition.")
    ]
    leader_epoch: Annotated[int, Meta(description="As the consumer said, or -1.")]
    metadata: str
    committed_ms: Annotated[int, Meta(description="Unix time, milliseconds.")]
    start_offset: Annotated[int | None, Meta(description="First offset the partition holds.")]
    high_watermark: Annotated[int | None, Meta(description="Where the partition ends.")]


class OffsetList(Struct, kw_only=True):
    """Commits, by consumer, stream and partition."""

    offsets: list[Offset]


class OffsetsRemoved(Struct, kw_only=True):
    """How many commits were removed."""

    removed: int


class ResetOffsetsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Another place for a consumer: exactly one of `to`, `offset` and `timestamp_ms`."""

    consumer: str
    stream: str
    partition: Annotated[
        int | None, Meta(description="Only this partition; left out, all of them.")
    ] = None
    to: Annotated[
        Literal["earliest", "latest"] | None, Meta(description="An end of what is held.")
    ] = None
    offset: int | None = None
    timestamp_ms: Annotated[
        int | None, Meta(description="The first record at or after this Unix time.")
    ] = None

    def __post_init__(self) -> None:
        places = (self.to, self.offset, self.timestamp_ms)
        if sum(place is not None for place in places) != 1:
            raise ValueError("exactly one of to, offset and timestamp_ms must be given")
        for name in ("partition", "offset", "timestamp_ms"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")

    @property
    def place(self) -> int | str:
        if self.timestamp_ms is not None:
            return "time"
        return self.offset if self.offset is not None else str(self.to)


class OffsetsApi:
    """The handlers."""

    def __init__(self, offsets: OffsetsAdmin) -> None:
        self._offsets = offsets

    async def _body(self, request: Request) -> bytes:
        raise NotImplementedError

    async def handle_list_offsets(self, request: Request) -> Response:
        offsets, asked = self._offsets, request.query_params
        await offsets.caught_up()
        find = partial(offsets.entries, consumer=asked.get("consumer"), stream=asked.get("stream"))
        # There may be a million of them: not on the loop.
        return await asyncio.to_thread(lambda: json_response(offset_list(find())))

    async def handle_reset_offsets(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), ResetOffsetsRequest)
        done = await self._offsets.reset(
            asked.consumer,
            asked.stream,
            asked.partition,
            asked.place,
            at_ms=asked.timestamp_ms or 0,
        )
        return json_response(offset_list(done))

    async def handle_remove_offsets(self, request: Request) -> Response:
        asked = request.query_params
        consumer, partition = asked.get("consumer"), asked.get("partition")
        if not consumer:
            raise MalformedRequest("`consumer` is needed: whose offsets go", field="consumer")
        if partition is not None and not partition.isdecimal():
            raise MalformedRequest(f"partition {partition!r} is no number", field="partition")
        removed = await self._offsets.remove(
            consumer=consumer,
            stream=asked.get("stream"),
            partition=None if partition is None else int(partition),
        )
        return json_response(OffsetsRemoved(removed=len(removed)))


def offset_list(entries: Sequence[CommittedOffset]) -> OffsetList:
    return OffsetList(
        offsets=[msgspec.convert(entry, Offset, from_attributes=True) for entry in entries]
    )
