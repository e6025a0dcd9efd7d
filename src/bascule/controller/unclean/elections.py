"""How the controller finds the replica to lead where the metadata does not say it: by its log.

::

    no leader, and
      unclean_election, nobody in the ISR alive
      or everybody in the ISR doubtful, since the machines went down
      -> ask the living replicas where their logs end
      -> elect the one with the latest leader epoch, then the longest log

The metadata says nothing about logs, and nodes report nothing about them: partitions that have a
leader, or need not get one in this way, cost nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.unclean.log_ends import Key, LogEnds, SaidLogEnd
from bascule.errors import BasculeError
from bascule.metadata.elections import (
    ComparedLogs,
    LogEnd,
    allows_unclean,
    doubtful_candidates,
    unclean_candidates,
)
from bascule.metadata.image import Image
from bascule.metadata.requests import ElectLongest, ElectUncleanly

log = logging.getLogger("bascule.controller")

COLLECT_SECONDS: Final = 0.05
"""For changes of the image that come together."""
RETRY_SECONDS: Final = 1.0
"""Before nodes are asked again whose answers are missing, if nothing changes."""
MISSING_SECONDS_MAX: Final = 10.0
"""For the answers of all living replicas: a node that has just started has to open its logs. Then
those decide that have answered."""
DOUBTFUL_SECONDS_MAX: Final = 60.0
"""For doubtful replicas that are not alive: machines that went down together come up one by one.
Then half of them decide."""
AT_A_TIME: Final = 500
"""Partitions in one decision."""
STREAMS_AT_A_TIME: Final = 1_000
"""Streams that are looked at before the event loop does other work."""


class _Leaderless(NamedTuple):
    key: Key
    version: int
    nodes: tuple[int, ...]
    """Those that may be elected."""
    doubtful: tuple[int, ...] = ()
    """Those of which any one has every committed record, unless it is damaged; empty: the election
    is unclean."""
    awaited: tuple[int, ...] = ()
    """Those whose logs are waited for."""


class UncleanElections:
    """The controller's part; also elections among doubtful replicas, which lose nothing.

    Belongs to the event loop.
    """

    def __init__(self, metadata: MetadataGroup, log_ends: LogEnds) -> None:
        self._metadata = metadata
        self._log_ends = log_ends
        self._is_due = asyncio.Event()
        """Whether the image, or the controller, has changed since `run` looked last."""
        metadata.watchers.add(self._is_due.set)
        self._settled: Image | None = None
        """The image in which nothing waits for a comparison of logs."""
        self._since: dict[Key, float] = {}
        """When a partition was first seen to wait, on the loop's clock."""

    async def run(self) -> None:
        """Run until cancelled; idle while another node is the controller, or nothing changes.

        A node that is back, and the end of the controller before, are changes.
        """
        while True:
            self._is_due.clear()
            pause = RETRY_SECONDS if await self._look() else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._is_due.wait()
            await asyncio.sleep(COLLECT_SECONDS)

    async def _look(self) -> bool:
        """Elect, as the controller; whether to look again although nothing changes."""
        image = self._metadata.image
        if not self._metadata.is_controller:
            self._settled = None
            self._since.clear()
            return False
        if image is self._settled:
            return False
        try:
            return await self._elect(image)
        except BasculeError as error:
            log.debug("comparison of logs is tried again", extra={"error": str(error)})
            return True

    async def _elect(self, image: Image) -> bool:
        """Elect where enough is known; whether partitions go on waiting. Raises: BasculeError."""
        found = await _find(image)
        now = asyncio.get_running_loop().time()
        self._since = {each.key: self._since.get(each.key, now) for each in found}
        if not found:
            self._settled = image
            return False
        asked = [each for each in found if self._may_ask(each, now)]
        states = await self._log_ends.ask((each.key, each.nodes) for each in asked)
        uncleanly, longest = [], []
        for each in asked:
            said = {node: states[node].get(each.key) for node in each.nodes}
            is_complete = None not in said.values()
            if not is_complete and now - self._since[each.key] < MISSING_SECONDS_MAX:
                continue
            ends = tuple(
                LogEnd(node, image.nodes[node].epoch, state.last_epoch, state.end_offset)
                for node, state in said.items()
                if state is not None and not state.has_failed
            )
            compared = ComparedLogs(*each.key, each.version, ends)
            if not each.doubtful and ends:
                uncleanly.append(compared)
            elif each.doubtful and _is_enough(each, said):
                longest.append(compared)
        await self._decide(image, ElectUncleanly, uncleanly)
        await self._decide(image, ElectLongest, longest)
        return len(uncleanly) + len(longest) < len(found)

    def _may_ask(self, waiting: _Leaderless, now: float) -> bool:
        """Whether it no longer waits for nodes that are not alive."""
        is_late = now - self._since[waiting.key] >= DOUBTFUL_SECONDS_MAX
        return is_late or set(waiting.awaited) <= set(waiting.nodes)

    async def _decide(
        self,
        image: Image,
        request: type[ElectUncleanly | ElectLongest],
        compared: Sequence[ComparedLogs],
    ) -> None:
        for start in range(0, len(compared), AT_A_TIME):
            some = compared[start : start + AT_A_TIME]
            log_compared(image, some)
            await self._metadata.decide_here(request(tuple(some)))


def _is_enough(waiting: _Leaderless, said: Mapping[int, SaidLogEnd | None]) -> bool:
    """Whether half of the doubtful replicas have a log, or each of them has said what it has."""
    answers = [answer for node in waiting.doubtful if (answer := said.get(node)) is not None]
    usable = sum(not answer.has_failed for answer in answers)
    return usable > 0 and (
        2 * usable >= len(waiting.doubtful) or len(answers) == len(waiting.doubtful)
    )


async def _find(image: Image) -> list[_Leaderless]:
    """The partitions that wait for a comparison of logs."""
    found = []
    for number, stream_id in enumerate(list(image.index.troubled), start=1):
        if number % STREAMS_AT_A_TIME == 0:
            await asyncio.sleep(0)
        is_allowed = allows_unclean(image, stream_id)
        for index, state in enumerate(image.partitions[stream_id]):
            key = stream_id, index
            if nodes := doubtful_candidates(image, state):
                doubtful = (*state.isr, *state.eligible)
                # Of machines that went down together the last one may be all that is known.
                awaited = doubtful if len(doubtful) > 1 else state.replicas
                found.append(_Leaderless(key, state.version, nodes, doubtful, awaited))
            elif is_allowed and (nodes := unclean_candidates(image, stream_id, state)):
                found.append(_Leaderless(key, state.version, nodes))
    return found


def log_compared(image: Image, compared: Iterable[ComparedLogs]) -> None:
    """Say what decides an election by the ends of logs."""
    for each in compared:
        ends: Mapping[int, str] = {
            end.node_id: f"{end.last_epoch}:{end.end_offset}" for end in each.ends
        }
        log.info(
            "ends of logs compared",
            extra={
                "stream": image.index.names[each.stream_id],
                "partition": each.partition,
                "ends": " ".join(f"{node}={end}" for node, end in sorted(ends.items())),
            },
        )
