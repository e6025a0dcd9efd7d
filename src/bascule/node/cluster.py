"""What makes a node a part of a cluster: the peer listener, Raft, and its controller.

A node alone is a cluster of one, which others may join.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bascule.config import Config
from bascule.config.addresses import format_address, parse_address
from bascule.controller.cluster.controller import ClusterController
from bascule.controller.cluster.earlier_image import EarlierImage, take_over
from bascule.controller.cluster.isr_keeper import IsrKeeper
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.directories import StreamDirectories
from bascule.controller.reconciler import Reconciler
from bascule.errors import Broken, ConfigError
from bascule.host.api import Clock, Files, Random
from bascule.http.metrics.statistics import counter_values, replication_statistics
from bascule.ingest.embedded_nats import EmbeddedNats
from bascule.model import NodeInfo, NodeRegistration
from bascule.node.binding import bind_listener
from bascule.node.founding import FOUNDING, Founding
from bascule.peer.listener import PeerListener, PeerSession
from bascule.peer.replica_fetch import ReplicaFetchHandler
from bascule.peer_client import PeerClient
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.follower import Replicator
from bascule.replica.follower.fetcher import PeerIdentity
from bascule.replica.log_syncer import LogSyncer
from bascule.replica.log_writer import LogWriter
from bascule.replica.partitions import Partitions
from bascule.version import __version__
from bascule.wire.messages.peer.control import ControlRequest, ControlResponse
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchRequest

log = logging.getLogger("bascule.node")

RAFT_DIRECTORY: Final = "raft"
REFUSED: Final = 1
"""The error code of a control request that failed; the body says how."""


class ClusterNode:
    """The parts of one node that the cluster needs. Made on the event loop."""

    def __init__(
        self,
        config: Config,
        data: Path,
        partitions: Partitions,
        reconciler: Reconciler,
        *,
        files: Files,
        writer: LogWriter,
        syncer: LogSyncer,
        reserve: DiskReserve,
        clock: Clock,
        dice: Random,
        cluster_id: str,
        directories: StreamDirectories,
        send: Callable[[bytes], None],
    ) -> None:
        """`cluster_id` is that of this data directory; the first controller's is the cluster's.
        `send` takes NATS operations with acks. Raises: ConfigError."""
        self._config = config
        self._data = data
        self._files = files
        self._founders = founding_nodes(config)
        self._founding = Founding(config.node_id, self._founders, files, str(data))
        self._incarnation = int.from_bytes(dice.bytes(7), "big")
        name = config.cluster.name
        self._driver = RaftDriver(
            config.node_id, DriverSettings(cluster=name), before_write=reserve.keep_room
        )
        self.peers = PeerClient(config.node_id, name, node_epoch=self._node_epoch)
        self._metadata = MetadataGroup(
            self._driver, self.peers, dice, cluster_id=cluster_id, make_room=reserve.make_room
        )
        self.controller = ClusterController(
            config.node_id, name, partitions, reconciler, self._metadata, self.peers,
            directories=directories, reserve=reserve, clock=clock, random=dice,
            on_node=self._on_node,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._replica_fetches = ReplicaFetchHandler(
            partitions,
            clock=clock,
            send_acks=send,
            stuck_ns=lambda: max(writer.stuck_ns(), syncer.stuck_ns()),
        )
        self.replicator = self._replicator(writer, syncer, clock, send)
        self._isr_keeper = IsrKeeper(
            config.node_id,
            self._metadata,
            node_epoch=self._node_epoch,
            wanted=self._replica_fetches.wanted_isrs,
            send=send,
        )
        self.listener = PeerListener(
            node_id=config.node_id,
            cluster=name,
            node_epoch=self._node_epoch,
            handlers={
                ControlRequest: self._on_control,
                ReplicaFetchRequest: self._replica_fetches.handle,
            },
            on_raft=self._driver.transport.adopt,
        )
        self._raft_runs = False
        self._nats: EmbeddedNats | None = None
        self._nodes_changed = asyncio.Event()
        self._epoch = -1
        """Of this process, as the replicator knows it."""
        self._tasks: list[asyncio.Task[None]] = []
        self.address = ("", 0)
        """Of the peer listener."""

    def _replicator(
        self, writer: LogWriter, syncer: LogSyncer, clock: Clock, send: Callable[[bytes], None]
    ) -> Replicator:
        config = self._config
        return Replicator(
            PeerIdentity(config.node_id, config.cluster.name, self._node_epoch),
            writer=writer,
            syncer=syncer,
            send_acks=send,
            on_leading=self._replica_fetches.watch,
            on_silent=self._on_silent,
            clock=clock,
            lag_ms_max=config.cluster.replica_lag_ms_max,
        )

    def statistics(self) -> dict[str, Any]:
        """Counters of replication, and of this node as the controller."""
        return {
            **replication_statistics(self._replica_fetches.counts, self.replicator.counts()),
            "controller": counter_values(self._metadata.counts),
        }

    async def start(self) -> None:
        """Listen, join the metadata group, register, and open this node's partitions.

        Raises: CorruptData, DataDirectoryInUse, ConfigError, OSError.
        """
        config = self._config
        self.address = await bind_listener(
            "peer listener",
            "peer",
            config,
            self.listener.start(config.peer.host, config.peer.port),
        )
        for node, (host, port) in self._founders.items():
            self.peers.set_peer(node, host, port)
        await self._founding.take_part(self.peers)
        await self._driver.start(
            directory=str(self._data / RAFT_DIRECTORY),
            peers={n: address for n, address in self._founders.items() if n != config.node_id},
        )
        self._raft_runs = True
        voters = self._founders or (config.node_id,)
        await self._metadata.open(voters=voters)
        if not self._founders:
            earlier = EarlierImage(self._files, str(self._data))
            await take_over(self._metadata, earlier, node_id=config.node_id)
        await self.controller.open(self.registration("", ""))
        self._tasks.append(asyncio.create_task(self._isr_keeper.run()))

    def registration(self, client: str, http: str) -> NodeRegistration:
        """This process, as it registers; the addresses are empty until the listeners are open."""
        host, port = self._founders.get(self._config.node_id, self.address)
        return NodeRegistration(
            node_id=self._config.node_id,
            incarnation=self._incarnation,
            peer=format_address(host, port),
            client=client,
            http=http,
            rack=self._config.cluster.rack,
            version=__version__,
        )

    async def announce(self, node: NodeInfo, nats: EmbeddedNats | None) -> None:
        """Register the addresses of the listeners, and connect the NATS servers of all nodes."""
        self._nats = nats
        registration = self.registration(self._config.client.advertised or node.client, node.http)
        route = "" if nats is None else nats.route
        await self.controller.announce(replace(registration, nats_route=route))
        self._tasks.append(asyncio.create_task(self._follow_routes()))

    async def _follow_routes(self) -> None:
        """Connect the embedded NATS server to those of the other nodes, as these come and go."""
        while self._nats is not None:
            self._nodes_changed.clear()
            nodes = self.controller.image.nodes.values()
            try:
                await self._nats.set_routes([each.nats_route for each in nodes if each.nats_route])
            except Broken as error:
                log.warning("nats-server routes not set", extra={"error": str(error)})
            await self._nodes_changed.wait()

    @property
    def failed(self) -> asyncio.Future[str]:
        """Done with the cause when this node's store of the metadata has failed."""
        return self._driver.failed

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.controller.close()
        self._replica_fetches.close()
        await self.listener.close()
        await asyncio.to_thread(self.replicator.close)
        self.peers.close()
        if self._raft_runs:
            await self._driver.stop()

    def _on_silent(self, leader: int, reason: str) -> None:
        """A leader does not answer. Called on the thread of its fetcher."""
        self._loop.call_soon_threadsafe(self.controller.silent_leaders.on_silent, leader, reason)

    def _node_epoch(self) -> int:
        return self.controller.node_epoch

    def _on_node(self, node: NodeRegistration) -> None:
        host, port = parse_address(node.peer)
        self.peers.set_peer(node.node_id, host, port)
        is_this = node.node_id == self._config.node_id and node.incarnation == self._incarnation
        if is_this and node.epoch != self._epoch:
            self._epoch = node.epoch
            self.replicator.renew()
        self.replicator.set_peer(node.node_id, host, port)
        self._driver.transport.set_peer(node.node_id, (host, port))
        self._nodes_changed.set()

    async def _on_control(self, request: ControlRequest, session: PeerSession) -> ControlResponse:
        body = bytes(request.body or b"")  # type: ignore[arg-type]
        if request.kind == FOUNDING:
            return ControlResponse(body=await self._founding.answer(body))
        succeeded, answer = await self.controller.handle_control(request.kind, body)
        return ControlResponse(error_code=0 if succeeded else REFUSED, body=answer)


def founding_nodes(config: Config) -> dict[int, tuple[str, int]]:
    """Node id -> peer address of the founding nodes; empty for a node alone.

    Raises: ConfigError for an entry that is not N@host:port, or where this node is missing.
    """
    found: dict[int, tuple[str, int]] = {}
    if not config.cluster.peers:
        return found
    for entry in config.cluster.peers:
        number, at, address = entry.partition("@")
        if not (at and number.isascii() and number.isdigit()):
            raise ConfigError(
                f"cluster.peers has {entry!r}, expected N@host:port with the number of a node"
            )
        if int(number) in found:
            raise ConfigError(f"cluster.peers names node {number} twice")
        try:
            found[int(number)] = parse_address(address)
        except ValueError as error:
            raise ConfigError(f"the address of node {number} in cluster.peers {error}") from None
    if config.node_id not in found:
        raise ConfigError(
            f"cluster.peers names the nodes {sorted(found)}, and this is node {config.node_id}: "
            "give its number with --node-id"
        )
    return found
