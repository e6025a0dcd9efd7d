"""The status of a node: identity, liveness, readiness, statistics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from bascule.config import Config
from bascule.config.addresses import format_address
from bascule.controller.announcer import Announcer
from bascule.controller.cluster.controller import ClusterController
from bascule.controller.cluster.groups import GroupLags
from bascule.controller.cluster.tables import ClusterFollowers, ClusterTables
from bascule.groups import CommittedOffsetStore, GroupCoordinator
from bascule.host.api import Clock, Files
from bascule.host.twins import twin_of_all
from bascule.http import health
from bascule.http.metrics.http_statistics import HttpStatistics
from bascule.http.metrics.statistics import counter_values, disk_statistics, stream_statistics
from bascule.ingest.nats_ingest import NatsIngest
from bascule.ingest.nats_supervisor import NatsSupervisor
from bascule.kafka import ListenerStatistics
from bascule.keyvalue import KeyValueService
from bascule.model import (
    ClusterInfo,
    DuplicateStream,
    NodeInfo,
    PartHealth,
)
from bascule.replica.maintenance.cleaner import CompactionCounts
from bascule.replica.maintenance.retention import RetentionCounts
from bascule.replica.partitions import Partitions
from bascule.replica.scrub.scrubber import ScrubCounts
from bascule.tables import Tables
from bascule.version import __version__
from bascule.wire.nats import without_credentials

MEASURE_SECONDS_MAX: Final = 0.5
"""How long a request waits for the free space of the disk; probes give up after a second or so."""


class DiskRoom:
    """Free and total bytes of a file system, as last measured. Belongs to the event loop."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._measuring: asyncio.Future[tuple[int, int]] | None = None
        self.free_bytes = 0
        self.total_bytes = 0
        """0: never measured."""

    @property
    def is_hanging(self) -> bool:
        """Whether the last measurement has not ended."""
        return self._measuring is not None

    async def measure(self) -> None:
        """Measure on a thread; wait for that for at most `MEASURE_SECONDS_MAX`.

        On a disk that hangs the last values stay, and one thread waits, however many ask. Raises:
        OSError.
        """
        if self._measuring is None:
            call = asyncio.to_thread(self._files.room, self._path)
            self._measuring = asyncio.ensure_future(call)
            self._measuring.add_done_callback(self._on_measured)
        done, _ = await asyncio.wait({self._measuring}, timeout=MEASURE_SECONDS_MAX)
        for each in done:
            each.result()

    def _on_measured(self, measuring: asyncio.Future[tuple[int, int]]) -> None:
        self._measuring = None
        if not measuring.cancelled() and measuring.exception() is None:
            self.free_bytes, self.total_bytes = measuring.result()


class NodeStatus:
    """Collects the status from the parts of a node; the node sets an attribute per started part."""

    def __init__(
        self,
        config: Config,
        *,
        data: str,
        files: Files,
        clock: Clock,
        partitions: Partitions,
    ) -> None:
        self._config = config
        self._data = data
        self._room = DiskRoom(files, data)
        self._clock = clock
        self._partitions = partitions
        self.controller: ClusterController | None = None
        self._started_ns = clock.monotonic_ns()
        self.cluster_id = ""
        self.urls = list(config.nats.urls)
        """Of the NATS servers."""
        self.client_address = ("", 0)
        self.http_address = ("", 0)
        self.peer_address = ("", 0)
        self.ready = False
        self.closing = False
        self.ingest: NatsIngest | None = None
        self.nats_supervisor: NatsSupervisor | None = None
        """Where the NATS server is embedded."""
        self.offsets: CommittedOffsetStore | None = None
        self.groups: GroupCoordinator | None = None
        self.lags: GroupLags | None = None
        self.announcer: Announcer | None = None
        """Where announcements are exchanged."""
        self.replication_statistics: Callable[[], dict[str, Any]] | None = None
        """In a cluster."""
        self.client_statistics: Callable[[], ListenerStatistics] | None = None
        self.http_statistics = HttpStatistics()
        self.retention: RetentionCounts | None = None
        self.compaction: CompactionCounts | None = None
        self.scrub: ScrubCounts | None = None
        self.tables: Tables | None = None
        self.table_followers: ClusterFollowers | None = None
        self.table_reads: ClusterTables | None = None
        self.key_value: KeyValueService | None = None

    def node_info(self) -> NodeInfo:
        connected = self.ingest is not None and self.ingest.connected
        return NodeInfo(
            node_id=self._config.node_id,
            cluster_id=self.cluster_id,
            version=__version__,
            twin=twin_of_all(),
            pid=os.getpid(),
            data=self._data,
            nats=",".join(without_credentials(url) for url in self.urls),
            nats_server="" if self.ingest is None else self.ingest.server,
            nats_embedded=self._config.nats.embedded,
            client=format_address(*self.client_address),
            http=f"http://{format_address(*self.http_address)}",
            uptime_ms=(self._clock.monotonic_ns() - self._started_ns) // 1_000_000,
            ready=self.ready and connected and not self._is_suspended and not self._conflicts(),
            peer=format_address(*self.peer_address),
            bootstrap=",".join(self._bootstrap()),
        )

    @property
    def _is_suspended(self) -> bool:
        """Whether the node leads nothing, since no controller reaches it."""
        return self.controller is not None and self.controller.is_suspended

    def _bootstrap(self) -> list[str]:
        found = [format_address(*self.client_address)]
        if self.controller is not None:
            node_id = self._config.node_id
            found += [n.client for n in self.controller.views.nodes() if n.node_id != node_id]
        return found

    def _cluster_health(self) -> tuple[PartHealth, ...]:
        if self.controller is None:
            return ()
        return (
            health.controller_health(self.controller.pending_steps()),
            health.cluster_health(
                self.controller.views.cluster_info(),
                node_id=self._config.node_id,
                is_suspended=self._is_suspended,
            ),
        )

    async def cluster_info(self) -> ClusterInfo:
        """The cluster as this node sees it, and the replicas that have failed on any node."""
        assert self.controller is not None
        return await self.controller.views.describe_cluster()

    def liveness(self) -> tuple[PartHealth, ...]:
        serving = self.ready and not self.closing
        supervisor = self.nats_supervisor
        nats_server = supervisor and health.nats_server_health(
            failure=supervisor.failure,
            has_given_up=supervisor.has_given_up,
            trouble=supervisor.trouble,
        )
        return (
            *((health.threads_health(),) if serving else ()),
            *((nats_server,) if nats_server else ()),
        )

    async def measure(self) -> None:
        """Measure what `readiness` and `statistics` say of the disk. Raises: OSError."""
        await self._room.measure()

    def readiness(self) -> tuple[PartHealth, ...]:
        connected = self.ingest is not None and self.ingest.connected
        node = self.node_info()
        every = [p for ps in self._partitions.streams().values() for p in ps]
        return (
            health.node_health(opened=self.ready, closing=self.closing),
            health.nats_health(
                connected=connected,
                server=node.nats_server or node.nats,
                refusals={} if self.ingest is None else self.ingest.refusals(),
                unheard=() if self.announcer is None else self.announcer.unheard,
            ),
            *self.liveness(),
            *self._cluster_health(),
            health.partitions_health(every),
            *((health.tables_health(self.tables.failures()),) if self.tables is not None else ()),
            *((self._streams_health(),) if self.announcer is not None else ()),
            health.disk_health(
                free_bytes=self._room.free_bytes,
                total_bytes=self._room.total_bytes,
                is_hanging=self._room.is_hanging,
            ),
        )

    def _conflicts(self) -> Mapping[str, list[DuplicateStream]]:
        return {} if self.announcer is None else self.announcer.conflicts()

    def _streams_health(self) -> PartHealth:
        refusal = None if self.announcer is None else self.announcer.refusal
        return health.streams_health(self._conflicts(), cluster_id=self.cluster_id, refusal=refusal)

    async def group_lags(self) -> Mapping[str, Any]:
        """Size and lag of the groups that this node coordinates."""
        return _counters(None if self.lags is None else await self.lags.collect())

    def statistics(self) -> dict[str, Any]:
        streams = self._partitions.streams()
        client = None if self.client_statistics is None else self.client_statistics()
        return {
            **({} if self.ingest is None else self.ingest.statistics()),
            "nats_server": _counters(self.nats_supervisor and self.nats_supervisor.counts),
            **({} if self.replication_statistics is None else self.replication_statistics()),
            "stream": stream_statistics(streams, now_ns=self._clock.monotonic_ns()),
            "client_listener": _counters(client),
            "http_listener": counter_values(self.http_statistics),
            "offsets": _counters(None if self.offsets is None else self.offsets.counts),
            "groups": _counters(None if self.groups is None else self.groups.counts()),
            "retention": _counters(self.retention),
            "compaction": _counters(self.compaction),
            "scrub": _counters(self.scrub),
            "tables": _counters(self.tables and self.tables.counts),
            "table_reads": _counters(self.table_reads and self.table_reads.counts),
            "table_watches": _counters(self.tables and self.tables.watch_counts),
            "table_expiry": _counters(self.tables and self.tables.expiry_counts),
            "table_forgetting": _counters(self.tables and self.tables.forgetting_counts),
            "table_followers": _counters(self.table_followers and self.table_followers.counts),
            "key_value": _counters(self.key_value and self.key_value.consumers.counts),
            "announcements": self.announcer.statistics(streams) if self.announcer else {},
            "disk": disk_statistics(
                streams, free_bytes=self._room.free_bytes, total_bytes=self._room.total_bytes
            ),
        }


def _counters(counts: object | None) -> Mapping[str, Any]:
    return {} if counts is None else counter_values(counts)
