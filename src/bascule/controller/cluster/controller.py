"""The controller's part of a node in a cluster: requests go to the metadata group, and this node
follows its image.

::

    request -> MetadataGroup.submit -> the controller decides, the group agrees
            -> on_image on every node -> plan -> reconciler
            -> wait until the leaders of the stream have followed

A request returns when its effect is in force where it matters: messages published after a stream
was created are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Protocol

import msgspec

from bascule.cluster_version import CONFIRMATIONS
from bascule.config import ClusterConfig
from bascule.controller.cluster.confirmation import CONFIRM, LeaderConfirmation
from bascule.controller.cluster.duties import ControllerDuties
from bascule.controller.cluster.followed_decisions import (
    AWAIT,
    FOLLOW_SECONDS_MAX,
    FollowedDecisions,
)
from bascule.controller.cluster.groups import ENDS, OFFSETS, ClusterGroups, PartitionEnds
from bascule.controller.cluster.groups.commit_removal import CommitRemoval
from bascule.controller.cluster.healing.scrubs import SCRUB, SCRUBBED, Scrubs
from bascule.controller.cluster.image_follower import ImageFollower
from bascule.controller.cluster.metadata_group import DECIDE, LivingPeers, MetadataGroup, Peers
from bascule.controller.cluster.nats_lack import LackingNodes
from bascule.controller.cluster.operations.operations import ClusterOperations
from bascule.controller.cluster.payloads import ClusterPayloads
from bascule.controller.cluster.repairs import REPAIR, Repairs, RepairTask
from bascule.controller.cluster.sessions import PING, ProcessLoss
from bascule.controller.cluster.silence import SILENCE, SilentLeaders
from bascule.controller.cluster.tables import ClusterTables, submit
from bascule.controller.cluster.upkeep import ClusterUpkeep, hand_over_before_stop
from bascule.controller.cluster.views import ClusterViews
from bascule.controller.directories import StreamDirectories
from bascule.controller.purges import FOLLOW_STARTS, PURGE, Purges
from bascule.controller.reconciler import RaiseMaxPayload, Reconciler, Subscriber
from bascule.controller.unclean.log_ends import LOGS, LogEnds
from bascule.errors import (
    BasculeError,
    Broken,
    UnknownPartition,
)
from bascule.errors.plain import to_plain
from bascule.groups import CommittedOffsetStore, GroupCoordinator
from bascule.host.api import Clock, Random
from bascule.host.lasting_tasks import start_lasting
from bascule.metadata.commands import CreateStream
from bascule.metadata.controller import STREAM_ID_BYTES
from bascule.metadata.elections import unclean_partitions
from bascule.metadata.image import Image
from bascule.metadata.requests import (
    AcknowledgeLoss,
    Alter,
    Create,
    Delete,
    SetPaused,
    StepDown,
    decide,
)
from bascule.model import (
    DuplicateStream,
    NodeRegistration,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
)
from bascule.operation_results import RepairedPartition, ScrubbedReplica
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.internal_publisher import InternalPublisher
from bascule.replica.partitions import Partitions
from bascule.tables import Tables
from bascule.wire.nats import NatsRefused

log = logging.getLogger("bascule.controller")

REPAIR_SECONDS_MAX: Final = 600.0
"""For a node to read logs of some 100 GB."""
STEP_DOWN_SECONDS_MAX: Final = 2.0
"""For a node that stops to hand over what it leads."""
ANSWERED_POLL_SECONDS: Final = 0.01


class StreamAnnouncer(Protocol):
    """What other clusters are told of this node's streams; see `announcer`."""

    def on_streams(self, definitions: Mapping[str, StreamDefinition]) -> None: ...
    def on_changed(self, changes: Mapping[str, StreamDefinition | None]) -> None: ...
    def duplicates(self, name: str) -> tuple[DuplicateStream, ...]: ...


class ClusterController:
    """Belongs to the event loop."""

    payloads: ClusterPayloads
    """Set by the node."""

    def __init__(
        self,
        node_id: int,
        name: str,
        partitions: Partitions,
        reconciler: Reconciler,
        metadata: MetadataGroup,
        peers: Peers,
        *,
        directories: StreamDirectories,
        reserve: DiskReserve,
        clock: Clock,
        random: Random,
        process_loss: ProcessLoss,
        on_nodes: Callable[[Image], None],
        settings: ClusterConfig,
    ) -> None:
        """`name` is that of the cluster. `on_nodes` gets each image whose nodes, or whose
        cluster version, have changed."""
        self._node_id = node_id
        self._partitions = partitions
        self._reconciler = reconciler
        self._metadata = metadata
        self.peers = peers
        living = self._living = LivingPeers(metadata, peers)
        self._directories = directories
        self._reserve = reserve
        self._clock = clock
        self._random = random
        self._on_nodes = on_nodes
        self.follower = ImageFollower(node_id, partitions, reconciler, metadata)
        self._seen = Image()
        """The image that the other parts know."""
        self._followed = FollowedDecisions(node_id, metadata, living, reconciler, self.follower)
        self._subscriber: Subscriber | None = None
        self._announcer: StreamAnnouncer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.duties = ControllerDuties(
            node_id, metadata, peers, reconciler.state,
            process_loss=process_loss, on_changed=self.follower.on_suspension, clock=clock,
        )  # fmt: skip
        self._upkeep = ClusterUpkeep(
            node_id, metadata, LackingNodes(metadata, self.duties.nats_lacks, clock),
            balance_ms=settings.leader_balance_ms, balances_replicas=settings.balance_replicas,
        )  # fmt: skip
        self.silent_leaders = SilentLeaders(node_id, metadata, peers, self.duties, clock)
        self.views = ClusterViews(
            node_id, name, partitions, metadata, peers,
            refusals=self._refusals, duplicates=self._duplicates,
        )  # fmt: skip
        self.confirmation = LeaderConfirmation(node_id, metadata, peers)
        self.log_ends = LogEnds(node_id, partitions, peers)
        self.operations = ClusterOperations(
            metadata, self.views, self.log_ends,
            wait_in_force=self._followed.wait_leaders, wait_followed=self._followed.wait_nodes,
        )  # fmt: skip
        self._repairs = Repairs(
            node_id, partitions, reconciler, metadata, directories, clock, self.follower
        )
        self._removal = CommitRemoval(
            partitions,
            streams=lambda: self.image.streams,
            wait_followed=lambda: self.follower.wait_followed(metadata.applied),
        )
        self.scrubs = Scrubs(node_id, partitions, metadata, peers, self.views, random)
        self._purges = Purges(node_id, partitions, metadata, living, reserve)
        self._controls = self._control_handlers()
        """Kind -> the handler of a control request from another node."""
        metadata.on_image = self._on_image

    def _control_handlers(self) -> dict[str, Callable[[bytes], Awaitable[bytes]]]:
        return {
            DECIDE: self._metadata.handle_decide,
            PING: self.duties.answer_ping,
            LOGS: self.log_ends.answer,
            AWAIT: self._followed.answer,
            **self.views.controls,
            CONFIRM: self.confirmation.answer,
            PURGE: self._purges.answer_purge,
            FOLLOW_STARTS: self._purges.answer_follow_starts,
            REPAIR: self._repairs.answer_repair,
            SILENCE: self.silent_leaders.answer_report,
            SCRUB: self.scrubs.answer_scrub,
            SCRUBBED: self.scrubs.answer_scrubbed,
        }

    # -- start and end ------------------------------------------------------------------------

    async def open(self, registration: NodeRegistration, *, has_lost_writes: bool = False) -> None:
        """Register this process, however long there is no controller, then follow the image.

        `has_lost_writes`: its machine went down before the node had stopped.
        """
        self._tasks.append(start_lasting("duties", self.duties.run))
        await self.duties.register(registration, has_lost_writes=has_lost_writes)
        await self._reconciler.prepare(self.image)
        await self.follower.reconcile()
        self._tasks.append(start_lasting("image follower", self.follower.run))
        self._tasks.append(start_lasting("upkeep", self._upkeep.run))

    async def announce(self, registration: NodeRegistration) -> None:
        """Register again, with the addresses of listeners that are open now, however long there is
        no controller."""
        await self.duties.register(registration)

    async def attach(
        self, subscriber: Subscriber, raise_max_payload: RaiseMaxPayload | None
    ) -> None:
        """Subscribe for every partition that this node leads. A refusal concerns its own stream.

        Raises: Broken where the server does not answer.
        """
        self._subscriber = subscriber
        self.duties.nats.follow(subscriber)
        self._reconciler.attach(subscriber, raise_max_payload)
        await self.follower.reconcile()
        for error in self._reconciler.failures.values():
            if isinstance(error, Broken) and not isinstance(error, NatsRefused):
                raise error

    async def wait_followed(self) -> None:
        """Return once this node has followed the image as it is now."""
        await self.follower.wait_followed(self._metadata.applied)

    async def step_down(self) -> None:
        """Hand over what this node leads, and the cluster if it is the controller, before it stops;
        return once all acks are sent.

        Without another node, a controller or in time it returns, and nothing is handed over.
        """
        if self.node_epoch < 0 or self.image.alive() == [self._node_id]:
            return
        every = [each for some in self._partitions.streams().values() for each in some]
        given = [each for each in every if each.is_leader]
        try:
            async with asyncio.timeout(STEP_DOWN_SECONDS_MAX):
                index = await self._metadata.submit(StepDown(self._node_id, self.node_epoch))
                await self.follower.wait_followed(index)
                while any(not p.is_leader and len(p.commitment.pending) for p in given):  # noqa: ASYNC110
                    await asyncio.sleep(ANSWERED_POLL_SECONDS)
        except (BasculeError, TimeoutError) as error:
            extra = {"partitions": len(given), "error": str(error)}
            log.warning("stopping before all partitions are handed over", extra=extra)
        if self._metadata.is_controller:
            await hand_over_before_stop(self._metadata, self._node_id, STEP_DOWN_SECONDS_MAX)

    async def close(self) -> None:
        """Follow the image no longer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.follower.close()
        self.duties.close()
        self.silent_leaders.close()
        self.scrubs.close()

    @property
    def node_epoch(self) -> int:
        """The epoch of this process; -1 before it has registered."""
        return self.duties.node_epoch

    @property
    def is_suspended(self) -> bool:
        """Whether this node leads nothing, since no controller has reached it."""
        return self._reconciler.state.is_suspended

    @property
    def is_cut_off(self) -> bool:
        return self.duties.is_cut_off

    @property
    def image(self) -> Image:
        return self._metadata.image

    def attach_announcer(self, announcer: StreamAnnouncer) -> None:
        """Announce the streams of the image from now on."""
        self._announcer = announcer
        announcer.on_streams(self.image.streams)

    def attach_groups(
        self, offsets: CommittedOffsetStore, groups: GroupCoordinator
    ) -> tuple[ClusterGroups, PartitionEnds]:
        """Remove the committed offsets of deleted streams from now on; return what operates on
        the groups of the cluster, and what knows the ends of their partitions."""
        self._repairs.offsets = self._removal.offsets = offsets
        groups.on_loaded = lambda: self.follower.request(self._removal.remove_orphans())
        ends = PartitionEnds(self._node_id, self._partitions, self.views, self.peers)
        found = ClusterGroups(
            self._node_id, self._partitions, offsets, groups, ends, self.views, self._living
        )
        self._controls |= {OFFSETS: found.answer, ENDS: ends.answer}
        return found, ends

    def attach_tables(self, tables: Tables, publisher: InternalPublisher) -> ClusterTables:
        """What reads and writes the tables of the cluster, of which this node has `tables`."""
        found = ClusterTables(
            self._node_id, self._partitions, tables, self.views, self.confirmation, self.peers,
            publisher, self._random, self._clock,
        )  # fmt: skip
        self._controls |= found.controls
        return found

    def _on_image(self, image: Image, touched: Collection[bytes] | None) -> None:
        before, self._seen = self._seen, image
        if touched is None:
            gone = [name for name in before.streams if name not in image.streams]
            self._partitions.note_creations(image.streams.values())
        else:
            changed = _definitions(before, image, touched)
            self._partitions.note_creations(filter(None, changed.values()))
            gone = [name for name, definition in changed.items() if definition is None]
        for name in gone:
            self.follower.request(self._removal.remove_deleted(name))
        if self._announcer is not None:
            if touched is None:
                self._announcer.on_streams(image.streams)
            elif changed:
                self._announcer.on_changed(changed)
        if image.nodes is not before.nodes or image.cluster_version != before.cluster_version:
            self._on_nodes(image)
        self.duties.on_image(image)
        self.follower.on_image(touched)

    # -- requests -----------------------------------------------------------------------------

    async def create_stream(
        self, name: str, config: StreamConfig, *, internal: bool = False
    ) -> tuple[StreamDefinition, bool]:
        """Create a stream; the second value says whether this call created it.

        Messages published after the return are stored. `internal` is for streams of the cluster
        itself, whose names are reserved. The stream is deleted again where the NATS server refuses
        the subscription or does not confirm it.

        Raises: InvalidName, ConfigError, StreamConflict, NotEnoughNodes, NatsRefused, Broken,
        DiskFull, Indeterminate, OSError.
        """
        await asyncio.to_thread(self._check_disk, name)
        request = self._creation(name, config, internal=internal)
        index = await submit(self._metadata, request)
        definition = self.views.definition(name)
        created = definition.id == request.id
        if not created:
            return definition, False
        try:
            await self._followed.wait_leaders(definition, index)
        except (NatsRefused, Broken):
            await self._metadata.submit(Delete(name, definition.id, internal=True))
            raise
        log.info("stream created", extra={"stream": name, "subject": config.subject})
        return definition, True

    async def check_creation(
        self, name: str, config: StreamConfig
    ) -> tuple[StreamDefinition, bool]:
        """What `create_stream` would return as far as this node knows; nothing is created.

        Raises: as `create_stream`.
        """
        await asyncio.to_thread(self._check_disk, name)
        for command in decide(self.image, self._creation(name, config)):
            if isinstance(command, CreateStream):
                return command.definition, True
        return self.views.definition(name), False

    def _creation(self, name: str, config: StreamConfig, *, internal: bool = False) -> Create:
        return Create(
            name=name,
            config=config,
            id=self._random.bytes(STREAM_ID_BYTES),
            now_ms=self._clock.now_ms(),
            internal=internal,
        )

    def _check_disk(self, name: str) -> None:
        """Whether a stream of this name can be stored. Raises: InvalidName, DiskFull, OSError."""
        self._reserve.check(self._directories.check_name, name)
        self._reserve.check_room()

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its data. The deletion is durable once this returns.

        Data that cannot be removed now, as on a disk that hangs, is removed later. Raises:
        UnknownStream, InternalStream, Indeterminate.
        """
        definition = self.views.definition(name)
        index = await self._metadata.submit(Delete(name))
        try:
            async with asyncio.timeout(FOLLOW_SECONDS_MAX):
                await self.follower.wait_followed(index)
        except (Broken, TimeoutError) as error:
            why = str(error) or f"not followed within {FOLLOW_SECONDS_MAX} s"
            log.warning("deletion not carried out yet", extra={"stream": name, "error": why})
        log.info("stream deleted", extra={"stream": definition.name})

    async def alter_stream(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition:
        """Change the settings of a stream; added partitions get messages once this returns.

        Raises: UnknownStream, InternalStream, CannotAlter, ConfigError, NotEnoughNodes,
        Indeterminate; NatsRefused and Broken where the alteration is stored but NATS has not
        confirmed the subscriptions.
        """
        index = await submit(self._metadata, Alter(name, dict(changes)))
        definition = self.views.definition(name)
        await self._followed.wait_leaders(definition, index)
        log.info("stream altered", extra={"stream": name, **changes})
        return definition

    def check_alteration(self, name: str, changes: Mapping[str, Any]) -> None:
        """Raises what `alter_stream` would, as far as this node knows; nothing is altered."""
        decide(self.image, Alter(name, dict(changes)))

    async def acknowledge_loss(self, name: str, *, partition: int | None) -> StreamDefinition:
        """Show the unclean elections of a stream, or of one partition, no longer.

        Raises: UnknownStream, UnknownPartition, Indeterminate.
        """
        known = self.image.streams.get(name)
        states = () if known is None else self.image.partitions[known.id]
        lost = unclean_partitions(states, partition)
        await self._metadata.submit(AcknowledgeLoss(name, partition))
        if lost:
            log.info("loss acknowledged", extra={"stream": name, "partitions": lost})
        return self.views.definition(name)

    async def purge_stream(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamInfo:
        """Move the start of a stream's logs, or of one `partition`, forward.

        The new start is `to_offset`, or the first record at `before_ms` (Unix milliseconds) or
        later, or, without either, the high watermark. The leader of each partition moves the start
        of its log, and its followers follow. All replicas in sync have done so on return.

        Raises: UnknownStream, InternalStream, UnknownPartition, OffsetOutOfRange, PartitionFailed,
        NotLeader for a partition without a leader, Indeterminate, OSError, CorruptData.
        """
        await self._purges.purge(
            name, to_offset=to_offset, before_ms=before_ms, partition=partition
        )
        info = await self.views.describe(name)
        log.info(
            "stream purged",
            extra={"stream": name, "log_starts": [p.start_offset for p in info.partitions]},
        )
        return info

    async def repair_stream(
        self, name: str, *, partition: int | None, accept_loss: bool
    ) -> list[RepairedPartition]:
        """Open the failed partitions of a stream again, on every node that holds one.

        `partition` None: all of them. With `accept_loss` a damaged log ends before its first
        damage, or an empty one takes its place; see `repairs`.

        Raises: UnknownStream, UnknownPartition, Indeterminate, OSError.
        """
        definition = self.views.definition(name)
        if partition is not None and not 0 <= partition < definition.partition_count:
            raise UnknownPartition(name, partition, definition.partition_count)
        states = self.views.states(definition.id)
        alive = self.image.alive()
        nodes = sorted({node for state in states for node in state.replicas if node in alive})
        body = msgspec.msgpack.encode(RepairTask(definition.id, partition, accept_loss))
        repaired = []
        for node in nodes:
            if node == self._node_id:
                answer = await self._repairs.answer_repair(body)
            else:
                answer = await self._living.control(
                    node, REPAIR, body, timeout_s=REPAIR_SECONDS_MAX
                )
            repaired += msgspec.msgpack.decode(answer, type=list[RepairedPartition])
        return sorted(repaired, key=lambda each: (each.partition, each.node))

    async def scrub_stream(self, name: str, *, partition: int | None) -> list[ScrubbedReplica]:
        """Read the replicas of a stream on all nodes from now on; see `healing.scrubs`."""
        return await self.scrubs.scrub_stream(name, partition=partition)

    async def scrub_results(self, name: str, *, partition: int | None) -> list[ScrubbedReplica]:
        """What that has found."""
        return await self.scrubs.scrub_results(name, partition=partition)

    async def set_paused(self, name: str, paused: bool) -> StreamDefinition:
        """Refuse messages, or accept them again. Raises: UnknownStream, InternalStream."""
        index = await self._metadata.submit(SetPaused(name, paused))
        definition = self.views.definition(name)
        await self._followed.wait_leaders(definition, index)
        log.info("stream paused" if paused else "stream resumed", extra={"stream": name})
        return definition

    def stream_infos(self) -> list[StreamInfo]:
        """As this node knows them."""
        return self.views.stream_infos()

    async def describe(self, name: str) -> StreamInfo:
        """Raises: UnknownStream."""
        return await self.views.describe(name)

    async def confirm_streams(self) -> bool:
        """Return once this node knows all streams that there were before the call; False where the
        cluster version in force does not allow to ask. Raises: as `LeaderConfirmation.confirm`."""
        if self.image.cluster_version < CONFIRMATIONS:
            return False
        await self.confirmation.confirm()
        return True

    async def describe_all(self, subject: str) -> list[StreamInfo]:
        """The streams that store messages on a subject, which may have wildcards."""
        return await self.views.describe_all(subject)

    def _duplicates(self, name: str) -> tuple[DuplicateStream, ...]:
        return () if self._announcer is None else self._announcer.duplicates(name)

    def _refusals(self) -> Mapping[str, str]:
        return {} if self._subscriber is None else self._subscriber.refusals()

    def pending_steps(self) -> tuple[str, ...]:
        """The steps that are left to do, as text for logs and tests."""
        return self.follower.pending_steps()

    @property
    def message_bytes_max(self) -> int:
        """The largest message_bytes_max of all streams, 0 without streams."""
        sizes = (each.config.message_bytes_max for each in self.image.streams.values())
        return max(sizes, default=0)

    # -- control requests of other nodes ------------------------------------------------------

    def add_control(self, kind: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Have `handler` answer another kind of control request."""
        self._controls[kind] = handler

    async def handle_control(self, kind: str, body: bytes) -> tuple[bool, bytes]:
        """Answer a control request: whether it succeeded, and the body of the answer."""
        try:
            handler = self._controls.get(kind)
            if handler is None:
                raise Broken(
                    f"control request {kind!r} is not known to node {self._node_id}, which has an "
                    "earlier release"
                )
            return True, await handler(body)
        except BasculeError as error:
            return False, msgspec.msgpack.encode(to_plain(error))


def _definitions(
    before: Image, image: Image, ids: Collection[bytes]
) -> dict[str, StreamDefinition | None]:
    """Name -> definition of those of the streams with these ids whose definition has changed; None:
    there is none now."""
    names = (image.index.names.get(each) or before.index.names.get(each) for each in ids)
    found = ((name, image.streams.get(name)) for name in names if name is not None)
    return {
        name: definition
        for name, definition in found
        if definition is not before.streams.get(name) or definition is None
    }
