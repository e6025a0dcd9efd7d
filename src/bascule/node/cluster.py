"""What makes a node a part of a cluster: the peer listener, Raft, and its controller.

A node alone is a cluster of one, which others may join.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from bascule.cluster_identity import ClusterIdentity
from bascule.cluster_version import NEWEST, OLDEST
from bascule.config import Config
from bascule.config.addresses import ALL_ADDRESSES, at_host_of, format_address, parse_address
from bascule.controller.cluster.confirmation import Refusals
from bascule.controller.cluster.controller import ClusterController
from bascule.controller.cluster.healing.accused import DAMAGE, Accusations
from bascule.controller.cluster.healing.full_disk import FullDisk
from bascule.controller.cluster.healing.healer import Healer
from bascule.controller.cluster.image_files.earlier_image import FILE_NAME as IMAGE_FILE_NAME
from bascule.controller.cluster.image_files.earlier_image import EarlierImage, take_over
from bascule.controller.cluster.isr_keeper import IsrKeeper
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.cluster.payloads import ClusterPayloads
from bascule.controller.directories import StreamDirectories
from bascule.controller.handover import HANDOVER, Handovers
from bascule.controller.reconciler import Reconciler
from bascule.controller.unclean.elections import UncleanElections
from bascule.errors import ConfigError, Indeterminate, NodeRefused
from bascule.errors.plain import to_plain
from bascule.heartbeats.peer_heartbeats import PeerHeartbeats
from bascule.host.api import Clock, Files, Random
from bascule.host.lasting_tasks import start_lasting
from bascule.http.metrics.statistics import (
    cluster_statistics,
    counter_values,
    replication_statistics,
)
from bascule.ingest.embedded_nats import EmbeddedNats
from bascule.metadata.image import Image
from bascule.metadata.versions import check_release
from bascule.model import NodeInfo, NodeRegistration
from bascule.node.binding import bind_listener
from bascule.node.cluster_file import KeptCluster, KeptCommits
from bascule.node.cluster_id import KnownIdentity
from bascule.node.founding import FOUNDING, Founding, founding_nodes
from bascule.node.joining import JOIN, STANDING, Joining
from bascule.node.last_run import KeptLastRun
from bascule.node.refusal import Refusal
from bascule.peer.listener import PeerListener, PeerSession
from bascule.peer.replica_fetch import ReplicaFetchHandler
from bascule.peer_client import PeerClient
from bascule.raft.config import RaftConfig
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.follower import Replicator
from bascule.replica.follower.fetcher import PeerIdentity
from bascule.replica.log_writer import LogWriter
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.version import __version__
from bascule.wire.messages.peer.control import ControlRequest, ControlResponse
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchRequest

log = logging.getLogger("bascule.node")

RAFT_DIRECTORY: Final = "raft"
REFUSED: Final = 1
"""The error code of a control request that failed; the body says how."""
STANDING_SECONDS: Final = 1.0
"""Between two questions of a node that no controller reaches."""
RAFT_SECONDS_MAX: Final = 3.0
"""How long a connection waits for Raft: as long as who connects waits for an answer."""
RAFT_CONFIG: Final = RaftConfig(election_ticks=30, leaderless_election_ticks=10)
"""Heartbeats tell within 0.6 s that the controller's process is gone, paused or cut off. One whose
event loop is late for another reason leads on for 1.5 s at least: a change costs more than that."""


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
        self._config, self._data, self._files = config, data, files
        self._kept = KeptCluster(files, str(data), dice)
        self._commits = KeptCommits(self._kept, config.node_id)
        self._founders: dict[int, tuple[str, int]] = {}  # empty where it began alone or joined
        self._founding: Founding | None = None
        self._incarnation = int.from_bytes(dice.bytes(7), "big")
        name = config.cluster.name
        self._identity = ClusterIdentity(name)
        self._driver = RaftDriver(
            config.node_id, DriverSettings(cluster=name), config=RAFT_CONFIG, clock=clock,
            random=dice, before_write=reserve.keep_room, identity=self._identity,
        )  # fmt: skip
        self.peers = PeerClient(config.node_id, self._identity, node_epoch=self._node_epoch)
        self._metadata = MetadataGroup(
            self._driver, self.peers, dice, cluster_id=cluster_id, make_room=reserve.make_room
        )
        self._metadata.on_members_changed = lambda _: self._on_members()
        self._metadata.on_own_removal = self._on_own_removal
        self._heartbeats = PeerHeartbeats(
            config.node_id, self._identity, self._incarnation, clock, on_lost=self._on_process_lost
        )
        self._add_identity()
        self.controller = ClusterController(
            config.node_id, name, partitions, reconciler, self._metadata, self.peers,
            directories=directories, reserve=reserve, clock=clock, random=dice,
            process_loss=self._heartbeats.loss, on_nodes=self._on_nodes, settings=config.cluster,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._replica_fetches = ReplicaFetchHandler(
            partitions, clock=clock, send_acks=send,
            stuck_ns=lambda: max(writer.stuck_ns(), syncer.stuck_ns()),
            catch_up_rate=lambda: self._metadata.image.catch_up_rate,
        )  # fmt: skip
        self.payloads = self.controller.payloads = self._make_payloads(partitions, writer, clock)
        self.refusals = Refusals(self.controller.confirmation, send)
        self.replicator = self._replicator(writer, syncer, clock, send)
        self._add_controls(partitions, reconciler)
        self._add_healing(partitions, reconciler, directories, clock, syncer, reserve)
        self._isr_keeper = IsrKeeper(
            config.node_id, self._metadata, node_epoch=self._node_epoch,
            wanted=self._replica_fetches.wanted_isrs, send=send,
        )  # fmt: skip
        self.listener = self._make_listener()
        self._raft_runs = asyncio.Event()
        self._nodes_changed, self._addresses_changed = asyncio.Event(), asyncio.Event()
        self._is_removed = False  # whether the Raft group may have: somebody has to be asked
        self.refusal = Refusal(self._driver.failed)
        self._driver.transport.on_own_refusal = self._on_refused_process
        self._epoch = -1
        """Of this process, as the replicator knows it."""
        self._tasks: list[asyncio.Task[None]] = []
        self.address = ("", 0)
        """Of the peer listener."""

    def _add_identity(self) -> None:
        """Keep what tells this cluster from others, and look for a way into it."""
        self._known_identity = KnownIdentity(
            self._identity, self._kept, self._metadata,
            on_changed=self._on_identity, on_other=self._on_refused_process,
        )  # fmt: skip
        seeds = self._config.cluster.join
        self._joining = Joining(self._kept, self._identity, self.peers, self._metadata, seeds)

    def _make_payloads(self, held: Partitions, writer: LogWriter, clock: Clock) -> ClusterPayloads:
        return ClusterPayloads(
            self._config.node_id, self._identity, held, self._metadata, self.controller.views,
            self.controller.confirmation, self.peers, writer.append, clock,
            self._heartbeats.round_trips_ns, add_control=self.controller.add_control,
            catch_up=self._replica_fetches.throttle, limits=self._config.limits,
        )  # fmt: skip

    def _on_process_lost(self, node: int) -> None:
        self._driver.on_process_lost(node)
        self.controller.duties.on_process_lost()

    def _add_controls(self, partitions: Partitions, reconciler: Reconciler) -> None:
        """Answer nodes that join, and hand partitions over when their leaders change."""
        self.controller.add_control(JOIN, self._joining.answer_join)
        self.controller.add_control(STANDING, self._joining.answer_standing)
        handovers = reconciler.roles.handovers = Handovers(
            self._config.node_id,
            partitions,
            self.replicator,
            self.peers,
            self._metadata,
            reconciler,
        )
        self.controller.add_control(HANDOVER, handovers.answer)
        self._unclean_elections = UncleanElections(self._metadata, self.controller.log_ends)

    def _add_healing(
        self,
        partitions: Partitions,
        reconciler: Reconciler,
        directories: StreamDirectories,
        clock: Clock,
        syncer: LogSyncer,
        reserve: DiskReserve,
    ) -> None:
        """Heal replicas, look at batches that followers call damaged, and leave full disks."""
        number, follower = self._config.node_id, self.controller.follower
        self.healer = Healer(
            number, partitions, reconciler, self._metadata, directories, clock, follower, syncer,
            data_directory=str(self._data), why_not_served=self.controller.views.why_not_served,
        )  # fmt: skip
        self.controller.views.standing = self.healer.standing
        self._accusations = Accusations(number, partitions, self.peers)
        self.controller.add_control(DAMAGE, self._accusations.answer)
        self._full_disk = FullDisk(number, self._metadata, follower, partitions, reserve)

    def _make_listener(self) -> PeerListener:
        return PeerListener(
            node_id=self._config.node_id, cluster=self._identity,
            open_kinds=(FOUNDING, JOIN, STANDING), node_epoch=self._node_epoch,
            handlers={ControlRequest: self._on_control,
                      ReplicaFetchRequest: self._replica_fetches.handle},
            on_raft=self._adopt_raft, on_datastream=self.payloads.streams.adopt,
            on_heartbeats=self._heartbeats.adopt,
        )  # fmt: skip

    async def _adopt_raft(self, sock: socket.socket) -> None:
        """Give Raft a connection. Until Raft runs here it knows no peers, so those that have
        started before this node wait. Raises: OSError, TimeoutError."""
        async with asyncio.timeout(RAFT_SECONDS_MAX):
            await self._raft_runs.wait()
        await self._driver.transport.adopt(sock)

    @property
    def began_alone(self) -> bool:
        """Whether this node began as a cluster of one, which others may have joined."""
        return not self._founders and not self._kept.known.admitted_index

    @property
    def founder_count(self) -> int:
        """How many nodes founded the cluster; 0 on a node that began alone or joined later."""
        return len(self._founders)

    def _replicator(
        self, writer: LogWriter, syncer: LogSyncer, clock: Clock, send: Callable[[bytes], None]
    ) -> Replicator:
        config = self._config
        identity = PeerIdentity(
            config.node_id, self._identity, self._node_epoch,
            cluster_version=lambda: self._metadata.image.cluster_version,
        )  # fmt: skip
        return Replicator(
            identity,
            writer=writer,
            syncer=syncer,
            send_acks=send,
            on_leading=self._replica_fetches.watch,
            on_refused=self.refusals.on_refused,
            on_silent=self._on_silent,
            on_damaged=self._on_damaged,
            fetch_payload=self.payloads.fetch,
            clock=clock,
            lag_ms_max=config.cluster.replica_lag_ms_max,
        )

    def statistics(self) -> dict[str, Any]:
        """The state of the cluster, counters of replication, and of this node as the controller."""
        metadata = self._metadata
        return {
            **replication_statistics(self._replica_fetches.counts, self.replicator.counts()),
            "cluster": cluster_statistics(metadata.image, controller=metadata.controller_id),
            "foreign_peers": {"refused": self._identity.refused},
            "controller": counter_values(metadata.counts),
            "heartbeats": self._heartbeats.statistics(),
            "healing": counter_values(self.healer.counts),
            "refusals": counter_values(self.refusals.counts),
            "comparison": counter_values(self.controller.scrubs.counts),
            "datastream": counter_values(self.payloads.streams.statistics()),
        }

    async def start(self, last_run: KeptLastRun) -> None:
        """Listen, join the metadata group, register, and open this node's partitions.

        The controller gets to know what `last_run` says.

        Raises: CorruptData, DataDirectoryInUse, ConfigError, NodeRefused, Broken, OSError.
        """
        config = self._config
        await self._kept.load()
        self._kept.check_name(config.cluster.name)
        self._known_identity.on_kept()
        check_release(self._kept.known.cluster_version, self.registration("", ""))
        self._founders = await asyncio.to_thread(self._choose_founders)
        self._founding = Founding(config.node_id, self._founders, self._kept)
        self._heartbeats.start()
        self.address = await bind_listener(
            "peer listener",
            "peer",
            config,
            self.listener.start(config.peer.host, config.peer.port),
        )
        await self._take_part(self._founding)
        self._known_identity.on_kept()
        addresses = self._kept_addresses()
        for node, (host, port) in addresses.items():
            self.peers.set_peer(node, host, port)
        addresses.pop(config.node_id, None)
        await self._driver.start(
            directory=str(self._data / RAFT_DIRECTORY), peers=addresses, known=self._commits.known
        )
        self._raft_runs.set()
        await self._commits.on_opened(self._driver.commits)
        await self.refusal.guard(self._open_metadata())
        await self.refusal.guard(self._known_identity.keep())
        self._tasks += [
            start_lasting("standing", self._watch_standing),
            start_lasting("peer addresses", self._keep_addresses),
            start_lasting("commits", partial(self._commits.follow, lambda: self._driver.commits)),
        ]
        opening = self.controller.open(
            self.registration("", ""), has_lost_writes=last_run.has_lost_writes
        )
        await self.refusal.guard(opening)
        await last_run.on_registered()
        self._tasks += [
            start_lasting("in-sync sets", self._isr_keeper.run),
            start_lasting("unclean elections", self._unclean_elections.run),
            start_lasting("full disk", self._full_disk.run),
        ]

    def _choose_founders(self) -> dict[int, tuple[str, int]]:
        """The founding nodes by the configuration or the file. Raises: ConfigError."""
        config, kept = self._config, self._kept.content
        others = config.cluster.peers or config.cluster.join
        if others and self._files.exists(f"{self._data}/{IMAGE_FILE_NAME}"):
            raise ConfigError(
                f"data directory {self._data} is that of a node that worked alone: start it "
                "without --peers and --join, or name an empty directory with --data"
            )
        if kept is None and config.cluster.peers and config.cluster.join:
            raise ConfigError(
                "cluster.peers and cluster.join are both set: --peers founds a cluster, --join "
                "enters one that exists"
            )
        entries = config.cluster.peers
        if not entries and kept is not None and kept.founders:
            entries = tuple(kept.founders.split(","))
        return founding_nodes(entries, config.node_id) if entries else {}

    async def _take_part(self, founding: Founding) -> None:
        """Return once this node belongs to a cluster. Raises: ConfigError, NodeRefused, OSError."""
        kept = self._kept.content
        if kept is not None and kept.has_formed:
            await self._joining.check_same_cluster()
        if self._founders:
            for node, (host, port) in self._founders.items():
                self.peers.set_peer(node, host, port)
            await founding.take_part(self.peers)
        elif self._config.cluster.join and not self._kept.known.has_formed:
            self._check_reachable()
            await self._joining.join(self.registration("", ""))
        elif kept is None:
            await self._kept.keep(has_formed=True, raft_commits=0)
        elif not kept.has_formed:
            raise ConfigError(
                f"{self._kept.path} says that the node was not admitted to its cluster yet: "
                "start it with --join"
            )

    async def _open_metadata(self) -> None:
        """Open the metadata group. A node that began alone is its founder, and takes over what an
        earlier release left. Raises: CorruptData, UnsupportedFormat, OSError."""
        founders = tuple(self._founders)
        if self.began_alone:
            founders = (self._config.node_id,)
        self._metadata.on_unsupported = self._on_unsupported
        await self._metadata.open(
            voters=founders or None, votes_from=self._kept.known.admitted_index,
            cluster_id=self._identity.id,
        )  # fmt: skip
        if self.began_alone and self._metadata.is_only_voter:
            earlier = EarlierImage(self._files, str(self._data))
            await take_over(self._metadata, earlier, node_id=self._config.node_id)

    def _kept_addresses(self) -> dict[int, tuple[str, int]]:
        """The peers as last known, by node."""
        kept = {node: parse_address(text) for node, text in self._kept.known.nodes.items()}
        return kept or dict(self._founders)

    def registration(self, client: str, http: str) -> NodeRegistration:
        """This process, as it registers; the addresses are empty until the listeners are open."""
        return NodeRegistration(
            node_id=self._config.node_id,
            incarnation=self._incarnation,
            peer=self.own_address(),
            client=client,
            http=http,
            rack=self._config.cluster.rack,
            version=__version__,
            directory=self._kept.known.directory,
            cluster_version_min=OLDEST,
            cluster_version_max=NEWEST,
        )

    def own_address(self) -> str:
        config = self._config
        if config.node_id in self._founders:
            return format_address(*self._founders[config.node_id])
        return config.peer.advertised or format_address(*self.address)

    def _check_reachable(self) -> None:
        """Raises: ConfigError where other nodes could not reach the address of this one."""
        if not self._config.peer.advertised and self.address[0] in ALL_ADDRESSES:
            raise ConfigError(
                f"the peer listener listens on {self.address[0]}, which other nodes cannot connect "
                "to: give its address as peer.advertised"
            )

    async def announce(self, node: NodeInfo, nats: EmbeddedNats | None) -> None:
        """Register the listeners, and connect all NATS servers. Raises: NodeRefused, Broken."""
        own, client = self.own_address(), self._config.client.advertised or node.client
        registration = self.registration(at_host_of(own, client), at_host_of(own, node.http))
        registration = replace(registration, nats_route="" if nats is None else nats.route)
        await self.refusal.guard(self.controller.announce(registration))
        if nats is not None:
            await nats.join(self._routes, self._awaited_routes)
            follow = partial(nats.follow_routes, self._routes, self._nodes_changed)
            self._tasks.append(start_lasting("routes of NATS", follow))

    def _routes(self) -> list[str]:
        """To nodes with smaller numbers: NATS closes both connections where two connect at once."""
        own, nodes = self._config.node_id, self.controller.image.nodes
        return [n.nats_route for id, n in nodes.items() if n.nats_route and id < own]

    def _awaited_routes(self) -> list[str] | None:
        """Those of nodes that are alive; None while one of them has not opened its listeners."""
        alive = [each for each in self.controller.image.nodes.values() if each.alive]
        routes = [each.nats_route for each in alive if each.nats_route]
        return routes if all(each.client for each in alive) else None

    @property
    def failed(self) -> asyncio.Future[str]:
        """Done with the cause when this node's store of the metadata has failed."""
        return self._driver.failed

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._known_identity.close()
        self.healer.close()
        self._accusations.close()
        await self.controller.close()
        self._replica_fetches.close()
        await self.listener.close()
        await self.payloads.close()
        await self._heartbeats.close()
        await asyncio.to_thread(self.replicator.close)
        self.peers.close()
        if self._raft_runs.is_set():
            await self._driver.stop()
            await self._commits.keep(self._driver.commits)

    def _on_silent(self, leader: int, reason: str) -> None:
        """A leader does not answer. Called on the thread of its fetcher."""
        self._loop.call_soon_threadsafe(self.controller.silent_leaders.on_silent, leader, reason)

    def _on_damaged(self, leader: int, partition: Partition, epoch: int, offset: int) -> None:
        """Batches of a leader are damaged. Called on the log writer thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(
                self._accusations.on_damaged, leader, partition, epoch, offset
            )

    def _node_epoch(self) -> int:
        return self.controller.node_epoch

    # -- the nodes of the cluster ---------------------------------------------------------------

    def _on_nodes(self, image: Image) -> None:
        for node in image.nodes.values():
            is_this = node.node_id == self._config.node_id and node.incarnation == self._incarnation
            if is_this and node.epoch != self._epoch:
                self._epoch = node.epoch
                self.replicator.renew()
            self._set_peer(node.node_id, node.peer)
        for number in image.removed:
            self.peers.remove_peer(number)
        self._on_members()
        # A node whose number was used before sees that one's removal in the log, too.
        if self._epoch >= 0 and self._config.node_id not in image.nodes:
            self.refusal.set(NodeRefused(self._config.node_id, "it was removed from the cluster"))
        self._nodes_changed.set()
        self._addresses_changed.set()

    def _set_peer(self, node: int, address: str) -> None:
        host, port = parse_address(address)
        self.peers.set_peer(node, host, port)
        self.replicator.set_peer(node, host, port)
        self._driver.transport.set_peer(node, (host, port))

    def _on_members(self) -> None:
        """Nodes or members have changed. A voter watches the processes of all other nodes.

        The Raft connections with removed nodes end once the group has no such member.
        """
        number, nodes = self._config.node_id, self.controller.image.nodes
        is_voter = number in self._metadata.members.voters
        watched = nodes.values() if is_voter else ()
        self._heartbeats.set_peers({each.node_id: parse_address(each.peer) for each in watched})
        for number in self.controller.image.removed.difference(self._metadata.members.all):
            self._driver.transport.remove_peer(number)

    def _on_identity(self) -> None:
        """Connections that were made before this node knew what to compare are looked at again, and
        followers begin theirs anew, with the id."""
        self._driver.transport.check_again()
        self.replicator.renew()

    def _on_refused_process(self, why: str) -> None:
        self.refusal.set(NodeRefused(self._config.node_id, why))

    def _on_unsupported(self, version: int) -> None:
        """The metadata has a cluster version that this release does not support: an earlier release
        was started again. Nothing is registered that could be refused."""
        try:
            check_release(version, self.registration("", ""))
        except NodeRefused as error:
            self.refusal.set(error)

    def _on_own_removal(self) -> None:
        self._is_removed = True

    async def _keep_addresses(self) -> None:
        """Write the addresses of the nodes to the disk whenever they change."""
        while True:
            await self._addresses_changed.wait()
            self._addresses_changed.clear()
            image = self.controller.image
            if self._epoch < 0:
                continue  # the log is replayed: these may be old
            founders = {n: format_address(*at) for n, at in self._founders.items()}
            nodes = {n: each for n, each in founders.items() if n not in image.removed}
            nodes |= {number: node.peer for number, node in sorted(image.nodes.items())}
            try:
                await self._kept.keep(
                    nodes=nodes, cluster_id=image.cluster_id, cluster_version=image.cluster_version,
                    name=self._identity.name,
                )  # fmt: skip
            except OSError as error:
                log.warning("addresses of the nodes not kept", extra={"error": str(error)})

    async def _watch_standing(self) -> None:
        """While no controller reaches this node, ask whether it was removed, and who is there."""
        while True:
            await asyncio.sleep(STANDING_SECONDS)
            is_reached = self._metadata.controller_id and not self.controller.is_suspended
            if is_reached and not self._is_removed:
                continue
            try:
                nodes = await self._joining.look_up(self.registration("", ""))
            except NodeRefused as error:
                self.refusal.set(error)
                return
            for number in nodes.keys() - self.controller.image.nodes.keys():
                self._set_peer(number, nodes[number])
            if nodes:
                self._is_removed = False

    async def _on_control(self, request: ControlRequest, session: PeerSession) -> ControlResponse:
        body = bytes(request.body or b"")  # type: ignore[arg-type]
        if request.kind == FOUNDING:
            assert self._founding is not None
            return ControlResponse(body=await self._founding.answer(body))
        if not self._kept.known.has_formed:  # who asks may be a node of another cluster
            error = Indeterminate(f"node {self._config.node_id} belongs to no cluster yet")
            return ControlResponse(REFUSED, msgspec.msgpack.encode(to_plain(error)))
        succeeded, answer = await self.controller.handle_control(request.kind, body)
        return ControlResponse(error_code=0 if succeeded else REFUSED, body=answer)
