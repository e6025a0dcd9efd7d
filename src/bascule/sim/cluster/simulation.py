"""`Simulation`: the cluster of one seed, its publishers and faults, and the phases of its run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.model import PartitionState
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers import ClusterCheckers, why_not_settled
from bascule.sim.cluster.checkers.contents import Writer
from bascule.sim.cluster.checkers.log_contents import Key, key_of
from bascule.sim.cluster.consumers import GroupHistory, SimConsumer, SimNewerConsumer
from bascule.sim.cluster.consumers.deleter import SimGroupDeleter
from bascule.sim.cluster.consumers.read_history import ReadHistory
from bascule.sim.cluster.consumers.reader import SimReader
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.faults import ClusterFaults
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.payloads import PayloadCheckers, PayloadHistory, SimPayloadClient
from bascule.sim.cluster.plan import LOSSLESS, MS
from bascule.sim.cluster.publishers import Publication, SimPublisher
from bascule.sim.cluster.streams import StreamPlan, StreamTrait
from bascule.sim.cluster.tables.simulated_tables import SimulatedTables
from bascule.sim.cluster.world.loop import NS
from bascule.sim.prng import Prng
from bascule.storage.retention import SEGMENTS_PER_LIMIT

DELETER: Final = 50
"""Those that delete groups have the numbers of consumers from here on."""
LOOK_NS: Final = 100 * MS
"""Between two looks of the checkers at all logs."""
STEP_NS: Final = 100 * MS
"""Between two looks whether a phase is over."""
START_NS: Final = 60 * NS
CALM_NS: Final = 6 * NS
HELP_NS: Final = 2 * NS
"""Between two looks of the operator whether somebody has to decide something."""


class Simulation:
    """One seed's cluster."""

    def __init__(self, world: ClusterEnvironment) -> None:
        self.world = world
        self.plan, self.loop = world.plan, world.loop
        self.machines = {node: Machine(world, node) for node in world.founders}
        self.checkers = ClusterCheckers(world, self.machines)
        self.checkers.watch()
        self.publishers: list[SimPublisher] = []
        busy = [each for each in world.plan.streams if StreamTrait.QUIET not in each.traits]
        for number in range(world.plan.publishers if busy else 0):
            plan = world.prng.pick(busy)
            has_ids = world.prng.happens(0.7) and plan.has_ids
            made = SimPublisher(world, number, plan, self._on_ack, has_ids=has_ids)
            self.publishers.append(made)
        self.members: list[SimConsumer] = []
        self.deleters: list[SimGroupDeleter] = []
        for group in world.plan.groups:
            history = GroupHistory(
                group.name, lambda: world.loop.now_ns, world.loop.report,
                is_classic=group.protocols == "classic",
            )  # fmt: skip
            for _ in range(group.members):
                is_newer = group.protocols == "consumer"
                if group.protocols == "mixed":
                    is_newer = world.prng.happens(0.5)
                kind = SimNewerConsumer if is_newer else SimConsumer
                member = kind(world, len(self.members), group, history)
                self.members.append(member)
                if group.is_static:
                    member.twin = kind(world, len(self.members), group, history)
                    member.twin.twin, member.twin.instance = member, member.instance
                    self.members.append(member.twin)
            if group.is_deleted:
                number = DELETER + len(self.deleters)
                self.deleters.append(SimGroupDeleter(world, number, group, history))
        world.is_damaged = lambda node: bool(self.machines[node].damaged_ms)
        self.reads = ReadHistory(world.weakest, self.checkers.losses, world.loop.report)
        self.readers = [
            SimReader(world, number, world.prng.pick(world.plan.streams), self.reads)
            for number in range(world.plan.readers)
        ]
        self.tables = SimulatedTables(world, self.machines, self.checkers, self._on_ack)
        self.payloads = PayloadHistory()
        self.payload_checkers = PayloadCheckers(
            self.machines, world.weakest, self.checkers, self.payloads
        )
        self.payload_clients = [self._payload_client(n) for n in range(world.plan.payload_clients)]
        self.faults = ClusterFaults(world, self.machines, self.members)
        self._is_looking = True

    def _payload_client(self, number: int) -> SimPayloadClient:
        streams = self.plan.streams
        plan = self.world.prng.pick([s for s in streams if StreamTrait.PAYLOADS in s.traits])
        checkers = self.payload_checkers
        return SimPayloadClient(
            self.world, number, plan, self.payloads,
            on_ack=checkers.on_ack, may_be_gone=checkers.may_be_gone,
            may_be_undone=checkers.may_be_undone, is_damaged=checkers.is_damaged,
        )  # fmt: skip

    def _on_ack(self, publication: Publication, answer: dict[str, Any]) -> None:
        self.checkers.on_ack(publication, answer)
        self.faults.on_ack()

    # -- phases -------------------------------------------------------------------------------

    def play(self) -> None:
        """Run all phases. Raises: InvariantBroken."""
        for machine in self.machines.values():
            machine.start()
        self._until(self._not_ready, START_NS, "the cluster starts")
        self._create_streams()
        self.world.after(LOOK_NS, self._look)
        self.world.after(HELP_NS, self._help)
        for publisher in self.publishers:
            publisher.start()
        for member in self.members:
            self.world.after(self.world.prng.wait(NS), member.start)
        for reader in self.readers:
            self.world.after(self.world.prng.wait(NS), reader.start)
        for deleter in self.deleters:
            deleter.start()
        self.tables.start()
        for client in self.payload_clients:
            self.world.after(self.world.prng.wait(NS), client.start)
        self.faults.start()
        self.loop.run_for(self.plan.safety_ns)
        self.world.note(0, "faults end")
        self.faults.stop()
        for publisher in self.publishers:
            publisher.think_ns = self.plan.calm_think_ns
        before = [publisher.acked for publisher in self.publishers]
        self._until(lambda: self._not_whole(before), self.plan.liveness_ns, "without faults")
        self._do_without_nats()
        self._stay_calm()
        places = [(reader.position, reader.has_read) for reader in self.readers]
        self._until(lambda: self._not_read(places), self.plan.liveness_ns, "without faults")
        served = self.tables.places()
        self._until(
            lambda: self.tables.not_served(served, self.unrepaired()), self.plan.liveness_ns,
            "without faults",
        )  # fmt: skip
        self._until(self._payloads_not_used(), self.plan.liveness_ns, "without faults")
        rounds = [member.rounds for member in self.members]
        self._until(lambda: self._not_assigned(rounds), self.plan.liveness_ns, "without faults")
        self.world.note(0, "publishers and consumers stop")
        for member in (*self.members, *self.deleters):
            member.kill()
        for reader in self.readers:
            reader.stop()
        for client in self.payload_clients:
            client.stop()
        for publisher in self.publishers:
            publisher.is_active = False
        self.tables.stop()
        self._until(self._not_settled, self.plan.liveness_ns, "without publishers")
        self._until(
            lambda: self.tables.not_settled(self.unrepaired()), self.plan.liveness_ns,
            "without publishers",
        )  # fmt: skip
        self._is_looking = False
        self.checkers.look()
        if self.payload_clients:
            self.payload_checkers.at_end(self.unrepaired())
        writers: list[Writer] = [*self.publishers, *self.tables.clients]
        self.checkers.at_end(writers, self.reads, unrepaired=self.unrepaired())
        self.tables.at_end(self.unrepaired())

    def _do_without_nats(self) -> None:
        """In wide runs, have a node lack NATS while nothing else fails, and messages acknowledged
        nevertheless. Without other faults messages that are sent once would be lost for it."""
        if not self.plan.is_wide or LOSSLESS.issuperset(self.plan.faults):
            return
        states = [state for _, _, state in self._states()]
        leading = [node for node in self.machines if node in {state.leader for state in states}]
        if not leading:
            return
        node = self.world.prng.pick(leading)
        self.world.note(node, "leads, and is cut off from NATS while nothing else fails")
        self.world.nats.cut_off(node)
        bound_ns, what = self.plan.liveness_ns, f"while node {node} lacks NATS"
        self._until(lambda: self._not_led_by_others(node), bound_ns, what)
        acked = [publisher.acked for publisher in self.publishers]
        self._until(lambda: self._not_acked(acked), bound_ns, what)
        self.world.note(node, "reaches NATS again")
        self.world.nats.restore(node)
        self._until(self._lacks_nats, bound_ns, "with NATS")
        acked = [publisher.acked for publisher in self.publishers]
        self._until(lambda: self._not_whole(acked), bound_ns, "with NATS")

    def _not_led_by_others(self, node: int) -> str:
        """What a node leads although another replica is in sync."""
        unrepaired = self.unrepaired()
        for name, index, state in self._states():
            has_others = len(state.isr) > 1 and (name, index) not in unrepaired
            if state.leader == node and has_others:
                return f"it leads {name} {index}: {state}"
        return ""

    def _states(self) -> Iterator[tuple[str, int, PartitionState]]:
        """Stream, index and state of all partitions, by the image of each node."""
        for image in self._images():
            for name in self.world.stream_names:
                definition = image.streams.get(name)
                states = image.partitions[definition.id] if definition else ()
                for index, state in enumerate(states):
                    yield name, index, state

    def _lacks_nats(self) -> str:
        """Which node is known to lack NATS."""
        for image in self._images():
            for node in image.nodes:
                if image.lacks_nats(node):
                    return f"node {node} is said to lack it"
        return ""

    def _stay_calm(self) -> None:
        """Where there are more partitions now, have messages sent while nothing fails."""
        growth = self.checkers.growth
        if growth.has_grown:
            growth.on_calm(self.loop.now_ns)
            self.loop.run_for(CALM_NS)

    def _look(self) -> None:
        if self._is_looking:
            self.checkers.look()
            self.tables.look()
            if self.payload_clients:
                self.payload_checkers.look()
            self.world.after(LOOK_NS, self._look)

    def _help(self) -> None:
        """Decide what the cluster leaves to an operator."""
        operator = self.faults.operator
        if not self.faults.is_active:
            operator.delete_left()
            operator.repair_given_up(self.unrepaired())
            for machine in self.machines.values():
                machine.remove_aside()
        image = self._images()[:1]
        if image:
            self.checkers.losses.allowed.update(operator.allow_losses(image[0]))
        self.world.after(HELP_NS, self._help)

    def _images(self) -> list[Image]:
        """Those of the nodes that run."""
        return [m.running.image for m in self.machines.values() if m.running]

    def _until(self, pending: Callable[[], str], bound_ns: int, what: str) -> None:
        """Run until there is no reason to wait, within a bound. Raises: InvariantBroken."""
        deadline = self.loop.now_ns + bound_ns
        while reason := pending():
            if self.loop.now_ns >= deadline:
                raise InvariantBroken("progress", f"{bound_ns // NS} s {what}, and {reason}")
            self.loop.run_for(STEP_NS)

    def _not_ready(self) -> str:
        missing = [node for node, machine in self.machines.items() if not machine.is_ready]
        return f"nodes {missing} have not started" if missing else ""

    def _create_streams(self) -> None:
        done: list[str] = []

        async def create(machine: Machine, plan: StreamPlan) -> None:
            assert machine.running is not None
            try:
                await machine.running.controller.create_stream(plan.name, plan.config())
            except BasculeError as error:
                raise InvariantBroken("streams are created", str(error)) from error
            done.append(plan.name)

        for plan in self.plan.streams:
            machine = self.world.prng.pick(list(self.machines.values()))
            self.run_in(machine, create(machine, plan))
        self._until(
            lambda: "" if len(done) == len(self.world.stream_names) else f"only {done} are created",
            START_NS,
            "creating streams",
        )

    def run_in(self, machine: Machine, coroutine: Coroutine[Any, Any, None]) -> None:
        """Have the process of a machine run a coroutine."""
        assert machine.process is not None
        machine.process.context.run(self.loop.create_task, coroutine)

    def _not_whole(self, before: list[int]) -> str:
        """Why not every partition is fully replicated and used; empty if all are."""
        if reason := self._not_ready() or self.faults.nodes.pending():
            return reason
        images, unrepaired = self._images(), self.unrepaired()
        for name in self.world.stream_names:
            for image in images:
                definition = image.streams.get(name)
                if definition is None:
                    return f"a node does not know stream {name}"
                for index, state in enumerate(image.partitions[definition.id]):
                    is_whole = set(state.isr) == set(state.replicas) and state.leader in state.isr
                    if not is_whole and (name, index) not in unrepaired:
                        return f"{name} is not fully replicated: {state}"
        return self._not_acked(before)

    def _not_acked(self, before: list[int]) -> str:
        """Which publisher has got no acks since it had so many."""
        broken = {name for name, _ in self.unrepaired()}
        for publisher, acked in zip(self.publishers, before, strict=True):
            if publisher.acked <= acked and publisher.stream not in broken:
                return f"publisher {publisher.number} to {publisher.stream} gets no acks"
        return ""

    def unrepaired(self) -> dict[Key, str]:
        """The partitions whose last replica in sync is damaged, while nobody is sure to have its
        records, and its failure: only `bascule stream repair --accept-loss` goes on from there."""
        found = {}
        for name, index, state in self._states():
            if len(state.isr) == 1 and (failure := self._last_failure(name, index, state)):
                found[name, index] = failure
        return found

    def _last_failure(self, name: str, index: int, state: PartitionState) -> str:
        machine = self.machines.get(state.isr[0])
        if machine is None or machine.running is None or not machine.damaged_ms:
            return ""
        held = machine.running.partitions.stream(name) or ()
        failure = held[index].failure if index < len(held) else None
        is_last = failure is not None and failure.is_damage and not state.eligible
        return f"node {machine.node}: {failure}" if is_last else ""

    def _not_read(self, before: list[tuple[int, int]]) -> str:
        """Which reader reads no further, although there is more."""
        unrepaired = self.unrepaired()
        for reader, place in zip(self.readers, before, strict=True):
            is_at_end = reader.position >= self.checkers.committed_end(reader.key)
            is_same = (reader.position, reader.has_read) == place
            if is_same and not is_at_end and reader.key not in unrepaired:
                return f"{reader.name} reads nothing of {reader.key} at {reader.position}"
        return ""

    def _payloads_not_used(self) -> Callable[[], str]:
        """Says which client sends and reads no payloads any more; empty: none."""
        before = [(client.acked, client.has_read) for client in self.payload_clients]
        for client in self.payload_clients:
            client.is_safe = True
            client.go_on()
            client.start()

        def pending() -> str:
            broken = {name for name, _ in self.unrepaired()}
            for client, (acked, has_read) in zip(self.payload_clients, before, strict=True):
                is_used = client.acked > acked and client.has_read > has_read
                if not is_used and client.plan.name not in broken:
                    return f"{client.name} has {client.acked} acks and {client.has_read} reads"
            return ""

        return pending

    def _not_assigned(self, before: list[int]) -> str:
        """Which group does not have its partitions assigned to members that go on; empty: none."""
        for member, rounds in zip(self.members, before, strict=True):
            if member.rounds <= rounds and not member.is_spare:
                return f"consumer {member.id} of {member.plan.name} has to join"
        for plan in self.plan.groups:
            members = [m for m in self.members if m.plan is plan and not m.is_spare]
            owned = [index for m in members for index in m.positions or ()]
            generations = {member.generation for member in members}
            if len(generations) > 1 or sorted(owned) != list(range(plan.partitions)):
                return f"the members of {plan.name} own {owned} in the generations {generations}"
        return ""

    def _not_settled(self) -> str:
        """Why the replicas may still differ; empty if they do not."""
        unrepaired = self.unrepaired()
        broken = {name for name, _ in unrepaired}
        for publisher in self.publishers:
            if publisher.is_busy and publisher.stream not in broken:
                return f"publisher {publisher.number} waits for acks"
        held: dict[Key, dict[int, Partition]] = {}
        for node, partition in self.checkers.replicas():
            if key_of(partition) in unrepaired:
                continue
            if partition.failure is not None:
                return f"partition {partition.definition.name} has failed: {partition.failure}"
            if reason := self.machines[node].not_scrubbed(partition):
                return reason
            held.setdefault(key_of(partition), {})[node] = partition
        for image in self._images():
            if reason := _placement_difference(held, image):
                return reason
        for key, partitions in held.items():
            if reason := self._log_difference(key, partitions):
                return reason
        if self.payload_clients and (reason := self.payload_checkers.not_settled(unrepaired)):
            return reason
        return why_not_settled(self.world, self.machines, unrepaired)

    def _log_difference(self, key: Key, partitions: Mapping[int, Partition]) -> str:
        """In what logs still differ, or why retention has not done its work yet."""
        ends = {node: _ends(partition) for node, partition in partitions.items()}
        start, end, mark = next(iter(ends.values()))
        if end != mark or len(set(ends.values())) != 1:
            return f"the starts, ends and watermarks of {key} are {ends}"
        (plan,) = (each for each in self.plan.streams if each.name == key[0])
        if not plan.messages_max:
            return ""
        batch = self.plan.window * self.plan.publishers
        kept = plan.messages_max + plan.messages_max // SEGMENTS_PER_LIMIT + batch
        return f"{key} holds {end - start} messages" if end - start > kept else ""


def _ends(partition: Partition) -> tuple[int, int, int]:
    assert partition.log is not None
    return partition.start_offset, partition.log.end.offset, partition.committed_offset


def _placement_difference(held: Mapping[Key, Mapping[int, Partition]], image: Image) -> str:
    """Which partition is not on the nodes that the image names."""
    for (name, index), partitions in held.items():
        state: PartitionState = image.partitions[image.streams[name].id][index]
        if set(partitions) != set(state.replicas):
            return f"{name} {index} is on the nodes {list(partitions)}, expected {state.replicas}"
    return ""


def make_prng(seed: int) -> Prng:
    """The random choices of a seed."""
    return Prng(RealRandom(seed))
