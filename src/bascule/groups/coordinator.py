"""Runs the groups that this node coordinates: those whose partition of `_offsets` it leads."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from bascule.errors import BasculeError, NotLeader
from bascule.groups.classic import (
    ClassicGroup,
    GroupAnswer,
    GroupLimits,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Store,
    SyncAnswer,
)
from bascule.groups.classic.snapshot import decode_snapshot, encode_snapshot
from bascule.groups.committed_offsets import CommittedOffsetStore
from bascule.host.api import Random
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.groups")

GROUPS_MAX: Final = 10_000
"""Groups with members at a time; further ones are told to try again."""
BYTES_MAX: Final = 256 << 20
"""Metadata and assignments of all groups together. Beyond it joins are refused."""
STALE_ENTRIES_MAX: Final = 1_000
"""Of the timer's heap, for groups that are forgotten or due earlier, beyond one of each group."""
CLIENT_ID_LENGTH_MAX: Final = 100
"""Of a client id or an instance id within a member id."""

T = TypeVar("T", JoinAnswer, SyncAnswer)


@dataclass(slots=True)
class GroupCounts:
    """Counters for metrics; `states` and `members` are of now."""

    rebalances: int = 0
    expired: int = 0
    """Members removed because they were not heard of, or did not join in time."""
    states: dict[str, int] = field(default_factory=dict)
    """State -> groups in it."""
    members: int = 0


@dataclass(slots=True, eq=False)
class _Running:
    """A group, and what the coordinator knows about it."""

    name: str
    group: ClassicGroup
    due_ms: int | None = None
    """The earliest entry of the heap for it."""
    size_bytes: int = 0
    generation: int = 0
    """The last one that was logged."""


class GroupCoordinator:
    """Used on the event loop. One timer serves all groups."""

    def __init__(
        self,
        partitions: Partitions,
        offsets: CommittedOffsetStore,
        dice: Random,
        limits: GroupLimits | None = None,
    ) -> None:
        self._partitions = partitions
        self._offsets = offsets
        self._dice = dice
        self._limits = limits or GroupLimits()
        self._groups: dict[str, _Running] = {}
        self._epoch: int | None = None
        """The leader epoch of `_offsets` for which the groups are loaded; None: they are not."""
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[JoinAnswer | SyncAnswer]] = {}
        self._due: list[tuple[int, int, _Running]] = []
        """Heap of due time, number, group. An entry may be earlier than the group's deadline."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._storing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._size_bytes = 0
        self._rebalances = 0
        self._expired = 0

    def start(self) -> None:
        """Coordinate the groups whenever this node leads the stream. `offsets` must run."""
        self._offsets.on_read = self.refresh
        self.refresh()

    async def close(self) -> None:
        """Answer all that wait, so that clients look for another coordinator."""
        self._is_closed = True
        self._unload()
        for task in self._storing:
            task.cancel()
        if self._storing:
            await asyncio.wait(self._storing)

    def counts(self) -> GroupCounts:
        """The counters now."""
        running = self._groups.values()
        return GroupCounts(
            self._rebalances,
            self._expired,
            dict(Counter(str(each.group.state) for each in running)),
            sum(len(each.group.members) for each in running),
        )

    # -- requests -------------------------------------------------------------------------------

    async def join(self, name: str, request: JoinRequest) -> JoinAnswer:
        """Join a group. The answer may wait until the other members have joined, too."""
        error = self.error()
        if not error and self._size_bytes > BYTES_MAX:
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        running = self._groups.get(name)
        if not error and running is None:
            error = self._new_group_error(request)
        if error:
            return JoinAnswer(error, member_id=request.member_id)
        if running is None:
            running = self._groups[name] = _Running(name, ClassicGroup(self._limits))
        prefix = request.instance_id or request.client_id
        drawn = f"{prefix[:CLIENT_ID_LENGTH_MAX]}-{self._dice.bytes(16).hex()}"
        ticket, answer = self._wait_for(JoinAnswer)
        request = replace(request, new_member_id=drawn)
        running.group.on_join(request, ticket, self._now_ms())
        self._carry_out(running)
        return await self._answered(running, ticket, answer)

    async def sync(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Sequence[tuple[str, bytes]],
        *,
        protocol_type: str | None,
        protocol: str | None,
    ) -> SyncAnswer:
        """The assignment of a member, once the leader has brought it and it is stored."""
        error, running = self._find(name)
        if running is None:
            return SyncAnswer(error)
        ticket, answer = self._wait_for(SyncAnswer)
        running.group.on_sync(
            member_id,
            instance_id,
            generation,
            assignments,
            ticket,
            self._now_ms(),
            protocol_type=protocol_type,
            protocol=protocol,
        )
        self._carry_out(running)
        return await self._answered(running, ticket, answer)

    def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """A member is alive; the error tells it what to do."""
        error, running = self._find(name)
        if running is None:
            return error
        return running.group.on_heartbeat(member_id, instance_id, generation, self._now_ms())

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members leave, named by id, instance id or both; the error of each."""
        error, running = self._find(name)
        if running is None:
            return [error] * len(leaving)
        errors = running.group.on_leave(leaving, self._now_ms())
        self._carry_out(running)
        return errors

    def commit_error(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Why offsets are not committed, or NONE. Who is no member has a generation below 0."""
        error = self.error()
        if error:
            return error
        running = self._groups.get(name)
        if running is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        return running.group.on_commit(member_id, instance_id, generation, self._now_ms())

    def _find(self, name: str) -> tuple[ErrorCode, _Running | None]:
        error = self.error()
        found = None if error else self._groups.get(name)
        return error or ErrorCode.UNKNOWN_MEMBER_ID, found

    def _new_group_error(self, request: JoinRequest) -> ErrorCode:
        if request.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if len(self._groups) >= GROUPS_MAX:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _wait_for(self, kind: type[T]) -> tuple[int, asyncio.Future[T]]:
        ticket, answer = next(self._tickets), asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        return ticket, answer

    async def _answered(self, running: _Running, ticket: int, answer: asyncio.Future[T]) -> T:
        try:
            return await answer
        except asyncio.CancelledError:
            # The client has closed its connection.
            self._waiting.pop(ticket, None)
            running.group.on_disconnect(ticket, self._now_ms())
            self._carry_out(running)
            raise

    # -- groups ---------------------------------------------------------------------------------

    def _carry_out(self, running: _Running) -> None:
        """Carry out the effects of a group, and see to its deadline."""
        group = running.group
        for effect in group.take_effects():
            match effect:
                case GroupAnswer():
                    waiting = self._waiting.pop(effect.ticket, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(effect.answer)
                case Store():
                    task = asyncio.create_task(self._store(running, effect))
                    self._storing.add(task)
                    task.add_done_callback(self._storing.discard)
        self._account(running)
        if group.is_forgettable:
            self._forget(running)
        else:
            self._schedule(running)

    def _account(self, running: _Running) -> None:
        group = running.group
        size = group.size_bytes
        self._size_bytes += size - running.size_bytes
        running.size_bytes = size
        self._rebalances += group.rebalances
        self._expired += group.expired
        if group.expired:
            log.info(
                "members of a group expired",
                extra={"group": running.name, "members": group.expired},
            )
        group.rebalances = group.expired = 0
        if group.state is GroupState.STABLE and running.generation != group.generation:
            running.generation = group.generation
            log.info(
                "generation of a group",
                extra={
                    "group": running.name,
                    "generation": group.generation,
                    "members": len(group.members),
                    "protocol": group.protocol,
                },
            )

    def _forget(self, running: _Running) -> None:
        self._size_bytes -= running.size_bytes
        running.size_bytes = 0
        if self._groups.get(running.name) is running:
            del self._groups[running.name]

    async def _store(self, running: _Running, effect: Store) -> None:
        error = ErrorCode.NONE
        try:
            state = None if effect.snapshot is None else encode_snapshot(effect.snapshot)
            await self._offsets.store_group(running.name, state)
        except BasculeError as failure:
            log.warning(
                "members of a group not stored",
                extra={"group": running.name, "error": str(failure)},
            )
            is_elsewhere = isinstance(failure, NotLeader)
            error = (
                ErrorCode.NOT_COORDINATOR if is_elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        running.group.on_stored(effect.number, error, self._now_ms())
        if self._groups.get(running.name) is running:
            self._carry_out(running)

    # -- time -----------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _schedule(self, running: _Running) -> None:
        """Note the group's deadline, unless there is an earlier entry for it already."""
        deadline = running.group.next_deadline_ms()
        if deadline is None or (running.due_ms is not None and running.due_ms <= deadline):
            return
        running.due_ms = deadline
        heapq.heappush(self._due, (deadline, next(self._numbers), running))
        if len(self._due) > 2 * len(self._groups) + STALE_ENTRIES_MAX:
            self._due = [entry for entry in self._due if self._is_present(entry)]
            heapq.heapify(self._due)
        if self._due[0][2] is running:
            self._set_timer()

    def _is_present(self, entry: tuple[int, int, _Running]) -> bool:
        due_ms, _, running = entry
        return running.due_ms == due_ms and self._groups.get(running.name) is running

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            # One millisecond later: the times of the groups are rounded down.
            at = (self._due[0][0] + 1) / 1000
            self._timer = asyncio.get_running_loop().call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self._now_ms()
        while self._due and self._due[0][0] <= now_ms:
            entry = heapq.heappop(self._due)
            if self._is_present(entry):
                running = entry[2]
                running.due_ms = None
                running.group.on_time(now_ms)
                self._carry_out(running)
        self._set_timer()

    # -- which groups ---------------------------------------------------------------------------

    def error(self) -> ErrorCode:
        """Why this node does not answer for groups now, or NONE."""
        self.refresh()
        if self._epoch is not None:
            return ErrorCode.NONE
        partition = self._led()
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        if partition.failure is not None:
            # It stays so until an operator acts: clients must not try again without end.
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _led(self) -> Partition | None:
        """The partition of the groups, if this node leads it."""
        stream = self._partitions.stream(OFFSETS_STREAM)
        return stream[0] if stream and stream[0].is_leader and not self._is_closed else None

    def refresh(self) -> None:
        """Load the groups if this node leads them now, and drop them if it does not any more."""
        partition = self._led()
        epoch = None
        if partition is not None and partition.failure is None:
            epoch = partition.leader_epoch
        if self._epoch is not None and epoch != self._epoch:
            self._unload()
        if (
            partition is not None
            and epoch is not None
            and self._epoch is None
            and partition.knows_end
            and self._offsets.has_read_all
        ):
            self._load(epoch)

    def _load(self, epoch: int) -> None:
        self._epoch = epoch
        for name, state in self._offsets.group_states.items():
            try:
                snapshot = decode_snapshot(state)
            except ValueError as error:
                log.warning(
                    "members of a group cannot be read", extra={"group": name, "error": str(error)}
                )
                continue
            group = ClassicGroup.restore(snapshot, self._limits, self._now_ms())
            running = _Running(name, group, generation=group.generation)
            self._groups[name] = running
            self._carry_out(running)
        log.info("groups loaded", extra={"groups": len(self._groups), "leader_epoch": epoch})

    def _unload(self) -> None:
        groups, self._groups, self._epoch = self._groups, {}, None
        for running in groups.values():
            running.group.unload(ErrorCode.NOT_COORDINATOR)
            self._carry_out(running)
        self._due.clear()
        self._set_timer()
