"""One node: wiring, the order of start and stop, and what the HTTP door asks of it."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bascule import __version__
from bascule.config import Config
from bascule.controller.streams import Streams
from bascule.errors import BasculeError, ConfigError
from bascule.groups import OFFSETS_CONFIG, Offsets
from bascule.host.real import DirectoryLock, RealClock, RealFiles, RealRandom
from bascule.host.twins import twin_of_all
from bascule.http import health
from bascule.http.app import create_app
from bascule.http.listener import HttpLimits, HttpListener
from bascule.http.metrics.http_statistics import HttpStatistics
from bascule.http.metrics.statistics import counters, disk_statistics, stream_statistics
from bascule.ingest.embedded_nats import EmbeddedNats
from bascule.ingest.nats_ingest import NatsIngest
from bascule.kafka import ClientListener, ListenerLimits, NodeIdentity
from bascule.metadata.codec import decode_cluster_id, encode_cluster_id
from bascule.model import NodeInfo, PartHealth, StreamConfig, StreamDefinition, StreamInfo
from bascule.publish.headers import HashKey
from bascule.replica.internal_publisher import InternalPublisher
from bascule.replica.maintenance.checkpoints import keep_checkpoints, verify_all
from bascule.replica.maintenance.cleaner import Cleaner, CleanerLimits
from bascule.replica.maintenance.retention import Retention
from bascule.replica.partitions import Partitions
from bascule.storage.checkpoint import replace_file
from bascule.wire.nats import without_credentials
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.node")


async def serve(config: Config, *, on_ready: Callable[[NodeInfo], None]) -> None:
    """Run one node until SIGTERM or SIGINT; then drain, sync, close and return.

    `on_ready` is called once every door is open and every stream is subscribed.

    Raises: DataDirectoryInUse, ConfigError, CorruptData, NatsRefused, Broken, OSError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _allow_descriptors()
    data = _data_directory(config)
    with DirectoryLock(str(data)):
        node = Node(config, data)
        try:
            await node.start()
            on_ready(node.node_info())
            await stop.wait()
            log.info("stopping")
        finally:
            await node.close()
    log.info("stopped")


class Node:
    """The parts of a node. `close` undoes whatever of `start` has happened."""

    def __init__(self, config: Config, data: Path) -> None:
        self._config = config
        self._data = data
        self._clock = RealClock()
        self._random = RealRandom()
        self._files = RealFiles()
        self._started_ns = self._clock.monotonic_ns()
        self._partitions = Partitions()
        self._seed = HashKey(self._random.bytes(16))
        self._streams = Streams(
            str(data),
            self._partitions,
            files=self._files,
            clock=self._clock,
            random=self._random,
            seed=self._seed,
        )
        self._nats: EmbeddedNats | None = None
        self._ingest: NatsIngest | None = None
        self._offsets: Offsets | None = None
        self._client_door: ClientListener | None = None
        self._http_door: HttpListener | None = None
        self._http_statistics = HttpStatistics()
        self._retention: Retention | None = None
        self._cleaner: Cleaner | None = None
        self._maintenance: list[asyncio.Task[None]] = []
        self._cluster_id = ""
        self._urls: list[str] = list(config.nats.urls)
        self._client_address = ("", 0)
        self._http_address = ("", 0)
        self._ready = False
        self._closing = False

    async def start(self) -> None:
        config = self._config
        self._partitions.bind(asyncio.get_running_loop())
        self._cluster_id = await asyncio.to_thread(self._load_cluster_id)
        await self._streams.open()
        if config.nats.embedded:
            self._nats = EmbeddedNats(
                self._data / "nats",
                host=config.nats.host,
                port=config.nats.port,
                payload_bytes_max=max(
                    [
                        config.streams.message_bytes_max,
                        *(s.definition.config.message_bytes_max for s in self._streams.infos()),
                    ]
                ),
            )
            self._urls = [await self._nats.start()]
        self._ingest = NatsIngest(
            config,
            self._urls,
            clock=self._clock,
            random=self._random,
            seed=self._seed,
            version=__version__,
        )
        await self._ingest.start()
        await self._streams.attach(self._ingest)
        self._offsets = await self._open_offsets(self._ingest)
        await self._open_doors(self._offsets)
        self._retention = Retention(
            self._partitions,
            clock=self._clock,
            archived=self._offsets.committed,
            roll=self._ingest.roll,
        )
        self._cleaner = self._make_cleaner(self._ingest)
        self._maintenance = [
            asyncio.create_task(keep_checkpoints(self._partitions, self._ingest.syncer)),
            asyncio.create_task(self._retention.run()),
            asyncio.create_task(self._cleaner.run()),
            asyncio.create_task(verify_all(self._partitions)),
        ]
        self._ready = True

    async def close(self) -> None:
        """Drain: what was delivered is stored and acknowledged, then the doors close."""
        self._ready = False
        self._closing = True
        for task in self._maintenance:
            task.cancel()
        if self._cleaner is not None:
            await self._cleaner.close()
        if self._ingest is not None:
            await self._ingest.drain()
        if self._client_door is not None:
            await self._client_door.close()
        if self._http_door is not None:
            await self._http_door.close()
        if self._offsets is not None:
            await self._offsets.close()
        if self._ingest is not None:
            await self._ingest.close()
        await asyncio.to_thread(self._streams.close)
        if self._nats is not None:
            await self._nats.stop()

    async def create_stream(self, name: str, config: StreamConfig) -> tuple[StreamDefinition, bool]:
        created = await self._streams.create(name, config)
        await self._take_payloads(created[0])
        return created

    async def alter_stream(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition:
        altered = await self._streams.alter(name, changes)
        await self._take_payloads(altered)
        return altered

    async def set_paused(self, name: str, paused: bool) -> StreamDefinition:
        return await self._streams.set_paused(name, paused)

    async def purge_stream(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamInfo:
        return await self._streams.purge(
            name, to_offset=to_offset, before_ms=before_ms, partition=partition
        )

    async def delete_stream(self, name: str) -> None:
        await self._streams.delete(name)
        try:
            # No commit is taken for that of another stream of this name; this only tidies up.
            await self.offsets.remove(consumer=None, stream=name)
        except BasculeError as error:
            log.warning(
                "commits of a deleted stream stay", extra={"stream": name, "error": str(error)}
            )

    def stream_infos(self) -> list[StreamInfo]:
        return [self._with_refusal(info) for info in self._streams.infos()]

    def stream_info(self, name: str) -> StreamInfo:
        return self._with_refusal(self._streams.info(name))

    @property
    def offsets(self) -> Offsets:
        assert self._offsets is not None, "the doors open after the offsets are read"
        return self._offsets

    def node_info(self) -> NodeInfo:
        host, port = self._http_address
        connected = self._ingest is not None and self._ingest.connected
        return NodeInfo(
            node_id=self._config.node_id,
            cluster_id=self._cluster_id,
            version=__version__,
            twin=twin_of_all(),
            pid=os.getpid(),
            data=str(self._data),
            nats=",".join(without_credentials(url) for url in self._urls),
            nats_server="" if self._ingest is None else self._ingest.server,
            nats_embedded=self._config.nats.embedded,
            client="{}:{}".format(*self._client_address),
            http=f"http://{host}:{port}",
            uptime_ms=(self._clock.monotonic_ns() - self._started_ns) // 1_000_000,
            ready=self._ready and connected,
        )

    async def _take_payloads(self, definition: StreamDefinition) -> None:
        """The embedded server has to take what the stream takes."""
        if self._nats is not None:
            await self._nats.take_payloads(definition.config.message_bytes_max)

    def _with_refusal(self, info: StreamInfo) -> StreamInfo:
        refusals = {} if self._ingest is None else self._ingest.refusals()
        why = refusals.get(info.definition.name)
        return info if why is None else replace(info, refusal=why)

    def liveness(self) -> tuple[PartHealth, ...]:
        serving = self._ready and not self._closing
        return (health.threads_health(),) if serving else ()

    def readiness(self) -> tuple[PartHealth, ...]:
        connected = self._ingest is not None and self._ingest.connected
        node = self.node_info()
        every = [p for ps in self._partitions.streams().values() for p in ps]
        free_bytes, total_bytes = self._files.room(str(self._data))
        return (
            health.node_health(opened=self._ready, closing=self._closing),
            health.nats_health(
                connected=connected,
                server=node.nats_server or node.nats,
                refusals={} if self._ingest is None else self._ingest.refusals(),
            ),
            *self.liveness(),
            health.partitions_health(every),
            health.disk_health(free_bytes=free_bytes, total_bytes=total_bytes),
        )

    def statistics(self) -> dict[str, Any]:
        streams = self._partitions.streams()
        free_bytes, total_bytes = self._files.room(str(self._data))
        door = None if self._client_door is None else self._client_door.statistics()
        return {
            **({} if self._ingest is None else self._ingest.statistics()),
            "stream": stream_statistics(streams, now_ns=self._clock.monotonic_ns()),
            "client_listener": {} if door is None else counters(door),
            "http_listener": counters(self._http_statistics),
            "offsets": {} if self._offsets is None else counters(self._offsets.counts),
            "retention": {} if self._retention is None else counters(self._retention.counts),
            "compaction": {} if self._cleaner is None else counters(self._cleaner.counts),
            "disk": disk_statistics(streams, free_bytes=free_bytes, total_bytes=total_bytes),
        }

    def _make_cleaner(self, ingest: NatsIngest) -> Cleaner:
        limits = self._config.limits
        return Cleaner(
            self._partitions,
            files=self._files,
            clock=self._clock,
            random=self._random,
            limits=CleanerLimits(
                limits.compaction_map_bytes_max, limits.compaction_bytes_per_second_max
            ),
            roll=ingest.roll,
            checkpoint=lambda partition: ingest.syncer.request(partition, checkpoint=True),
        )

    async def _open_offsets(self, ingest: NatsIngest) -> Offsets:
        """Create the stream of committed offsets at the first start, and read it."""
        if self._partitions.stream(OFFSETS_STREAM) is None:
            try:
                await self._streams.create(OFFSETS_STREAM, OFFSETS_CONFIG, internal=True)
            except (BasculeError, OSError) as error:
                log.error(
                    "no stream for committed offsets; the other streams serve",
                    extra={"stream": OFFSETS_STREAM, "error": str(error)},
                )
        publisher = InternalPublisher(self._partitions, ingest)
        offsets = Offsets(self._partitions, publisher, self._clock)
        offsets.start()
        return offsets

    async def _open_doors(self, offsets: Offsets) -> None:
        config, limits = self._config, self._config.limits
        self._client_door = ClientListener(
            partitions=self._partitions,
            offsets=offsets,
            node=NodeIdentity(node_id=config.node_id, cluster_id=self._cluster_id),
            limits=ListenerLimits(
                connections_max=limits.connections_max,
                request_bytes_max=limits.request_bytes_max,
                memory_bytes_max=limits.client_memory_bytes_max,
                idle_ms_max=limits.idle_ms_max,
                request_ms_max=limits.request_ms_max,
                write_stall_ms_max=limits.write_stall_ms_max,
                fetch_wait_ms_max=limits.fetch_wait_ms_max,
                fetch_bytes_max=limits.fetch_bytes_max,
                drain_ms_max=limits.drain_ms_max,
            ),
            advertised=_host_and_port(config.client.advertised),
        )
        self._client_address = await _bound(
            "client listener", config.client.port, self._client_door.start(
                config.client.host, config.client.port
            ),
        )  # fmt: skip
        app = create_app(
            self,
            defaults=config.streams,
            body_bytes_max=limits.http_body_bytes_max,
            statistics=self._http_statistics,
        )
        self._http_door = HttpListener(
            app,
            statistics=self._http_statistics,
            limits=HttpLimits(
                connections_max=limits.http_connections_max,
                request_ms_max=limits.request_ms_max,
                write_stall_ms_max=limits.write_stall_ms_max,
            ),
        )
        self._http_address = await _bound(
            "HTTP", config.http.port, self._http_door.start(config.http.host, config.http.port)
        )

    def _load_cluster_id(self) -> str:
        """The id drawn at the first start of this data directory."""
        path = str(self._data / "node.json")
        if not self._files.exists(path):
            cluster_id = self._random.bytes(12).hex()
            replace_file(self._files, path, encode_cluster_id(cluster_id))
            return cluster_id
        return decode_cluster_id(self._files.read_bytes(path), path)


def _data_directory(config: Config) -> Path:
    data = Path(config.data).absolute()
    data.mkdir(parents=True, exist_ok=True)
    return data


async def _bound(door: str, port: int, starting: Any) -> tuple[str, int]:
    try:
        host, bound = await starting
    except OSError as error:
        raise ConfigError(
            f"the {door} door cannot listen on port {port}: {error.strerror}; "
            "choose another port, or 0 for a free one"
        ) from error
    return host, bound


def _host_and_port(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"client.advertised is {text!r}, expected host:port")
    return host, int(port)


def _allow_descriptors() -> None:
    """Raise the soft limit of open files to the hard one: each active segment takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
