"""Proposes the in-sync replica sets of the partitions that this node leads."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.errors import BasculeError
from bascule.metadata.requests import ChangeIsrs, IsrChange
from bascule.model import PartitionState
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.controller")

CHECK_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 0.5
CHANGES_MAX: Final = 500
"""In one request: some 50 KB of the Raft log, and 10 ms of work on each node."""
REFUSALS_LOGGED: Final = 10
"""A change that is refused so often in a row is reported: a member that has just been lost takes
fewer, and another one keeps all others out."""
YIELD_CHANGES: Final = 100
"""Changes that are concluded before the event loop may do other work."""
YIELD_PARTITIONS: Final = 500
"""Partitions looked at before the event loop may do other work."""


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
        wanted: Callable[[], Iterator[WantedChange | None]],
        send: Callable[[bytes], None],
    ) -> None:
        """`node_epoch` is that of this node. `wanted` looks at partitions one by one, and yields
        the change to propose now, or None. `send` takes NATS operations with acks."""
        self._node_id = node_id
        self._metadata = metadata
        self._node_epoch = node_epoch
        self._wanted = wanted
        self._send = send
        self._proposals: set[asyncio.Task[None]] = set()
        self._refusals: Counter[tuple[bytes, int]] = Counter()
        """Stream id and partition -> how often the controller has refused its ISR in a row."""

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await asyncio.sleep(CHECK_SECONDS)
                chosen: list[WantedChange] = []
                for number, change in enumerate(self._wanted()):
                    if number % YIELD_PARTITIONS == YIELD_PARTITIONS - 1:
                        await asyncio.sleep(0)
                    if change is not None and change.partition.commitment.on_isr_proposed(
                        change.isr, change.state
                    ):
                        chosen.append(change)
                for start in range(0, len(chosen), CHANGES_MAX):
                    part = chosen[start : start + CHANGES_MAX]
                    task = asyncio.get_running_loop().create_task(self._propose(part))
                    self._proposals.add(task)
                    task.add_done_callback(self._proposals.discard)
        finally:
            for task in self._proposals:
                task.cancel()

    async def _propose(self, changes: Sequence[WantedChange]) -> None:
        """Ask the controller until it answers. The versions make a repetition harmless.

        An error is no answer: it may be that of a repetition, and the first request committed yet.
        """
        first = changes[0]
        extra: dict[str, object] = {
            "stream": first.partition.definition.name,
            "partition": first.partition.index,
            "isr": list(first.isr),
            "before": list(first.state.isr),
            "count": len(changes),
        }
        while True:
            mine = self._node_epoch()
            request = ChangeIsrs(
                self._node_id,
                tuple(
                    _requested(each, {**each.node_epochs, self._node_id: mine}) for each in changes
                ),
            )
            try:
                await self._metadata.submit(request)
                break
            except BasculeError as error:
                if extra.get("error") != str(error):
                    extra["error"] = str(error)
                    log.warning("isr not changed yet", extra=extra)
            await asyncio.sleep(RETRY_SECONDS)
        for number, change in enumerate(changes):
            if number % YIELD_CHANGES == YIELD_CHANGES - 1:
                await asyncio.sleep(0)
            self._conclude(change)

    def _conclude(self, change: WantedChange) -> None:
        """The controller has answered: the image says whether the change took effect."""
        partition, state = change.partition, change.state
        definition, index = partition.definition, partition.index
        states = self._metadata.image.partitions.get(definition.id, ())
        key = definition.id, index
        if index >= len(states):
            self._refusals.pop(key, None)
        elif states[index].version != state.version:
            self._refusals.pop(key, None)
            log.info(
                "isr changed",
                extra={
                    "stream": definition.name,
                    "partition": index,
                    "isr": list(change.isr),
                    "before": list(state.isr),
                    "reason": _reason(state.isr, change.isr),
                },
            )
            return
        else:
            self._refusals[key] += 1
        if self._refusals[key] == REFUSALS_LOGGED:
            alive = {n: each.epoch for n, each in self._metadata.image.nodes.items() if each.alive}
            log.warning(
                "isr refused",
                extra={
                    "stream": definition.name,
                    "partition": index,
                    "isr": list(change.isr),
                    "before": list(state.isr),
                    "node_epochs": dict(change.node_epochs),
                    "alive": alive,
                },
            )
        if replies := partition.commitment.on_isr_failed(state):
            self._send(replies)


def _reason(before: Sequence[int], isr: Sequence[int]) -> str:
    """Why a leader has wanted another in-sync replica set."""
    gone, new = sorted({*before} - {*isr}), sorted({*isr} - {*before})
    parts = [f"node {node} has been behind for replica_lag_ms_max" for node in gone]
    parts += [f"node {node} has caught up" for node in new]
    return ", ".join(parts)


def _requested(change: WantedChange, epochs: Mapping[int, int]) -> IsrChange:
    return IsrChange(
        stream_id=change.partition.definition.id,
        partition=change.partition.index,
        leader_epoch=change.state.leader_epoch,
        version=change.state.version,
        members=tuple((node, epochs.get(node, -1)) for node in change.isr),
    )
