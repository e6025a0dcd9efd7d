"""The client listener: serves this node's streams to Kafka clients."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from bascule.config import Config
from bascule.kafka.handlers import SERVED_REQUESTS, SERVED_VERSIONS, handle
from bascule.kafka.handlers.context import (
    ClusterView,
    Context,
    NodeIdentity,
    ServedGroups,
    ServedOffsets,
    ServedPartitions,
    ServedTables,
    TopicAdministration,
)
from bascule.kafka.repeated_requests import RepeatedRequests
from bascule.listening.connection import ServedConnection
from bascule.listening.limits import ListenerLimits
from bascule.listening.listener import FrameListener
from bascule.wire.connection import ServerConnection

log = logging.getLogger(__name__)


class ClientListener(FrameListener):
    """Serves `partitions`, `offsets` and `groups` to Kafka clients; used on one event loop."""

    NAME = "client"

    def __init__(
        self,
        *,
        partitions: ServedPartitions,
        offsets: ServedOffsets,
        groups: ServedGroups,
        node: NodeIdentity,
        cluster: ClusterView,
        streams: TopicAdministration,
        config: Config,
        limits: ListenerLimits | None = None,
        advertised: tuple[str, int] | None = None,
        on_datastream: Callable[[socket.socket, str], None] = lambda sock, _: sock.close(),
        tables: ServedTables | None = None,
    ) -> None:
        """`advertised` is the address in Metadata; by default the one the client connected to.
        `on_datastream` takes over a connection on which payloads are sent."""
        super().__init__(limits)
        self._on_datastream = on_datastream
        self._partitions = partitions
        self._offsets = offsets
        self._groups = groups
        self._node = node
        self._advertised = advertised
        self._cluster = cluster
        self._streams = streams
        self._config = config
        self._tables = tables

    def open(self) -> None:
        """See `FrameListener.open`."""
        super().open()
        host, port = self._listeners[0].getsockname()[:2]
        log.info("client listener open", extra={"host": host, "port": port})

    def _connection(self, sock: socket.socket, peer: str) -> ServedConnection:
        host, port = self._advertised or sock.getsockname()[:2]
        context = self._context(host, port, peer)
        protocol = ServerConnection(
            served=SERVED_VERSIONS,
            requests=SERVED_REQUESTS,
            frame_bytes_max=self._limits.request_bytes_max,
        )
        return ServedConnection(
            sock,
            protocol,
            lambda request: handle(request, context),
            peer=peer,
            limits=self._limits,
            statistics=self._statistics,
            refusals=self._refusals,
            run_on_thread=self._run_on_thread,
            take_over=lambda sock: self._on_datastream(sock, peer),
            shortcut=RepeatedRequests(context, protocol),
        )

    def _context(self, host: str, port: int, peer: str) -> Context:
        return Context(
            partitions=self._partitions,
            offsets=self._offsets,
            groups=self._groups,
            node=self._node,
            host=host,
            port=port,
            fetch_bytes_max=self._limits.fetch_bytes_max,
            fetch_wait_ms_max=self._limits.fetch_wait_ms_max,
            purgatory=self._purgatory,
            run_on_thread=self._run_on_thread,
            peer=peer,
            refusals=self._refusals,
            cluster=self._cluster,
            config=self._config,
            streams=self._streams,
            tables=self._tables,
            note_cold_read=self._note_cold_read,
        )

    def _note_cold_read(self) -> None:
        self._statistics.cold_reads += 1
