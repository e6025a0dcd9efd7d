"""Sends requests of members of groups to the handlers, over a real log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from bascule.replica.partition import Partition
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.schema import Request
from support.handlers import HandlerHarness
from support.served_stream import make_coordinator, make_offset_store

NONE = ErrorCode.NONE


class GroupRequests:
    """Sends requests to the handlers, while the coordinator and its store run."""

    def __init__(self, harness: HandlerHarness, log: Partition) -> None:
        self.harness = harness
        self.log = log
        self.begin()

    def begin(self, **limits: int) -> None:
        """A new store and coordinator, as after a restart."""
        self.offsets = make_offset_store(self.harness.partitions)
        self.groups = make_coordinator(self.harness.partitions, self.offsets, **limits)
        self.harness.context = replace(
            self.harness.context, offsets=self.offsets, groups=self.groups
        )

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        async def run_test() -> None:
            self.harness.partitions.bind(asyncio.get_running_loop())
            self.offsets.start()
            self.groups.start()
            await self.offsets.wait_caught_up()
            try:
                await asyncio.wait_for(test(), 60)
            finally:
                await self.groups.close()
                await self.offsets.close()

        asyncio.run(run_test())

    async def send(self, request: Request[Any], version: int) -> Any:
        return await self.harness.handle_async(request, version)

    async def join(self, member_id: str = "", version: int = 9, **fields: Any) -> Any:
        fields.setdefault("session_timeout_ms", 10_000)
        protocols = [JoinGroupRequestProtocol("range", memoryview(b"flights"))]
        request = JoinGroupRequest(
            "billing",
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=protocols,
        )
        for name, value in fields.items():
            setattr(request, name, value)
        return await self.send(request, version)

    async def sync(self, joined: Any, version: int = 5) -> Any:
        assignments = [
            SyncGroupRequestAssignment(m.member_id, m.member_id.encode()) for m in joined.members
        ]
        request = SyncGroupRequest(
            "billing", joined.generation_id, joined.member_id, assignments=assignments
        )
        return await self.send(request, version)

    async def heartbeat(self, joined: Any, version: int = 4) -> ErrorCode:
        request = HeartbeatRequest("billing", joined.generation_id, joined.member_id)
        return ErrorCode((await self.send(request, version)).error_code)

    async def commit(self, generation: int, member_id: str) -> ErrorCode:
        topic = OffsetCommitTopic("flights", partitions=[OffsetCommitPartition(0, 7)])
        request = OffsetCommitRequest("billing", generation, member_id, topics=[topic])
        answer = await self.send(request, 9)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def member(self) -> Any:
        """The answer to the join of a member that has its assignment."""
        given = await self.join()
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = await self.join(given.member_id)
        synced = await self.sync(joined)
        assert (synced.error_code, synced.assignment) == (NONE, joined.member_id.encode())
        return joined
