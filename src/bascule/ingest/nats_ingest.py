"""NATS ingest: subscribes for this node's streams and hands what arrives to the log writer."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bascule.config import Config
from bascule.errors import Broken
from bascule.host.api import Clock, Random
from bascule.host.credential_files import client_tls
from bascule.ingest.ingest_buffer import IngestBuffer
from bascule.ingest.nats_source import NatsSource
from bascule.ingest.routing import BY_KEY, BY_SUBJECT, PartitionSlot
from bascule.ingest.sequencer import Sequencer
from bascule.model import KeyFrom, PartitionBy, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.publish.unstamped_batch import Append, Replica
from bascule.wire.nats import ConnectOptions, NatsRefused, parse_server_url

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
    sids: list[int] = field(default_factory=list)
    """One, or one for each partition where a NATS queue group distributes the messages."""


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
    ) -> None:
        """`hash_key` is also the key that the partitions' dedupe windows are loaded with."""
        nats = config.nats
        self._buffer = IngestBuffer(
            append, bytes_max=config.limits.ingest_buffer_bytes_max, clock=clock
        )
        self._sequencer = Sequencer(batch_bytes_max=BATCH_BYTES_MAX, hash_key=hash_key)
        self._source = NatsSource(
            [parse_server_url(url) for url in urls],
            _connect_options(config),
            sink=self._buffer,
            sequencer=self._sequencer,
            clock=clock,
            random=random,
            version=version,
            tls_context=_tls_context(config),
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

    async def start(self) -> None:
        """Connect and begin to read. Raises: Broken, NatsRefused."""
        await asyncio.to_thread(self._source.start)
        self._retrying = asyncio.create_task(self._retry_refused())

    async def subscribe(self, streams: Sequence[Sequence[Replica]]) -> dict[bytes, NatsRefused]:
        """Subscribe for streams, each given as its replicas, one a partition, in order.

        Idempotent: existing subscriptions stay, and replicas that were added or opened again are
        put into their slots. Returns, once the server delivers to all partitions, stream id -> why
        the server refuses a subscription. A refused or unconfirmed subscription is kept: the next
        connection or the next retry sends it again.

        Raises: Broken after a time-out.
        """
        confirmations: list[tuple[bytes, Future[None]]] = []
        replaced: list[int] = []
        for replicas in streams:
            stream_id = replicas[0].definition.id
            stream = self._subscribed.setdefault(stream_id, _StreamSubscriptions())
            if _needs_queue_group(replicas, stream):
                replaced.append(stream.sids.pop())
                confirmations.append((stream_id, self._source.unsubscribe(replaced[-1])))
            confirmations += [(stream_id, future) for future in self._subscribe(replicas)]
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
        endings = [self._source.unsubscribe(sid) for sid in stream.sids]
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
        for sid in stream.sids:
            self._sequencer.routes.set_route(sid, ())
            if ended:
                # Otherwise messages with this id may still arrive, so it is not reused.
                self._source.release_sid(sid)

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

    def _subscribe(self, replicas: Sequence[Replica]) -> list[Future[None]]:
        """Assign partition slots to all replicas; subscribe for those that have no route yet."""
        definition = replicas[0].definition
        config = definition.config
        stream = self._subscribed.setdefault(definition.id, _StreamSubscriptions())
        while len(stream.slots) < len(replicas):
            stream.slots.append(self._free_slots.pop() if self._free_slots else self._slots_made)
            self._slots_made = max(self._slots_made, stream.slots[-1] + 1)
        for slot, replica in zip(stream.slots, replicas, strict=True):
            self._sequencer.routes.set_slot(slot, _slot(replica))
        group = config.group
        if config.partition_by is PartitionBy.GROUP:
            targets: list[tuple[int, ...]] = [(slot,) for slot in stream.slots]
            if len(replicas) > 1:
                group = group or f"bascule.{definition.name}"
        else:
            targets = [tuple(stream.slots)]
        by = BY_KEY if config.partition_by is PartitionBy.KEY else BY_SUBJECT
        for sid, target in zip(stream.sids, targets, strict=False):
            self._sequencer.routes.set_route(sid, target, by=by)
        confirmations: list[Future[None]] = []
        for target in targets[len(stream.sids) :]:
            sid = self._source.reserve_sid()
            self._sequencer.routes.set_route(sid, target, by=by)
            stream.sids.append(sid)
            confirmations.append(
                self._source.subscribe(sid, config.subject, group=group, stream=definition.name)
            )
        return confirmations

    async def _retry_refused(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            self._source.retry_refused()


def _needs_queue_group(replicas: Sequence[Replica], stream: _StreamSubscriptions) -> bool:
    """Whether the stream's one subscription has no queue group, and more partitions need one."""
    config = replicas[0].definition.config
    in_group = config.partition_by is PartitionBy.GROUP and config.group is None
    return in_group and len(stream.sids) == 1 and len(replicas) > 1


def _slot(replica: Replica) -> PartitionSlot:
    config = replica.definition.config
    return PartitionSlot(
        replica,
        message_bytes_max=config.message_bytes_max,
        key_from_subject=config.key_from is KeyFrom.SUBJECT,
    )


async def _confirmed(confirmations: list[Future[None]]) -> list[NatsRefused | None]:
    """Wait for the server's confirmations; for each the refusal, or None.

    Raises: Broken after a time-out.
    """
    waiting = asyncio.gather(
        *(asyncio.wrap_future(future) for future in confirmations), return_exceptions=True
    )
    try:
        outcomes = await asyncio.wait_for(waiting, CONFIRM_SECONDS_MAX)
    except TimeoutError:
        raise Broken(f"the NATS server did not answer within {CONFIRM_SECONDS_MAX:.0f} s") from None
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, NatsRefused):
            raise outcome
    return [outcome if isinstance(outcome, NatsRefused) else None for outcome in outcomes]


def _connect_options(config: Config) -> ConnectOptions:
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


def _tls_context(config: Config) -> ssl.SSLContext | None:
    """Raises: ConfigError naming a file that cannot be used."""
    nats = config.nats
    if not (nats.tls_ca or nats.tls_cert):
        return None
    return client_tls(ca=nats.tls_ca, cert=nats.tls_cert, key=nats.tls_key)
