"""Purges: the leader of a partition moves the start of its log, then its followers do.

A purge is confirmed once no replica that may lead has the records any more: who leads next does not
serve them again. Other replicas move their starts when they follow again, and before they are in
sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.errors import BasculeError, Broken, Indeterminate, NotLeader
from bascule.metadata.controller import check_purge
from bascule.model import NO_LEADER, StreamDefinition
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.maintenance.purging import check_epoch, follow_start, purge
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

PURGE: Final = "purge"
"""The kind of control request that has a leader move the start of its logs."""
FOLLOW_STARTS: Final = "follow starts"
"""The kind of control request that has a follower move the start of its logs."""
PURGE_SECONDS_MAX: Final = 20.0
CONFIRM_SECONDS_MAX: Final = 6.0
"""For the replicas in sync to follow: less than clients wait. One that is lost leaves the ISR in
some 1.5 s."""
FOLLOW_SECONDS_MAX: Final = 3.0
"""For a follower to hear that what is purged is committed, and to move its start."""
RETRY_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.01


class _Purge(msgspec.Struct, array_like=True):
    stream_id: bytes
    partitions: list[int]
    to_offset: int | None
    before_ms: int | None


class _Starts(msgspec.Struct, array_like=True):
    """Where the logs of a leader start."""

    stream_id: bytes
    starts: dict[int, int]
    """Partition -> offset."""
    leader_epochs: dict[int, int] = {}
    """Partition -> the leader epoch of who asks. Whoever follows a later one refuses, see
    `check_epoch`. An earlier release does not say: then the epoch must not change meanwhile."""


class Purges:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        metadata: MetadataGroup,
        peers: Peers,
        reserve: DiskReserve,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._metadata = metadata
        self._peers = peers
        self._reserve = reserve

    async def purge(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamDefinition:
        """See `ClusterController.purge_stream`."""
        image = self._metadata.image
        definition = check_purge(image, name, partition=partition)
        by_leader: dict[int, list[int]] = {}
        for index, state in enumerate(image.partitions[definition.id]):
            if partition in (None, index):
                if state.leader == NO_LEADER:
                    raise NotLeader(None, state.leader_epoch)
                by_leader.setdefault(state.leader, []).append(index)
        for leader, indexes in by_leader.items():
            body = msgspec.msgpack.encode(_Purge(definition.id, indexes, to_offset, before_ms))
            if leader == self._node_id:
                await self.answer_purge(body)
            else:
                await self._peers.control(leader, PURGE, body, timeout_s=PURGE_SECONDS_MAX)
        return definition

    async def answer_purge(self, body: bytes) -> bytes:
        """As the leader: move the start of logs; return once the replicas in sync have followed.

        Raises: as `purge`; Indeterminate where a replica in sync has not followed in time.
        """
        asked = msgspec.msgpack.decode(body, type=_Purge)
        partitions = self._partitions.stream_by_id(asked.stream_id) or ()
        starts: dict[int, int] = {}
        for index in asked.partitions:
            found = partitions[index] if index < len(partitions) else None
            if found is not None and found.failure is not None:
                raise found.failure
            if found is None or not found.is_leader:
                raise NotLeader(None, 0 if found is None else found.leader_epoch)
            await asyncio.to_thread(
                self._reserve.run,
                purge,
                found,
                to_offset=asked.to_offset,
                before_ms=asked.before_ms,
            )
            self._partitions.notify_watchers(found)
            starts[index] = found.start_offset
        try:
            async with asyncio.timeout(CONFIRM_SECONDS_MAX):
                await self._have_followed(asked.stream_id, starts)
        except TimeoutError:
            raise _not_confirmed("a replica that may lead still has the records") from None
        return b""

    async def _have_followed(self, stream_id: bytes, starts: Mapping[int, int]) -> None:
        """Return once all replicas that may lead have moved the starts of their logs.

        Raises: Indeterminate where this node does not lead any more.
        """
        done: set[tuple[int, int]] = set()
        while True:
            waiting: dict[int, _Starts] = {}
            for index, offset in starts.items():
                epoch, nodes = self._may_lead(stream_id, index)
                for node in nodes:
                    if node != self._node_id and (node, index) not in done:
                        asked = waiting.setdefault(node, _Starts(stream_id, {}, {}))
                        asked.starts[index], asked.leader_epochs[index] = offset, epoch
            if not waiting:
                return
            answers = await asyncio.gather(*map(self._ask, waiting, waiting.values()))
            for (node, asked), has_followed in zip(waiting.items(), answers, strict=True):
                done |= {(node, index) for index in asked.starts} if has_followed else set()
            if not all(answers):
                # A node that is lost leaves the ISR soon.
                await asyncio.sleep(RETRY_SECONDS)

    def _may_lead(self, stream_id: bytes, index: int) -> tuple[int, list[int]]:
        """The leader epoch that this node leads, and the replicas that may lead the next one: those
        that are in sync, are about to be, or are eligible without that."""
        held = self._partitions.stream_by_id(stream_id) or ()
        if index >= len(held) or not held[index].is_leader:
            raise _not_confirmed("another node leads the partition now")
        # Before the image, which has what was proposed when this does not any more.
        proposed = held[index].commitment.proposed_isr
        states = self._metadata.image.partitions.get(stream_id, ())
        found = (states[index].isr, states[index].eligible) if index < len(states) else ()
        return held[index].leader_epoch, sorted({*proposed, *(n for some in found for n in some)})

    async def _ask(self, node: int, starts: _Starts) -> bool:
        body = msgspec.msgpack.encode(starts)
        try:
            await self._peers.control(node, FOLLOW_STARTS, body, timeout_s=FOLLOW_SECONDS_MAX)
        except BasculeError:
            return False
        return True

    async def answer_follow_starts(self, body: bytes) -> bytes:
        """As a follower: move the starts of logs. Raises: Broken where that takes too long, and as
        `follow_start`."""
        asked = msgspec.msgpack.decode(body, type=_Starts)
        partitions = self._partitions.stream_by_id(asked.stream_id) or ()
        if any(index >= len(partitions) for index in asked.starts):
            raise Broken(f"node {self._node_id} does not hold these partitions yet")
        chosen = [
            (each, offset, asked.leader_epochs.get(index, each.leader_epoch))
            for index, offset in asked.starts.items()
            for each in (partitions[index],)
        ]
        try:
            async with asyncio.timeout(FOLLOW_SECONDS_MAX):
                await self._follow(chosen)
        except TimeoutError:
            raise Broken(f"node {self._node_id} has not moved the starts of its logs") from None
        for partition, _, epoch in chosen:
            check_epoch(partition, epoch)
        return b""

    async def _follow(self, chosen: Sequence[tuple[Partition, int, int]]) -> None:
        for partition, offset, epoch in chosen:
            check_epoch(partition, epoch)
            while partition.committed_offset < offset:
                await asyncio.sleep(POLL_SECONDS)
                check_epoch(partition, epoch)
            await asyncio.to_thread(self._reserve.run, follow_start, partition, offset, epoch)
            self._partitions.notify_watchers(partition)


def _not_confirmed(why: str) -> Indeterminate:
    return Indeterminate(f"{why}; the records may come back: purge again")
