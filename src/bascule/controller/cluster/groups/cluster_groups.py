"""Operations on groups at any node: they are carried out by the leader of `_offsets`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from bascule.controller.cluster.groups.partition_ends import Ends, PartitionEnds, Place
from bascule.controller.cluster.metadata_group import Peers
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import (
    Broken,
    ConfigError,
    GroupHasMembers,
    NotLeader,
    UnknownGroup,
    UnknownPartition,
    UnknownStream,
)
from bascule.group_results import (
    CommittedOffset,
    GroupInfo,
    GroupListing,
    GroupMemberInfo,
    GroupOffset,
    OffsetReset,
    lag_sum,
)
from bascule.groups import CommittedOffsetStore, GroupAdministration
from bascule.groups.described import DescribedGroup, GroupSummary, RunningGroups
from bascule.model import NO_LEADER
from bascule.replica.partitions import Partitions
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import OFFSETS_STREAM, Commit, OffsetKey, check_consumer

log = logging.getLogger("bascule.controller")

OFFSETS: Final = "offsets"
"""The kind of control request with an operation on groups and committed offsets."""
ANSWER_SECONDS_MAX: Final = 15.0
RETRY_SECONDS_MAX: Final = 5.0
"""For an operation while the partition has no leader, or another one than is known here."""
RETRY_SECONDS: Final = 0.1
DECODED_BYTES_MAX: Final = 100_000
"""Of an answer that the event loop decodes: about 1 ms. Larger ones are decoded on a thread."""
RESOLVED_AT_ONCE: Final = 16
"""Positions that are asked for at the same time."""


class _Find(msgspec.Struct, tag=True):
    consumer: str | None
    stream: str | None


class _List(msgspec.Struct, tag=True):
    states: list[str]
    types: list[str]


class _Describe(msgspec.Struct, tag=True):
    group: str


class _Delete(msgspec.Struct, tag=True):
    group: str


class _Remove(msgspec.Struct, tag=True):
    consumer: str
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
    is_clamped: bool = False


_Operation: TypeAlias = _Find | _List | _Describe | _Delete | _Remove | _Store | _Resolve


class ConfirmedGroups(RunningGroups, Protocol):
    """The groups of this node, which asks whether another one coordinates them."""

    async def confirmed_error(self) -> ErrorCode:
        """Why this node coordinates no groups now, or NONE. Then no other node has acknowledged
        anything before the call."""
        ...


class ClusterGroups:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        store: CommittedOffsetStore,
        groups: ConfirmedGroups,
        ends: PartitionEnds,
        views: ClusterViews,
        peers: Peers,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._store = store
        self._groups = groups
        self._administration = GroupAdministration(groups, store)
        self._ends = ends
        self._views = views
        self._peers = peers

    # -- views ----------------------------------------------------------------------------------

    async def find(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """All commits, or those of a consumer or for a stream, ordered by key.

        Raises: PartitionFailed, Indeterminate, NotLeader, Broken.
        """
        found = await self._at_coordinator(_Find(consumer, stream), list[CommittedOffset])
        # There may be a million commits: too slow for the event loop, as in the next steps.
        places = await asyncio.to_thread(_places_of, found)
        ends = await self._ends.find(places)
        return await asyncio.to_thread(_all_with_ends, found, ends)

    async def list_groups(
        self,
        *,
        stream: str | None = None,
        states: Collection[str] = (),
        types: Collection[str] = (),
    ) -> list[GroupListing]:
        """The groups, by name: those in one of these states and of one of these types.

        With `stream` those that have offsets for it, with the partitions and the lag of it alone.
        Raises: as `find`.
        """
        asked = _List(list(states), list(types))
        summaries = await self._at_coordinator(asked, list[GroupSummary])
        offsets = await self.find(stream=stream)
        return await asyncio.to_thread(_listings, summaries, offsets, is_partial=stream is not None)

    async def describe(self, group: str) -> GroupInfo:
        """A group with its members and offsets. Raises: UnknownGroup, and as `find`."""
        described = await self._at_coordinator(_Describe(group), DescribedGroup | None)
        if described is None:
            raise UnknownGroup(group)
        commits = await self._at_coordinator(_Find(group, None), list[CommittedOffset])
        owners = {
            place: member.member_id
            for member in described.members
            for place in member.partitions or ()
        }
        committed = {(each.stream, each.partition): each for each in commits}
        places = sorted(committed.keys() | owners.keys())
        ends = await self._ends.find(places)
        return GroupInfo(
            group,
            str(described.summary.type),
            described.summary.state,
            described.summary.protocol_type,
            described.protocol,
            self._leader(OFFSETS_STREAM, 0),
            tuple(
                GroupMemberInfo(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.partitions,
                )
                for each in described.members
            ),
            tuple(
                _group_offset(place, committed.get(place), ends.get(place), owners.get(place, ""))
                for place in places
            ),
        )

    # -- changes --------------------------------------------------------------------------------

    async def delete(
        self, group: str, *, stream: str | None = None, partition: int | None = None
    ) -> int:
        """Delete a group, or only its offsets for a stream; return how many offsets it had.

        Raises: UnknownGroup, GroupHasMembers, and as `find`.
        """
        asked: _Operation = _Delete(group)
        if stream is not None or partition is not None:
            asked = _Remove(group, stream, partition)
        removed: int = await self._at_coordinator(asked, int)
        return removed

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
        """Commit other offsets for a group without members; or say only what that would do.

        `to` is an offset, `earliest`, `latest`, or `time`: the first record at or after `at_ms`
        (Unix milliseconds), or the end if there is none. With `stream` None all streams for which
        the group has offsets are reset, with `partition` None all partitions.

        Raises: UnknownGroup, UnknownStream, UnknownPartition, OffsetOutOfRange, InvalidName,
        GroupHasMembers, ConfigError, and as `find`.
        """
        before = await self._resettable(group, stream)
        places = self._places(group, before, stream, partition)
        asked = [_Resolve(*place, to, at_ms) for place in places]
        return await self._reset(group, before, asked, is_dry_run=is_dry_run)

    async def shift(
        self,
        group: str,
        *,
        by: int,
        stream: str | None = None,
        partition: int | None = None,
        is_dry_run: bool = False,
    ) -> list[OffsetReset]:
        """As `reset`, `by` records further than the committed offsets, or back where it is below 0.

        No offset leaves what its partition holds. Partitions without an offset are left out.

        Raises: as `reset`, and ConfigError where no partition has an offset.
        """
        before = await self._resettable(group, stream)
        places = [p for p in self._places(group, before, stream, partition) if p in before]
        if not places:
            raise ConfigError(
                f"group {group!r} has no committed offset there that could be shifted: reset it to "
                "a position instead",
                field="shift_by",
            )
        asked = [_Resolve(*place, before[place] + by, 0, is_clamped=True) for place in places]
        return await self._reset(group, before, asked, is_dry_run=is_dry_run)

    async def _resettable(self, group: str, stream: str | None) -> dict[Place, int]:
        """The committed offsets of a group without members."""
        check_consumer(group)
        described = await self._at_coordinator(_Describe(group), DescribedGroup | None)
        if described is not None and described.members:
            raise GroupHasMembers(group)
        commits = await self._at_coordinator(_Find(group, stream), list[CommittedOffset])
        return {(each.stream, each.partition): each.offset for each in commits}

    async def _reset(
        self,
        group: str,
        before: Mapping[Place, int],
        positions: Sequence[_Resolve],
        *,
        is_dry_run: bool,
    ) -> list[OffsetReset]:
        gate = asyncio.Semaphore(RESOLVED_AT_ONCE)

        async def resolve(asked: _Resolve) -> OffsetReset:
            place = asked.stream, asked.partition
            async with gate:
                offset, start, end = await self._at_leader(*place, asked, tuple[int, int, int])
            return OffsetReset(*place, before.get(place), offset, start, end)

        done = list(await asyncio.gather(*map(resolve, positions)))
        if not is_dry_run:
            offsets = [(OffsetKey(group, e.stream, e.partition), e.offset) for e in done]
            await self._at_coordinator(_Store(offsets), type(None))
        return done

    def _places(
        self,
        group: str,
        before: Mapping[Place, int],
        stream: str | None,
        partition: int | None,
    ) -> list[Place]:
        """The partitions that a reset is about, in order."""
        if stream is not None:
            count = self._views.definition(stream).partition_count
            if partition is not None and not 0 <= partition < count:
                raise UnknownPartition(stream, partition, count)
            indexes = range(count) if partition is None else (partition,)
            return [(stream, index) for index in indexes]
        if not before:
            raise UnknownGroup(group)
        places = []
        for name in sorted({name for name, _ in before}):
            try:
                count = self._views.definition(name).partition_count
            except UnknownStream:
                continue  # it has been deleted, and its offsets are about to be
            places += [(name, index) for index in range(count)]
        return places

    # -- at the leader --------------------------------------------------------------------------

    async def answer(self, body: bytes) -> bytes:
        """Carry out an operation here. Raises: NotLeader where another node leads by now."""
        asked = msgspec.msgpack.decode(body, type=_Operation)
        if isinstance(asked, _Resolve):
            self._check_leader(asked.stream, asked.partition)
            return msgspec.msgpack.encode(await self._resolve(asked))
        self._check_leader(OFFSETS_STREAM, 0)
        store = self._store
        await store.wait_caught_up()
        if await self._groups.confirmed_error():
            # An earlier leader may have stored members and commits that are not known here yet, or
            # a later one, of which this node has not heard.
            raise NotLeader(None)
        match asked:
            case _List() | _Describe() | _Delete():
                return await self._answer_about_groups(asked)
            case _Store():
                commits = [(key, Commit(offset=offset)) for key, offset in asked.offsets]
                await store.commit(commits)
                return msgspec.msgpack.encode(None)
            case _Remove():
                removed = await store.remove(
                    consumer=asked.consumer, stream=asked.stream, partition=asked.partition
                )
                return msgspec.msgpack.encode(len(removed))
        return await asyncio.to_thread(
            lambda: msgspec.msgpack.encode(
                store.entries(consumer=asked.consumer, stream=asked.stream)
            )
        )

    async def _answer_about_groups(self, asked: _List | _Describe | _Delete) -> bytes:
        match asked:
            case _List():
                found = await self._administration.list_groups(
                    states=asked.states, types=asked.types
                )
                return await asyncio.to_thread(msgspec.msgpack.encode, found)
            case _Describe():
                return _encode_group(self._administration.describe(asked.group))
            case _Delete():
                return msgspec.msgpack.encode(await self._delete(asked.group))

    async def _delete(self, group: str) -> int:
        count = len(self._store.keys(group))
        error = (await self._administration.delete([group]))[group]
        if error is ErrorCode.GROUP_ID_NOT_FOUND:
            raise UnknownGroup(group)
        if error:
            raise GroupHasMembers(group)
        return count

    async def _resolve(self, asked: _Resolve) -> tuple[int, int, int]:
        """The offset of a position, and where the partition begins and ends."""
        offset = await self._store.resolve(
            asked.stream,
            asked.partition,
            asked.to,
            at_ms=asked.at_ms,
            is_clamped=asked.is_clamped,
        )
        found = self._partitions.stream(asked.stream)
        assert found is not None
        partition = found[asked.partition]
        return offset, partition.start_offset, partition.high_watermark.offset

    def _check_leader(self, stream: str, partition: int) -> None:
        found = self._partitions.stream(stream)
        if found is None or partition >= len(found):
            raise NotLeader(None, 0)
        if not found[partition].is_leader:
            raise NotLeader(None, found[partition].leader_epoch)

    async def _at_coordinator(self, asked: _Operation, kind: Any) -> Any:
        return await self._at_leader(OFFSETS_STREAM, 0, asked, kind)

    async def _at_leader(self, stream: str, partition: int, asked: _Operation, kind: Any) -> Any:
        """Have the leader of a partition carry out an operation; all of them may be repeated."""
        body = msgspec.msgpack.encode(asked)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_SECONDS_MAX
        while True:
            try:
                leader = self._leader(stream, partition)
                if leader == self._node_id:
                    answer = await self.answer(body)
                else:
                    answer = await self._peers.control(
                        leader, OFFSETS, body, timeout_s=ANSWER_SECONDS_MAX
                    )
                if len(answer) > DECODED_BYTES_MAX:
                    return await asyncio.to_thread(msgspec.msgpack.decode, answer, type=kind)
                return msgspec.msgpack.decode(answer, type=kind)
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


def _encode_group(group: DescribedGroup | None) -> bytes:
    """Without what only clients of the classic protocol read."""
    if group is not None:
        members = [replace(each, metadata=b"", assignment=b"") for each in group.members]
        group = replace(group, members=tuple(members))
    return msgspec.msgpack.encode(group)


def _places_of(found: Sequence[CommittedOffset]) -> set[Place]:
    return {(each.stream, each.partition) for each in found}


def _all_with_ends(
    found: Sequence[CommittedOffset], ends: Mapping[Place, Ends]
) -> list[CommittedOffset]:
    """Without ends where they are not known."""
    done = []
    for each in found:
        start, end = ends.get((each.stream, each.partition)) or (None, None)
        done.append(replace(each, start_offset=start, high_watermark=end))
    return done


def _group_offset(
    place: Place, commit: CommittedOffset | None, ends: Ends | None, owner: str
) -> GroupOffset:
    start, end = ends or (None, None)
    return GroupOffset(
        *place,
        None if commit is None else commit.offset,
        start,
        end,
        owner,
        0 if commit is None else commit.committed_ms,
        "" if commit is None else commit.metadata,
    )


def _listings(
    summaries: Sequence[GroupSummary], offsets: Sequence[CommittedOffset], *, is_partial: bool
) -> list[GroupListing]:
    """The groups by name; with `is_partial` only those with offsets."""
    lags: dict[str, list[int | None]] = {}
    for each in offsets:
        lags.setdefault(each.consumer, []).append(each.lag)
    return [
        GroupListing(
            each.name,
            str(each.type),
            each.state,
            each.members,
            len(lags.get(each.name, ())),
            lag_sum(lags.get(each.name, ())),
        )
        for each in sorted(summaries, key=attrgetter("name"))
        if not is_partial or each.name in lags
    ]
