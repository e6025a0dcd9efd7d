"""Members of consumer groups that cost little: one process has thousands of them, on asyncio.

They speak the classic protocol with Kafka's framing, to any server, and read no records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from bascule.wire.connection import NEED_DATA, ClientConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.schema import Request
from bench.commit_load import Committer

SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 60_000
METADATA: Final = b"m" * 100
"""About what a consumer says of its subscription."""
NAMED: Final = 8
"""The last version of OffsetCommit that names topics."""
RETRY_SECONDS: Final = 0.05
TRY_AGAIN: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class Link:
    """A connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.protocol = ClientConnection(client_id="bench", frame_bytes_max=64 << 20)

    @classmethod
    async def open(cls, address: str) -> Link:
        host, _, port = address.rpartition(":")
        link = cls(*await asyncio.open_connection(host, int(port)))
        link.protocol.negotiate(await link.ask(ApiVersionsRequest(), version=2))
        return link

    async def ask(self, request: Request[Any], *, version: int | None = None) -> Any:
        self._writer.write(self.protocol.send(request, version=version))
        while (event := self.protocol.next_event()) is NEED_DATA:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self.protocol.feed(data)
        return event.message

    @property
    def address(self) -> str:
        host, port = self._writer.get_extra_info("peername")[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        self._writer.close()


class GroupMember:
    """One member. Its address is that of any node: it finds the coordinator."""

    def __init__(
        self,
        addresses: Sequence[str],
        group: str,
        partitions: int,
        *,
        heartbeat_seconds: float,
        session_ms: int = SESSION_MS,
    ) -> None:
        self._addresses = addresses
        self._group = group
        self._partitions = partitions
        self._heartbeat_seconds = heartbeat_seconds
        self._session_ms = session_ms
        self._link: Link | None = None
        self.id = ""
        self.generation = -1
        self.size = 0
        """Members of the generation, as its leader has said."""
        self.owned: list[int] = []
        self.joins = 0
        self.well_at = 0.0
        """When the coordinator said last that all is well."""
        self.is_settled = False

    async def connect(self) -> None:
        """Connect to the coordinator, whoever that is."""
        number = 0
        while True:
            number += 1
            with contextlib.suppress(OSError):
                any_node = await Link.open(self._addresses[number % len(self._addresses)])
                try:
                    request = FindCoordinatorRequest(coordinator_keys=[self._group])
                    (found,) = (await any_node.ask(request)).coordinators
                finally:
                    any_node.close()
                if not found.error_code:
                    self._link = await Link.open(f"{found.host}:{found.port}")
                    return
            await asyncio.sleep(RETRY_SECONDS)

    async def run(self) -> None:
        """Be a member until cancelled."""
        try:
            while True:
                try:
                    await self._take_part()
                except (OSError, asyncio.IncompleteReadError):
                    self._drop()
        finally:
            self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    async def _take_part(self) -> None:
        if self._link is None:
            await self.connect()
        assert self._link is not None
        while True:
            if not self.is_settled:
                await self._join(self._link)
                continue
            await asyncio.sleep(self._heartbeat_seconds)
            code = (
                await self._link.ask(
                    HeartbeatRequest(
                        group_id=self._group, generation_id=self.generation, member_id=self.id
                    )
                )
            ).error_code
            if not code:
                self.well_at = time.monotonic()
            elif code in TRY_AGAIN:
                await self._try_again()
            else:
                self._on_error(code)

    async def _try_again(self) -> None:
        await asyncio.sleep(RETRY_SECONDS)
        self._drop()
        raise ConnectionError("another coordinator")

    def _on_error(self, code: int) -> None:
        self.is_settled = False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        elif code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            raise RuntimeError(f"{self._group} answered {ErrorCode(code).name}")

    async def _join(self, link: Link) -> None:
        self.joins += 1
        answer = await link.ask(
            JoinGroupRequest(
                group_id=self._group, session_timeout_ms=self._session_ms,
                rebalance_timeout_ms=REBALANCE_MS, member_id=self.id, protocol_type="bench",
                protocols=[JoinGroupRequestProtocol("range", METADATA)],
            )
        )  # fmt: skip
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            answer.error_code = ErrorCode.REBALANCE_IN_PROGRESS
        if answer.error_code in TRY_AGAIN:
            await self._try_again()
        if answer.error_code:
            self._on_error(answer.error_code)
            return
        self.id, self.generation = answer.member_id, answer.generation_id
        ids = sorted(each.member_id for each in answer.members)
        assignments = [
            SyncGroupRequestAssignment(
                id, json.dumps([len(ids), *range(n, self._partitions, len(ids))]).encode()
            )
            for n, id in enumerate(ids)
        ]
        synced = await link.ask(
            SyncGroupRequest(
                group_id=self._group, generation_id=self.generation, member_id=self.id,
                protocol_type="bench", protocol_name="range",
                assignments=assignments if answer.leader == self.id else [],
            )
        )  # fmt: skip
        if synced.error_code in TRY_AGAIN:
            await self._try_again()
        if synced.error_code:
            self._on_error(synced.error_code)
            return
        self.size, *self.owned = json.loads(bytes(synced.assignment))
        self.is_settled, self.well_at = True, time.monotonic()

    async def committer(self, topic: str) -> Committer:
        """What commits the offset of one of its partitions, over another connection."""
        assert self._link is not None
        commit = OffsetCommitRequest(
            group_id=self._group, generation_id_or_member_epoch=self.generation, member_id=self.id,
            topics=[OffsetCommitTopic(topic, partitions=[OffsetCommitPartition(self.owned[0], 1)])],
        )  # fmt: skip
        link = await Link.open(self._link.address)
        answer = await link.ask(commit, version=NAMED)
        assert not answer.topics[0].partitions[0].error_code, answer
        frame = link.protocol.send(commit, version=NAMED)
        link.close()
        return await asyncio.to_thread(Committer.open, self._link.address, frame)


@contextlib.asynccontextmanager
async def joined(members: Sequence[GroupMember]) -> Any:
    """The members run, connected, while the context is open; not joined yet."""
    await each(members, GroupMember.connect)
    tasks = [asyncio.create_task(member.run()) for member in members]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def each(
    members: Iterable[GroupMember], work: Callable[[GroupMember], Awaitable[object]]
) -> None:
    await asyncio.gather(*map(work, members))


async def settled(
    members: Sequence[GroupMember], *, after: int = -1, timeout: float = 120
) -> float:
    """When all of `members`, and nobody else, were settled in a generation later than `after`."""
    deadline = time.monotonic() + timeout
    while not all(
        m.is_settled and m.size == len(members) and m.generation > after for m in members
    ):
        if time.monotonic() > deadline:
            count = sum(m.is_settled for m in members)
            raise TimeoutError(f"{count} of {len(members)} members are settled")
        await asyncio.sleep(0.002)
    return max(m.well_at for m in members)
