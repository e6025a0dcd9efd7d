"""The node: its parts, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from bascule import __version__
from bascule.config import Config
from bascule.controller.controller import Controller
from bascule.controller.directories import StreamDirectories
from bascule.controller.image_store import ImageStore
from bascule.controller.reconciler import Reconciler
from bascule.errors import BasculeError, ConfigError
from bascule.groups import OFFSETS_CONFIG, CommittedOffsetStore
from bascule.host.real import DirectoryLock, RealClock, RealFiles, RealRandom
from bascule.http.app import create_app
from bascule.http.listener import HttpLimits, HttpListener
from bascule.ingest.embedded_nats import EmbeddedNats
from bascule.ingest.nats_ingest import NatsIngest
from bascule.kafka import ClientListener, ListenerLimits, NodeIdentity
from bascule.metadata.codec import decode_cluster_id, encode_cluster_id
from bascule.model import NodeInfo
from bascule.node.status import NodeStatus
from bascule.publish.headers import HashKey
from bascule.replica.internal_publisher import InternalPublisher
from bascule.replica.log_syncer import LogSyncer
from bascule.replica.log_writer import LogWriter
from bascule.replica.maintenance.checkpoints import checkpoint_periodically, verify_all
from bascule.replica.maintenance.cleaner import Cleaner, CleanerLimits
from bascule.replica.maintenance.retention import Retention
from bascule.replica.opening import PartitionOpener
from bascule.replica.partitions import Partitions
from bascule.storage.checkpoint import replace_file
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.node")


async def serve(config: Config, *, on_ready: Callable[[NodeInfo], None]) -> None:
    """Run one node until SIGTERM or SIGINT; then drain, sync, close and return.

    `on_ready` is called once every listener is open and every stream is subscribed.

    Raises: DataDirectoryInUse, ConfigError, CorruptData, NatsRefused, Broken, OSError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _raise_open_files_limit()
    data = _data_directory(config)
    with DirectoryLock(str(data)):
        node = Node(config, data)
        try:
            await node.start()
            on_ready(node.status.node_info())
            await stop.wait()
            log.info("stopping")
        finally:
            await node.close()
    log.info("stopped")


class Node:
    """The parts of a node. `close` also works after a failed or partial `start`."""

    def __init__(self, config: Config, data: Path) -> None:
        self._config = config
        self._data = data
        self._clock = RealClock()
        self._random = RealRandom()
        self._files = RealFiles()
        self._hash_key = HashKey(self._random.bytes(16))
        self._partitions = Partitions()
        self._syncer = LogSyncer(clock=self._clock)
        self._writer = LogWriter(self._syncer)
        directories = StreamDirectories(self._files, str(data))
        self._reconciler = Reconciler(
            self._partitions,
            opener=PartitionOpener(self._files, self._clock, self._hash_key, self._partitions),
            directories=directories,
            writer=self._writer,
            syncer=self._syncer,
        )
        self._controller = Controller(
            self._partitions,
            self._reconciler,
            store=ImageStore(self._files, str(data)),
            directories=directories,
            clock=self._clock,
            random=self._random,
        )
        self.status = NodeStatus(
            config,
            data=str(data),
            files=self._files,
            clock=self._clock,
            partitions=self._partitions,
            controller=self._controller,
        )
        self._nats: EmbeddedNats | None = None
        self._ingest: NatsIngest | None = None
        self._offsets: CommittedOffsetStore | None = None
        self._client_listener: ClientListener | None = None
        self._http_listener: HttpListener | None = None
        self._cleaner: Cleaner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the logs, connect to NATS, then open the listeners. Raises: as `serve`."""
        self._partitions.bind(asyncio.get_running_loop())
        self.status.cluster_id = await asyncio.to_thread(self._load_cluster_id)
        await self._controller.open()
        if self._config.nats.embedded:
            self._nats = await self._start_nats()
        self._ingest = await self._start_ingest()
        raise_max_payload = None if self._nats is None else self._nats.raise_max_payload
        await self._controller.attach(self._ingest, raise_max_payload)
        self._offsets = self.status.offsets = await self._open_offsets()
        self._controller.attach_offsets(self._offsets)
        await self._open_listeners(self._offsets)
        self._start_maintenance(self._offsets)
        self.status.ready = True

    async def close(self) -> None:
        """Drain: store and acknowledge everything delivered, then close the listeners."""
        self.status.ready = False
        self.status.closing = True
        for task in self._tasks:
            task.cancel()
        if self._cleaner is not None:
            await self._cleaner.close()
        if self._ingest is not None:
            await self._ingest.drain()
            await self._drain_logs(self._ingest)
        if self._client_listener is not None:
            await self._client_listener.close()
        if self._http_listener is not None:
            await self._http_listener.close()
        if self._offsets is not None:
            await self._offsets.close()
        if self._ingest is not None:
            await self._ingest.close()
        await asyncio.to_thread(self._reconciler.close)
        if self._nats is not None:
            await self._nats.stop()

    async def _drain_logs(self, ingest: NatsIngest) -> None:
        """Write, sync and acknowledge everything that was handed to the log writer."""
        self._reconciler.end_timers()
        await asyncio.to_thread(self._writer.stop)
        for partitions in self._partitions.streams().values():
            for partition in partitions:
                if partition.is_dirty:
                    self._syncer.request(partition)
        await asyncio.to_thread(self._syncer.stop)
        await ingest.flush()

    async def _start_nats(self) -> EmbeddedNats:
        config = self._config
        nats = EmbeddedNats(
            self._data / "nats",
            host=config.nats.host,
            port=config.nats.port,
            payload_bytes_max=max(
                config.streams.message_bytes_max, self._controller.message_bytes_max
            ),
        )
        self.status.urls = [await nats.start()]
        return nats

    async def _start_ingest(self) -> NatsIngest:
        ingest = NatsIngest(
            self._config,
            self.status.urls,
            append=self._writer.append,
            clock=self._clock,
            random=self._random,
            hash_key=self._hash_key,
            version=__version__,
        )
        self._writer.start(ingest.publish)
        self._syncer.start(ingest.publish)
        self.status.ingest = ingest
        await ingest.start()
        return ingest

    async def _open_offsets(self) -> CommittedOffsetStore:
        """Create the stream `_offsets` if it does not exist, and start reading it."""
        if self._partitions.stream(OFFSETS_STREAM) is None:
            try:
                await self._controller.create_stream(OFFSETS_STREAM, OFFSETS_CONFIG, internal=True)
            except (BasculeError, OSError) as error:
                log.error(
                    "no stream for committed offsets; the other streams serve",
                    extra={"stream": OFFSETS_STREAM, "error": str(error)},
                )
        publisher = InternalPublisher(self._partitions, self._writer.append)
        offsets = CommittedOffsetStore(self._partitions, publisher, self._clock)
        offsets.start()
        return offsets

    async def _open_listeners(self, offsets: CommittedOffsetStore) -> None:
        config, limits = self._config, self._config.limits
        self._client_listener = ClientListener(
            partitions=self._partitions,
            offsets=offsets,
            node=NodeIdentity(node_id=config.node_id, cluster_id=self.status.cluster_id),
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
        self.status.client_statistics = self._client_listener.statistics
        self.status.client_address = await _bind(
            "client listener",
            config.client.port,
            self._client_listener.start(config.client.host, config.client.port),
        )
        app = create_app(
            self._controller,
            offsets,
            self.status,
            defaults=config.streams,
            body_bytes_max=limits.http_body_bytes_max,
            statistics=self.status.http_statistics,
        )
        self._http_listener = HttpListener(
            app,
            statistics=self.status.http_statistics,
            limits=HttpLimits(
                connections_max=limits.http_connections_max,
                request_ms_max=limits.request_ms_max,
                write_stall_ms_max=limits.write_stall_ms_max,
            ),
        )
        self.status.http_address = await _bind(
            "HTTP listener",
            config.http.port,
            self._http_listener.start(config.http.host, config.http.port),
        )

    def _start_maintenance(self, offsets: CommittedOffsetStore) -> None:
        limits = self._config.limits
        retention = Retention(
            self._partitions,
            clock=self._clock,
            archived=offsets.committed,
            roll=self._writer.roll,
        )
        self._cleaner = Cleaner(
            self._partitions,
            files=self._files,
            clock=self._clock,
            random=self._random,
            limits=CleanerLimits(
                limits.compaction_map_bytes_max, limits.compaction_bytes_per_second_max
            ),
            roll=self._writer.roll,
            checkpoint=lambda partition: self._syncer.request(partition, checkpoint=True),
        )
        self.status.retention, self.status.compaction = retention.counts, self._cleaner.counts
        self._tasks = [
            asyncio.create_task(self._controller.run()),
            asyncio.create_task(checkpoint_periodically(self._partitions, self._syncer)),
            asyncio.create_task(retention.run()),
            asyncio.create_task(self._cleaner.run()),
            asyncio.create_task(verify_all(self._partitions, self._syncer)),
        ]

    def _load_cluster_id(self) -> str:
        """The cluster id, which is generated at the first start on this data directory."""
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


async def _bind(listener: str, port: int, starting: Awaitable[tuple[str, int]]) -> tuple[str, int]:
    try:
        return await starting
    except OSError as error:
        raise ConfigError(
            f"the {listener} cannot listen on port {port}: {error.strerror}; "
            "choose another port, or 0 for a free one"
        ) from error


def _host_and_port(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"client.advertised is {text!r}, expected host:port")
    return host, int(port)


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each active segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
