"""Ties one NATS connection to the partitions: subscriptions, routes, buffer and disk threads."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Final

from bascule.config import Config
from bascule.errors import Broken, UnknownStream
from bascule.host.api import Clock, Random
from bascule.host.credential_files import client_tls
from bascule.ingest.ingest_buffer import IngestBuffer
from bascule.ingest.nats_source import NatsSource
from bascule.ingest.routing import BY_KEY, BY_SUBJECT, PartitionSlot
from bascule.ingest.sequencer import Sequencer, UnstampedBatch
from bascule.model import KeyFrom, PartitionBy, SyncPolicy
from bascule.publish.headers import HashKey
from bascule.replica.log_writer import LogSyncer, LogWriter
from bascule.replica.partition import Partition
from bascule.wire.nats import ConnectOptions, NatsRefused, parse_server_url

log = logging.getLogger("bascule.ingest")

BATCH_BYTES_MAX: Final = 1 << 20
"""Records of one batch; what Kafka clients fetch of one partition at a time by default."""
CONFIRM_SECONDS_MAX: Final = 10.0
RETRY_SECONDS: Final = 10.0
"""How often a subscription that was refused is asked for again: permissions and limits change."""


class NatsIngest:
    """Everything between the NATS server and the logs."""

    def __init__(
        self,
        config: Config,
        urls: list[str],
        *,
        clock: Clock,
        random: Random,
        seed: HashKey,
        version: str,
    ) -> None:
        """`seed` is that of the partitions' publisher contracts."""
        nats = config.nats
        self._buffer = IngestBuffer(bytes_max=config.limits.ingest_buffer_bytes_max, clock=clock)
        self._sequencer = Sequencer(batch_bytes_max=BATCH_BYTES_MAX, seed=seed)
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
        self.syncer = LogSyncer(self._source.publish, clock=clock)
        self._writer = LogWriter(self._buffer, self.syncer, self._source.publish)
        self._sids: dict[bytes, list[int]] = {}
        """Stream id -> its subscriptions: one, or one a partition where NATS spreads messages."""
        self._slots: dict[Partition, int] = {}
        self._slots_made = 0
        self._free_slots: list[int] = []
        self._timers: dict[Partition, asyncio.Task[None]] = {}
        self._retrying: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._source.connected

    @property
    def server(self) -> str:
        """The NATS server connected now, without credentials; empty: none."""
        return str(self._source.address) if self._source.connected else ""

    def refusals(self) -> dict[str, str]:
        """Stream -> why the NATS server does not deliver its messages."""
        return self._source.refusals()

    async def start(self) -> None:
        """Connect and begin. Raises: Broken, NatsRefused."""
        self.syncer.start()
        self._writer.start()
        await asyncio.to_thread(self._source.start)
        self._retrying = asyncio.create_task(self._retry_refused())

    async def attach(self, partitions: tuple[Partition, ...]) -> None:
        """Subscribe for a stream, a new one or one with partitions added at the end.

        Returns once the server will deliver to all its partitions.

        Raises: NatsRefused where the server does not permit a subject; Broken after a time-out.
        """
        sids = self._sids.get(partitions[0].definition.id, [])
        alone = sids.pop() if self._changes_group(partitions, sids) else None
        ending = [] if alone is None else [self._source.unsubscribe(alone)]
        await _confirmed([*ending, *self._subscribe(partitions)])
        if alone is not None:
            self._release_sid(alone)

    async def attach_all(self, streams: list[tuple[Partition, ...]]) -> None:
        """As `attach`, but what the server refuses stops only the stream concerned.

        It is asked for again every RETRY_SECONDS, and `refusals` says why.
        """
        confirmations = [done for partitions in streams for done in self._subscribe(partitions)]
        if confirmations:
            await _confirmed(confirmations, allow_refusals=True)

    @staticmethod
    def _changes_group(partitions: tuple[Partition, ...], sids: list[int]) -> bool:
        """Whether the only subscription has no queue group, in which there are to be more."""
        config = partitions[0].definition.config
        in_group = config.partition_by is PartitionBy.GROUP and config.group is None
        return in_group and len(sids) == 1 and len(partitions) > 1

    def configure(self, partitions: tuple[Partition, ...]) -> None:
        """Take over the altered configuration of a stream."""
        for partition in partitions:
            self._sequencer.routes.set_slot(self._slots[partition], _slot(partition))
            self._set_timer(partition)

    async def detach(self, partitions: tuple[Partition, ...]) -> None:
        """Unsubscribe; return once nothing more comes for the stream and what came is done."""
        sids = self._sids.pop(partitions[0].definition.id)
        for partition in partitions:
            if timer := self._timers.pop(partition, None):
                timer.cancel()
        await _confirmed([self._source.unsubscribe(sid) for sid in sids])
        await asyncio.to_thread(self._buffer.wait_written)
        for partition in partitions:
            await asyncio.to_thread(self.syncer.wait_idle, partition)
            slot = self._slots.pop(partition)
            self._writer.route(slot, None)
            self._sequencer.routes.set_slot(slot, None)
            self._free_slots.append(slot)
        for sid in sids:
            self._release_sid(sid)

    def _release_sid(self, sid: int) -> None:
        self._sequencer.routes.set_route(sid, ())
        self._source.release_sid(sid)

    def submit_own(self, partition: Partition, draft: Callable[[int], UnstampedBatch]) -> None:
        """Queue what `draft` makes of the partition's slot, among what NATS delivers."""
        slot = self._slots.get(partition)
        if slot is None:
            raise UnknownStream(partition.definition.name)
        self._buffer.submit_own(draft(slot))

    def roll(self, partition: Partition) -> None:
        """Have the appender end the partition's active segment, behind what is queued now."""
        self._buffer.queue.put(partition)

    async def drain(self) -> None:
        """End all subscriptions; return once all that was delivered is appended, synced, acked."""
        for timer in [*self._timers.values(), *([self._retrying] if self._retrying else [])]:
            timer.cancel()
        if self._source.connected:
            try:
                await _confirmed([self._source.drain()])
            except Broken as error:
                log.warning("drain without the nats server", extra={"error": str(error)})
        await asyncio.to_thread(self._writer.stop)
        for partition in self._slots:
            if partition.is_dirty:
                self.syncer.request(partition)
        await asyncio.to_thread(self.syncer.stop)
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
            "buffer": {**asdict(self._buffer.counts), **self._buffer.fill()},
        }

    def _subscribe(self, partitions: tuple[Partition, ...]) -> list[Future[None]]:
        """PartitionSlots for the partitions that have none, and the subscriptions that lead there."""
        definition = partitions[0].definition
        config = definition.config
        for partition in partitions:
            if partition not in self._slots:
                slot = self._free_slots.pop() if self._free_slots else self._slots_made
                self._slots_made = max(self._slots_made, slot + 1)
                self._slots[partition] = slot
                self._writer.route(slot, partition)
                self._sequencer.routes.set_slot(slot, _slot(partition))
                self._set_timer(partition)
        slots = tuple(self._slots[partition] for partition in partitions)
        sids = self._sids.setdefault(definition.id, [])
        group = config.group
        if config.partition_by is PartitionBy.GROUP:
            targets: list[tuple[int, ...]] = [(slot,) for slot in slots]
            if len(slots) > 1:
                group = group or f"bascule.{definition.name}"
        else:
            targets = [slots]
        by = BY_KEY if config.partition_by is PartitionBy.KEY else BY_SUBJECT
        for sid, target in zip(sids, targets, strict=False):
            self._sequencer.routes.set_route(sid, target, by=by)
        confirmations: list[Future[None]] = []
        for target in targets[len(sids) :]:
            sid = self._source.reserve_sid()
            self._sequencer.routes.set_route(sid, target, by=by)
            sids.append(sid)
            confirmations.append(
                self._source.subscribe(sid, config.subject, group=group, stream=definition.name)
            )
        return confirmations

    def _set_timer(self, partition: Partition) -> None:
        config = partition.definition.config
        if timer := self._timers.pop(partition, None):
            timer.cancel()
        if config.sync is SyncPolicy.INTERVAL:
            interval = config.sync_interval_ms / 1000
            self._timers[partition] = asyncio.create_task(self._sync_every(partition, interval))

    async def _retry_refused(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            self._source.retry_refused()

    async def _sync_every(self, partition: Partition, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            if partition.is_dirty:
                self.syncer.request(partition)


def _slot(partition: Partition) -> PartitionSlot:
    config = partition.definition.config
    return PartitionSlot(
        message_bytes_max=config.message_bytes_max,
        key_from_subject=config.key_from is KeyFrom.SUBJECT,
    )


async def _confirmed(confirmations: list[Future[None]], *, allow_refusals: bool = False) -> None:
    """Wait for the server's word. Raises: Broken after a time-out, or what the server said."""
    waiting = asyncio.gather(
        *(asyncio.wrap_future(future) for future in confirmations),
        return_exceptions=allow_refusals,
    )
    try:
        outcomes = await asyncio.wait_for(waiting, CONFIRM_SECONDS_MAX)
    except TimeoutError:
        raise Broken(f"the NATS server did not answer within {CONFIRM_SECONDS_MAX:.0f} s") from None
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, NatsRefused):
            raise outcome


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
        # Trusting an authority or showing a certificate makes no sense in the clear.
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
