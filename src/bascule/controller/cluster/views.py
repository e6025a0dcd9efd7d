"""The cluster and its streams as one node sees them, for clients and people."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.errors import BasculeError, UnknownStream
from bascule.metadata.elections import why_leaderless
from bascule.metadata.image import Image
from bascule.metadata.replicas.drained import why_move_waits
from bascule.metadata.troubles import find_troubles, how_to_repair
from bascule.model import (
    NO_LEADER,
    ClusterInfo,
    DuplicateStream,
    FailedReplica,
    LackingNode,
    NodeRegistration,
    PartitionInfo,
    PartitionState,
    StreamDefinition,
    StreamInfo,
)
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.subjects import subjects_overlap

log = logging.getLogger("bascule.controller")

PARTITIONS: Final = "partitions"
"""The kind of control request for the state of the partitions that a node leads."""
FAILED: Final = "failed"
"""The kind of control request for the replicas of a node that have failed."""
HOW_TO_COMPARE: Final = (
    "nothing says which replica is right: compare the records in both logs with `bascule inspect`, "
    "then have the wrong replica moved to another node and back with `bascule stream reassign`"
)
HEALS: Final = "it heals from another replica"
"""What is said of a failed replica that needs no operator."""
LEADER_DAMAGED: Final = "the log of its leader is damaged, too"
"""Why a leader does not serve a replica that is to heal: each may have what the other lacks."""
INFO_SECONDS_MAX: Final = 2.0
LISTED_MAX: Final = 200
"""Partitions, or failed replicas of one node, in an answer; all of them are counted."""


class _Failed(msgspec.Struct, array_like=True):
    """The replicas of a node that have failed."""

    count: int
    first: list[tuple[bytes, int, str]]
    """Stream id, partition and cause of some of them."""
    differing: list[tuple[bytes, int, str]] = []
    """Likewise those that differ from other replicas."""
    healing: list[tuple[bytes, int]] = []
    """Stream id and partition of those of `first` that need no operator; earlier releases do not
    say which these are."""
    serving: list[tuple[bytes, int]] = []
    """Stream id and partition of those of `first` that have not failed: their logs are damaged, but
    nobody else has all of their records, and they serve what can be read."""


class ClusterViews:
    """Belongs to the event loop. What another node knows better, it is asked for."""

    def __init__(
        self,
        node_id: int,
        name: str,
        partitions: Partitions,
        metadata: MetadataGroup,
        peers: Peers,
        *,
        refusals: Callable[[], Mapping[str, str]],
        duplicates: Callable[[str], tuple[DuplicateStream, ...]],
    ) -> None:
        """`name` is that of the cluster. `refusals` says which streams the NATS server of this node
        refuses, and why; `duplicates` which other clusters have a stream."""
        self.node_id = node_id
        self._name = name
        self._partitions = partitions
        self._metadata = metadata
        self._peers = peers
        self._refusals = refusals
        self._duplicates = duplicates
        self.differing: Callable[[], list[tuple[bytes, int, str]]] = list
        """Stream id, partition and difference of the replicas of this node that differ from others;
        see `healing.scrubs`."""
        self.standing: Callable[[Partition], str] = lambda _: ""
        """What is done about a failed replica of this node, and what is known of a damaged one that
        has not failed; see `healing`."""
        self.controls: Mapping[str, Callable[[bytes], Awaitable[bytes]]] = {
            PARTITIONS: self.answer_partitions,
            FAILED: self.answer_failed,
        }
        """Kind -> the handler of a control request from another node."""

    def definition(self, name: str) -> StreamDefinition:
        """Raises: UnknownStream."""
        found = self._metadata.image.streams.get(name)
        if found is None:
            raise UnknownStream(name)
        return found

    @property
    def controller_id(self) -> int:
        """The controller as far as known, else 0."""
        return self._metadata.controller_id

    def nodes(self) -> list[NodeRegistration]:
        """The nodes that are alive and have a client listener."""
        return [each for each in self._metadata.image.nodes.values() if each.alive and each.client]

    def registrations(self) -> list[NodeRegistration]:
        """All nodes, also those that are lost, by id."""
        return [node for _, node in sorted(self._metadata.image.nodes.items())]

    def table_names(self) -> list[str]:
        """The streams that are tables, by name."""
        streams = self._metadata.image.streams
        return sorted(name for name, each in streams.items() if each.config.table)

    def states(self, stream_id: bytes) -> Sequence[PartitionState]:
        """The states of a stream's partitions; empty for an unknown stream."""
        return self._metadata.image.partitions.get(stream_id, ())

    def cluster_info(self) -> ClusterInfo:
        """The cluster as this node sees it."""
        metadata = self._metadata
        image = metadata.image
        troubles = find_troubles(image)
        return ClusterInfo(
            name=self._name,
            controller=metadata.controller_id,
            term=metadata.term,
            index=metadata.applied,
            nodes=tuple(node for _, node in sorted(image.nodes.items())),
            partitions=image.index.partitions,
            leaderless=troubles.leaderless,
            under_min_isr=troubles.under_min_isr,
            under_replicated=troubles.under_replicated,
            unclean=troubles.unclean,
            voters=metadata.members.voters,
            learners=metadata.members.learners,
            catch_up_rate=image.catch_up_rate,
            is_balancing=image.is_balancing,
            cluster_version=image.cluster_version,
            leaderless_count=len(troubles.leaderless),
            under_min_isr_count=len(troubles.under_min_isr),
            under_replicated_count=len(troubles.under_replicated),
            unclean_count=len(troubles.unclean),
            short_count=len(troubles.short),
            moving=troubles.moving,
            moving_count=len(troubles.moving),
            lacking_nats=tuple(
                LackingNode(node_id, node.lacks_nats_since_ms, image.index.leaders_on(node_id))
                for node_id, node in sorted(image.nodes.items())
                if node.alive and node.lacks_nats
            ),
        )

    async def describe_cluster(self) -> ClusterInfo:
        """As `cluster_info`, with what the living nodes say of their replicas. Lists are cut."""
        image = self._metadata.image
        alive = image.alive()
        answers = await asyncio.gather(*(self._ask_failed(node) for node in alive))
        damaged = {
            (key, node) for node, said in zip(alive, answers, strict=True) for key in said.serving
        }
        failed = [
            each
            for node, said in zip(alive, answers, strict=True)
            for each in _failed_replicas(image, node, said.first, damaged)
        ]
        differing = [
            FailedReplica(definition.name, index, node, difference, HOW_TO_COMPARE)
            for node, said in zip(alive, answers, strict=True)
            for stream_id, index, difference in said.differing
            if (definition := image.stream_of(stream_id)) is not None
        ]
        info = self.cluster_info()
        return replace(
            info,
            leaderless=info.leaderless[:LISTED_MAX],
            under_min_isr=info.under_min_isr[:LISTED_MAX],
            under_replicated=info.under_replicated[:LISTED_MAX],
            unclean=info.unclean[:LISTED_MAX],
            moving=info.moving[:LISTED_MAX],
            failed=tuple(sorted(failed, key=attrgetter("stream", "partition", "node"))),
            differing=tuple(sorted(differing, key=attrgetter("stream", "partition", "node"))),
            failed_count=sum(said.count for said in answers),
        )

    async def stuck_replicas(self) -> list[FailedReplica]:
        """The replicas on living nodes that have failed and need an operator, as far as listed."""
        image = self._metadata.image
        alive = image.alive()
        answers = await asyncio.gather(*(self._ask_failed(node) for node in alive))
        return [
            each
            for node, said in zip(alive, answers, strict=True)
            for each in _failed_replicas(
                image,
                node,
                (it for it in said.first if it[:2] not in (*said.healing, *said.serving)),
            )
        ]

    async def _ask_failed(self, node: int) -> _Failed:
        if node == self.node_id:
            return self._failed()
        try:
            reply = await self._peers.control(node, FAILED, b"", timeout_s=INFO_SECONDS_MAX)
            return msgspec.msgpack.decode(reply, type=_Failed)
        except (BasculeError, msgspec.MsgspecError) as error:
            log.debug("failed replicas not told", extra={"node": node, "error": str(error)})
            return _Failed(0, [])

    async def answer_failed(self, body: bytes) -> bytes:
        """Answer a control request for the replicas of this node that have failed."""
        return msgspec.msgpack.encode(self._failed())

    def _failed(self) -> _Failed:
        found = [
            partition
            for partitions in self._partitions.streams().values()
            for partition in partitions
            if partition.failure is not None or self.standing(partition)
        ]
        first = found[:LISTED_MAX]
        return _Failed(
            len(found),
            [(each.definition.id, each.index, self._explain(each)) for each in first],
            self.differing()[:LISTED_MAX],
            [(each.definition.id, each.index) for each in first if self._heals(each)],
            [(each.definition.id, each.index) for each in first if each.failure is None],
        )

    def _heals(self, partition: Partition) -> bool:
        """Whether a failed partition needs no operator, or it is not known yet that it does."""
        failure, standing = partition.failure, self.standing(partition)
        return failure is not None and (standing == HEALS or (failure.is_damage and not standing))

    def _explain(self, partition: Partition) -> str:
        """Why a partition has failed or is damaged, and what this node does about it."""
        standing = self.standing(partition)
        if partition.failure is None:
            return standing
        cause = partition.failure.cause
        return f"{cause}; {standing}" if standing else cause

    def stream_info(self, name: str) -> StreamInfo:
        """As this node knows it. Raises: UnknownStream."""
        return self._info(self.definition(name))

    def stream_infos(self) -> list[StreamInfo]:
        """As this node knows them."""
        return [self._info(each) for each in self._metadata.image.streams.values()]

    async def describe(self, name: str) -> StreamInfo:
        """A stream, with what its leaders say of its partitions. Raises: UnknownStream."""
        info = self.stream_info(name)
        return (await self._merged([info]))[0]

    async def describe_all(self, subject: str) -> list[StreamInfo]:
        """The streams that store messages on a subject, which may have wildcards, with what their
        leaders say of their partitions."""
        infos = [
            self._info(each)
            for each in self._metadata.image.streams.values()
            if subjects_overlap(each.config.subject, subject)
        ]
        return await self._merged(infos)

    async def describe_some(self, names: Iterable[str]) -> list[StreamInfo]:
        """As `describe`, of those of these streams that there are."""
        streams = self._metadata.image.streams
        infos = [self._info(streams[name]) for name in names if name in streams]
        return await self._merged(infos)

    def _info(self, definition: StreamDefinition) -> StreamInfo:
        present = self._partitions.stream_by_id(definition.id) or ()
        states = self._metadata.image.partitions.get(definition.id, ())
        refusals = self._refusals()
        partitions = tuple(
            self._partition_info(
                definition, index, state, present[index] if index < len(present) else None
            )
            for index, state in enumerate(states)
        )
        overlaps = self._partitions.overlaps(definition) if present else ()
        return StreamInfo(
            definition,
            partitions,
            refusal=refusals.get(definition.name),
            overlaps=overlaps,
            duplicates=self._duplicates(definition.name),
        )

    async def _merged(self, infos: Sequence[StreamInfo]) -> list[StreamInfo]:
        """These streams with what the leaders of their partitions say. What a leader does not say
        is unknown: a replica of this node may have less, or more, than what is committed."""
        ids: dict[int, dict[bytes, None]] = {}
        for info in infos:
            for each in info.partitions:
                if each.leader not in (self.node_id, NO_LEADER):
                    ids.setdefault(each.leader, {})[info.definition.id] = None
        answers = await asyncio.gather(*(self._ask_led(node, [*ids[node]]) for node in ids))
        said = {
            node: None if answer is None else {(id, each.partition): each for id, each in answer}
            for node, answer in zip(ids, answers, strict=True)
        }

        def merged(stream_id: bytes, known: PartitionInfo) -> PartitionInfo:
            if known.leader == self.node_id:
                return known
            if known.leader == NO_LEADER:
                return _without_values(known, "nobody leads it")
            answer = said[known.leader]
            if answer is None:
                return _without_values(known, f"its leader, node {known.leader}, does not answer")
            why = f"node {known.leader} does not say that it leads it"
            return answer.get((stream_id, known.partition)) or _without_values(known, why)

        return [
            replace(
                info, partitions=tuple(merged(info.definition.id, each) for each in info.partitions)
            )
            for info in infos
        ]

    async def _ask_led(
        self, node: int, ids: list[bytes]
    ) -> list[tuple[bytes, PartitionInfo]] | None:
        """What another node says of the partitions of these streams that it leads; None: it does
        not answer."""
        body = msgspec.msgpack.encode(ids)
        try:
            reply = await self._peers.control(node, PARTITIONS, body, timeout_s=INFO_SECONDS_MAX)
        except BasculeError as error:
            log.debug("partitions not described", extra={"node": node, "error": str(error)})
            return None
        return msgspec.msgpack.decode(reply, type=list[tuple[bytes, PartitionInfo]])

    async def why_not_served(self, stream_id: bytes, index: int, state: PartitionState) -> str:
        """Why nothing may be given up for what the leader in `state`, another node, has.

        Empty: it says that it leads the partition in that epoch, has opened its replica, and that
        this one has not failed and is not known to be damaged."""
        for said_of, info in await self._ask_led(state.leader, [stream_id]) or ():
            if (said_of, info.partition, info.leader_epoch) == (
                stream_id, index, state.leader_epoch,
            ):  # fmt: skip
                return info.failure or (LEADER_DAMAGED if info.damage else "")
        return "its leader does not say that it serves"

    async def answer_partitions(self, body: bytes) -> bytes:
        """Answer a control request for the partitions that this node leads."""
        said = []
        for stream_id in msgspec.msgpack.decode(body, type=list[bytes]):
            states = self.states(stream_id)
            for partition in self._partitions.stream_by_id(stream_id) or ():
                if partition.index < len(states):
                    state = states[partition.index]
                    if state.leader == self.node_id:
                        info = self._partition_info(
                            partition.definition, partition.index, state, partition
                        )
                        said.append((stream_id, info))
        return msgspec.msgpack.encode(said)

    def _partition_info(
        self,
        definition: StreamDefinition,
        index: int,
        state: PartitionState,
        present: Partition | None,
    ) -> PartitionInfo:
        found = PartitionInfo(index, 0, 0, 0, 0, state.leader_epoch, 0)
        if present is not None:
            found = present.info()
            damage = "" if present.failure is not None else self.standing(present)
            found = replace(found, bytes_behind=bytes_behind(present), damage=damage)
        return replace(
            found,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            replicas=state.replicas,
            isr=self._isr_in_force(state, present),
            target=state.target,
            move_waits=why_move_waits(self._metadata.image, state, {}),
            unclean_epoch=state.shown_unclean_epoch,
            waits=why_leaderless(self._metadata.image, definition, state),
        )

    def _isr_in_force(self, state: PartitionState, present: Partition | None) -> tuple[int, ...]:
        """The replicas in sync by which this node accepts messages, if it leads: it takes over a
        change a moment after its image has it."""
        replication = None if present is None else present.commitment.replication
        if state.leader != self.node_id or replication is None:
            return state.isr
        known = replication.state
        return known.isr if known.leader_epoch == state.leader_epoch else state.isr


def other_replicas(state: PartitionState, node_id: int) -> list[int]:
    """Nodes other than this one that have a replica in sync, the leader first."""
    nodes = dict.fromkeys((state.leader, *state.isr))
    return [node for node in nodes if node not in (NO_LEADER, node_id)]


def _failed_replicas(
    image: Image,
    node: int,
    said: Iterable[tuple[bytes, int, str]],
    damaged: Container[tuple[tuple[bytes, int], int]] = (),
) -> Iterator[FailedReplica]:
    """What a node says of its replicas, of those that there are by this image. `damaged` has stream
    id and partition, and the node, of those that are damaged and have not failed."""
    for stream_id, index, failure in said:
        definition = image.stream_of(stream_id)
        if definition is not None and index < len(image.partitions[stream_id]):
            state = image.partitions[stream_id][index]
            is_led = ((stream_id, index), state.leader) in damaged
            advice = how_to_repair(image, definition, state, node, leader_damaged=is_led)
            yield FailedReplica(definition.name, index, node, failure, advice)


def bytes_behind(partition: Partition) -> int:
    """How much replicas that are not in sync have to copy, as far as this leader knows. Those that
    are to go once the partition has moved copy nothing that anybody waits for."""
    replication, store = partition.commitment.replication, partition.log
    if replication is None or store is None:
        return 0
    state, end, start = replication.state, store.end.offset, store.start_offset
    behind = (node for node in state.target or state.replicas if node not in state.isr)
    return sum(store.bytes_from(max(end - replication.lag(node), start)) for node in behind)


def _without_values(info: PartitionInfo, why: str) -> PartitionInfo:
    return replace(
        info,
        start_offset=None,
        high_watermark=None,
        synced_offset=None,
        end_offset=None,
        bytes=None,
        bytes_behind=None,
        replicated_offset=None,
        unknown=why,
    )
