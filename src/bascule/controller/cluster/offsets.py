"""Operations on committed offsets at any node: they are carried out by the leader of `_offsets`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import Broken, NotLeader, UnknownPartition, UnknownStream
from bascule.groups import CommittedOffsetStore
from bascule.model import NO_LEADER, CommittedOffset, PartitionInfo
from bascule.replica.partitions import Partitions
from bascule.wire.offsets import OFFSETS_STREAM, Commit, OffsetKey

log = logging.getLogger("bascule.controller")

OFFSETS: Final = "offsets"
"""The kind of control request with an operation on committed offsets."""
ANSWER_SECONDS_MAX: Final = 15.0
RETRY_SECONDS_MAX: Final = 5.0
"""For an operation while the partition has no leader, or another one than is known here."""
RETRY_SECONDS: Final = 0.1
DESCRIBED_MAX: Final = 4
"""More streams than these are described with all others, in one request to each node."""


class _Find(msgspec.Struct, tag=True):
    consumer: str | None
    stream: str | None


class _Remove(msgspec.Struct, tag=True):
    consumer: str | None
    stream: str | None
    partition: int | None


class _Store(msgspec.Struct, tag=True):
    offsets: list[tuple[OffsetKey, int]]


class _Resolve(msgspec.Struct, tag=True):
    """Which offset a position is. For the leader of the partition."""

    stream: str
    partition: int
    to: int | str
    at_ms: int


_Operation: TypeAlias = _Find | _Remove | _Store | _Resolve


class ClusterOffsets:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        store: CommittedOffsetStore,
        views: ClusterViews,
        peers: Peers,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._store = store
        self._views = views
        self._peers = peers

    async def find(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """All commits, or those of a consumer or for a stream, ordered by key.

        Raises: PartitionFailed, Indeterminate, NotLeader, Broken.
        """
        answer = await self._at_leader(OFFSETS_STREAM, 0, _Find(consumer, stream))
        found = msgspec.msgpack.decode(answer, type=list[CommittedOffset])
        return await self._with_positions(found)

    async def remove(
        self, *, consumer: str | None, stream: str | None, partition: int | None = None
    ) -> int:
        """Remove the matching commits; return their number. Raises: as `find`."""
        answer = await self._at_leader(OFFSETS_STREAM, 0, _Remove(consumer, stream, partition))
        return msgspec.msgpack.decode(answer, type=int)

    async def reset(
        self, consumer: str, stream: str, partition: int | None, to: int | str, *, at_ms: int = 0
    ) -> list[CommittedOffset]:
        """Commit another offset: a number, `earliest`, `latest`, or `time`.

        `time` means the first record at or after `at_ms` (Unix milliseconds), or the end if there
        is none. With `partition` None all partitions of the stream are reset.

        Raises: UnknownStream, UnknownPartition, OffsetOutOfRange, InvalidName, and as `find`.
        """
        count = self._views.definition(stream).partition_count
        if partition is not None and not 0 <= partition < count:
            raise UnknownPartition(stream, partition, count)
        offsets = []
        for index in range(count) if partition is None else (partition,):
            asked = _Resolve(stream, index, to, at_ms)
            offset = msgspec.msgpack.decode(await self._at_leader(stream, index, asked), type=int)
            offsets.append((OffsetKey(consumer, stream, index), offset))
        await self._at_leader(OFFSETS_STREAM, 0, _Store(offsets))
        keys = {(key.stream, key.partition) for key, _ in offsets}
        found = await self.find(consumer=consumer, stream=stream)
        return [entry for entry in found if (entry.stream, entry.partition) in keys]

    async def answer(self, body: bytes) -> bytes:
        """Carry out an operation here. Raises: NotLeader where another node leads by now."""
        asked = msgspec.msgpack.decode(body, type=_Operation)
        store = self._store
        if isinstance(asked, _Resolve):
            self._check_leader(asked.stream, asked.partition)
            offset = await store.resolve(asked.stream, asked.partition, asked.to, at_ms=asked.at_ms)
            return msgspec.msgpack.encode(offset)
        self._check_leader(OFFSETS_STREAM, 0)
        if isinstance(asked, _Store):
            await store.commit([(key, Commit(offset=offset)) for key, offset in asked.offsets])
            return b""
        if isinstance(asked, _Remove):
            removed = await store.remove(
                consumer=asked.consumer, stream=asked.stream, partition=asked.partition
            )
            return msgspec.msgpack.encode(len(removed))
        await store.wait_caught_up()
        # There may be a million commits: too slow for the event loop.
        return await asyncio.to_thread(
            lambda: msgspec.msgpack.encode(
                store.entries(consumer=asked.consumer, stream=asked.stream)
            )
        )

    def _check_leader(self, stream: str, partition: int) -> None:
        found = self._partitions.stream(stream)
        if found is None or partition >= len(found):
            raise NotLeader(None, 0)
        if not found[partition].is_leader:
            raise NotLeader(None, found[partition].leader_epoch)

    async def _at_leader(self, stream: str, partition: int, asked: _Operation) -> bytes:
        """Have the leader of a partition carry out an operation; all of them may be repeated."""
        body = msgspec.msgpack.encode(asked)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_SECONDS_MAX
        while True:
            try:
                leader = self._leader(stream, partition)
                if leader == self._node_id:
                    return await self.answer(body)
                return await self._peers.control(
                    leader, OFFSETS, body, timeout_s=ANSWER_SECONDS_MAX
                )
            except (NotLeader, Broken) as error:
                if loop.time() > deadline:
                    raise
                log.debug("no leader for committed offsets yet", extra={"error": str(error)})
            await asyncio.sleep(RETRY_SECONDS)

    def _leader(self, stream: str, partition: int) -> int:
        """Raises: NotLeader where there is none, UnknownStream."""
        states = self._views.states(self._views.definition(stream).id)
        state = states[partition] if partition < len(states) else None
        if state is None or state.leader == NO_LEADER:
            raise NotLeader(None, 0 if state is None else state.leader_epoch)
        return state.leader

    async def _with_positions(self, found: list[CommittedOffset]) -> list[CommittedOffset]:
        """With the positions of the leaders. The leader of `_offsets` may follow them, or hold no
        replica."""
        names = {entry.stream for entry in found}
        if len(names) > DESCRIBED_MAX:
            infos = await self._views.describe_all(">")
        else:
            infos = []
            for name in names:
                try:
                    infos.append(await self._views.describe(name))
                except UnknownStream:
                    continue
        positions: dict[tuple[str, int], PartitionInfo] = {
            (info.definition.name, each.partition): each
            for info in infos
            for each in info.partitions
        }
        return [
            _with_position(each, positions.get((each.stream, each.partition))) for each in found
        ]


def _with_position(entry: CommittedOffset, info: PartitionInfo | None) -> CommittedOffset:
    if info is None:
        return entry
    return replace(entry, start_offset=info.start_offset, high_watermark=info.high_watermark)
