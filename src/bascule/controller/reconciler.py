"""Carries out the steps of `plan`: opens, configures, subscribes, closes and removes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from bascule.controller.directories import StreamDirectories
from bascule.controller.held_partitions import HeldPartitions
from bascule.controller.plan import (
    ApplyStates,
    CloseStream,
    ConfigureStream,
    DropReplicas,
    NodeState,
    OpenPartitions,
    RegisterElsewhere,
    RemoveData,
    Step,
    StreamState,
    SubscribeStream,
    plan,
    stream_id_of,
    stream_ids,
)
from bascule.controller.replica_removal import ReplicaRemoval
from bascule.controller.roles import RoleSetter, SetRole
from bascule.errors import Broken
from bascule.metadata.image import Deletion, Image, in_parts
from bascule.model import StreamDefinition, SyncPolicy
from bascule.publish.unstamped_batch import Replica
from bascule.replica.log_writer import LogWriter
from bascule.replica.maintenance.checkpoints import verify
from bascule.replica.maintenance.interval_sync import IntervalSyncs
from bascule.replica.opening import PartitionOpener, close_partition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer

log = logging.getLogger("bascule.controller")

OPENING_AT_A_TIME: Final = 8
"""Streams opened in parallel: enough to keep a disk busy."""

PLANNED_AT_A_TIME: Final = 500
"""Partitions for which steps are planned before the event loop does other work: some 10 ms."""

CHANGED_AT_A_TIME: Final = 500
"""Partitions whose roles or subscriptions change before the event loop does other work."""

CLOSING_AT_A_TIME: Final = 16
"""Logs closed in parallel when the node stops."""

CLOSING_SECONDS_MAX: Final = 5.0
"""For checkpoints when the node stops: service managers kill a process after 30 s or more."""

StepT = TypeVar("StepT", bound=Step)


class Subscriber(Protocol):
    """NATS ingest, as far as the reconciler needs it; see `ingest.nats_ingest`."""

    async def subscribe(
        self, streams: Sequence[tuple[Sequence[Replica], Collection[int]]]
    ) -> Mapping[bytes, Exception]: ...
    def configure(self, replicas: Sequence[Replica]) -> None: ...
    async def unsubscribe(self, definition: StreamDefinition) -> None: ...
    async def subscribed(self) -> None: ...
    def refusals(self) -> dict[str, str]: ...
    def standing_ns(self) -> tuple[int | None, int]: ...


RaiseMaxPayload = Callable[[int], Awaitable[None]]
"""Raises `max_payload` of the NATS server to what a `message_bytes_max` needs. Raises: Broken."""


class Reconciler:
    """Owns the node's state. One call of `reconcile` at a time, on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        opener: PartitionOpener,
        directories: StreamDirectories,
        held: HeldPartitions,
        writer: LogWriter,
        syncer: LogSyncer,
        node_id: int = 0,
        set_role: SetRole,
    ) -> None:
        self._partitions = partitions
        self._opener = opener
        self._directories = directories
        self._held = held
        self._removal = ReplicaRemoval(directories, held)
        self._writer = writer
        self._syncer = syncer
        self._interval_syncs = IntervalSyncs(syncer)
        self._subscriber: Subscriber | None = None
        self._set_max_payload: RaiseMaxPayload | None = None
        self._adopt = False
        self._adoptable: frozenset[bytes] = frozenset()
        """Streams whose logs an earlier release left without identities."""
        self._deletions: Mapping[bytes, Deletion] = {}
        self._set_role = set_role
        self.state = NodeState(node_id)
        self.roles = RoleSetter(self.state, partitions, set_role, self)
        self.failures: dict[bytes, Exception] = {}
        """Stream id -> why the last steps for it failed."""
        self._unsettled: set[bytes] = set()
        """The ids of the streams whose steps are not all done."""
        self._plans_all = True
        """Whether the next plan is for every stream, whatever has changed."""

    async def prepare(self, image: Image) -> None:
        """Prepare the directories before the first `reconcile`.

        Raises: CorruptData, UnsupportedFormat, OSError.
        """
        await asyncio.to_thread(self._held.load)
        await asyncio.to_thread(self._directories.prepare, image)
        self._adopt = not await asyncio.to_thread(self._directories.identities_required)
        if self._adopt:
            self._adoptable = frozenset(each.id for each in image.streams.values())

    def attach(self, subscriber: Subscriber, raise_max_payload: RaiseMaxPayload | None) -> None:
        """Subscribe for streams from now on; before, only their logs are opened."""
        self._subscriber = subscriber
        self._set_max_payload = raise_max_payload
        self.state.can_subscribe = True
        self.plan_all()

    def plan_all(self) -> None:
        """Look at every stream at the next `reconcile`: the state changed for more than some."""
        self._plans_all = True

    @property
    def is_settled(self) -> bool:
        """Whether the node matched the image when the last `reconcile` ended."""
        return not self._unsettled and not self._plans_all

    def pending(self, image: Image, changed: Collection[bytes] | None = None) -> tuple[Step, ...]:
        """The steps left to do; empty where the node matches the image. `changed` as in
        `reconcile`."""
        return plan(self.state, image, self._chosen(changed))

    def _chosen(self, changed: Collection[bytes] | None) -> Collection[bytes] | None:
        """The ids to plan for; None: all."""
        return None if changed is None or self._plans_all else self._unsettled.union(changed)

    async def reconcile(
        self, image: Image, changed: Collection[bytes] | None = None
    ) -> dict[bytes, Exception]:
        """Carry out every step from the node's state to `image`; return stream id -> error.

        `changed` has the ids of all streams that differ from the image of the call before; None:
        any may differ. Others are looked at only if their steps are not done yet, so the cost is
        that of the change.

        A failed step does not affect the others and is in the next plan again. Steps are not
        undone. A refused subscription is reported once; ingest keeps and repeats it.
        """
        chosen = self._chosen(changed)
        self._plans_all = False
        self._deletions = image.deletions
        steps = await self._plan(image, chosen)
        planned = set(map(stream_id_of, steps))
        # Until they are done: an exception may end this call.
        self._unsettled |= planned
        failures = await self._carry_out(steps)
        for stream_id in list(self.failures) if chosen is None else chosen:
            self.failures.pop(stream_id, None)
        self.failures.update(failures)
        self._unsettled = set(map(stream_id_of, await self._plan(image, planned)))
        return failures

    async def _plan(self, image: Image, ids: Collection[bytes] | None) -> list[Step]:
        """As `plan`; the event loop does other work meanwhile where there are many streams."""
        chosen = stream_ids(self.state, image) if ids is None else list(ids)
        steps: list[Step] = []

        def size_of(stream_id: bytes) -> int:
            return len(image.partitions.get(stream_id, ())) or 1

        for number, part in enumerate(in_parts(chosen, size_of, PLANNED_AT_A_TIME)):
            if number:
                await asyncio.sleep(0)
            steps += plan(self.state, image, part)
        return steps

    async def _carry_out(self, steps: Sequence[Step]) -> dict[bytes, Exception]:
        failures: dict[bytes, Exception] = {}
        for closing in _only(CloseStream, steps):
            await self._close(closing.definition)
        for removal in _only(RemoveData, steps):
            await self._remove(removal, failures)
        for change in _only(ConfigureStream, steps):
            await self._configure(change.definition, failures)
        await self._open_all(_only(OpenPartitions, steps), failures)
        await self._register_all_elsewhere(_only(RegisterElsewhere, steps), failures)
        for changing in in_parts(
            _only(ApplyStates, steps), lambda step: len(step.states), CHANGED_AT_A_TIME
        ):
            await self.roles.apply(changing, failures)
        for dropping in _only(DropReplicas, steps):
            await self._drop(dropping, failures)
        for subscribing in in_parts(_only(SubscribeStream, steps), _size_of, CHANGED_AT_A_TIME):
            await self._subscribe_all(subscribing, failures)
        return failures

    async def let_go(self, definition: StreamDefinition, indexes: Iterable[int]) -> None:
        """Close these partitions; the next plan opens them again. They serve nothing until then."""
        chosen = set(indexes)
        present = self._partitions.stream_by_id(definition.id) or ()
        closing = [partition for partition in present if partition.index in chosen]
        await asyncio.to_thread(self.close_logs, closing)
        self._unsettled.add(definition.id)
        held = self.state.streams[definition.id]
        states = {index: each for index, each in held.states.items() if index not in chosen}
        self.state.streams[definition.id] = replace(
            held, opened=_rest(held.opened, chosen), states=states
        )

    async def verify(self, definition: StreamDefinition, indexes: Collection[int]) -> None:
        """Check every byte of these partitions, and stop those with damage."""
        for partition in self._partitions.stream_by_id(definition.id) or ():
            if partition.index in indexes:
                await verify(partition, self._syncer)

    def forget_deletions(self, ids: Iterable[bytes]) -> None:
        """The image no longer records these deletions."""
        self.state.removed.difference_update(ids)

    def close(self) -> bool:
        """Close every log with a clean checkpoint; whether all of them are synced. Blocks on the
        disk.

        Checkpoints of thousands of logs take long on a slow disk. After `CLOSING_SECONDS_MAX` logs
        that are synced anyway get none: the next start scans what was appended since the last one.
        """
        every = [each for some in self._partitions.streams().values() for each in some]
        clock = self._syncer.clock
        deadline_ns = clock.monotonic_ns() + int(CLOSING_SECONDS_MAX * 1e9)

        def close(partition: Partition) -> tuple[bool, bool]:
            is_synced = partition.definition.config.sync is SyncPolicy.ALWAYS
            in_time = clock.monotonic_ns() < deadline_ns or not is_synced
            return in_time, close_partition(partition, writes_checkpoint=in_time)

        # Each checkpoint waits for the disk a few times; in parallel they share these waits.
        with ThreadPoolExecutor(CLOSING_AT_A_TIME, thread_name_prefix="closing") as threads:
            closed = list(threads.map(close, every))
        late = sum(not in_time for in_time, _ in closed)
        if late:
            log.warning(
                "stopped without a checkpoint of every log; the next start scans more of them",
                extra={"partitions": late, "seconds": CLOSING_SECONDS_MAX},
            )
        return all(is_synced for _, is_synced in closed)

    def end_timers(self) -> None:
        """End the timers of interval syncs. Called on the event loop."""
        self._interval_syncs.close()

    async def _close(self, definition: StreamDefinition) -> None:
        partitions = self._partitions.remove(definition)
        self._interval_syncs.end(partitions)
        if self._subscriber is not None:
            await self._subscriber.unsubscribe(definition)
        await asyncio.to_thread(self.close_logs, partitions)
        self.state.streams.pop(definition.id, None)
        self.state.closed[definition.id] = definition.name

    def close_logs(self, partitions: Sequence[Partition]) -> None:
        """Close the logs of these partitions. Blocks on the disk."""
        self._writer.wait_written()
        for partition in partitions:
            self._syncer.wait_idle(partition)
            close_partition(partition)

    async def _remove(self, step: RemoveData, failures: dict[bytes, Exception]) -> None:
        try:
            await asyncio.to_thread(
                self._removal.remove_stream, step.stream_id, step.name, is_taken=step.is_taken
            )
        except OSError as error:
            failures[step.stream_id] = error
            log.error(
                "data of a deleted stream not removed; it is tried again",
                extra={"stream": step.name, "error": str(error)},
            )
            return
        self.state.closed.pop(step.stream_id, None)
        if step.stream_id in self._deletions:
            self.state.removed.add(step.stream_id)

    async def _configure(
        self, definition: StreamDefinition, failures: dict[bytes, Exception]
    ) -> None:
        partitions = self._partitions.stream_by_id(definition.id) or ()
        for partition in partitions:
            partition.configure(definition)
        self._partitions.notify_changed(definition)
        self._interval_syncs.configure(partitions)
        if self._subscriber is not None and partitions:
            self._subscriber.configure(partitions)
        try:
            await self._raise_max_payload(definition)
        except Broken as error:
            failures[definition.id] = error
            return
        held = self.state.streams.get(definition.id)
        if held is not None:
            self.state.streams[definition.id] = replace(held, definition=definition)

    async def _open_all(
        self, steps: Sequence[OpenPartitions], failures: dict[bytes, Exception]
    ) -> None:
        left = iter(steps)

        async def open_next() -> None:
            for step in left:
                opened = await asyncio.to_thread(self._open, step)
                self._register(step, opened, failures)

        # Not a task for each stream: thousands of them at once keep the loop from all else.
        await asyncio.gather(*(open_next() for _ in range(min(OPENING_AT_A_TIME, len(steps)))))
        if self._adopt and steps and not failures:
            self._adopt = False
            try:
                await asyncio.to_thread(self._directories.require_identities)
            except OSError as error:
                self._adopt = True
                log.warning("layout of the data directory not noted", extra={"error": str(error)})

    def _open(self, step: OpenPartitions) -> list[tuple[Partition, bool]]:
        definition = step.definition
        for partition in self._partitions.stream_by_id(definition.id) or ():
            if partition.index in step.indexes:
                # An earlier attempt may have failed after it opened the log.
                close_partition(partition)
        try:
            self._free_name(definition)
            self._removal.remove_earlier(definition, step.since)
        except OSError as error:
            opened = [(self._opener.without_log(definition, index), True) for index in step.indexes]
            for partition, _ in opened:
                self._opener.fail(partition, error)
            return opened
        opened = [
            self._opener.open(
                definition,
                index,
                self._directories.partition(definition.name, index),
                since=step.since.get(index, 0),
                adopt=self._adopt,
                held=self._held.holds(definition.id, index),
            )
            for index in step.indexes
        ]
        try:
            created = [each.index for each, _ in opened if each.failure is None]
            self._held.hold(definition.id, created)
        except OSError as error:
            for partition, _ in opened:
                self._opener.fail(partition, error)
            return [(partition, True) for partition, _ in opened]
        return opened

    def _free_name(self, definition: StreamDefinition) -> None:
        """Move away what another stream left in the directory of one that is new here.

        Raises: OSError.
        """
        indexes = range(definition.partition_count)
        if definition.id in self._adoptable or any(
            self._held.holds(definition.id, index) for index in indexes
        ):
            return
        self._directories.free_name(definition, self._deletions)

    def _register(
        self,
        step: OpenPartitions,
        opened: Sequence[tuple[Partition, bool]],
        failures: dict[bytes, Exception],
    ) -> None:
        """Add opened partitions to the registry, before messages are routed to them."""
        definition = step.definition
        present = self._partitions.stream_by_id(definition.id) or ()
        every = self._add_partitions(definition, [partition for partition, _ in opened])
        self._interval_syncs.end(present)
        self._interval_syncs.configure(every)
        done = {
            partition.index: step.since.get(partition.index, 0)
            for partition, try_again in opened
            if not try_again
        }
        for partition, try_again in opened:
            if partition.failure is None:
                continue
            self._partitions.notify_watchers(partition)
            if try_again:
                failures[definition.id] = partition.failure
        held = self.state.streams.get(definition.id) or StreamState(definition)
        indexes = {partition.index for partition, _ in opened}
        states = {index: each for index, each in held.states.items() if index not in indexes}
        self.state.streams[definition.id] = replace(
            held,
            # `_configure` notes a definition once all of it is in force.
            opened={**held.opened, **done},
            elsewhere=held.elsewhere - indexes,
            # A partition that was opened has no role until its state is applied.
            states=states,
        )

    async def _register_all_elsewhere(
        self, steps: Sequence[RegisterElsewhere], failures: dict[bytes, Exception]
    ) -> None:
        if not steps:
            return
        names = {step.definition.name for step in steps}
        present: dict[str, set[int]] | None = None
        try:
            present = await asyncio.to_thread(self._directories.present, names)
        except OSError as error:
            failures.update((step.definition.id, error) for step in steps)
            log.error(
                "directories of streams not listed; it is tried again", extra={"error": str(error)}
            )
        for number, step in enumerate(steps):
            if number % CHANGED_AT_A_TIME == CHANGED_AT_A_TIME - 1:
                await asyncio.sleep(0)
            there = None if present is None else present.get(step.definition.name, set())
            await self._register_elsewhere(step, there, failures)

    async def _register_elsewhere(
        self, step: RegisterElsewhere, there: set[int] | None, failures: dict[bytes, Exception]
    ) -> None:
        """Make partitions known that have no log here, so that listeners can name their leader.

        Data of a replica that has moved away while this node was down is removed, and what an
        opening that failed has left. `there` are the partitions with a directory; None: these are
        not known, so nothing is removed and the step is not done.
        """
        definition = step.definition
        present = self._partitions.stream_by_id(definition.id) or ()
        # Others have no log already: they are known since another partition was opened.
        closed = [
            each
            for each in present
            if each.index in step.indexes and (each.log is not None or each.failure is not None)
        ]
        unheld = self._without_logs(definition, [each.index for each in closed])
        self._add_partitions(definition, unheld)
        await self._give_up(closed)
        if there is None:
            kept = set(step.indexes)
        else:
            left = there.intersection(step.indexes)
            left |= self._removal.left_of(definition, step.indexes)
            kept = left - await self._removal.remove_replicas(definition, left, failures)
        held = self.state.streams.get(definition.id) or StreamState(definition)
        self.state.streams[definition.id] = replace(
            held,
            elsewhere=held.elsewhere | set(step.indexes) - kept,
            # Those that were closed have no state, whatever was in force before.
            states={i: each for i, each in held.states.items() if i not in step.indexes},
        )

    async def _drop(self, step: DropReplicas, failures: dict[bytes, Exception]) -> None:
        """Close partitions whose replicas are on other nodes now, and remove their data."""
        definition = step.definition
        held = self.state.streams[definition.id]
        in_force = {i: state for i, state in held.states.items() if i in step.indexes}
        chosen = {i for i, each in in_force.items() if self.state.node_id not in each.replicas}
        present = self._partitions.stream_by_id(definition.id) or ()
        dropped = [partition for partition in present if partition.index in chosen]
        unheld = self._without_logs(definition, sorted(chosen))
        self._add_partitions(definition, unheld)
        await self._give_up(dropped)
        removed = await self._removal.remove_replicas(definition, chosen, failures)
        for partition in unheld:
            await asyncio.wrap_future(self._set_role(partition, in_force[partition.index]))
        self.state.streams[definition.id] = replace(
            self.state.streams[definition.id],
            opened=_rest(held.opened, chosen),
            elsewhere=held.elsewhere | removed,
        )

    async def _give_up(self, dropped: Sequence[Partition]) -> None:
        """Close partitions whose data is to be removed."""
        self._interval_syncs.end(dropped)
        for partition in dropped:
            partition.deleted = True
        if dropped:
            await asyncio.to_thread(self.close_logs, dropped)

    def _without_logs(
        self, definition: StreamDefinition, indexes: Iterable[int]
    ) -> list[Partition]:
        return [self._opener.without_log(definition, index) for index in indexes]

    def _add_partitions(
        self, definition: StreamDefinition, added: Iterable[Partition]
    ) -> tuple[Partition, ...]:
        """Register `added` in place of those of the same index; return every one by index.

        Partitions that are not known yet are registered without a log, so that each one is in the
        place of its index, whatever fails before they are made known.
        """
        present = self._partitions.stream_by_id(definition.id) or ()
        by_index = {partition.index: partition for partition in (*present, *added)}
        missing = [i for i in range(definition.partition_count) if i not in by_index]
        by_index.update((each.index, each) for each in self._without_logs(definition, missing))
        every = tuple(by_index[index] for index in sorted(by_index))
        self._partitions.add(every)
        return every

    async def route(
        self, partitions: Iterable[Partition], *, to_here: bool
    ) -> Mapping[bytes, Exception]:
        """Subscribe for these partitions, or end that; see `handover.HandoverSubscriptions`."""
        chosen: dict[bytes, set[int]] = {}
        for partition in partitions:
            chosen.setdefault(partition.definition.id, set()).add(partition.index)
        streams = []
        for stream_id, indexes in chosen.items():
            held = self.state.streams.get(stream_id)
            every = self._partitions.stream_by_id(stream_id)
            if held is None or every is None:
                continue
            wanted = held.subscribed | indexes if to_here else held.subscribed - indexes
            if wanted != held.subscribed:
                self.state.streams[stream_id] = replace(
                    held, subscribed=wanted, routed_count=len(every)
                )
                streams.append((every, wanted))
        if self._subscriber is None or not streams:
            return {}
        return await self._subscriber.subscribe(streams)

    async def flush_subscriptions(self) -> None:
        """Return once all that NATS had delivered is with the log writer. Raises: Broken."""
        if self._subscriber is not None:
            await self._subscriber.subscribed()

    async def _subscribe_all(
        self, steps: Sequence[SubscribeStream], failures: dict[bytes, Exception]
    ) -> None:
        if self._subscriber is None:
            return
        streams: dict[bytes, tuple[Sequence[Partition], frozenset[int]]] = {}
        for step in steps:
            stream_id = step.definition.id
            partitions = self._partitions.stream_by_id(stream_id)
            if not partitions:
                continue
            try:
                await self._raise_max_payload(step.definition)
            except Broken as error:
                failures[stream_id] = error
                continue
            held = self.state.streams[stream_id]
            in_force = step.led if not held.states else step.led & held.states.keys()
            streams[stream_id] = partitions, in_force
            # Ingest keeps a subscription that fails from here on, and repeats it by itself.
            self.state.streams[stream_id] = replace(
                held, subscribed=in_force, routed_count=len(partitions)
            )
        try:
            failures.update(await self._subscriber.subscribe(list(streams.values())))
        except Broken as error:
            failures.update(dict.fromkeys(streams, error))

    async def _raise_max_payload(self, definition: StreamDefinition) -> None:
        if self._set_max_payload is not None:
            await self._set_max_payload(definition.config.message_bytes_max)


def _rest(opened: Mapping[int, int], chosen: Collection[int]) -> Mapping[int, int]:
    return {index: since for index, since in opened.items() if index not in chosen}


def _size_of(step: SubscribeStream) -> int:
    return step.definition.config.partitions


def _only(kind: type[StepT], steps: Sequence[Step]) -> list[StepT]:
    return [step for step in steps if isinstance(step, kind)]
