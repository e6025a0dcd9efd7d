"""Proposes the in-sync replica sets of the partitions that this node leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.errors import BasculeError, FencedEpoch, Indeterminate, UnknownPartition
from bascule.metadata.requests import ChangeIsr
from bascule.model import PartitionState
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.controller")

CHECK_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 0.5


class WantedChange(Protocol):
    """A change of an in-sync replica set; see `peer.replica_fetch`."""

    @property
    def partition(self) -> Partition: ...
    @property
    def state(self) -> PartitionState: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def node_epochs(self) -> Mapping[int, int]: ...


class IsrKeeper:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataGroup,
        *,
        node_epoch: Callable[[], int],
        wanted: Callable[[], Sequence[WantedChange]],
        send: Callable[[bytes], None],
    ) -> None:
        """`node_epoch` is that of this node; `wanted` returns the changes to propose now. `send`
        takes NATS operations with acks."""
        self._node_id = node_id
        self._metadata = metadata
        self._node_epoch = node_epoch
        self._wanted = wanted
        self._send = send
        self._proposals: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await asyncio.sleep(CHECK_SECONDS)
                for change in self._wanted():
                    if change.partition.commitment.on_isr_proposed(change.isr, change.state):
                        task = asyncio.get_running_loop().create_task(self._propose(change))
                        self._proposals.add(task)
                        task.add_done_callback(self._proposals.discard)
        finally:
            for task in self._proposals:
                task.cancel()

    async def _propose(self, change: WantedChange) -> None:
        """Ask the controller until it answers. The version makes a repetition harmless."""
        partition, state = change.partition, change.state
        definition, index = partition.definition, partition.index
        epochs = {**change.node_epochs, self._node_id: self._node_epoch()}
        extra: dict[str, object] = {
            "stream": definition.name,
            "partition": index,
            "isr": list(change.isr),
            "before": list(state.isr),
        }
        while True:
            request = ChangeIsr(
                stream_id=definition.id,
                partition=index,
                leader=self._node_id,
                leader_epoch=state.leader_epoch,
                version=state.version,
                members=tuple((node, epochs.get(node, -1)) for node in change.isr),
            )
            try:
                await self._metadata.submit(request)
                break
            except (FencedEpoch, UnknownPartition):
                break
            except Indeterminate as error:
                extra["error"] = str(error)
                log.warning("isr not changed yet", extra=extra)
            except BasculeError as error:
                extra["error"] = str(error)
                log.warning("isr not changed", extra=extra)
                break
            await asyncio.sleep(RETRY_SECONDS)
        states = self._metadata.image.partitions.get(definition.id, ())
        if index < len(states) and states[index].version != state.version:
            log.info(
                "isr changed",
                extra={
                    "stream": definition.name,
                    "partition": index,
                    "isr": list(change.isr),
                    "before": list(state.isr),
                },
            )
        elif replies := partition.commitment.on_isr_failed(state):
            self._send(replies)
