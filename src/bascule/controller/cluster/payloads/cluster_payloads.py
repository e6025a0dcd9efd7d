"""Where payloads belong, by the metadata; and the payloads of this node that nobody wants."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

from bascule.cluster_identity import ClusterIdentity
from bascule.config.addresses import parse_address
from bascule.config.sections import LimitsConfig
from bascule.controller.cluster.confirmation import LeaderConfirmation
from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.controller.cluster.payloads.link_exchange import LINKS, LinkExchange
from bascule.controller.cluster.payloads.linking import LINK, LinkPayload, PayloadLinks
from bascule.controller.cluster.views import ClusterViews
from bascule.datastream.limits import DataStreamLimits
from bascule.datastream.ports import FoundFile, OnFetched, PayloadPlace
from bascule.datastream.protocol.chains import Links
from bascule.datastream.service import DataStreams
from bascule.errors import (
    BasculeError,
    CannotLead,
    ConfigError,
    InternalStream,
    NotLeader,
    PartitionFailed,
    PayloadDamaged,
    PayloadMissing,
    UnknownPartition,
    UnknownPayload,
    UnknownStream,
)
from bascule.host.api import Clock
from bascule.ingest.routing import partition_of
from bascule.metadata.requests import ElectLeaders
from bascule.model import PartitionBy, StreamDefinition
from bascule.publish.unstamped_batch import Append
from bascule.record.payload_links import RESERVED_PREFIX, Payload, PayloadLink
from bascule.replica.internal_publisher import ClientMessage, InternalPublisher, check_message
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream.messages import FetchPayload, OpenPayload, ReplicaAddress
from bascule.wire.offsets import OFFSETS_STREAM
from bascule.wire.subjects import check_subject, subjects_overlap

log = logging.getLogger("bascule.controller")

Control: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class SendLimit(Protocol):
    """Limits what this node sends to replicas that are not in sync. Any thread may call it."""

    def admit(self, count: int, *, is_move: bool) -> float:
        """For how many seconds a piece of `count` bytes has to wait; 0: it counts as sent."""
        ...


class ClusterPayloads:
    """The data streaming of this node, and what it needs of the cluster.

    `place`, `place_of`, `peer_address` and `catch_up_wait` may be called by any thread: they read
    the image, which does not change. The rest belongs to the event loop.
    """

    def __init__(
        self,
        node_id: int,
        identity: ClusterIdentity,
        partitions: Partitions,
        metadata: MetadataGroup,
        views: ClusterViews,
        confirmation: LeaderConfirmation,
        peers: Peers,
        append: Append,
        clock: Clock,
        round_trips_ns: Callable[[], Mapping[int, int]],
        *,
        add_control: Callable[[str, Control], None],
        catch_up: SendLimit,
        limits: LimitsConfig,
    ) -> None:
        """`round_trips_ns` are those to other nodes. `add_control` has this node answer a kind of
        control request of other nodes."""
        self._node_id = node_id
        self._partitions = partitions
        self._metadata = metadata
        self._views = views
        self._catch_up = catch_up
        self._loop = asyncio.get_running_loop()
        publisher = InternalPublisher(partitions, append)
        self._links = PayloadLinks(
            node_id, partitions, views, peers, publisher, self.fetch, self._give_way
        )
        self.streams = DataStreams(
            node_id,
            identity,
            self,
            clock,
            DataStreamLimits(bytes_per_second_min=limits.payload_bytes_per_second_min),
        )
        self._confirmation = confirmation
        self._exchange = LinkExchange(node_id, peers, round_trips_ns, lambda: self.streams.rates)
        add_control(LINK, self._links.answer)
        add_control(LINKS, self._exchange.answer)
        partitions.remove_unlinked = self._remove_unlinked
        partitions.on_payload_damaged = self._on_damaged

    def _remove_unlinked(self, partition: Partition) -> None:
        """See `Partitions.remove_unlinked`."""
        if isinstance(partition.log, PayloadLog):
            self.streams.leftovers.remove(partition.definition.id, partition.index, partition.log)

    def _on_damaged(self, partition: Partition, link: PayloadLink) -> None:
        """See `Partitions.on_payload_damaged`."""
        with contextlib.suppress(BasculeError):  # the stream is being deleted
            place = self.place_of(partition.definition.name, partition.index)
            self.streams.repair(place, link)

    async def close(self) -> None:
        """End all connections; what was received stays."""
        await self._exchange.close()
        await asyncio.to_thread(self.streams.close)

    def fetch(self, partition: Partition, link: PayloadLink, on_fetched: OnFetched) -> None:
        """Get a payload that a replica of this node lacks. Any thread may call it."""
        try:
            place = self.place_of(partition.definition.name, partition.index)
        except BasculeError as error:
            on_fetched(error)
            return
        self.streams.fetch(place, link, on_fetched)

    async def _give_way(self, partition: Partition, nodes: list[int]) -> bool:
        """Have another node lead a partition for whose payloads this one has no room, if one of
        `nodes`, which have the next one, is in sync, and enough others are. It becomes the
        preferred leader: the leadership would return, before the payload is committed, while this
        node is in sync. Raises: Indeterminate.
        """
        image, definition = self._metadata.image, partition.definition
        states = image.partitions.get(definition.id, ())
        state = states[partition.index] if partition.index < len(states) else None
        if state is None or state.leader != self._node_id:
            return False
        others = [each for each in state.isr if each != self._node_id and image.is_alive(each)]
        leader = next((each for each in others if each in nodes), None)
        if leader is None or len(others) < definition.config.min_isr:
            return False
        try:
            await self._metadata.submit(ElectLeaders(definition.name, partition.index, leader))
        except CannotLead:
            return False
        log.warning(
            "the disk has no room for payloads; another replica leads",
            extra={"stream": definition.name, "partition": partition.index, "leader": leader},
        )
        return True

    async def find_file(self, stream: str, partition: int, offset: int) -> FoundFile:
        """The payload of a record here, or a node that may have it. What the record says counts:
        a file that was cut, or has grown, says the wrong size.

        Raises: UnknownStream, UnknownPartition, UnknownPayload, PartitionFailed, PayloadMissing,
        CorruptData, OSError.
        """
        place = self.place_of(stream, partition)
        nodes = {node.node_id: node for node in self._views.nodes() if node.alive and node.http}
        elsewhere = next(
            (
                nodes[number].http
                for number in (place.leader, *place.nodes)
                if number != self._node_id and number in nodes
            ),
            "",
        )
        if place.store is None:
            if not elsewhere:
                raise PartitionFailed(stream, partition, "no node with a replica of it is alive")
            return FoundFile(None, elsewhere)
        try:
            here = await self._payload_at(place, offset)
        except PayloadMissing as error:
            link = await asyncio.to_thread(_link_of, place, offset)
            if link is not None:  # the record is here: its file is gone
                return self._found(place, offset, link.payload, elsewhere, error)
            if not elsewhere:
                raise
            return FoundFile(None, elsewhere)
        if not place.store.payloads.has(here):  # removed since
            raise UnknownPayload(stream, partition, offset)
        try:
            link = await asyncio.to_thread(_link_of, place, offset)
        except (BasculeError, OSError):
            if elsewhere:
                return FoundFile(None, elsewhere)
            link = None  # the bytes are compared with the checksum in the name of the file
        # Of a record that compaction has removed the file may still be there for a moment.
        payload = here if link is None else link.payload
        if payload == here:
            return self._found(place, offset, payload, elsewhere)
        damage = PayloadDamaged(here.id, "size", str(here.size), str(payload.size))
        self.streams.on_damage(place, here.id, damage, offset)
        return self._found(place, offset, payload, elsewhere, damage)

    def _found(
        self,
        place: PayloadPlace,
        offset: int,
        payload: Payload,
        elsewhere: str,
        error: BasculeError | None = None,
    ) -> FoundFile:
        """`error`: why its file cannot be read here."""
        id = payload.id

        async def opened(start: int, end: int) -> VerifiedFile:
            if error is not None:
                raise error
            fetch = FetchPayload(place.stream, place.partition, id, offset, start, end)
            streams = self.streams
            reading = streams.whole_reads.future(streams.find(place, fetch, is_node=False))
            found = await asyncio.wrap_future(reading)
            if found.payload != payload:  # other content was sent under its id
                raise PayloadMissing(id, "this replica")
            return found

        def on_damage(caught: Exception) -> None:
            if caught is not error:
                self.streams.on_damage(place, id, caught, offset)

        return FoundFile(payload, elsewhere, opened, on_damage)

    async def _payload_at(self, place: PayloadPlace, offset: int) -> Payload:
        """The payload of a record here. Raises: as `DataStreams.payload_at`."""
        try:
            return await asyncio.to_thread(self.streams.payload_at, place, offset)
        except PayloadMissing as error:
            if place.leader != self._node_id:
                raise
            try:
                end = await self._confirm_leads(place)
            except BasculeError:
                raise error from None
            return await asyncio.to_thread(self.streams.payload_at, place.confirmed(end), offset)

    async def _confirm_leads(self, place: PayloadPlace) -> int:
        """See `datastream.ports.PayloadCluster`."""
        found = self._partitions.stream_by_id(place.stream_id)
        if not found or place.partition >= len(found):
            raise NotLeader(None, 0)
        return await self._confirmation.position(found[place.partition])

    def bootstrap(self) -> str:
        """The client listeners of the living nodes, this one first, as clients name them."""
        nodes = sorted(self._views.nodes(), key=lambda node: node.node_id != self._node_id)
        return ",".join(node.client for node in nodes if node.alive)

    # -- for data streaming ---------------------------------------------------------------------

    def place(self, opening: OpenPayload) -> PayloadPlace:
        """See `datastream.ports.PayloadCluster`. Also raises: ConfigError, InternalStream."""
        definition = self._definition(opening.stream)
        if opening.stream == OFFSETS_STREAM:
            raise InternalStream(opening.stream, "sent payloads")
        subject = _subject(definition, opening.subject)
        for name, _ in opening.headers:
            if name.lower().startswith(RESERVED_PREFIX):
                raise ConfigError(f"header {name!r} is Bascule's own: leave it out")
        # Before its content is sent: what the leader would refuse at the end in any case.
        payload = Payload(opening.id, max(opening.size, 0), 0)
        headers = tuple(opening.headers)
        check_message(definition, ClientMessage(subject, opening.key, b"", headers, payload))
        partition = opening.partition
        if partition < 0:
            partition = _partition(definition, subject, opening)
        return self._place(definition, partition)

    def place_of(self, stream: str, partition: int) -> PayloadPlace:
        """See `datastream.ports.PayloadCluster`."""
        return self._place(self._definition(stream), partition)

    def _definition(self, stream: str) -> StreamDefinition:
        found = self._metadata.image.streams.get(stream)
        if found is None:
            raise UnknownStream(stream)
        return found

    def _place(self, definition: StreamDefinition, partition: int) -> PayloadPlace:
        image = self._metadata.image
        states = image.partitions.get(definition.id, ())
        if not 0 <= partition < len(states):
            raise UnknownPartition(definition.name, partition, len(states))
        state = states[partition]
        replicas = []
        for number in state.replicas:
            node = image.nodes.get(number)
            if node is not None and node.alive:
                replicas.append(ReplicaAddress(number, node.client, node.rack))
        here = self._partitions.stream_by_id(definition.id)
        replica = here[partition] if here and partition < len(here) else None
        store = None if replica is None else replica.log
        return PayloadPlace(
            definition.name,
            definition.id,
            partition,
            state.leader,
            tuple(replicas),
            len(state.replicas),
            store if isinstance(store, PayloadLog) else None,
            tuple(state.replicas),
            0 if replica is None else replica.committed_offset,
        )

    def peer_address(self, node: int) -> tuple[str, int] | None:
        """See `datastream.ports.PayloadCluster`."""
        found = self._metadata.image.nodes.get(node)
        return None if found is None or not found.peer else parse_address(found.peer)

    def links_between(self, nodes: Collection[int]) -> Links:
        """See `datastream.ports.PayloadCluster`."""
        return self._exchange.known(nodes)

    def catch_up_wait(self, place: PayloadPlace, node: int, count: int) -> float:
        """See `datastream.ports.PayloadCluster`."""
        states = self._metadata.image.partitions.get(place.stream_id, ())
        if place.partition >= len(states) or node in states[place.partition].isr:
            return 0.0
        return self._catch_up.admit(count, is_move=states[place.partition].is_in_no_hurry)

    def confirm_leads(self, place: PayloadPlace) -> Future[int]:
        """See `datastream.ports.PayloadCluster`."""
        return asyncio.run_coroutine_threadsafe(self._confirm_leads(place), self._loop)

    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]:
        """See `datastream.ports.PayloadCluster`."""
        definition = self._definition(place.stream)
        request = LinkPayload(
            place.stream_id,
            place.partition,
            payload.id,
            payload.size,
            payload.crc,
            _subject(definition, opening.subject),
            opening.key,
            opening.headers,
            nodes,
        )
        return asyncio.run_coroutine_threadsafe(self._links.link(place, request), self._loop)


def _link_of(place: PayloadPlace, offset: int) -> PayloadLink | None:
    """What the record at an offset says of its payload, if it is here. Reads the disk. Raises: as
    `PayloadLog.link_at`."""
    assert place.store is not None
    return place.store.link_at(offset) if offset < place.high_watermark else None


def _subject(definition: StreamDefinition, asked: str | None) -> str:
    """The subject of the record. Raises: ConfigError, InvalidName."""
    config = definition.config
    subject = config.literal_subject if asked is None else asked
    if subject is None:
        raise ConfigError(
            f"stream {definition.name!r} has the subjects {config.subject}: name that of the "
            "payload as its subject (--subject)"
        )
    check_subject(subject, wildcards=False)
    if not subjects_overlap(subject, config.subject):
        raise ConfigError(
            f"subject {subject!r} is not one of stream {definition.name!r}, which has "
            f"{config.subject}"
        )
    return subject


def _partition(definition: StreamDefinition, subject: str, opening: OpenPayload) -> int:
    """The partition that a message with this subject and key would have."""
    config = definition.config
    count = config.partitions
    if config.partition_by is PartitionBy.MAPPING:
        token = subject.split(".")[config.subject.split(".").index("*")]
        number = int(token) if token.isdecimal() else -1
        if not 0 <= number < count:
            raise UnknownPartition(definition.name, number, count)
        return number
    if config.partition_by is PartitionBy.KEY and opening.key is not None:
        return partition_of(opening.key, count)
    if config.partition_by is PartitionBy.GROUP:
        return partition_of(opening.id.encode(), count)
    return partition_of(subject.encode(), count)
