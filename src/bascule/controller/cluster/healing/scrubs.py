"""Scrubs of a stream on all nodes, and the comparison of replicas.

A node whose scrubber has read a log asks the other nodes for the digests of their replicas, and
compares what can be compared. So two replicas are compared once the scrubbers of both have read
them. A difference is reported, and never repaired: the CRCs are good, so nothing says which replica
is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from dataclasses import dataclass
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import BasculeError, UnknownPartition
from bascule.host.api import Random
from bascule.model import StreamDefinition
from bascule.operation_results import ScrubbedReplica
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub import ScrubbedLog, Scrubber, ScrubState
from bascule.storage.scrub import DigestedRanges, compare
from bascule.storage.scrub.latest import LatestValues

log = logging.getLogger("bascule.controller")

SCRUB: Final = "scrub"
"""The kind of control request that has a node read logs."""
SCRUBBED: Final = "scrubbed"
"""The kind of control request for what the scrubber of a node has found."""
ANSWER_SECONDS_MAX: Final = 5.0
DIFFERS: Final = "differs"
UNCOMPARED: Final = "uncompared"
UNREACHABLE: Final = "unreachable"
UNDER_WAY: Final = (ScrubState.WAITING, ScrubState.RUNNING)
SHOWN_MAX: Final = 3
"""Ranges of a difference that are named."""

Key = tuple[bytes, int]


class _Task(msgspec.Struct, array_like=True):
    """The body of a request to read logs."""

    id: str
    stream_id: bytes
    limits: list[tuple[int, int]]
    """Partition and the offset up to which it is digested."""


class _Question(msgspec.Struct, array_like=True):
    """The body of a request for what was found."""

    stream_id: bytes
    partition: int | None
    with_digests: bool


class _Digests(msgspec.Struct, array_like=True):
    width: int
    first: int
    limit: int
    sums: bytes
    covered: bytes


class _Found(msgspec.Struct, array_like=True):
    """What is known of one replica."""

    partition: int
    id: str
    state: str
    records: int
    bytes: int
    bytes_total: int
    busy_ns: int
    found: str
    finished_ms: int
    digests: _Digests | None
    latest: tuple[int, int, int, int] | None = None
    """`LatestValues`; nodes of earlier releases do not say it."""


@dataclass(slots=True)
class ComparisonCounts:
    """For metrics. Counts only grow, but for the first."""

    differing: int = 0
    """Replicas of this node that differ now from one on another node."""
    compared: int = 0
    """Offsets that were compared."""
    differences: int = 0
    """Comparisons that have found a difference."""


class Scrubs:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        metadata: MetadataGroup,
        peers: Peers,
        views: ClusterViews,
        random: Random,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._metadata = metadata
        self._peers = peers
        self._views = views
        self._random = random
        self._scrubber: Scrubber | None = None
        self._differing: dict[Key, dict[int, str]] = {}
        """Partition -> other node -> how its replica differs."""
        self._comparing: set[asyncio.Task[None]] = set()
        self.counts = ComparisonCounts()
        views.differing = self.differing

    def attach(self, scrubber: Scrubber) -> None:
        """Use the scrubber of this node from now on."""
        self._scrubber = scrubber
        scrubber.on_done = self._on_done

    def close(self) -> None:
        """Compare nothing any more."""
        for task in self._comparing:
            task.cancel()

    def differing(self) -> list[tuple[bytes, int, str]]:
        """Stream id, partition and difference of the replicas of this node that differ."""
        return [
            (*key, found) for key, by_node in self._differing.items() for found in by_node.values()
        ]

    # -- requests -------------------------------------------------------------------------------

    async def scrub_stream(self, name: str, *, partition: int | None) -> list[ScrubbedReplica]:
        """Have all nodes read their replicas of a stream, or of one partition, from now on.

        Raises: UnknownStream, UnknownPartition.
        """
        info = await self._views.describe(name)
        definition = info.definition
        self._check(definition, partition)
        id = self._random.bytes(8).hex()
        # Where nobody tells up to where replicas are equal, logs are read, and not compared.
        limits = [
            (each.partition, each.high_watermark or 0)
            for each in info.partitions
            if partition in (None, each.partition)
        ]
        body = msgspec.msgpack.encode(_Task(id, definition.id, limits))
        nodes = self._nodes(definition, partition)
        await asyncio.gather(*(self._ask(node, SCRUB, body) for node in nodes))
        return await self.scrub_results(name, partition=partition)

    async def scrub_results(self, name: str, *, partition: int | None) -> list[ScrubbedReplica]:
        """What the last scrub of each replica has found, or how far it is.

        Raises: UnknownStream, UnknownPartition.
        """
        definition = self._views.definition(name)
        self._check(definition, partition)
        states = list(enumerate(self._views.states(definition.id)))
        chosen = [(index, state) for index, state in states if partition in (None, index)]
        known = await self._ask_all(definition, partition, with_digests=False)
        if all(ScrubState(each.state) not in UNDER_WAY for each in known.values()):
            # One partition at a time: the digests of one take up to 64 KB.
            for index, _ in chosen:
                known |= await self._ask_all(definition, index, with_digests=True)
        return [
            self._row(index, node, known, sorted(state.replicas))
            for index, state in chosen
            for node in sorted(state.replicas)
        ]

    async def _ask_all(
        self, definition: StreamDefinition, partition: int | None, *, with_digests: bool
    ) -> dict[tuple[int, int], _Found]:
        """Partition and node -> what the nodes say."""
        body = msgspec.msgpack.encode(_Question(definition.id, partition, with_digests))
        nodes = self._nodes(definition, partition)
        answers = await asyncio.gather(*(self._ask(node, SCRUBBED, body) for node in nodes))
        return {
            (each.partition, node): each
            for node, answer in zip(nodes, answers, strict=True)
            for each in (
                [] if answer is None else msgspec.msgpack.decode(answer, type=list[_Found])
            )
        }

    def _check(self, definition: StreamDefinition, partition: int | None) -> None:
        count = definition.partition_count
        if partition is not None and not 0 <= partition < count:
            raise UnknownPartition(definition.name, partition, count)

    def _nodes(self, definition: StreamDefinition, partition: int | None) -> list[int]:
        states = self._views.states(definition.id)
        return sorted(
            {
                node
                for index, state in enumerate(states)
                if partition in (None, index)
                for node in state.replicas
            }
        )

    def _row(
        self, index: int, node: int, known: dict[tuple[int, int], _Found], replicas: list[int]
    ) -> ScrubbedReplica:
        mine = known.get((index, node))
        if mine is None:
            return ScrubbedReplica(index, node, UNREACHABLE, found="the node does not answer")
        result, found = mine.state, mine.found
        if result == ScrubState.OK:
            others = [(n, known[index, n]) for n in replicas if n != node and (index, n) in known]
            differences = [
                difference
                for other, theirs in others
                if (difference := _difference(mine, theirs, other)[1])
            ]
            if differences:
                result, found = DIFFERS, "; ".join(differences)
            elif others and mine.records and mine.digests is not None and not mine.digests.limit:
                result = UNCOMPARED
                found = "where the committed records end was not known when the scrub began"
        return ScrubbedReplica(
            partition=index,
            node=node,
            result=result,
            records=mine.records,
            bytes=mine.bytes,
            bytes_total=mine.bytes_total,
            seconds=mine.busy_ns / 1e9,
            finished_ms=mine.finished_ms,
            found=found,
        )

    async def _ask(self, node: int, kind: str, body: bytes) -> bytes | None:
        """A node's answer; None where it gives none."""
        try:
            if node == self._node_id:
                return await (self.answer_scrub if kind == SCRUB else self.answer_scrubbed)(body)
            if not self._metadata.image.is_alive(node):
                return None
            return await self._peers.control(node, kind, body, timeout_s=ANSWER_SECONDS_MAX)
        except BasculeError as error:
            log.debug("no answer about scrubs", extra={"node": node, "error": str(error)})
            return None

    # -- what this node answers -----------------------------------------------------------------

    async def answer_scrub(self, body: bytes) -> bytes:
        """Read logs soon."""
        asked = msgspec.msgpack.decode(body, type=_Task)
        for partition, limit in asked.limits:
            held = self._held(asked.stream_id, partition)
            if self._scrubber is not None and held is not None:
                self._scrubber.request(held, asked.id, limit)
        return b""

    async def answer_scrubbed(self, body: bytes) -> bytes:
        """Say what the scrubber of this node has found."""
        asked = msgspec.msgpack.decode(body, type=_Question)
        states = self._views.states(asked.stream_id)
        said = []
        for index in range(len(states)):
            partition = self._held(asked.stream_id, index)
            if asked.partition in (None, index) and partition is not None and self._scrubber:
                said.append(_told(index, self._scrubber.known(partition), asked.with_digests))
        return msgspec.msgpack.encode(said)

    def _held(self, stream_id: bytes, index: int) -> Partition | None:
        """The replica of this node."""
        present = self._partitions.stream_by_id(stream_id) or ()
        states = self._views.states(stream_id)
        if index >= min(len(present), len(states)):
            return None
        return present[index] if self._node_id in states[index].replicas else None

    # -- comparisons ----------------------------------------------------------------------------

    def _on_done(self, partition: Partition, known: ScrubbedLog) -> None:
        if known.digests is not None and not partition.deleted:
            told = _told(partition.index, known, with_digests=True)
            task = asyncio.get_running_loop().create_task(self._compare(partition, told))
            self._comparing.add(task)
            task.add_done_callback(self._comparing.discard)

    async def _compare(self, partition: Partition, mine: _Found) -> None:
        """Compare a replica of this node with those of the others."""
        key = stream_id, index = partition.definition.id, partition.index
        states = self._views.states(stream_id)
        others = states[index].replicas if index < len(states) else ()
        body = msgspec.msgpack.encode(_Question(stream_id, index, with_digests=True))
        differing = dict(self._differing.get(key, {}))
        for node in others:
            answer = None if node == self._node_id else await self._ask(node, SCRUBBED, body)
            for each in [] if answer is None else msgspec.msgpack.decode(answer, type=list[_Found]):
                compared, difference = _difference(mine, each, node)
                self.counts.compared += compared
                if not difference:
                    if compared:
                        differing.pop(node, None)
                    continue
                self.counts.differences += 1
                differing[node] = difference
                log.error(
                    "replicas differ",
                    extra={
                        "stream": partition.definition.name,
                        "partition": index,
                        "node": node,
                        "difference": difference,
                    },
                )
        self._differing.pop(key, None)
        kept = {node: found for node, found in differing.items() if node in others}
        if kept and not partition.deleted:
            self._differing[key] = kept
        self.counts.differing = len(self._differing)


def _difference(mine: _Found, theirs: _Found, node: int) -> tuple[int, str]:
    """How many offsets were compared with the replica of `node`, and how they differ."""
    if mine.digests is None or theirs.digests is None:
        return 0, ""
    found = compare(_decoded(mine.digests), _decoded(theirs.digests))
    if not found.differing:
        compared, difference = _latest_difference(mine.latest, theirs.latest, node)
        return max(found.compared, compared), difference
    shown = ", ".join(f"{start} to {end}" for start, end in found.differing[:SHOWN_MAX])
    more = len(found.differing) - SHOWN_MAX
    rest = f" and {more} more ranges" if more > 0 else ""
    text = f"offsets {shown}{rest} differ from node {node}, and all CRCs are good"
    return found.compared, text


def _latest_difference(
    mine: tuple[int, int, int, int] | None, theirs: tuple[int, int, int, int] | None, node: int
) -> tuple[int, str]:
    """As `_difference`, by the latest values of keys."""
    if mine is None or theirs is None:
        return 0, ""
    ours, other = LatestValues(*mine), LatestValues(*theirs)
    if (ours.start, ours.limit) != (other.start, other.limit):
        return 0, ""
    compared = ours.limit - ours.start
    if ours == other:
        return compared, ""
    return compared, (
        f"the latest values of keys at offsets {ours.start} to {ours.limit} differ from node {node}"
        f" ({ours.records} and {other.records} records), and all CRCs are good"
    )


def _told(index: int, known: ScrubbedLog, with_digests: bool) -> _Found:
    report, latest = known.report, known.latest if with_digests else None
    digests = None if known.digests is None or not with_digests else _encoded(known.digests)
    if report is None:
        state = ScrubState.WAITING if not known.finished_ms else ScrubState.OK
        return _Found(index, "", state.value, 0, 0, 0, 0, "", known.finished_ms, digests, latest)
    return _Found(
        index, report.id, report.state.value, report.records, report.bytes, report.bytes_total,
        report.busy_ns, report.found, known.finished_ms, digests, latest,
    )  # fmt: skip


def _encoded(digests: DigestedRanges) -> _Digests:
    return _Digests(
        digests.width, digests.first, digests.limit,
        digests.sums.tobytes(), digests.covered.tobytes(),
    )  # fmt: skip


def _decoded(digests: _Digests) -> DigestedRanges:
    sums, covered = array("Q", digests.sums), array("q", digests.covered)
    return DigestedRanges(digests.width, digests.first, digests.limit, sums, covered)
