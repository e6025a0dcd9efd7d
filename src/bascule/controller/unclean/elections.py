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
from bascule.controller.unclean.log_ends import Key, LogEnds
from bascule.errors import BasculeError
from bascule.metadata.elections import (
    ComparedLogs,
    LogEnd,
    allows_unclean,
    awaited_logs,
    doubtful_candidates,
    is_enough,
    unclean_candidates,
)
from bascule.metadata.image import Image
from bascule.metadata.requests import ElectLongest, ElectUncleanly
from bascule.model import PartitionState

log = logging.getLogger("bascule.controller")

COLLECT_SECONDS: Final = 0.05
"""For changes of the image that come together."""
RETRY_SECONDS: Final = 1.0
"""Before nodes are asked again whose answers are missing, if nothing changes."""
MISSING_SECONDS_MAX: Final = 10.0
"""For the answer of a living replica: a node that has just started has to open its logs. Then those
decide that have answered."""
DOUBTFUL_SECONDS_MAX: Final = 60.0
"""The same where replicas are doubtful, also for those that are not alive: machines that went down
together come up one by one, and check what their logs have."""
AT_A_TIME: Final = 500
"""Partitions in one decision."""
STREAMS_AT_A_TIME: Final = 1_000
"""Streams that are looked at before the event loop does other work."""


class _Leaderless(NamedTuple):
    key: Key
    state: PartitionState
    nodes: tuple[int, ...]
    """Those that may be elected."""
    awaited: frozenset[int] = frozenset()
    """Those whose logs are waited for, also if they are not alive, since replicas are doubtful;
    empty: the election is unclean."""

    @property
    def kind(self) -> tuple[Key, bool]:
        return self.key, bool(self.awaited)


class _Seen(NamedTuple):
    """When a node was seen to have registered, on the loop's clock."""

    epoch: int
    first: float
    latest: float


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
        self._since: dict[tuple[Key, bool], float] = {}
        """When a partition was first seen to wait, on the loop's clock; True: with replicas that
        are doubtful."""
        self._seen: dict[int, _Seen] = {}
        """The nodes that were alive while partitions waited."""

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
            self._seen.clear()
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
        self._since = {each.kind: self._since.get(each.kind, now) for each in found}
        self._note_living(image, now)
        if not found:
            self._settled = image
            self._seen.clear()
            return False
        asked = [each for each in found if self._may_ask(each, now)]
        states = await self._log_ends.ask((each.key, each.nodes) for each in asked)
        uncleanly, longest = [], []
        for each in asked:
            said = {
                node: state
                for node in each.nodes
                if (state := states[node].get(each.key)) is not None
            }
            if any(self._is_awaited(each, node, now) for node in each.nodes if node not in said):
                continue
            ends = tuple(
                LogEnd(node, image.nodes[node].epoch, state.last_epoch, state.end_offset)
                for node, state in said.items()
                if not state.has_failed
            )
            compared = ComparedLogs(*each.key, each.state.version, ends)
            if each.awaited and is_enough(each.state, said, [end.node_id for end in ends]):
                longest.append(compared)
            elif ends and allows_unclean(image, each.key[0]):
                uncleanly.append(compared)
        await self._decide(image, ElectUncleanly, uncleanly)
        await self._decide(image, ElectLongest, longest)
        return len(uncleanly) + len(longest) < len(found)

    def _note_living(self, image: Image, now: float) -> None:
        for number, node in image.nodes.items():
            if node.alive:
                seen = self._seen.get(number)
                if seen is None or seen.epoch != node.epoch:
                    first = now if seen is None else seen.first
                    self._seen[number] = _Seen(node.epoch, first, now)

    def _may_ask(self, waiting: _Leaderless, now: float) -> bool:
        """Whether it does not wait for nodes that are not alive."""
        missing = waiting.awaited.difference(waiting.nodes)
        return not any(self._is_awaited(waiting, node, now) for node in missing)

    def _is_awaited(self, waiting: _Leaderless, node: int, now: float) -> bool:
        """Whether the answer of a node that has not given one is waited for: for some time after it
        came, and not for ever where it comes again and again."""
        limit_s = DOUBTFUL_SECONDS_MAX if node in waiting.awaited else MISSING_SECONDS_MAX
        since = self._since[waiting.kind]
        if (seen := self._seen.get(node)) is None:
            return now < since + limit_s
        return now < min(max(since, seen.latest) + limit_s, max(since, seen.first) + 2 * limit_s)

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
                found.append(_Leaderless(key, state, nodes, awaited_logs(state)))
            elif is_allowed and (nodes := unclean_candidates(image, stream_id, state)):
                found.append(_Leaderless(key, state, nodes))
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
