"""The node: its parts, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bascule.announce.exchange import AnnouncingNode
from bascule.config import KEYS, Config
from bascule.config.addresses import is_loopback, parse_address
from bascule.controller.announcer import Announcer
from bascule.controller.cluster.controller import ClusterController
from bascule.controller.cluster.groups import ClusterGroups, GroupLags
from bascule.controller.cluster.groups.coordinator import make_coordinator
from bascule.controller.directories import StreamDirectories
from bascule.controller.held_partitions import HeldPartitions
from bascule.controller.reconciler import Reconciler
from bascule.errors import BasculeError, ConfigError, NotEnoughNodes
from bascule.groups import OFFSETS_CONFIG, CommittedOffsetStore, GroupCoordinator
from bascule.host.lasting_objects import LastingObjects
from bascule.host.lasting_tasks import start_lasting
from bascule.host.real import DirectoryLock, RealClock, RealFiles, RealRandom, make_lasting_dirs
from bascule.http.app import create_app
from bascule.http.listener import HttpLimits, HttpListener
from bascule.ingest.embedded_nats import EmbeddedNats
from bascule.ingest.nats_ingest import NatsIngest
from bascule.ingest.nats_supervisor import NatsSupervisor
from bascule.kafka import ClientListener, ListenerLimits, NodeIdentity
from bascule.keyvalue import KeyValueService, start_key_value
from bascule.model import NodeInfo, PartitionState
from bascule.node.archive_progress import ArchiveProgress
from bascule.node.binding import bind_listener, reason_of
from bascule.node.cluster import ClusterNode
from bascule.node.cluster_id import load_cluster_id
from bascule.node.discovery import Discovery
from bascule.node.last_run import KeptLastRun
from bascule.node.refusal import metadata_failed
from bascule.node.status import NodeStatus
from bascule.publish.headers import HashKey
from bascule.publish.stream_subjects import StreamSubjects
from bascule.replica.disk_reserve import DiskReserve, give_back_at_start, hold_reserve
from bascule.replica.internal_publisher import InternalPublisher
from bascule.replica.log_writer import LogWriter
from bascule.replica.maintenance.checkpoints import checkpoint_periodically, verify_all
from bascule.replica.maintenance.cleaner import Cleaner, CleanerLimits
from bascule.replica.maintenance.retention import Retention
from bascule.replica.opening import PartitionOpener
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub import Scrubber, ScrubLimits
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.tables import Tables
from bascule.version import __version__
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.node")

OFFSETS_REPLICAS: Final = 3
"""Of `_offsets`, in a cluster of so many nodes."""
NODES_RETRY_SECONDS: Final = 0.2


async def serve(
    config: Config, *, on_ready: Callable[[NodeInfo], None], new_cluster_id: bool = False
) -> None:
    """Run one node until SIGTERM or SIGINT, or until its embedded NATS server fails for good; then
    drain, sync, close and return, or raise Broken.

    `on_ready` is called once every listener is open and every stream is subscribed.
    `new_cluster_id` replaces a cluster id that is missing or damaged.

    Raises: DataDirectoryInUse, ConfigError, CorruptData, NatsRefused, Broken, OSError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _raise_open_files_limit()
    data = _data_directory(config)
    discovery = Discovery(
        config, str(data), files=RealFiles(), clock=RealClock(), dice=RealRandom()
    )
    with _lock(data, config):
        give_back_at_start(RealFiles(), str(data))
        try:
            founding = asyncio.create_task(discovery.found())
            if await _done(founding, stop):
                node = Node(founding.result(), data, new_cluster_id=new_cluster_id)
                try:
                    if await _done(asyncio.create_task(node.start()), stop):
                        on_ready(node.status.node_info())
                        await node.run_until(stop)
                    log.info("stopping")
                finally:
                    await node.close()
        finally:
            await discovery.close()
    log.info("stopped")


async def _done(starting: asyncio.Task[Any], stop: asyncio.Event) -> bool:
    """Wait for a part of the start; False if `stop` was set before. Raises: as `serve`."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        # A node of a cluster may wait for others as long as there are too few of them.
        starting.cancel()
        await asyncio.wait({starting})
        if starting.cancelled():
            return False
    starting.result()
    return True


class Node:
    """The parts of a node. `close` also works after a failed or partial `start`."""

    def __init__(self, config: Config, data: Path, *, new_cluster_id: bool = False) -> None:
        self._config = config
        self._new_cluster_id = new_cluster_id
        self._data = data
        self._clock = RealClock()
        self._random = RealRandom()
        self._files = RealFiles()
        self._last_run = KeptLastRun(self._files, str(data))
        self._hash_key = HashKey(self._random.bytes(16))
        self._lasting = LastingObjects()
        self._partitions = Partitions(
            StreamSubjects(self._hash_key), on_added=self._lasting.on_added
        )
        self._syncer = LogSyncer(clock=self._clock)
        self._reserve = DiskReserve(
            self._files,
            str(data),
            self._random,
            size_bytes=config.limits.disk_reserve_bytes,
        )
        self._writer = LogWriter(self._syncer, self._reserve)
        self._directories = StreamDirectories(self._files, str(data))
        self._cluster: ClusterNode | None = None
        self._reconciler = Reconciler(
            self._partitions,
            opener=PartitionOpener(self._files, self._clock, self._hash_key, self._partitions),
            directories=self._directories,
            held=HeldPartitions(self._files, str(data)),
            writer=self._writer,
            syncer=self._syncer,
            node_id=config.node_id,
            set_role=self._set_role,
        )
        self.status = NodeStatus(
            config,
            data=str(data),
            files=self._files,
            clock=self._clock,
            partitions=self._partitions,
        )
        self._nats: EmbeddedNats | None = None
        self._key_value: KeyValueService | None = None
        self._ingest: NatsIngest | None = None
        self._offsets: CommittedOffsetStore | None = None
        self._groups: GroupCoordinator | None = None
        self._tables = Tables(self._partitions, data, self._files, config.tables)
        self._publisher = InternalPublisher(self._partitions, self._writer.append)
        self.status.tables = self._tables
        self._announcer: Announcer | None = None
        self._client_listener: ClientListener | None = None
        self._http_listener: HttpListener | None = None
        self._cleaner: Cleaner | None = None
        self._scrubber: Scrubber | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._supervision: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the logs, connect to NATS, then open the listeners. Raises: as `serve`."""
        self._partitions.bind(asyncio.get_running_loop())
        self.status.cluster_id = await asyncio.to_thread(
            load_cluster_id,
            self._files,
            str(self._data),
            self._random,
            draw_new=self._new_cluster_id,
        )
        await self._last_run.begin()
        await asyncio.to_thread(self._reserve.hold)
        self._writer.start(self._send_acks)
        self._syncer.start(self._send_acks)
        self._cluster = cluster = self._make_cluster()
        self._syncer.on_synced = cluster.payloads.streams.on_log_synced
        await cluster.start(self._last_run)
        self.status.cluster_id = cluster.controller.image.cluster_id
        self.status.peer_address = cluster.address
        if self._config.nats.embedded:
            self._nats = await self._start_nats()
        await self._start_ingest()
        assert self._ingest is not None
        raise_max_payload = None if self._nats is None else self._nats.raise_max_payload
        await self._controller.attach(self._ingest, raise_max_payload)
        self._offsets = self.status.offsets = await self._open_offsets(cluster)
        self._groups = self.status.groups = make_coordinator(
            self._config.groups, self._partitions, self._offsets, self._random, cluster.controller
        )
        self._groups.start()
        await self._tables.start()
        cluster_groups, ends = self._controller.attach_groups(self._offsets, self._groups)
        self.status.lags = GroupLags(
            self._groups,
            self._offsets,
            ends,
            asyncio.get_running_loop().time,
            series_max=self._config.groups.lag_series_max,
        )
        await self._start_announcer(self._ingest)
        await self._open_listeners(self._offsets, self._groups, cluster_groups)
        await cluster.announce(self.status.node_info(), self._nats)
        if self._nats is not None:
            # Not before the subscriptions stand, here and at the servers of other nodes:
            # reconnecting clients send what they have kept.
            await self._nats.open()
        self._key_value = self.status.key_value = start_key_value(
            self._config, self.status.urls, self._nats, self._ingest, self._tables,
            self._partitions, self._controller, self._publisher, self._clock, self._random,
        )  # fmt: skip
        if self._key_value is not None and self._ingest.connected:
            await self._key_value.wait_served()
        self._start_maintenance(
            ArchiveProgress(self._partitions, self._offsets, cluster_groups, self._clock)
        )
        self.status.ready = True
        self._lasting.settle()
        if self._nats is not None:
            supervisor = self.status.nats_supervisor = NatsSupervisor(
                self._nats, subscribed=self._ingest.subscribed, clock=self._clock
            )
            self._supervision = asyncio.create_task(supervisor.run())

    @property
    def _controller(self) -> ClusterController:
        assert self._cluster is not None
        return self._cluster.controller

    def _make_cluster(self) -> ClusterNode:
        cluster = ClusterNode(
            self._config, self._data, self._partitions, self._reconciler,
            writer=self._writer, syncer=self._syncer, files=self._files, reserve=self._reserve,
            clock=self._clock, dice=self._random, cluster_id=self.status.cluster_id,
            directories=self._directories, send=self._send_acks,
        )  # fmt: skip
        self.status.controller = cluster.controller
        self.status.replication_statistics = cluster.statistics
        return cluster

    def _set_role(self, partition: Partition, state: PartitionState) -> Future[None]:
        assert self._cluster is not None
        return self._cluster.replicator.set_role(partition, state)

    def _send_acks(self, operations: bytes) -> None:
        """Send NATS operations; called by the log writer and the sync threads."""
        if self._ingest is not None:
            self._ingest.publish(operations)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return once `stop` is set. Raises: Broken if the embedded NATS server, or the disk of the
        metadata, fails for good; NodeRefused if the cluster has removed this node."""
        assert self._cluster is not None
        failed = self._cluster.failed
        stopping = asyncio.create_task(stop.wait())
        watched: set[asyncio.Future[Any]] = {stopping, failed}
        if self._supervision is not None:
            watched.add(self._supervision)
        refused = asyncio.create_task(self._cluster.refusal.wait())
        watched.add(refused)
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if refused.done():
            refused.result()
        refused.cancel()
        if failed.done():
            raise metadata_failed(failed.result())
        if self._supervision is not None and self._supervision.done():
            self._supervision.result()

    async def close(self) -> None:
        """Drain: store and acknowledge everything delivered, then close the listeners."""
        self.status.ready, self.status.closing = False, True
        for task in self._tasks:
            task.cancel()
        if self._supervision is not None:
            self._supervision.cancel()
        if self._cleaner is not None:
            await self._cleaner.close()
        if self._scrubber is not None:
            await self._scrubber.close()
        if self._announcer is not None:
            self._announcer.stop()
        if self._key_value is not None:
            await self._key_value.close()
        if self._groups is not None:
            await self._groups.close()
        if self._ingest is not None:
            if self._cluster is not None:
                await self._cluster.controller.step_down()
            await self._ingest.drain()
            await self._drain_logs(self._ingest)
            if self._nats is not None:
                # Before the listeners, which may wait for their clients: from here on publishers
                # keep their messages, instead of sending them to a server without subscriptions.
                await self._ingest.close()
                await self._nats.stop()
        if self._client_listener is not None:
            await self._client_listener.close()
        await self._tables.end_watches()
        if self._http_listener is not None:
            await self._http_listener.close()
        if self._offsets is not None:
            await self._offsets.close()
        await self._tables.close()
        if self._ingest is not None:
            await self._ingest.close()
        if self._cluster is not None:
            await self._cluster.close()
        if await asyncio.to_thread(self._reconciler.close):
            await self._note_clean_stop()
        if self._nats is not None:
            await self._nats.stop()

    async def _note_clean_stop(self) -> None:
        try:
            await self._last_run.end()
        except OSError as error:
            log.warning("clean stop not noted", extra={"error": str(error)})

    async def _drain_logs(self, ingest: NatsIngest) -> None:
        """Write, sync and acknowledge everything that was handed to the log writer."""
        self._reconciler.end_timers()
        await asyncio.to_thread(self._writer.stop)
        for partitions in self._partitions.streams().values():
            for partition in partitions:
                if partition.is_dirty:
                    self._syncer.request(partition)
        await asyncio.to_thread(self._syncer.stop)
        assert self._cluster is not None
        await self._cluster.refusals.settle()
        await ingest.flush()

    async def _start_nats(self) -> EmbeddedNats:
        config = self._config
        assert self._cluster is not None
        own_host = parse_address(self._cluster.own_address())[0]
        nats = EmbeddedNats(
            self._data / "nats",
            host=config.nats.host,
            advertised="" if is_loopback(own_host) else own_host,
            port=config.nats.port,
            message_bytes_max=max(
                config.streams.message_bytes_max, self._controller.message_bytes_max
            ),
            token=self._random.bytes(16).hex(),
            name=f"bascule-{config.node_id}",
            cluster=config.cluster.name or "unnamed",  # without one it takes no routes
        )
        self.status.urls = [await nats.start()]
        return nats

    async def _start_ingest(self) -> NatsIngest:
        ingest = NatsIngest(
            self._config,
            self.status.urls if self._nats is None else [self._nats.private_url],
            append=self._writer.append,
            clock=self._clock,
            random=self._random,
            hash_key=self._hash_key,
            version=__version__,
            on_chunks=self._controller.payloads.streams.take_chunks,
        )
        self._ingest = self.status.ingest = ingest
        await ingest.start(wait_for_place=self._nats is not None)
        return ingest

    async def _start_announcer(self, ingest: NatsIngest) -> None:
        """Announce this node's streams to other nodes on the same NATS, unless that is off."""
        if not self._config.nats.announce:
            return
        me = AnnouncingNode(
            self.status.cluster_id, self._config.node_id, run=self._random.bytes(8).hex(),
            interval_ms=self._config.nats.announce_interval_ms,
        )  # fmt: skip
        self._announcer = self.status.announcer = Announcer(
            me, ingest, self._clock, lambda: self._controller.image.nodes
        )
        self._controller.attach_announcer(self._announcer)
        await self._announcer.start()

    async def _open_offsets(self, cluster: ClusterNode) -> CommittedOffsetStore:
        """Create the stream `_offsets` if it does not exist, and start reading it."""
        offsets = CommittedOffsetStore(self._partitions, self._publisher, self._clock)
        if self._partitions.stream(OFFSETS_STREAM) is not None:
            offsets.start()
        elif not cluster.began_alone:
            # It waits for as many nodes as it has replicas; the other streams do not.
            waiting = partial(self._start_offsets_when_created, offsets, cluster)
            self._tasks.append(start_lasting("creation of _offsets", waiting))
        else:
            try:
                await self._controller.create_stream(OFFSETS_STREAM, OFFSETS_CONFIG, internal=True)
            except (BasculeError, OSError) as error:
                self._log_no_offsets(error)
            offsets.start()
        return offsets

    async def _start_offsets_when_created(
        self, offsets: CommittedOffsetStore, cluster: ClusterNode
    ) -> None:
        """Start with the stream `_offsets`. The founders create it once there are nodes for it."""
        replicas = min(OFFSETS_REPLICAS, cluster.founder_count)
        config = replace(OFFSETS_CONFIG, replicas=replicas)
        is_logged = False
        while self._partitions.stream(OFFSETS_STREAM) is None:
            try:
                if replicas:
                    await self._controller.create_stream(OFFSETS_STREAM, config, internal=True)
                    await self._controller.wait_followed()
                    break
            except (BasculeError, OSError) as error:
                if not is_logged and not isinstance(error, NotEnoughNodes):
                    self._log_no_offsets(error)
                    is_logged = True
            await asyncio.sleep(NODES_RETRY_SECONDS)
        offsets.start()

    def _log_no_offsets(self, error: Exception) -> None:
        log.error(
            "no stream for committed offsets; the other streams serve",
            extra={"stream": OFFSETS_STREAM, "error": str(error)},
        )

    async def _open_listeners(
        self,
        offsets: CommittedOffsetStore,
        groups: GroupCoordinator,
        cluster_groups: ClusterGroups,
    ) -> None:
        config, limits = self._config, self._config.limits
        tables = self._controller.attach_tables(self._tables, self._publisher)
        self.status.table_followers, self.status.table_reads = tables.followers, tables
        self._client_listener = ClientListener(
            partitions=self._partitions,
            offsets=offsets,
            groups=groups,
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
            cluster=self._controller.views,
            streams=self._controller,
            config=config,
            on_datastream=self._controller.payloads.streams.adopt,
            tables=tables.batches,
        )
        self.status.client_statistics = self._client_listener.statistics
        self.status.client_address = await bind_listener(
            "client listener", "client", config,
            self._client_listener.start(config.client.host, config.client.port),
        )  # fmt: skip
        app = create_app(
            self._controller,
            cluster_groups,
            self.status,
            self._controller.operations,
            tables,
            self._controller.payloads,
            defaults=config.streams,
            body_bytes_max=limits.http_body_bytes_max,
            statistics=self.status.http_statistics,
        )
        self._http_listener = HttpListener(
            app,
            statistics=self.status.http_statistics,
            limits=HttpLimits(
                connections_max=limits.http_connections_max,
                head_ms_max=limits.http_head_ms_max,
                request_ms_max=limits.request_ms_max,
                write_stall_ms_max=limits.write_stall_ms_max,
            ),
        )
        self.status.http_address = await bind_listener(
            "HTTP listener",
            "http",
            config,
            self._http_listener.start(config.http.host, config.http.port),
        )

    def _start_maintenance(self, archives: ArchiveProgress) -> None:
        limits = self._config.limits
        retention = Retention(
            self._partitions,
            clock=self._clock,
            archived=archives.committed,
            roll=self._writer.roll,
            reserve=self._reserve,
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
        self._scrubber = Scrubber(
            self._partitions, files=self._files, data_directory=str(self._data),
            clock=self._clock, random=self._random,
            limits=ScrubLimits(limits.scrub_period_ms, limits.scrub_bytes_per_second_max),
        )  # fmt: skip
        self._controller.scrubs.attach(self._scrubber)
        self.status.scrub = self._scrubber.counts
        self.status.retention, self.status.compaction = retention.counts, self._cleaner.counts
        self._tasks += [
            start_lasting("disk reserve", partial(hold_reserve, self._reserve)),
            start_lasting(
                "checkpoints", partial(checkpoint_periodically, self._partitions, self._syncer)
            ),
            start_lasting("archives", archives.run),
            start_lasting("retention", retention.run),
            start_lasting("compaction", self._cleaner.run),
            start_lasting("scrub", self._scrubber.run),
            start_lasting("verification", partial(verify_all, self._partitions, self._syncer)),
        ]
        if self._announcer is not None:
            self._tasks.append(start_lasting("announcements", self._announcer.run))


def _data_directory(config: Config) -> Path:
    """The data directory, which is created if it does not exist. Raises: ConfigError."""
    if not config.data:
        origin = config.origins["data"]
        raise ConfigError(f"{origin} is empty: name a directory, such as {KEYS['data'].default}")
    data = Path(config.data).absolute()
    try:
        make_lasting_dirs(str(data), mode=0o777)
    except OSError as error:
        raise _unusable(data, config, error) from error
    return data


def _lock(data: Path, config: Config) -> DirectoryLock:
    """Raises: ConfigError if no file can be written to the directory; DataDirectoryInUse."""
    try:
        return DirectoryLock(str(data))
    except OSError as error:
        raise _unusable(data, config, error) from error


def _unusable(data: Path, config: Config, error: OSError) -> ConfigError:
    # mkdir says that a file "exists"; opening below it, that it is not a directory.
    is_file = isinstance(error, FileExistsError | NotADirectoryError)
    why = "it, or a part of its path, is a file" if is_file else reason_of(error)
    origin = config.origins.get("data", "the default")
    return ConfigError(
        f"data directory {data} ({origin}) cannot be used: {why}; "
        "name a directory that this user may write to with --data DIR"
    )


def _host_and_port(text: str) -> tuple[str, int] | None:
    """Raises: ConfigError."""
    if not text:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigError(f"client.advertised {error}") from None


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each active segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
