"""Carries out the steps of `plan`: opens, configures, subscribes, closes and removes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from bascule.controller.directories import StreamDirectories
from bascule.controller.plan import (
    CloseStream,
    ConfigureStream,
    NodeState,
    OpenPartitions,
    RemoveData,
    Step,
    StreamState,
    SubscribeStream,
    plan,
)
from bascule.errors import Broken
from bascule.metadata.image import Image
from bascule.model import StreamDefinition
from bascule.publish.unstamped_batch import Replica
from bascule.replica.log_syncer import LogSyncer
from bascule.replica.log_writer import LogWriter
from bascule.replica.maintenance.interval_sync import IntervalSyncs
from bascule.replica.opening import PartitionOpener, close_partition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

log = logging.getLogger("bascule.controller")

OPENING_AT_A_TIME: Final = 8
"""Streams opened in parallel: enough to keep a disk busy."""

StepT = TypeVar("StepT", bound=Step)


class Subscriber(Protocol):
    """NATS ingest, as far as the reconciler needs it; see `ingest.nats_ingest`."""

    async def subscribe(
        self, streams: Sequence[Sequence[Replica]]
    ) -> Mapping[bytes, Exception]: ...
    def configure(self, replicas: Sequence[Replica]) -> None: ...
    async def unsubscribe(self, definition: StreamDefinition) -> None: ...
    def refusals(self) -> dict[str, str]: ...


RaiseMaxPayload = Callable[[int], Awaitable[None]]
"""Raises `max_payload` of the NATS server to at least so many bytes. Raises: Broken."""


class Reconciler:
    """Owns the node's state. One call of `reconcile` at a time, on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        opener: PartitionOpener,
        directories: StreamDirectories,
        writer: LogWriter,
        syncer: LogSyncer,
    ) -> None:
        self._partitions = partitions
        self._opener = opener
        self._directories = directories
        self._writer = writer
        self._syncer = syncer
        self._interval_syncs = IntervalSyncs(syncer)
        self._subscriber: Subscriber | None = None
        self._set_max_payload: RaiseMaxPayload | None = None
        self._adopt = False
        self.state = NodeState()

    async def prepare(self, image: Image) -> None:
        """Prepare the directories before the first `reconcile`.

        Raises: CorruptData, UnsupportedFormat, OSError.
        """
        await asyncio.to_thread(self._directories.prepare, image)
        self._adopt = not await asyncio.to_thread(self._directories.identities_required)

    def attach(self, subscriber: Subscriber, raise_max_payload: RaiseMaxPayload | None) -> None:
        """Subscribe for streams from now on; before, only their logs are opened."""
        self._subscriber = subscriber
        self._set_max_payload = raise_max_payload
        self.state.can_subscribe = True

    def pending(self, image: Image) -> tuple[Step, ...]:
        """The steps left to do; empty where the node matches the image."""
        return plan(self.state, image)

    async def reconcile(self, image: Image) -> dict[bytes, Exception]:
        """Carry out every step from the node's state to `image`; return stream id -> error.

        A failed step does not affect the others and is in the next plan again. Steps are not
        undone. A refused subscription is reported once; ingest keeps and repeats it.
        """
        failures: dict[bytes, Exception] = {}
        steps = plan(self.state, image)
        for closing in _only(CloseStream, steps):
            await self._close(closing.definition)
        for removal in _only(RemoveData, steps):
            await self._remove(removal, failures)
        for change in _only(ConfigureStream, steps):
            await self._configure(change.definition, failures)
        await self._open_all(_only(OpenPartitions, steps), failures)
        await self._subscribe_all(_only(SubscribeStream, steps), failures)
        return failures

    def forget_deletions(self, ids: Iterable[bytes]) -> None:
        """The image no longer records these deletions."""
        self.state.removed.difference_update(ids)

    def close(self) -> None:
        """Close every log with a clean checkpoint. Blocks on the disk."""
        for partitions in self._partitions.streams().values():
            for partition in partitions:
                close_partition(partition)

    def end_timers(self) -> None:
        """End the timers of interval syncs. Called on the event loop."""
        self._interval_syncs.close()

    async def _close(self, definition: StreamDefinition) -> None:
        partitions = self._partitions.remove(definition)
        self._interval_syncs.end(partitions)
        if self._subscriber is not None:
            await self._subscriber.unsubscribe(definition)
        await asyncio.to_thread(self._close_logs, partitions)
        self.state.streams.pop(definition.id, None)

    def _close_logs(self, partitions: Sequence[Partition]) -> None:
        self._writer.wait_written()
        for partition in partitions:
            self._syncer.wait_idle(partition)
            close_partition(partition)

    async def _remove(self, step: RemoveData, failures: dict[bytes, Exception]) -> None:
        try:
            await asyncio.to_thread(self._directories.remove, step.stream_id, step.name)
        except OSError as error:
            failures[step.stream_id] = error
            log.error(
                "data of a deleted stream not removed; it is tried again",
                extra={"stream": step.name, "error": str(error)},
            )
            return
        self.state.removed.add(step.stream_id)

    async def _configure(
        self, definition: StreamDefinition, failures: dict[bytes, Exception]
    ) -> None:
        partitions = self._partitions.stream_by_id(definition.id) or ()
        for partition in partitions:
            partition.configure(definition)
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
        gate = asyncio.Semaphore(OPENING_AT_A_TIME)

        async def open_one(step: OpenPartitions) -> None:
            async with gate:
                opened = await asyncio.to_thread(self._open, step)
            self._register(step.definition, opened, failures)

        await asyncio.gather(*map(open_one, steps))
        if self._adopt and steps and not failures:
            self._adopt = False
            try:
                await asyncio.to_thread(self._directories.require_identities)
            except OSError as error:
                self._adopt = True
                log.warning("layout of the data directory not noted", extra={"error": str(error)})

    def _open(self, step: OpenPartitions) -> list[tuple[Partition, bool]]:
        definition = step.definition
        present = self._partitions.stream_by_id(definition.id) or ()
        for partition in present:
            if partition.index in step.indexes:
                # An earlier attempt may have failed after it opened the log.
                close_partition(partition)
        return [
            self._opener.open(
                definition,
                index,
                self._directories.partition(definition.name, index),
                adopt=self._adopt,
            )
            for index in step.indexes
        ]

    def _register(
        self,
        definition: StreamDefinition,
        opened: Sequence[tuple[Partition, bool]],
        failures: dict[bytes, Exception],
    ) -> None:
        """Add opened partitions to the registry, before messages are routed to them."""
        present = self._partitions.stream_by_id(definition.id) or ()
        by_index = {partition.index: partition for partition in present}
        for partition, _ in opened:
            by_index[partition.index] = partition
        self._partitions.add(tuple(by_index[index] for index in sorted(by_index)))
        self._interval_syncs.end(present)
        self._interval_syncs.configure(by_index.values())
        done = {partition.index for partition, try_again in opened if not try_again}
        for partition, try_again in opened:
            if try_again and partition.failure is not None:
                failures[definition.id] = partition.failure
        held = self.state.streams.get(definition.id) or StreamState(definition)
        self.state.streams[definition.id] = replace(
            held, definition=definition, opened=held.opened | done
        )

    async def _subscribe_all(
        self, steps: Sequence[SubscribeStream], failures: dict[bytes, Exception]
    ) -> None:
        if self._subscriber is None:
            return
        streams: dict[bytes, Sequence[Partition]] = {}
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
            streams[stream_id] = partitions
        for stream_id, replicas in streams.items():
            # Ingest keeps a subscription that fails from here on, and repeats it by itself.
            held = self.state.streams[stream_id]
            self.state.streams[stream_id] = replace(held, subscribed=len(replicas))
        try:
            failures.update(await self._subscriber.subscribe(list(streams.values())))
        except Broken as error:
            failures.update(dict.fromkeys(streams, error))

    async def _raise_max_payload(self, definition: StreamDefinition) -> None:
        if self._set_max_payload is not None:
            await self._set_max_payload(definition.config.message_bytes_max)


def _only(kind: type[StepT], steps: Sequence[Step]) -> list[StepT]:
    return [step for step in steps if isinstance(step, kind)]
