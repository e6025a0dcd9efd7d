"""NATS ingest: subscribes for this node's streams and hands what arrives to the log writer."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from bascule.config import Config
from bascule.errors import Broken
from bascule.host.api import Clock, Random
from bascule.host.credential_files import client_tls
from bascule.host.lasting_tasks import start_lasting
from bascule.ingest.ingest_buffer import IngestBuffer
from bascule.ingest.nats_source import NatsSource
from bascule.ingest.routing import BY_KEY, BY_SUBJECT, PartitionSlot, SubjectListener
from bascule.ingest.sequencer import Sequencer
from bascule.model import KeyFrom, PartitionBy, RecordHeader, StreamDefinition
from bascule.publish.acks import ACK_POLICIES
from bascule.publish.headers import HashKey
from bascule.publish.payload_chunks import OnChunks, PayloadChunk, TakeChunks
from bascule.publish.unstamped_batch import Append, Replica
from bascule.wire.nats import ConnectOptions, ErrorKind, NatsRefused, parse_server_url

log = logging.getLogger("bascule.ingest")

BATCH_BYTES_MAX: Final = 1 << 20
"""Largest records of one batch; the default of Kafka's `max.partition.fetch.bytes`."""
CONFIRM_SECONDS_MAX: Final = 10.0
RETRY_SECONDS: Final = 10.0
"""How often a refused subscription is sent again: permissions and limits change."""


@dataclass(slots=True)
class _StreamSubscriptions:
    """The partition slots and subscription ids of one stream."""

    slots: list[int] = field(default_factory=list)
    """By partition."""
    sids: dict[int, int] = field(default_factory=dict)
    """Partition -> its sid where NATS distributes the messages, in a queue group or by subjects;
    else 0 -> the only one."""
    in_group: bool = False
    """Whether `sids` are in a queue group of the stream's partitions."""


@dataclass(frozen=True, slots=True)
class OwnSubscription:
    """A subscription of the node itself, and the subject of which it may publish on, too."""

    _source: NatsSource
    _sid: int
    _subject: str

    def publish(self, payload: bytes) -> bool:
        """Publish on the subject. False without a connection, or where the server has refused that
        on this one."""
        if self.refusals()[1] is not None:
            return False
        head = f"PUB {self._subject} {len(payload)}\r\n".encode()
        return self._source.publish_own(b"%b%b\r\n" % (head, payload))

    def refusals(self) -> tuple[str | None, str | None]:
        """Why the server does not permit to subscribe, and to publish, on this connection."""
        return self._source.refusals_of_own(self._sid)

    def retry(self) -> None:
        """Try again what was refused."""
        self._source.retry_own(self._sid)


class NatsIngest:
    """The subscriptions of a node. All methods but `publish` belong to the event loop."""

    def __init__(
        self,
        config: Config,
        urls: list[str],
        *,
        append: Append,
        clock: Clock,
        random: Random,
        hash_key: HashKey,
        version: str,
        on_chunks: OnChunks | None = None,
    ) -> None:
        """`hash_key` is also the key that the partitions' dedupe windows are loaded with.

        `on_chunks` gets chunks of payloads; without it they are refused.
        """
        nats = config.nats
        self._buffer = IngestBuffer(
            append, bytes_max=config.limits.ingest_buffer_bytes_max, clock=clock
        )
        take_chunks: TakeChunks | None = None
        if on_chunks is not None:
            take_chunks = partial(_take_chunks, on_chunks, self.publish)
        self._sequencer = Sequencer(
            batch_bytes_max=BATCH_BYTES_MAX, hash_key=hash_key, take_chunks=take_chunks
        )
        self._source = NatsSource(
            [parse_server_url(url) for url in urls],
            connect_options(config),
            sink=self._buffer,
            sequencer=self._sequencer,
            clock=clock,
            random=random,
            version=version,
            tls_context=tls_context(config),
            discover=nats.discover,
        )
        self._subscribed: dict[bytes, _StreamSubscriptions] = {}
        """By stream id."""
        self._slots_made = 0
        self._free_slots: list[int] = []
        self._retrying: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._source.connected

    def standing_ns(self) -> tuple[int | None, int]:
        """See `NatsSource`."""
        return self._source.standing_ns()

    @property
    def connects(self) -> int:
        """Connections to NATS so far."""
        return self._source.counts.connects

    @property
    def payload_bytes_max(self) -> int:
        """Largest message that the connected server takes."""
        return self._source.counts.max_payload_bytes

    @property
    def server(self) -> str:
        """The connected NATS server, without credentials; empty without a connection."""
        return str(self._source.address) if self._source.connected else ""

    def refusals(self) -> dict[str, str]:
        """Stream -> why the NATS server does not deliver its messages."""
        return self._source.refusals()

    def publish(self, operations: bytes) -> None:
        """Send NATS operations, such as acks. From any thread."""
        self._source.publish(operations)

    async def start(self, *, wait_for_place: bool = False) -> None:
        """Connect and begin to read. Raises: Broken, NatsRefused.

        `wait_for_place`: try again while the server has too many connections. A closed embedded
        server has one, which another client holds until it is refused.
        """
        deadline = asyncio.get_running_loop().time() + CONFIRM_SECONDS_MAX
        while True:
            try:
                await asyncio.to_thread(self._source.start)
                break
            except NatsRefused as error:
                is_late = asyncio.get_running_loop().time() > deadline
                if not wait_for_place or is_late or error.kind is not ErrorKind.CONNECTIONS:
                    raise
            await asyncio.sleep(0.01)
        self._retrying = start_lasting("refused subscriptions", self._retry_refused)

    async def subscribe(
        self, streams: Sequence[tuple[Sequence[Replica], Collection[int]]]
    ) -> dict[bytes, NatsRefused]:
        """Subscribe for streams: the replicas of each, one a partition, in order, and the indexes
        of the partitions that this node leads.

        Idempotent: subscriptions that exist stay, those of partitions that are no longer led end,
        and replicas that were added or opened again are put into their slots. Returns, once the
        server delivers to all led partitions and to no other, stream id -> why the server refuses a
        subscription. A refused or unconfirmed subscription is kept: the next connection or the next
        retry sends it again.

        Raises: Broken after a time-out.
        """
        confirmations: list[tuple[bytes, Future[None]]] = []
        replaced: list[int] = []
        for replicas, led in streams:
            stream_id = replicas[0].definition.id
            stream = self._subscribed.setdefault(stream_id, _StreamSubscriptions())
            ending = _obsolete_sids(replicas, led, stream)
            for partition in ending:
                sid = stream.sids.pop(partition)
                replaced.append(sid)
                confirmations.append((stream_id, self._source.unsubscribe(sid)))
            confirmations += [(stream_id, future) for future in self._subscribe(replicas, led)]
        refusals = await _confirmed([future for _, future in confirmations])
        for sid in replaced:
            self._sequencer.routes.set_route(sid, ())
            self._source.release_sid(sid)
        return {
            stream_id: refusal
            for (stream_id, _), refusal in zip(confirmations, refusals, strict=True)
            if refusal is not None
        }

    def configure(self, replicas: Sequence[Replica]) -> None:
        """Apply a stream's altered definition; does nothing for a stream without subscription."""
        stream = self._subscribed.get(replicas[0].definition.id)
        for replica, slot in zip(replicas, stream.slots if stream else (), strict=False):
            self._sequencer.routes.set_slot(slot, _slot(replica))

    async def unsubscribe(self, definition: StreamDefinition) -> None:
        """End a stream's subscriptions; idempotent.

        Returns once nothing more is handed to the log writer for the stream. Without a connection
        it returns at once: the next connection does not subscribe again.
        """
        stream = self._subscribed.pop(definition.id, None)
        if stream is None:
            return
        connected = self._source.connected
        endings = [self._source.unsubscribe(sid) for sid in stream.sids.values()]
        ended = connected
        if connected:
            try:
                await _confirmed(endings)
            except Broken as error:
                ended = False
                extra = {"stream": definition.name, "error": str(error)}
                log.warning("end of a subscription not confirmed", extra=extra)
        for slot in stream.slots:
            self._sequencer.routes.set_slot(slot, None)
            self._free_slots.append(slot)
        for sid in stream.sids.values():
            self._sequencer.routes.set_route(sid, ())
            if ended:
                # Otherwise messages with this id may still arrive, so it is not reused.
                self._source.release_sid(sid)

    async def listen(
        self, subject: str, on_message: Callable[[bytes], None], *, bytes_max: int
    ) -> OwnSubscription:
        """Subscribe for the node itself. `on_message` gets the payload of each message, in the
        reading thread; it may not wait or raise. One beyond `bytes_max` is cut after one byte more.

        Returns once the server has answered, or after a time-out. A refused or unconfirmed
        subscription is kept: the next connection sends it again.
        """
        sid = self._source.reserve_sid()
        slot = self._take_slot()
        self._sequencer.routes.set_slot(slot, SubjectListener(on_message, bytes_max))
        self._sequencer.routes.set_route(sid, (slot,))
        confirmed = self._source.subscribe(sid, subject, group=None, stream=None)
        try:
            await _confirmed([confirmed])
        except Broken:
            pass  # The next connection subscribes.
        return OwnSubscription(self._source, sid, subject)

    async def drain(self) -> None:
        """End all subscriptions; return once all that was delivered is with the log writer.

        Without a connection it returns at once: the next connection does not subscribe again.
        """
        if self._retrying is not None:
            self._retrying.cancel()
        connected = self._source.connected
        ended = self._source.drain()
        if connected:
            try:
                await _confirmed([ended])
            except Broken as error:
                log.warning("drain without the nats server", extra={"error": str(error)})

    async def subscribed(self) -> None:
        """Return once the server has all subscriptions; without a connection, the next server.

        Raises: Broken after a time-out.
        """
        await _confirmed([self._source.flush()])

    async def flush(self) -> None:
        """Return once the server has received everything that was published."""
        if self._source.connected:
            try:
                await _confirmed([self._source.flush()])
            except Broken as error:
                log.warning("last acks may be lost", extra={"error": str(error)})

    async def close(self) -> None:
        await asyncio.to_thread(self._source.close)

    def statistics(self) -> dict[str, Any]:
        refused = self._source.refusals()
        return {
            "subscription": {"refused": {s: int(s in refused) for s in self._source.streams()}},
            "nats": {**asdict(self._source.counts), "connected": self._source.connected},
            "ingest": asdict(self._sequencer.counts),
            "buffer": {**asdict(self._buffer.counts), **self._buffer.usage()},
        }

    def _subscribe(self, replicas: Sequence[Replica], led: Collection[int]) -> list[Future[None]]:
        """Assign partition slots to all replicas; subscribe for the led ones without a route."""
        definition = replicas[0].definition
        config = definition.config
        stream = self._subscribed[definition.id]
        while len(stream.slots) < len(replicas):
            stream.slots.append(self._take_slot())
        for slot, replica in zip(stream.slots, replicas, strict=True):
            self._sequencer.routes.set_slot(slot, _slot(replica))
        group = config.group
        targets: dict[int, tuple[int, ...]] = {}
        if config.partition_by is PartitionBy.GROUP:
            targets = {index: (stream.slots[index],) for index in sorted(led)}
            stream.in_group = len(replicas) > 1
            if stream.in_group:
                group = group or definition.partitions_group
        elif config.partition_by is PartitionBy.MAPPING:
            targets = {index: (stream.slots[index],) for index in sorted(led)}
        elif led:
            targets = {0: tuple(stream.slots)}
        by = BY_KEY if config.partition_by is PartitionBy.KEY else BY_SUBJECT
        confirmations: list[Future[None]] = []
        for partition, target in targets.items():
            sid = stream.sids.get(partition)
            if sid is not None:
                self._sequencer.routes.set_route(sid, target, by=by)
                continue
            sid = stream.sids[partition] = self._source.reserve_sid()
            self._sequencer.routes.set_route(sid, target, by=by)
            subject = definition.partition_subject(partition)
            confirmations.append(
                self._source.subscribe(sid, subject, group=group, stream=definition.name)
            )
        return confirmations

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._slots_made += 1
        return self._slots_made - 1

    async def _retry_refused(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            self._source.retry_refused()


def _take_chunks(
    on_chunks: OnChunks,
    publish: Callable[[bytes], None],
    replica: Replica,
    chunks: Sequence[PayloadChunk],
) -> None:
    on_chunks(replica, chunks, publish)


def _obsolete_sids(
    replicas: Sequence[Replica], led: Collection[int], stream: _StreamSubscriptions
) -> list[int]:
    """The keys of `stream.sids` whose subscriptions end: of partitions that are not led here, and
    one without queue group where there are more partitions now."""
    config = replicas[0].definition.config
    if config.partition_by in (PartitionBy.SUBJECT, PartitionBy.KEY):
        return [] if led else list(stream.sids)
    if config.group is None and not stream.in_group and len(replicas) > 1:
        return list(stream.sids)
    return [partition for partition in stream.sids if partition not in led]


def _slot(replica: Replica) -> PartitionSlot:
    config = replica.definition.config
    implied = config.literal_subject
    if implied is None or RecordHeader.SUBJECT in config.record_headers:
        implied = ""
    return PartitionSlot(
        replica,
        message_bytes_max=config.message_bytes_max,
        key_from_subject=config.key_from is KeyFrom.SUBJECT,
        implied_subject=implied.encode(),
        keeps_reply=RecordHeader.REPLY in config.record_headers,
        acks=config.acks,
        ack_policy=ACK_POLICIES[config.ack_policy],
    )


async def _confirmed(confirmations: list[Future[None]]) -> list[NatsRefused | None]:
    """Wait for the server's confirmations; for each the refusal, or None.

    Raises: Broken after a time-out.
    """
    waiting = [asyncio.wrap_future(future) for future in confirmations]
    for confirmed in waiting:
        confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
    if waiting:
        # Not cancelled with the caller: the reading thread completes them.
        _, left = await asyncio.wait(waiting, timeout=CONFIRM_SECONDS_MAX)
        if left:
            seconds = f"{CONFIRM_SECONDS_MAX:.0f} s"
            raise Broken(f"the NATS server did not answer within {seconds}")
    outcomes = [confirmed.exception() for confirmed in waiting]
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, NatsRefused):
            raise outcome
    return [outcome if isinstance(outcome, NatsRefused) else None for outcome in outcomes]


def connect_options(config: Config) -> ConnectOptions:
    """How a node connects to NATS."""
    nats = config.nats
    return ConnectOptions(
        name=f"bascule-{config.node_id}",
        user=nats.user or None,
        password=nats.password or None,
        token=nats.token or None,
        nkey_seed=nats.nkey_seed or None,
        nkey=nats.nkey or None,
        creds=nats.creds or None,
        # A CA or a client certificate implies TLS.
        tls=nats.tls or nats.tls_first or bool(nats.tls_ca or nats.tls_cert),
        tls_first=nats.tls_first,
        ping_interval_ms=nats.ping_interval_ms,
        # A stream on `>` must not store the acks this node publishes.
        echo=False,
    )


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Raises: ConfigError naming a file that cannot be used."""
    nats = config.nats
    if not (nats.tls_ca or nats.tls_cert):
        return None
    return client_tls(ca=nats.tls_ca, cert=nats.tls_cert, key=nats.tls_key)
