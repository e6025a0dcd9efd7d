"""`Machine`: one machine of a simulation, through all processes of its node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from bascule.config.sections import (
    ClientConfig,
    ClusterConfig,
    Config,
    GroupsConfig,
    HttpConfig,
    LimitsConfig,
    NatsConfig,
    PeerConfig,
    TablesConfig,
)
from bascule.controller.cluster.controller import ClusterController
from bascule.controller.cluster.tables.cluster_tables import ClusterTables
from bascule.errors import BasculeError, ConfigError, NodeRefused
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.node.cluster_file import FILE_NAME as CLUSTER_FILE
from bascule.node.cluster_file import ClusterFile
from bascule.node.node import Node
from bascule.raft.testing.memory_store import MemoryStore
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub.progress import Key
from bascule.replica.scrub.schedule import key_of
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.plan import rack_of
from bascule.sim.cluster.tables.databases import TableDatabases
from bascule.sim.cluster.world.damage import Damage, cut_end, flip_bit, flip_payload
from bascule.sim.cluster.world.disk import DiskTimes, MachineFiles, ProcessFiles, open_again
from bascule.sim.cluster.world.loop import NS, process_now
from bascule.sim.cluster.world.network import host_of
from bascule.sim.cluster.world.process import SimProcess
from bascule.storage.epochs import FILE_NAME as EPOCHS_FILE

DATA: Final = "/data"
ASIDE: Final = f"{DATA}/aside"
PEER_PORT: Final = 9093
RESERVE_BYTES: Final = 64 << 10
EPOCH_MS: Final = 1_780_000_000_000
PAYLOAD_RATE_MIN: Final = 256 << 10
"""Bytes a second: payloads, which are small here, are slowed down to it."""
SCRUB_PERIOD_MS: Final = 3_000
LAG_MS_MAX: Final = 3_000
"""The least that a node accepts: faults last for some seconds."""
SESSION_MS: Final = 6_000
"""Session time-out of consumers. Their protocol leaves it to the nodes."""
OPLOG_BYTES_MAX: Final = 8 << 10
"""Some 260 operations of a table: it has forgotten a removal before a run is over."""
RESTART_NS: Final = NS
"""Before whatever supervises the node starts it again after a failure."""


class ProcessClock:
    """The clocks of the machine of the process that makes it."""

    def __init__(self) -> None:
        self._machine: Machine = process_now().machine
        self._loop = process_now().loop

    def now_ms(self) -> int:
        return EPOCH_MS + self._machine.clock_ahead_ms + self._loop.now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._loop.now_ns + NS


class ProcessRandom(RealRandom):
    """Random numbers of the process that makes it."""

    def __init__(self) -> None:
        super().__init__(process_now().machine.world.prng.word())


def process_files() -> ProcessFiles:
    """The disk of the process that calls it."""
    process = process_now()
    return ProcessFiles(process, process.machine.files, process.machine.times)


class SimulatedNode(Node):
    """A node, and what the checkers look at."""

    @property
    def partitions(self) -> Partitions:
        return self._partitions

    @property
    def controller(self) -> ClusterController:
        return self._controller

    @property
    def image(self) -> Image:
        """The metadata as this node has them."""
        assert self._cluster is not None
        return self._cluster._metadata._machine.image

    @property
    def is_controller(self) -> bool:
        assert self._cluster is not None
        return self._cluster._metadata.is_controller

    def has_table(self, partition: Partition) -> bool:
        """Whether a table has its database open, with something in it."""
        try:
            found = self._tables.replica(partition.definition.name, partition.index)
        except BasculeError:
            return False
        return found.position > 0

    def is_healed_later(self, partition: Partition) -> bool:
        """Whether it is damaged, and was needed when that was found."""
        return self._cluster is not None and partition in self._cluster.healer._needed

    def scrubbed_ms(self, partition: Partition) -> int:
        """When the scrubber has read a log last."""
        return 0 if self._scrubber is None else self._scrubber.known(partition).finished_ms

    def is_scrubbing(self, partition: Partition) -> bool:
        """Whether the scrubber, or that of an earlier process, is in the middle of a log."""
        if self._scrubber is None:
            return True
        report = self._scrubber.known(partition).report
        if report is not None:
            return not report.is_done
        progress = self._scrubber._schedule.progress.get(key_of(partition))
        return progress is not None and progress.next is not None

    @property
    def voters(self) -> int:
        """How many voters the metadata group has, as this node knows."""
        assert self._cluster is not None
        return len(self._cluster._metadata.members.voters)


class Machine:
    """A disk, clocks, and the process that runs on it."""

    def __init__(self, world: ClusterEnvironment, node: int) -> None:
        self.world = world
        self.node = node
        self.host = host_of(node)
        self.clock_ahead_ms = 0
        self.boots = 1
        self.process: SimProcess | None = None
        """The one that runs; None: none."""
        self.running: SimulatedNode | None = None
        """The node, once it has started."""
        self.tables: ClusterTables | None = None
        """What its process does for clients of tables; None before it has opened its listeners."""
        self.is_stopping = False
        self.starts = 0
        self._stop: asyncio.Event | None = None
        self._paused_ns = 0
        self.is_kept_down = False
        """Whether nobody starts the node now."""
        """Whether the last process ended without a loss of power."""
        self.joins = False
        """Whether the node was not there when the cluster was founded."""
        self.is_leaving = False
        """Whether the node is to be removed: it may be refused when it starts."""
        self.new_disk()

    def new_disk(self) -> None:
        """An empty disk."""
        plan = self.world.plan
        self.files = MachineFiles(RealRandom(self.world.prng.word()))
        self.times = DiskTimes(self.world.prng, plan.sync_ns, plan.sync_jitter_ns)
        self.files.make_dirs(DATA)
        self.databases = TableDatabases(self.files, self.world.prng)
        self.world.closing.append(self.databases.close)
        self._stores: dict[int, MemoryStore] = {}
        self._own_stores: dict[int, MemoryStore] | None = None
        """Those of the node, while others are in their place."""
        self.damaged_ms = 0
        """When a log on the disk was damaged last, by the machine's clock; 0: never. Such a machine
        loses no power: what was synced behind the last synced mark would count as torn."""
        self._between_passes: set[Key] = set()
        """The logs that the scrubber was not reading then: the next end of a pass tells enough."""
        self._passes_ended_ms: dict[Key, int] = {}
        """When it had read another log at first since then: from where, is not known."""
        self.damaged_epochs: set[tuple[str, int]] = set()
        """The partitions whose leader epochs are made again from what is left."""
        self.damaged_payloads: dict[str, None] = {}
        """The ids of those whose files on the disk were damaged."""

    def raft_store(self, group: int) -> MemoryStore:
        """The store of a Raft group, which is made if there is none."""
        return self._stores.setdefault(group, MemoryStore(f"{DATA}/raft/{group}"))

    def raft_commits(self) -> int:
        """Commits of all stores; 0: there is none."""
        return sum(store.commits for store in self._stores.values())

    def copied_stores(self) -> dict[int, MemoryStore]:
        """Copies of all stores, as they are on the disk."""
        return {number: store.copied() for number, store in self._stores.items()}

    def replace_stores(self, stores: dict[int, MemoryStore]) -> bool:
        """Put others in the place of the stores, until the node has refused to start with them;
        False where it does not know yet that it had more."""
        path = f"{DATA}/{CLUSTER_FILE}"
        if self._own_stores is not None or not self.files.exists(path):
            return False
        known = msgspec.json.decode(self.files.read_bytes(path), type=ClusterFile).raft_commits
        if sum(store.commits for store in stores.values()) >= (known or 0):
            return False
        self._own_stores, self._stores = self._stores, stores
        return True

    def config(self) -> Config:
        """The configuration of the node."""
        peers = {node: f"{host_of(node)}:{PEER_PORT}" for node in self.world.founders}
        return Config(
            data=DATA,
            node_id=self.node,
            nats=NatsConfig(urls=("nats://nats:4222",), announce=False, key_value=False),
            client=ClientConfig(host=self.host, port=9092, administration="on"),
            http=HttpConfig(host=self.host, port=9080),
            peer=PeerConfig(host=self.host, port=PEER_PORT),
            cluster=ClusterConfig(
                replica_lag_ms_max=LAG_MS_MAX,
                rack=rack_of(self.node) if self.world.plan.has_racks else "",
                peers=() if self.joins else tuple(f"{n}@{at}" for n, at in peers.items()),
                join=tuple(at for n, at in peers.items() if n != self.node) if self.joins else (),
            ),
            groups=GroupsConfig(consumer_session_ms=SESSION_MS, consumer_heartbeat_ms=1_000),
            limits=LimitsConfig(
                disk_reserve_bytes=RESERVE_BYTES,
                scrub_period_ms=SCRUB_PERIOD_MS,
                payload_bytes_per_second_min=PAYLOAD_RATE_MIN,
            ),
            tables=TablesConfig(oplog_bytes_max=OPLOG_BYTES_MAX),
        )

    # -- processes ----------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a process runs, paused or not."""
        return self.process is not None

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.is_paused

    @property
    def is_ready(self) -> bool:
        """Whether the node has started."""
        return self.running is not None and not self.is_stopping

    def start(self) -> None:
        """Start the node, on a machine that may have been without power."""
        assert self.process is None
        world = self.world
        world.network.on_power(self.node)
        self.starts += 1
        self.is_stopping = False
        open_again(self._stores, RealRandom(world.prng.word()))
        self.process = process = SimProcess(world.loop, self, self.starts)
        world.note(self.node, f"process {self.starts} starts")
        process.context.run(self._begin, process)

    def _begin(self, process: SimProcess) -> None:
        self._stop = asyncio.Event()
        self.world.loop.create_task(self._run()).add_done_callback(self._check)

    def _check(self, done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self.world.loop.report_exception(f"node {self.node}", error)

    async def _run(self) -> None:
        assert self._stop is not None
        failure = ""
        node = SimulatedNode(self.config(), Path(DATA))
        try:
            try:
                await node.start()
                if self._own_stores is not None:
                    self.world.loop.report("nodes have what they confirmed", f"node {self.node}")
                self.running = node
                self.world.note(self.node, "is ready")
                await node.run_until(self._stop)
            finally:
                self.is_stopping = True
                await node.close()
        except (BasculeError, OSError) as error:
            failure = f"{type(error).__name__}: {error}"
            if isinstance(error, ConfigError | NodeRefused) and not self.is_leaving:
                self.world.loop.report("nodes start", f"node {self.node}: {failure}")
        self.world.note(self.node, f"process {self.starts} has ended {failure}")
        if self._own_stores is not None:
            self._stores, self._own_stores = self._own_stores, None
        self._end(has_power=True)
        if failure:
            self.world.after(RESTART_NS, self.start_if_down)

    def start_if_down(self) -> None:
        """Start the node, unless it runs."""
        if self.process is None and not self.is_kept_down:
            self.start()

    def start_when_stopped(self) -> None:
        """Start the node once its process has ended."""
        if self.process is None:
            self.start_if_down()
        elif self.is_stopping:
            self.world.after(RESTART_NS // 10, self.start_when_stopped)

    def stop(self) -> None:
        """Ask the node to stop."""
        if self._stop is not None and self.process is not None:
            self.world.note(self.node, "is asked to stop")
            self.is_stopping = True
            self.process.context.run(self._stop.set)

    def kill(self) -> None:
        """End the process at once (kill -9); the page cache stays."""
        self.world.note(self.node, "is killed")
        self._end(has_power=True)

    def lose_power(self) -> None:
        """Switch the machine off: what was not synced is kept or lost at random."""
        self.world.note(self.node, "loses its power")
        self._end(has_power=False)
        self.files.crash()
        self.boots += 1

    def _end(self, *, has_power: bool) -> None:
        self.world.on_process_ends(self.node)
        process, self.process, self.running = self.process, None, None
        self.tables = None
        self.databases.on_process_ended(has_power=has_power)
        assert process is not None
        self.world.nats.on_process_ended(process)
        self.world.end_process(process, has_power=has_power)

    @property
    def now_ms(self) -> int:
        """The machine's wall clock."""
        return EPOCH_MS + self.clock_ahead_ms + self.world.loop.now_ns // 1_000_000

    def damage(self, stream: str, partition: int, *, cuts: bool) -> bool:
        """Flip a bit of a log, or cut the end of a segment; False if that cannot be now."""
        if not cuts and self.is_ready:
            return self._damage(stream, partition, flip_bit)
        return self.damage_down(stream, partition, cut_end if cuts else flip_bit)

    def damage_down(self, stream: str, partition: int, damage: Damage) -> bool:
        """Damage a log while no process runs; False if that cannot be now. After a loss of power
        the damage may be to what no mark on the disk says to be synced."""
        is_down = not self.is_up and self.starts > 0
        return is_down and self._damage(stream, partition, damage)

    def _damage(self, stream: str, partition: int, damage: Damage) -> bool:
        directory = f"{DATA}/streams/{stream}/{partition}"
        if done := damage(self.files, directory, self.world.prng):
            if done.endswith(EPOCHS_FILE):
                self.damaged_epochs.add((stream, partition))
            self.world.note(self.node, f"has a damaged disk: {done}")
            self._note_damage()
        return bool(done)

    def damage_payload(self, stream: str, partition: int) -> bool:
        """Flip a bit of a payload that a record names; False if there is none now."""
        if not self.is_ready:
            return False
        directory = f"{DATA}/streams/{stream}/{partition}"
        done, id = flip_payload(self.files, directory, self.world.prng)
        if done:
            self.world.note(self.node, f"has a damaged payload: {done}")
            self._note_damage()
            self.damaged_payloads[id] = None
        return bool(done)

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward, or back."""
        self.world.note(self.node, f"has a clock that jumps by {by_ms} ms")
        self.clock_ahead_ms += by_ms
        if self.damaged_ms:
            self._note_damage()  # what was scrubbed by the clock of before is unknown

    def _note_damage(self) -> None:
        self.damaged_ms = self.now_ms
        self._passes_ended_ms = {}
        running = self.running
        self._between_passes = {
            key_of(partition)
            for partitions in (running.partitions.streams().values() if running else ())
            for partition in partitions
            if running and not running.is_scrubbing(partition)
        }

    def remove_aside(self) -> None:
        """An operator has looked at what a node has put aside: it heals such a log once only."""
        if self.files.exists(ASIDE):
            self.files.remove_tree(ASIDE)

    def not_scrubbed(self, partition: Partition) -> str:
        """Why damage in a log may not have been found yet; empty: it was."""
        assert self.running is not None
        if not self.damaged_ms:
            return ""
        if self.running.is_healed_later(partition):
            return f"node {self.node} has not stopped a damaged log yet"
        finished_ms = self.running.scrubbed_ms(partition)
        is_scrubbed = self.damaged_ms < finished_ms <= self.now_ms
        if is_scrubbed and (key := key_of(partition)) not in self._between_passes:
            is_scrubbed = finished_ms > self._passes_ended_ms.setdefault(key, finished_ms)
        return "" if is_scrubbed else f"node {self.node} has not scrubbed yet"

    def pause(self) -> None:
        """Stop the process (SIGSTOP)."""
        assert self.process is not None
        self.world.note(self.node, "is paused")
        self.process.is_paused = True
        self._paused_ns = self.world.loop.now_ns
        self.world.heartbeats.look()

    def go_on(self) -> None:
        """Have the process go on (SIGCONT)."""
        if self.process is None or not self.process.is_paused:
            return
        self.world.note(self.node, "goes on")
        self.process.is_paused = False
        found = self.world.heartbeats.running.get(self.node)
        if found is not None:
            found.on_resumed(self.world.loop.now_ns - self._paused_ns)
        self.world.loop.release(self.process)
        self.world.heartbeats.look()
