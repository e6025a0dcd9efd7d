"""Ties one NATS connection to the partitions: subscriptions, routes, buffer and disk threads."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Final

from bascule.broker.disk import Appender, Syncers
from bascule.broker.ingest_buffer import IngestBuffer
from bascule.broker.partition import Partition
from bascule.config import Config
from bascule.errors import Broken, UnknownStream
from bascule.host.api import Clock, Random
from bascule.ingest.nats_source import NatsSource
from bascule.ingest.sequencer import Draft, Sequencer
from bascule.model import SyncPolicy
from bascule.wire.nats import ConnectOptions, parse_server_url

log = logging.getLogger("bascule.ingest")

BATCH_BYTES_MAX: Final = 1 << 20
"""Records of one batch; what Kafka clients fetch of one partition at a time by default."""
CONFIRM_SECONDS_MAX: Final = 10.0


class IngestTask:
    """Everything between the NATS server and the logs."""

    def __init__(
        self, config: Config, urls: list[str], *, clock: Clock, random: Random, version: str
    ) -> None:
        nats = config.nats
        self._buffer = IngestBuffer(bytes_max=config.limits.ingest_buffer_bytes_max, clock=clock)
        self._sequencer = Sequencer(batch_bytes_max=BATCH_BYTES_MAX)
        self._source = NatsSource(
            [parse_server_url(url) for url in urls],
            ConnectOptions(
                name=f"bascule-{config.node_id}",
                user=nats.user or None,
                password=nats.password or None,
                token=nats.token or None,
                # A stream on `>` must not store the acks this node publishes.
                echo=False,
            ),
            sink=self._buffer,
            sequencer=self._sequencer,
            clock=clock,
            random=random,
            version=version,
            tls_context=_tls_context(config),
        )
        self.syncers = Syncers(self._source.publish, clock=clock)
        self._appender = Appender(self._buffer, self.syncers, self._source.publish)
        self._sids: dict[Partition, int] = {}
        self._timers: dict[Partition, asyncio.Task[None]] = {}

    @property
    def connected(self) -> bool:
        return self._source.connected

    async def start(self) -> None:
        """Connect and begin. Raises: Broken, NatsRefused."""
        self.syncers.start()
        self._appender.start()
        await asyncio.to_thread(self._source.start)

    async def attach(self, partitions: list[Partition]) -> None:
        """Subscribe for the partitions; return once the server will deliver to all of them.

        Raises: NatsRefused where the server does not permit a subject; Broken after a time-out.
        """
        confirmations = [self._subscribe(partition) for partition in partitions]
        if confirmations:
            await _confirmed(confirmations)

    async def detach(self, partition: Partition) -> None:
        """Unsubscribe; return once nothing more comes for the partition and what came is done."""
        sid = self._sids.pop(partition)
        timer = self._timers.pop(partition, None)
        if timer is not None:
            timer.cancel()
        await _confirmed([self._source.unsubscribe(sid)])
        await asyncio.to_thread(self._buffer.wait_written)
        await asyncio.to_thread(self.syncers.wait_idle, partition)
        self._appender.route(sid, None)

    def submit_own(self, partition: Partition, draft: Callable[[int], Draft]) -> None:
        """Queue what `draft` makes of the partition's lane, among what NATS delivers."""
        sid = self._sids.get(partition)
        if sid is None:
            raise UnknownStream(partition.definition.name)
        self._buffer.submit_own(draft(sid))

    async def drain(self) -> None:
        """End all subscriptions; return once all that was delivered is appended, synced, acked."""
        for timer in self._timers.values():
            timer.cancel()
        if self._source.connected:
            try:
                await _confirmed([self._source.drain()])
            except Broken as error:
                log.warning("drain without the nats server", extra={"error": str(error)})
        await asyncio.to_thread(self._appender.stop)
        for partition in self._sids:
            if partition.is_dirty:
                self.syncers.request(partition)
        await asyncio.to_thread(self.syncers.stop)
        if self._source.connected:
            try:
                await _confirmed([self._source.flush()])
            except Broken as error:
                log.warning("last acks may be lost", extra={"error": str(error)})

    async def close(self) -> None:
        await asyncio.to_thread(self._source.close)

    def statistics(self) -> dict[str, Any]:
        return {
            "nats": {**asdict(self._source.counts), "connected": self._source.connected},
            "ingest": asdict(self._sequencer.counts),
            "buffer": asdict(self._buffer.counts),
        }

    def _subscribe(self, partition: Partition) -> Future[None]:
        config = partition.definition.config
        sid = self._source.reserve_sid()
        self._appender.route(sid, partition)
        self._sids[partition] = sid
        if config.sync is SyncPolicy.INTERVAL:
            interval = config.sync_interval_ms / 1000
            self._timers[partition] = asyncio.create_task(self._sync_every(partition, interval))
        return self._source.subscribe(
            sid, config.subject, group=config.group, message_bytes_max=config.message_bytes_max
        )

    async def _sync_every(self, partition: Partition, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            if partition.is_dirty:
                self.syncers.request(partition)


async def _confirmed(confirmations: list[Future[None]]) -> None:
    """Wait for the server's word. Raises: Broken after a time-out, or what the server said."""
    waiting = asyncio.gather(*(asyncio.wrap_future(future) for future in confirmations))
    try:
        await asyncio.wait_for(waiting, CONFIRM_SECONDS_MAX)
    except TimeoutError:
        raise Broken(f"the NATS server did not answer within {CONFIRM_SECONDS_MAX:.0f} s") from None


def _tls_context(config: Config) -> ssl.SSLContext | None:
    nats = config.nats
    if not (nats.tls or nats.tls_ca or nats.tls_cert):
        return None
    context = ssl.create_default_context(cafile=nats.tls_ca or None)
    if nats.tls_cert:
        context.load_cert_chain(nats.tls_cert, nats.tls_key or None)
    return context
