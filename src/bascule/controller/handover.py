"""How the leadership of partitions passes from one living node to another without a gap.

::

    new leader                                    old leader
    holds what arrives, subscribes
      waits until all NATS servers know that
      asks for the rest of the log         ->     appends what it has received, unsubscribes
      copies the log to that end           <-     the end of its log
      leads: compares, appends the rest    ->     follows

In a NATS queue group each message goes to one member. There the new leader subscribes after the
old one has unsubscribed.

Every wait is bounded. A leader that is lost, silent or out of the ISR is not asked: the new one
subscribes, and leads. A handover ends at once when a later image says that the other node is lost
or that the partition has another leader epoch: what follows from that image waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.errors import BasculeError, Broken
from bascule.metadata.image import state_of
from bascule.model import NO_LEADER, PartitionBy, PartitionState
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

log = logging.getLogger("bascule.controller")

HANDOVER: Final = "handover"
"""The kind of control request by which a new leader asks the old one."""
SUBSCRIBE_SECONDS_MAX: Final = 0.5
"""For NATS to confirm the subscriptions of a new leader, before it leads nevertheless."""
OVERLAP_SECONDS: Final = 0.03
"""For which both leaders are subscribed: other NATS servers learn later than the one that confirms.
Routes between servers of one site take a millisecond."""
ANSWER_SECONDS_MAX: Final = 0.5
"""For the old leader to follow the decision, unsubscribe and append."""
COPY_SECONDS_MAX: Final = 0.5
"""For the new leader to copy the rest of the log."""
ASKED_SECONDS_MAX: Final = 1.0
"""For which an old leader goes on if the new one does not ask: its wait for NATS, and some more."""
TAKEN_SECONDS_MAX: Final = 1.0
"""For which it then waits for the new one to lead: the waits for the answer and the copy."""
POLL_SECONDS: Final = 0.002

Key = tuple[bytes, int]
T = TypeVar("T")


class Roles(Protocol):
    """What a handover needs of `replica.follower.Replicator`."""

    def hold(self, partition: Partition, tail_start: int | None) -> Future[None]: ...
    def end_appends(self, partition: Partition, leader_epoch: int) -> Future[int]: ...


class HandoverSubscriptions(Protocol):
    """The subscriptions of this node; see `reconciler`."""

    async def route(
        self, partitions: Sequence[Partition], *, to_here: bool
    ) -> Mapping[bytes, Exception]:
        """Subscribe for partitions, or end that; stream id -> why NATS refuses. Raises: Broken."""
        ...

    async def flush_subscriptions(self) -> None:
        """Return once all that NATS had delivered is with the log writer. Raises: Broken."""
        ...


class _Asked(msgspec.Struct, array_like=True):
    stream_id: bytes
    partition: int
    leader_epoch: int
    """That of the new leader."""


class _Request(msgspec.Struct, array_like=True):
    index: int
    """Of the image by which the sender leads."""
    partitions: list[_Asked]
    is_taken: bool = False
    """Whether the sender leads now: the old leader may follow."""


@dataclass(frozen=True, slots=True)
class RoleChange:
    """A partition, and the state that it is to have."""

    partition: Partition
    state: PartitionState
    before: PartitionState | None
    """The state in force."""

    @property
    def key(self) -> Key:
        return self.partition.definition.id, self.partition.index


@dataclass(slots=True)
class _Gift:
    """A partition that this node gives to the leader of another epoch."""

    leader_epoch: int
    receiver: int | None = None
    """The node that is to lead; None until this node follows the decision."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    taken: asyncio.Event = field(default_factory=asyncio.Event)


def in_queue_group(partition: Partition) -> bool:
    """Whether NATS gives each message of the partition to one member of a group."""
    config = partition.definition.config
    is_split = config.partitions > 1 and config.partition_by is PartitionBy.GROUP
    return config.group is not None or is_split


def _shares_subscription(partition: Partition) -> bool:
    """Whether one subscription serves all partitions of the stream."""
    return partition.definition.config.partition_by is not PartitionBy.GROUP


def _goes_on(partition: Partition) -> bool:
    """Whether messages may arrive until the old leader appends nothing more: the new one receives
    them, too."""
    return _shares_subscription(partition) and not in_queue_group(partition)


def _is_trusted(state: PartitionState, old: int) -> bool:
    """Whether the leader before this state is asked for the rest of its log. One that was taken out
    of the ISR, and is still a replica, was lost or silent."""
    return old in state.isr or old not in state.replicas


class Handovers:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        roles: Roles,
        peers: Peers,
        metadata: MetadataGroup,
        subscriptions: HandoverSubscriptions,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._roles = roles
        self._peers = peers
        self._metadata = metadata
        self._subscriptions = subscriptions
        self._gifts: dict[Key, _Gift] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the new leader -------------------------------------------------------------------------

    def is_taken(self, change: RoleChange) -> bool:
        """Whether this node is to lead a partition that it has followed."""
        partition, state, before = change.partition, change.state, change.before
        return (
            state.leader == self._node_id
            and before is not None
            and before.leader != self._node_id
            and state.leader_epoch > before.leader_epoch
            and not partition.is_leader
            and partition.log is not None
            and partition.failure is None
        )

    async def take(self, taken: Sequence[RoleChange]) -> Mapping[bytes, Exception]:
        """Return once this node may lead: it is subscribed, and has what it can get of the logs.

        Stream id -> why NATS refuses a subscription.
        """
        alone = [each for each in taken if not in_queue_group(each.partition)]
        grouped = [each for each in taken if in_queue_group(each.partition)]
        refusals: dict[bytes, Exception] = {}
        await self._hold(grouped, [None] * len(grouped))
        if alone:
            # Before the PING of the flush. What the old leaders have appended up to here was
            # published before; what is held arrives at the NATS server after that PING.
            starts = [each.partition.info().end_offset for each in alone]
            await self._confirmed(self._subscriptions.flush_subscriptions())
            await self._hold(alone, starts)
            refusals.update(await self._subscribe(alone))
            if self._old_leaders(alone):
                await asyncio.sleep(OVERLAP_SECONDS)
        asked = self._old_leaders(taken).items()
        ends = await asyncio.gather(*(self._end_appends(node, some) for node, some in asked))
        if grouped:
            refusals.update(await self._subscribe(grouped))
        await self._copy([each for some in ends for each in some])
        return refusals

    def on_led(self, taken: Sequence[RoleChange]) -> None:
        """This node leads: tell the old leaders, who wait for that."""
        for node, some in self._old_leaders(taken).items():
            self._start(self._tell(node, some))

    def _old_leaders(self, taken: Sequence[RoleChange]) -> dict[int, list[RoleChange]]:
        """The old leaders that live and are trusted, with what they give."""
        image = self._metadata.image
        found: dict[int, list[RoleChange]] = {}
        for each in taken:
            state, old = each.state, NO_LEADER if each.before is None else each.before.leader
            is_clean = state.unclean_epoch != state.leader_epoch
            if image.is_alive(old) and _is_trusted(state, old) and is_clean:
                found.setdefault(old, []).append(each)
        return found

    async def _hold(self, taken: Sequence[RoleChange], starts: Sequence[int | None]) -> None:
        """Hold what arrives from now on; see `replica.handover`."""
        for done in [
            self._roles.hold(each.partition, start)
            for each, start in zip(taken, starts, strict=True)
        ]:
            await asyncio.wrap_future(done)

    async def _subscribe(self, taken: Sequence[RoleChange]) -> Mapping[bytes, Exception]:
        routed = self._subscriptions.route([each.partition for each in taken], to_here=True)
        return await self._confirmed(routed) or {}

    async def _confirmed(self, waiting: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS_MAX):
                return await waiting
        except (BasculeError, TimeoutError) as error:
            log.warning("subscriptions of a new leader not confirmed", extra={"error": str(error)})
            return None

    async def _end_appends(
        self, node: int, taken: Sequence[RoleChange]
    ) -> list[tuple[RoleChange, int]]:
        """Have the old leader append nothing more; each change, and where its log ends there."""
        try:
            ends = await self._ask(node, taken)
        except BasculeError as error:
            extra = {"node": node, "partitions": len(taken), "error": str(error)}
            log.warning("old leader has not handed over", extra=extra)
            return []
        return list(zip(taken, ends, strict=True))

    async def _copy(self, ends: Sequence[tuple[RoleChange, int]]) -> None:
        """Return once the logs of this node go so far."""
        try:
            async with asyncio.timeout(COPY_SECONDS_MAX):
                for each, end in ends:
                    while self._lacks(each, end):  # noqa: ASYNC110
                        await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            extra = {"partitions": len(ends)}
            log.warning("log of the old leader not copied to its end", extra=extra)

    def _lacks(self, taken: RoleChange, end: int) -> bool:
        """Whether the log of this node ends before, and its old leader can be copied still."""
        assert taken.before is not None
        store, giver = taken.partition.log, taken.before.leader
        return (
            store is not None
            and store.end.offset < end
            and self._is_current(taken.key, taken.state.leader_epoch, giver)
        )

    async def _ask(
        self, node: int, taken: Sequence[RoleChange], *, is_taken: bool = False
    ) -> list[int]:
        asked = [_Asked(*each.key, each.state.leader_epoch) for each in taken]
        body = msgspec.msgpack.encode(_Request(self._metadata.applied, asked, is_taken))
        answer = await self._peers.control(node, HANDOVER, body, timeout_s=ANSWER_SECONDS_MAX)
        return msgspec.msgpack.decode(answer, type=list[int])

    async def _end_subscriptions(self, partitions: Sequence[Partition]) -> None:
        given = [each for each in partitions if not self._is_to_lead(each)]
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await self._subscriptions.route(given, to_here=False)
        except (BasculeError, TimeoutError) as error:
            log.warning("end of subscriptions not confirmed", extra={"error": str(error)})

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, node: int, taken: Sequence[RoleChange]) -> None:
        try:
            await self._ask(node, taken, is_taken=True)
        except BasculeError as error:
            log.debug("end of a handover not told", extra={"node": node, "error": str(error)})

    # -- the old leader -------------------------------------------------------------------------

    def is_given(self, change: RoleChange) -> bool:
        """Whether another node that lives is to lead a partition that this node leads, and asks for
        the rest. One that was lost meanwhile is not asked: it has to end at once, as it would
        refuse what the new leader stores."""
        leader = change.state.leader
        return (
            change.partition.is_leader
            and change.partition.failure is None
            and leader not in (NO_LEADER, self._node_id)
            and change.state.leader_epoch > change.partition.leader_epoch
            and _is_trusted(change.state, self._node_id)
            and change.state.unclean_epoch != change.state.leader_epoch
            and self._metadata.image.is_alive(leader)
        )

    async def give(self, given: Sequence[RoleChange]) -> None:
        """Return once the new leaders lead, or have not asked in time."""
        await asyncio.gather(*(self._give(each) for each in given))

    async def _give(self, change: RoleChange) -> None:
        gift = self._gift(change.key, change.state.leader_epoch)
        gift.receiver = change.state.leader
        self._end_pointless(change.key, gift)
        try:
            async with asyncio.timeout(ASKED_SECONDS_MAX):
                await gift.asked.wait()
            async with asyncio.timeout(TAKEN_SECONDS_MAX):
                await gift.taken.wait()
        except TimeoutError:
            log.warning(
                "leadership given away unasked",
                extra={
                    "stream": change.partition.definition.name,
                    "partition": change.partition.index,
                    "node": change.state.leader,
                },
            )
        finally:
            self._gifts.pop(change.key, None)

    def on_image(self) -> None:
        """There is a later image: what it makes pointless is not waited for any more."""
        for key, gift in self._gifts.items():
            self._end_pointless(key, gift)

    def _end_pointless(self, key: Key, gift: _Gift) -> None:
        receiver = gift.receiver
        if receiver is not None and not self._is_current(key, gift.leader_epoch, receiver):
            gift.asked.set()
            gift.taken.set()

    def _is_current(self, key: Key, leader_epoch: int, other: int) -> bool:
        """Whether the image still has this leader epoch, and the other node alive."""
        image = self._metadata.image
        states = image.partitions.get(key[0], ())
        return (
            key[1] < len(states)
            and states[key[1]].leader_epoch <= leader_epoch
            and image.is_alive(other)
        )

    def _is_to_lead(self, partition: Partition) -> bool:
        """Whether this node is to lead a partition by the image: it may have been given back."""
        partitions = self._metadata.image.partitions
        state = state_of(partitions, partition.definition.id, partition.index)
        return state is not None and state.leader == self._node_id

    def _gives(self, partition: Partition, asked: _Asked) -> bool:
        """Whether this node leads a partition until the epoch that is asked for. A late request is
        of an epoch before one in which this node leads again."""
        states = self._metadata.image.partitions.get(asked.stream_id, ())
        return (
            partition.is_leader
            and partition.leader_epoch < asked.leader_epoch
            and asked.partition < len(states)
            and states[asked.partition].leader_epoch <= asked.leader_epoch
        )

    def _gift(self, key: Key, leader_epoch: int) -> _Gift:
        found = self._gifts.get(key)
        if found is None or found.leader_epoch < leader_epoch:
            found = self._gifts[key] = _Gift(leader_epoch)
        return found

    async def answer(self, body: bytes) -> bytes:
        """Answer a new leader: where the logs of its partitions end, -1 for those not led here.

        Nothing is appended to them any more. Raises: LaggingIndex, Broken.
        """
        request = msgspec.msgpack.decode(body, type=_Request)
        ends = [-1] * len(request.partitions)
        if request.is_taken:
            for asked in request.partitions:
                gift = self._gifts.get((asked.stream_id, asked.partition))
                if gift is not None and gift.leader_epoch <= asked.leader_epoch:
                    gift.taken.set()
            return msgspec.msgpack.encode(ends)
        # Until then, this node might subscribe again.
        await self._metadata.wait_applied(request.index)
        chosen: list[tuple[int, Partition, _Asked]] = []
        for number, asked in enumerate(request.partitions):
            found = self._partitions.stream_by_id(asked.stream_id) or ()
            if 0 <= asked.partition < len(found) and self._gives(found[asked.partition], asked):
                chosen.append((number, found[asked.partition], asked))
                self._gift((asked.stream_id, asked.partition), asked.leader_epoch).asked.set()
        # A subscription that serves other partitions, too, ends after the appends: this node may
        # subscribe at any moment for one of those, and would append later messages than some that
        # it has not received.
        later = [each for _, each, _ in chosen if _goes_on(each)]
        if chosen:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    now = [each for _, each, _ in chosen if not _goes_on(each)]
                    if now:
                        await self._subscriptions.route(now, to_here=False)
                    if any(_shares_subscription(each) for _, each, _ in chosen):
                        await self._subscriptions.flush_subscriptions()
            except TimeoutError:
                raise Broken("NATS has not confirmed the end of subscriptions in time") from None
        ending = [self._roles.end_appends(each, asked.leader_epoch) for _, each, asked in chosen]
        if later:
            self._start(self._end_subscriptions(later))
        try:
            # The log writer of a node that stops does nothing any more.
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                for (number, _, _), done in zip(chosen, ending, strict=True):
                    ends[number] = await asyncio.wrap_future(done)
        except TimeoutError:
            raise Broken("the log writer has not ended the appends in time") from None
        return msgspec.msgpack.encode(ends)
