"""Keeps this node as the image says, and tells the controller what only this node knows.

That is: which data of deleted streams is removed here, that a replica of this node has failed, and
that a log is ahead of the leader epoch in which it is to be led.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.reconciler import Reconciler
from bascule.errors import BasculeError, Broken, Closed, FencedEpoch
from bascule.metadata.image import Image
from bascule.metadata.requests import Forget, Resign
from bascule.model import NodeRegistration, StreamDefinition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

log = logging.getLogger("bascule.controller")

RETRY_SECONDS_MIN: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0
"""Pause before reconciliation is repeated; it doubles from the minimum to the maximum."""


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far this node has followed the image."""

    reconciled: int = 0
    """The index of the image that it has followed."""
    tried: int = 0
    """The index of the image that it has tried to follow last."""
    trouble: Exception | None = None
    """Why it could not."""


class ImageFollower:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        reconciler: Reconciler,
        metadata: MetadataGroup,
    ) -> None:
        self._node_id = node_id
        self._reconciler = reconciler
        self._metadata = metadata
        self._partitions = partitions
        self._nodes: Mapping[int, NodeRegistration] | None = None
        """Those of the latest image."""
        self._changed = asyncio.Event()
        self._touched: set[bytes] | None = set()
        """The ids of the streams that have changed since the image that was followed last; None:
        any may have."""
        self._progress = _Progress()
        self._followed = asyncio.Condition()
        self.lock = asyncio.Lock()
        """Held while the node is reconciled."""
        self._is_forgetting = False
        self._requests: set[asyncio.Task[None]] = set()
        """Requests that this node makes by itself."""
        self._resigning: set[tuple[bytes, int]] = set()
        """Stream id and partition of each request to resign that is under way."""
        self.on_failed_replica: Callable[[Partition], None] = lambda _: None
        """Called with each failed replica, and again when what the image says of it changes."""
        partitions.on_failed = self._on_failed

    def on_image(self, touched: Collection[bytes] | None) -> None:
        """There is another image, in which these streams have changed; None: any may have."""
        nodes = self._metadata.image.nodes
        if nodes is not self._nodes or touched is None:
            self._nodes = nodes
            self._resign_failed(list(self._partitions.streams().values()))
        else:
            held = (self._partitions.stream_by_id(stream_id) or () for stream_id in touched)
            self._resign_failed(list(held))
        if touched is None:
            self._touched = None
        elif self._touched is not None:
            self._touched.update(touched)
        self._reconciler.roles.on_image()
        self._changed.set()

    def on_suspension(self) -> None:
        """This node leads nothing from now on, or again what the image says."""
        self._reconciler.plan_all()
        self._changed.set()

    async def run(self) -> None:
        """Follow each image, and try again after failures. Runs until cancelled."""
        pause = RETRY_SECONDS_MIN
        while True:
            try:
                async with asyncio.timeout(None if self._reconciler.is_settled else pause):
                    await self._changed.wait()
                pause = RETRY_SECONDS_MIN
            except TimeoutError:
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            try:
                await self.reconcile()
            except Closed as error:
                # The node stops: its log writer has ended, and the image changes once more.
                log.debug("decisions are not followed any more", extra={"error": str(error)})
            except Exception:  # boundary: the timer tries again
                log.exception("reconciliation failed; it is tried again")

    async def reconcile(self) -> None:
        """Follow the image as it is now."""
        async with self.lock:
            await self.reconcile_locked()

    async def reconcile_locked(self) -> None:
        """As `reconcile`; the caller holds the lock."""
        self._changed.clear()
        index, image = self._metadata.applied, self._metadata.image
        touched, self._touched = self._touched, set()
        try:
            failures = await self._reconciler.reconcile(image, touched)
        except BaseException as error:
            self._touched = None
            if isinstance(error, Exception):
                await self._advance(replace(self._progress, tried=index, trouble=error))
            raise
        self._forget_deletions(image)
        for stream_id, failure in failures.items():
            if isinstance(failure, FencedEpoch):
                self._resign_fenced(stream_id)
        await self._advance(_Progress(index, index))

    async def _advance(self, progress: _Progress) -> None:
        async with self._followed:
            self._progress = progress
            self._followed.notify_all()

    async def wait_followed(self, index: int) -> None:
        """Return once this node has followed the image to `index`.

        Raises: Broken where it failed to do so; it goes on trying.
        """
        async with self._followed:
            await self._followed.wait_for(lambda: self._progress.tried >= index)
            if self._progress.reconciled < index:
                why = self._progress.trouble
                raise Broken(f"node {self._node_id} cannot follow a decision: {why}")

    def pending_steps(self) -> tuple[str, ...]:
        """The steps that are left to do, as text for logs and tests."""
        pending = self._reconciler.pending(self._metadata.image, self._touched)
        return tuple(str(step) for step in pending)

    async def close(self) -> None:
        """Ask nothing any more."""
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    # -- requests of this node ----------------------------------------------------------------

    def request(self, request: Coroutine[Any, Any, None]) -> None:
        """Have a task do something that may wait for the controller."""
        task = asyncio.get_running_loop().create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def resign(
        self, definition: StreamDefinition, index: int, *, is_whole: bool = False
    ) -> None:
        """Let another node lead that has every committed record, if one is alive; see
        `elections.resign`. Raises: Indeterminate."""
        state = self._metadata.image.partitions[definition.id][index]
        if self._node_id in state.replicas:
            # Also where it is not in sync: the leader may be about to take it in.
            await self._metadata.submit(
                Resign(self._node_id, definition.id, index, state.leader_epoch, is_whole)
            )

    def _forget_deletions(self, image: Image) -> None:
        """Tell the controller which data of deleted streams is removed here."""
        removed = self._reconciler.state.removed
        self._reconciler.forget_deletions([each for each in removed if each not in image.deletions])
        if self._to_forget() and not self._is_forgetting:
            self._is_forgetting = True
            self.request(self._forget())

    def _to_forget(self) -> tuple[bytes, ...]:
        """The deletions that are carried out here, and are not according to the image."""
        deletions = self._metadata.image.deletions
        removed = self._reconciler.state.removed
        return tuple(
            each for each in removed if each in deletions and self._node_id in deletions[each].nodes
        )

    async def _forget(self) -> None:
        """Ask until the image says so, however long there is no controller. Others are carried out
        meanwhile, and no other image may come."""
        try:
            while ids := self._to_forget():
                try:
                    await self._metadata.submit(Forget(self._node_id, ids))
                except BasculeError as error:
                    log.debug("deletions not forgotten yet", extra={"error": str(error)})
                    await asyncio.sleep(RETRY_SECONDS_MIN)
        finally:
            self._is_forgetting = False

    def _resign_failed(self, streams: Iterable[Sequence[Partition]]) -> None:
        """A replica that has failed may be in sync, or others may lead instead of it, by now.

        A leader that has not heard of the failure may have taken it into the ISR.
        """
        for partitions in streams:
            for partition in partitions:
                if partition.failure is not None:
                    self._on_failed(partition)

    def _on_failed(self, partition: Partition) -> None:
        """Let another replica lead instead of one that has failed, if one is in sync and alive, or
        eligible."""
        image, definition = self._metadata.image, partition.definition
        states = image.partitions.get(definition.id, ())
        if partition.deleted or partition.index >= len(states):
            return
        state, alive = states[partition.index], image.alive()
        others = {*state.isr, *state.eligible} - {self._node_id}
        is_eligible = self._node_id in state.eligible
        if is_eligible or (self._node_id in state.isr and not others.isdisjoint(alive)):
            self.request(self._try_resign(definition, partition.index))
        self.on_failed_replica(partition)

    def _resign_fenced(self, stream_id: bytes) -> None:
        """Ask for new epochs: the logs have records of those in which this node is to lead."""
        image = self._metadata.image
        definition = image.stream_of(stream_id)
        held = self._reconciler.state.streams.get(stream_id)
        if definition is None or held is None:
            return
        for index, state in enumerate(image.partitions.get(stream_id, ())):
            if state.leader == self._node_id and held.states.get(index) != state:
                self.request(self._try_resign(definition, index))

    async def _try_resign(self, definition: StreamDefinition, index: int) -> None:
        """Resign, however long there is no controller: nothing else would have it decided."""
        key = definition.id, index
        if key in self._resigning:
            return
        self._resigning.add(key)
        epoch = -1
        try:
            while index < len(states := self._metadata.image.partitions.get(definition.id, ())):
                epoch = states[index].leader_epoch
                try:
                    await self.resign(definition, index)
                    break
                except BasculeError as error:
                    log.debug("not resigned yet", extra={"error": str(error)})
                await asyncio.sleep(RETRY_SECONDS_MIN)
        finally:
            self._resigning.discard(key)
        # An election may have come first, and found this request under way.
        states = self._metadata.image.partitions.get(definition.id, ())
        held = self._partitions.stream_by_id(definition.id) or ()
        if index < len(states) and states[index].leader_epoch > epoch:
            self._resign_failed([held[index : index + 1]])
