"""The members of a simulated group and what is between them."""

from __future__ import annotations

from collections.abc import Iterable

from bascule.errors import LogFailed
from bascule.host.api import Random
from bascule.raft import codec
from bascule.raft.effects import Role
from bascule.raft.membership import Members
from bascule.raft.messages import AnyMessage
from bascule.raft.multi.bundle import Bundle
from bascule.raft.node import RaftNode
from bascule.raft.testing.memory_store import MemoryStore
from bascule.sim.checkers.base import Checkers
from bascule.sim.loop import SimLoop
from bascule.sim.network import Network
from bascule.sim.prng import Prng
from bascule.sim.raft.member import MachineTimings, SimMember
from bascule.sim.raft.plan import RunPlan
from bascule.sim.raft.trace import Trace


class Cluster:
    """A group: its machines, its network, its clocks."""

    def __init__(
        self, plan: RunPlan, prng: Prng, checkers: Checkers, trace: Trace | None = None
    ) -> None:
        self.plan = plan
        self.prng = prng
        self.checkers = checkers
        self.loop = SimLoop()
        self._trace = trace
        if trace is not None:
            trace.begin(self.loop)
        self.network = Network(self.loop, prng, plan.network)
        if plan.by_codec:
            self.network.carry = through_bytes
        self.members: dict[int, SimMember] = {}
        """Every machine there ever was, by its id."""
        self.views: dict[int, Members] = {}
        """The members each machine that is down knew of."""
        self.retired: set[int] = set()
        """Machines that were removed and switched off for good."""
        self.crashes = 0

    def start(self) -> None:
        """StoreContents the group."""
        voters = Members.of(*range(1, self.plan.nodes + 1)).voters
        learners = range(len(voters) + 1, len(voters) + 1 + self.plan.learners)
        members = Members(voters, tuple(learners))
        for number in members.all:
            self.add(number, members)

    def note(self, node_id: int, text: str) -> None:
        """A line of the trace, where there is one; node 0 is the world."""
        if self._trace is not None:
            self._trace.note(node_id, text)

    def add(self, number: int, initial_members: Members) -> SimMember:
        """A new machine, running; `founding` without voters waits to be added."""
        prng, plan = self.prng, self.plan
        store = MemoryStore()
        store.bootstrap(initial_members)
        tick = self._draw_tick()
        machine = MachineTimings(
            tick=tick,
            busy=prng.below(plan.busy_max + 1),
            apply=prng.below(plan.apply_max + 1),
        )
        member = SimMember(self, number, store, machine)
        self.members[number] = member
        self.network.connect(number, member.on_message)
        member.start()
        return member

    def _draw_tick(self) -> int:
        plan = self.plan
        if not plan.drift:
            return plan.tick
        return max(1, int(plan.tick * self.prng.uniform(1 - plan.drift, 1 + plan.drift)))

    def node_random(self) -> Random:
        """The dice a node is given."""
        return self.prng

    def send(self, source: int, messages: Iterable[AnyMessage]) -> None:
        """Messages leave a machine."""
        on_send, send = self.checkers.on_send, self.network.send
        for message in messages:
            on_send(source, message)
            send(message)

    # -- who is there -------------------------------------------------------------------------

    def up(self) -> list[SimMember]:
        """Machines that run and are not paused."""
        return [member for member in self.members.values() if member.is_up]

    def nodes(self) -> dict[int, RaftNode]:
        """The nodes of all machines that run."""
        return {
            member.id: member.node for member in self.members.values() if member.node is not None
        }

    def leader(self) -> SimMember | None:
        """The leader of the highest term among machines that are up."""
        found: SimMember | None = None
        for member in self.members.values():
            node = member.node
            if node is None or member.paused or node.role is not Role.LEADER:
                continue
            if found is None or node.term > found.node.term:  # type: ignore[union-attr]  # it runs
                found = member
        return found

    def all_views(self) -> list[Members]:
        """The members as every machine knows them that may come to lead."""
        found = []
        for member in self.members.values():
            if not member.wrecked:
                node = member.node
                found.append(self.views[member.id] if node is None else node.members)
        return found

    def survives(self, members: Members, lost: int = 0) -> bool:
        """Whether a majority of `members` has its disk, also without that of `lost`."""
        whole = sum(
            1
            for voter in members.voters
            if voter != lost
            and voter not in self.retired
            and (voter not in self.members or not self.members[voter].wrecked)
        )
        return not members.voters or whole >= members.majority

    # -- what happens to machines -------------------------------------------------------------

    def crash(self, member: SimMember, down: int | None = None) -> None:
        """Stop a machine that runs; it starts again in `down` microseconds, None: never."""
        assert member.node is not None
        self.crashes += 1
        self.views[member.id] = member.node.members
        member.crash()
        if down is not None:
            self.loop.after(down, self.on_restart, member, member.life)

    def down_time(self) -> int:
        """How long a machine stays down; at times so short that its peers do not notice."""
        if self.prng.happens(0.4):
            return 1 + self.prng.below(1_000)
        return self.prng.wait(self.plan.fault_lasts)

    def on_restart(self, member: SimMember, life: int) -> None:
        """Start a machine, unless it was started meanwhile or never will be."""
        if life == member.life and self.may_start(member):
            member.start()

    def may_start(self, member: SimMember) -> bool:
        return member.node is None and not member.wrecked and member.id not in self.retired

    def wreck(self, member: SimMember) -> None:
        """Destroy a machine's disk: it is gone, and its id with it."""
        self.note(member.id, "has lost its disk")
        if member.node is not None:
            self.crash(member)
        member.wrecked = True

    def on_disk_failed(self, member: SimMember, error: LogFailed) -> None:
        """A store raised: the node has stopped, and starts again later."""
        self.note(member.id, f"cannot write: {error.cause}")
        self.crash(member, self.down_time())


def through_bytes(message: AnyMessage) -> AnyMessage:
    """A message as the other side of a connection reads it."""
    bundle = Bundle(
        source=message.source,
        target=message.target,
        incarnation=1,
        heard_incarnation=0,
        clock=0,
        echo=0,
        session=0,
        heard_session=0,
        held=0,
        messages=((1, message),),
    )
    ((_, carried),) = codec.decode(codec.encode(bundle)).messages
    assert carried == message, (carried, message)
    return carried
