"""Runs the groups that this node coordinates: those whose partition of `_offsets` it leads."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from bascule.errors import NeedsClusterVersion, NotLeader
from bascule.groups.classic import (
    ClassicGroup,
    Effect,
    GroupAnswer,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Store,
    SyncAnswer,
)
from bascule.groups.classic.member import joining_bytes
from bascule.groups.committed_offsets import CommittedOffsetStore
from bascule.groups.consumer import (
    JOINS,
    ConsumerEffect,
    ConsumerGroup,
    MemberAnswer,
    MemberHeartbeat,
    ReadyAnswer,
    StoreRecords,
    to_classic_group,
    to_consumer_group,
)
from bascule.groups.consumer.heartbeats import (
    HeartbeatRefusal,
    heartbeat_growth_bytes,
    request_error,
)
from bascule.groups.deadlines import Deadlines
from bascule.groups.described import DescribedGroup, GroupSummary
from bascule.groups.descriptions import describe_group, summary_of
from bascule.groups.memory import GroupMemory
from bascule.groups.offset_records import stop_of
from bascule.groups.running import (
    Group,
    GroupCounts,
    Records,
    RunningGroup,
    records_of,
    restore_group,
    store_group,
)
from bascule.groups.subscribable import SubscribableStreams
from bascule.host.api import Random
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.groups")

GROUPS_MAX: Final = 10_000
"""Groups with members at a time; further ones are told to try again."""
CLIENT_ID_LENGTH_MAX: Final = 100
"""Of a client id or an instance id within a member id."""

LOAD_BYTES: Final = 64 << 10
"""Of stored states that are loaded before other work of the event loop comes in between: 2 ms."""
FULL: Final = MemberAnswer(
    ErrorCode.GROUP_MAX_SIZE_REACHED, "all groups together take as much memory as they may"
)

T = TypeVar("T", JoinAnswer, SyncAnswer, MemberAnswer)


class GroupCoordinator:
    """Used on the event loop. One timer serves all groups."""

    def __init__(
        self,
        partitions: Partitions,
        offsets: CommittedOffsetStore,
        dice: Random,
        limits: GroupLimits | None = None,
        *,
        check_version: Callable[[], None] = lambda: None,
        is_cut_off: Callable[[], bool] = lambda: False,
        leads: Callable[[Partition], Awaitable[bool]] | None = None,
    ) -> None:
        """`check_version` raises NeedsClusterVersion where not all nodes know the records of groups
        of the consumer protocol. `is_cut_off` says whether the cluster may have another coordinator
        by now, of which this node has not heard, and `leads` asks the cluster whether it has; None:
        there is no other node."""
        self._partitions = partitions
        self._topics = SubscribableStreams(partitions)
        self._check_version = check_version
        self._is_cut_off = is_cut_off
        self._leads = leads
        self._offsets = offsets
        self._dice = dice
        self._limits = limits or GroupLimits()
        self._groups: dict[str, RunningGroup] = {}
        self._epoch: int | None = None
        """The leader epoch of `_offsets` for which the groups are loaded; None: they are not."""
        self._to_load: deque[str] = deque()
        """Names of stored groups that are not loaded yet."""
        self._next_slice: asyncio.Handle | None = None
        """Loads the next ones."""
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._due = Deadlines(self._on_due, self._is_present, lambda: len(self._groups))
        self._storing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._memory = GroupMemory(offsets, self._limits.total_bytes_max)
        self.on_loaded: Callable[[], None] = lambda: None
        """Called once all groups are loaded, each time that this node begins to lead."""
        self._rebalances = 0
        self._expired = 0

    def start(self) -> None:
        """Coordinate the groups whenever this node leads the stream. `offsets` must run."""
        self._offsets.on_read = self.refresh
        self._offsets.has_members = lambda name: self.summary(name) is not None
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
            self._memory.size_bytes,
            self._memory.refusals,
        )

    # -- views ----------------------------------------------------------------------------------

    @property
    def has_loaded(self) -> bool:
        """Whether this node leads, and has loaded all groups."""
        partition = self._led()
        is_led = partition is not None and partition.leader_epoch == self._epoch
        return is_led and not self._to_load

    def names(self) -> list[str]:
        """Of the groups; some may have no members yet."""
        return list(self._groups)

    def summary(self, name: str) -> GroupSummary | None:
        """A group with members as it is listed, or None."""
        running = self._groups.get(name)
        if running is None or not running.group.members:
            return None
        return summary_of(name, running.group)

    def describe(self, name: str) -> DescribedGroup | None:
        """A group with members, or None."""
        running = self._groups.get(name)
        if running is None or not running.group.members:
            return None
        return describe_group(name, running.group)

    # -- requests -------------------------------------------------------------------------------

    async def join(self, name: str, request: JoinRequest) -> JoinAnswer:
        """Join a group. The answer may wait until the other members have joined, too."""
        error = self.error(name)
        running = self._groups.get(name)
        if not error and running is None:
            error = self._new_group_error(request)
        if error:
            return JoinAnswer(error, member_id=request.member_id)
        prefix = request.instance_id or request.client_id
        drawn = f"{prefix[:CLIENT_ID_LENGTH_MAX]}-{self._dice.bytes(16).hex()}"
        request = replace(request, new_member_id=drawn)
        growth = joining_bytes(request)
        if running is not None:
            growth = running.group.join_growth_bytes(request)
        if not self._has_room(name, running, growth):
            return JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=request.member_id)
        if running is None:
            running = self._groups[name] = RunningGroup(name, ClassicGroup(self._limits))
        ticket, answer = self._wait_for(JoinAnswer)
        running.group.on_join(request, ticket, self._due.now_ms())
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
        """The assignment of a member, once the leader has brought it and it is stored.

        REBALANCE_IN_PROGRESS while the group is loaded, as in Kafka: the member joins again, and
        that waits. Not every client expects another error of a coordinator that loads.
        """
        error, running = self._find(name)
        if running is None:
            is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error)
        growth, needed = running.group.sync_growth_bytes(member_id, generation, assignments)
        if not self._has_room(name, running, growth, needed):
            return SyncAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)
        ticket, answer = self._wait_for(SyncAnswer)
        running.group.on_sync(
            member_id,
            instance_id,
            generation,
            assignments,
            ticket,
            self._due.now_ms(),
            protocol_type=protocol_type,
            protocol=protocol,
        )
        self._carry_out(running)
        return await self._answered(running, ticket, answer)

    def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """A member is alive; the error tells it what to do.

        NONE while the group is loaded, as in Kafka: nobody's session ends before it is. Not every
        client expects an error of a coordinator that loads: aiokafka's heartbeats end with it.
        """
        error, running = self._find(name)
        if running is None:
            is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ErrorCode.NONE if is_loading else error
        error = running.group.on_heartbeat(member_id, instance_id, generation, self._due.now_ms())
        if error and isinstance(running.group, ConsumerGroup):
            # From now on the group may wait for its join.
            self._carry_out(running)
        return error

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members leave, named by id, instance id or both; the error of each."""
        error, running = self._find(name)
        if running is None:
            return [error] * len(leaving)
        errors = running.group.on_leave(leaving, self._due.now_ms())
        self._carry_out(running)
        return errors

    def commit_error(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Why offsets are not committed, or NONE. Who is no member has a generation below 0."""
        error = self.error(name)
        if error is not ErrorCode.NONE:
            return error
        running = self._groups.get(name)
        if running is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        return running.group.on_commit(member_id, instance_id, generation, self._due.now_ms())

    def fetch_error(self, name: str, member_id: str, epoch: int) -> ErrorCode:
        """Why a member may not read offsets, or NONE. Those of classic groups always may."""
        error, running = self._find(name)
        if running is None:
            return error
        if isinstance(running.group, ConsumerGroup):
            return running.group.on_fetch(member_id, epoch)
        return ErrorCode.NONE

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """A group of the consumer protocol with members, to be read."""
        running = self._groups.get(name)
        group = None if running is None else running.group
        return group if isinstance(group, ConsumerGroup) else None

    def member_heartbeat(
        self, name: str, request: MemberHeartbeat
    ) -> MemberAnswer | Awaitable[MemberAnswer]:
        """A heartbeat of the consumer protocol. The answer waits if something has to be stored."""
        error = self.error(name)
        if error:
            return MemberAnswer(error)
        if not request.member_id and request.epoch == JOINS:
            request = msgspec.structs.replace(request, member_id=self._dice.bytes(16).hex())
        running = self._groups.get(name)
        if running is None or not isinstance(running.group, ConsumerGroup):
            found = self._joined_group(name, running, request)
            if isinstance(found, MemberAnswer):
                return found
            running = found
        assert isinstance(running.group, ConsumerGroup)
        growth = running.group.heartbeat_growth_bytes(request)
        if not self._has_room(name, running, growth):
            return FULL
        ticket = next(self._tickets)
        answer = running.group.on_member_heartbeat(request, ticket, self._due.now_ms())
        if answer is not None:
            if answer.error:
                # The group may have been made for a member that is refused.
                self._carry_out(running)
            return answer
        waiting: asyncio.Future[MemberAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = waiting
        self._carry_out(running)
        return self._answered(running, ticket, waiting)

    def steady_heartbeat(self, name: str, request: MemberHeartbeat) -> MemberAnswer | None:
        """The answer to a heartbeat of the consumer protocol that changes nothing; None: it is one
        for `member_heartbeat`."""
        group = None if self.error(name) else self.consumer_group(name)
        return None if group is None else group.on_steady_heartbeat(request, self._due.now_ms())

    def _joined_group(
        self, name: str, running: RunningGroup | None, request: MemberHeartbeat
    ) -> RunningGroup | MemberAnswer:
        """The group of the consumer protocol that a member joins; there has been none."""
        if request.epoch != JOINS:
            return MemberAnswer(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no such member")
        if running is None and len(self._groups) >= GROUPS_MAX:
            return MemberAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        refusal = self._version_refusal() or request_error(request)
        if refusal is not None:
            return MemberAnswer(refusal.error, refusal.reason)
        if not self._has_room(name, running, heartbeat_growth_bytes(request, None)):
            return FULL
        incarnation = self._dice.bytes(8).hex()
        if running is None:
            group = ConsumerGroup.empty(self._limits, self._topics, incarnation)
            running = self._groups[name] = RunningGroup(name, group)
            return running
        assert isinstance(running.group, ClassicGroup)
        now_ms = self._due.now_ms()
        converted = to_consumer_group(
            running.group, self._limits, self._topics, incarnation, now_ms
        )
        if converted is None:
            return MemberAnswer(
                ErrorCode.GROUP_ID_NOT_FOUND, "the members of the group are no consumers"
            )
        refused = converted.heartbeat_refusal(request)
        if refused is not None:
            return refused  # to convert the group, and back, would have its members join again
        running.group.unload(ErrorCode.REBALANCE_IN_PROGRESS)
        self._deliver(running, running.group.take_effects())
        running.convert(converted, "consumer")
        return running

    def _has_room(
        self, name: str, running: RunningGroup | None, growth: int, needed: int | None = None
    ) -> bool:
        """See `GroupMemory.has_room`."""
        if growth <= 0:
            return True
        now_ms = self._due.now_ms()
        return self._memory.has_room(running, growth, needed, name=name, now_ms=now_ms)

    def _version_refusal(self) -> HeartbeatRefusal | None:
        """Why no member may join that speaks the consumer protocol."""
        try:
            self._check_version()
        except NeedsClusterVersion as error:
            if error.behind:
                return HeartbeatRefusal(ErrorCode.UNSUPPORTED_VERSION, str(error))
            # It will be in force within a moment.
            return HeartbeatRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error))
        return None

    def _find(self, name: str) -> tuple[ErrorCode, RunningGroup | None]:
        error = self.error(name)
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

    async def _answered(self, running: RunningGroup, ticket: int, answer: asyncio.Future[T]) -> T:
        try:
            return await answer
        except asyncio.CancelledError:
            # The client has closed its connection.
            self._waiting.pop(ticket, None)
            running.group.on_disconnect(ticket, self._due.now_ms())
            self._carry_out(running)
            raise

    # -- groups ---------------------------------------------------------------------------------

    def _carry_out(self, running: RunningGroup) -> None:
        """Carry out the effects of a group, and see to its deadline."""
        group = running.group
        self._deliver(running, group.take_effects())
        self._account(running)
        if isinstance(group, ConsumerGroup) and group.has_only_classic_members:
            classic, store = to_classic_group(group, self._limits, self._due.now_ms())
            self._deliver(running, group.end())
            running.convert(classic, "classic")
            self._deliver(running, [store, *classic.take_effects()])
            group = classic
        self._memory.count(running)
        if group.is_forgettable:
            self._forget(running)
        else:
            self._due.note(running, group.next_deadline_ms())

    def _deliver(self, running: RunningGroup, effects: Iterable[Effect | ConsumerEffect]) -> None:
        for effect in effects:
            match effect:
                case GroupAnswer() | ReadyAnswer():
                    waiting = self._waiting.pop(effect.ticket, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(effect.answer)
                case Store() | StoreRecords():
                    # Encoded here, so that what the group keeps is not kept for the record, too.
                    records = records_of(effect)
                    task = asyncio.create_task(
                        self._store(running, running.group, effect.number, records)
                    )
                    self._storing.add(task)
                    task.add_done_callback(self._storing.discard)

    def _account(self, running: RunningGroup) -> None:
        group = running.group
        self._rebalances += group.rebalances
        self._expired += group.expired
        running.log_changes()
        group.rebalances = group.expired = 0

    def _forget(self, running: RunningGroup) -> None:
        self._memory.forget(running)
        if self._groups.get(running.name) is running:
            del self._groups[running.name]

    async def _store(
        self, running: RunningGroup, group: Group, number: int, records: Records
    ) -> None:
        with self._memory.storing(records):
            error = await store_group(self._offsets, running.name, records)
        self.refresh()
        group.on_stored(number, error, self._due.now_ms())
        if self._is_present(running) and running.group is group:
            self._carry_out(running)

    def _on_due(self, running: RunningGroup, now_ms: int) -> None:
        # Another node may have changed the group since.
        self.refresh()
        if self._is_present(running):
            running.group.on_time(now_ms)
            self._carry_out(running)

    def _is_present(self, running: RunningGroup) -> bool:
        return self._groups.get(running.name) is running

    # -- which groups ---------------------------------------------------------------------------

    def error(self, name: str | None = None) -> ErrorCode:
        """Why this node does not answer for a group now, or for all of them (None), or NONE."""
        partition = self._led()
        if partition is None or partition.leader_epoch != self._epoch or partition.failure:
            self.refresh()
        if self._epoch is not None:
            if self._is_cut_off():
                # Its members are to look for the other coordinator before their sessions end there.
                return ErrorCode.NOT_COORDINATOR
            if self._to_load and name not in self._groups:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ErrorCode.NONE
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        stop = stop_of(partition)
        if stop is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # Not NOT_COORDINATOR: no other node answers for the groups yet.
        is_replaced = isinstance(stop, NotLeader)
        return (
            ErrorCode.COORDINATOR_NOT_AVAILABLE if is_replaced else ErrorCode.UNKNOWN_SERVER_ERROR
        )

    async def confirmed_error(self, name: str | None = None) -> ErrorCode:
        """As `error`, after a question to the cluster. After NONE no other coordinator has
        acknowledged anything before the call: this one has, or what it has loaded.

        A node that stood still does not know yet that there is another one.
        """
        error, partition = self.error(name), self._led()
        if error or partition is None or self._leads is None:
            return error
        state = partition.state
        if state is None or len(state.replicas) == 1:
            return error
        leads = await self._leads(partition)
        return self.error(name) if leads else ErrorCode.NOT_COORDINATOR

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
            if epoch == self._epoch:
                return
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
        """Load the groups in slices, between which other work comes. A group answers once it is
        loaded: its sessions begin then."""
        self._epoch = epoch
        self._to_load = deque(self._offsets.group_states)
        self._load_slice()

    def _load_slice(self) -> None:
        size = 0
        while self._to_load and size < LOAD_BYTES:
            name = self._to_load.popleft()
            size += self._offsets.state_bytes(name)
            now_ms = self._due.now_ms()
            group = restore_group(self._offsets, name, self._limits, self._topics, now_ms)
            if group is None:
                continue
            running = RunningGroup(name, group, generation=group.generation)
            self._groups[name] = running
            self._carry_out(running)
        if self._to_load:
            self._next_slice = asyncio.get_running_loop().call_soon(self._go_on_loading)
            return
        extra = {"groups": len(self._groups), "leader_epoch": self._epoch}
        log.info("groups loaded", extra=extra)
        self.on_loaded()

    def _go_on_loading(self) -> None:
        self._next_slice = None
        # This node may not lead any more, or may have begun to load again.
        self.refresh()
        if self._to_load and self._next_slice is None:
            self._load_slice()

    def _unload(self) -> None:
        groups, self._groups, self._epoch = self._groups, {}, None
        self._to_load.clear()
        if self._next_slice is not None:
            self._next_slice.cancel()
            self._next_slice = None
        for running in groups.values():
            running.group.unload(ErrorCode.NOT_COORDINATOR)
            self._carry_out(running)
        self._due.clear()
