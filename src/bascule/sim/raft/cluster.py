"""`Cluster`: the machines of a simulated group."""

from __future__ import annotations

from bascule.errors import LogFailed
from bascule.raft.effects import Role
from bascule.raft.membership import Members
from bascule.raft.node import RaftNode
from bascule.raft.testing.memory_store import MemoryStore
from bascule.sim.raft.environment import Environment
from bascule.sim.raft.member import MachineTimings, SimMember


class Cluster:
    """A group: its machines, and what happens to them."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.plan = environment.plan
        self.prng = environment.prng
        self.checkers = environment.checkers
        self.loop = environment.loop
        self.network = environment.network
        self.note = environment.note
        self.members: dict[int, SimMember] = {}
        """All machines that ever existed, by id."""
        self.views: dict[int, Members] = {}
        """By id of a machine that is down: the members of the group that it knew."""
        self.retired: set[int] = set()
        """Machines that were removed and switched off for good."""
        self.crashes = 0

    def start(self) -> None:
        """Start all initial members of the group."""
        voters = Members.of(*range(1, self.plan.nodes + 1)).voters
        learners = range(len(voters) + 1, len(voters) + 1 + self.plan.learners)
        members = Members(voters, tuple(learners))
        for number in members.all:
            self.add(number, members)

    def add(self, number: int, initial_members: Members) -> SimMember:
        """Start a new machine. Without voters in `initial_members` it waits until it is added."""
        prng, plan = self.prng, self.plan
        store = MemoryStore()
        store.bootstrap(initial_members)
        tick = self._draw_tick()
        machine = MachineTimings(
            tick=tick,
            busy=prng.below(plan.busy_max + 1),
            apply=prng.below(plan.apply_max + 1),
            drain=prng.below(plan.drain_max + 1),
        )
        member = SimMember(self.environment, number, store, machine, self.on_disk_failed)
        self.members[number] = member
        self.network.connect(number, member.on_message)
        member.start()
        return member

    def _draw_tick(self) -> int:
        plan = self.plan
        if not plan.drift:
            return plan.tick
        return max(1, int(plan.tick * self.prng.uniform(1 - plan.drift, 1 + plan.drift)))

    # -- state --------------------------------------------------------------------------------

    def up(self) -> list[SimMember]:
        """The machines that run and are not paused."""
        return [member for member in self.members.values() if member.is_up]

    def nodes(self) -> dict[int, RaftNode]:
        """The nodes of all running machines, by id."""
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
        """The members of the group, as each machine knows them that may become leader."""
        found = []
        for member in self.members.values():
            if not member.wrecked:
                node = member.node
                found.append(self.views[member.id] if node is None else node.members)
        return found

    def survives(self, members: Members, lost: int = 0) -> bool:
        """Whether a majority of `members` still has intact disks if that of `lost` is destroyed."""
        whole = sum(
            1
            for voter in members.voters
            if voter != lost
            and voter not in self.retired
            and (voter not in self.members or not self.members[voter].wrecked)
        )
        return not members.voters or whole >= members.majority

    # -- faults of machines -------------------------------------------------------------------

    def crash(self, member: SimMember, down: int | None = None) -> None:
        """Crash a running machine; it restarts after `down` microseconds (None: never)."""
        assert member.node is not None
        self.crashes += 1
        self.views[member.id] = member.node.members
        member.crash()
        if down is not None:
            self.loop.after(down, self.on_restart, member, member.life)

    def down_time(self) -> int:
        """How long a machine stays down; sometimes too short for its peers to notice."""
        if self.prng.happens(0.4):
            return 1 + self.prng.below(1_000)
        return self.prng.wait(self.plan.fault_lasts)

    def on_restart(self, member: SimMember, life: int) -> None:
        """Restart a machine, unless it was started meanwhile or is gone for good."""
        if life == member.life and self.may_start(member):
            member.start()

    def may_start(self, member: SimMember) -> bool:
        return member.node is None and not member.wrecked and member.id not in self.retired

    def wreck(self, member: SimMember) -> None:
        """Destroy a machine's disk. The machine never starts again, and its id is not reused."""
        self.note(member.id, "loses its disk")
        if member.node is not None:
            self.crash(member)
        member.wrecked = True

    def on_disk_failed(self, member: SimMember, error: LogFailed) -> None:
        """A store raised an error: the machine stops, and restarts later."""
        self.note(member.id, f"cannot write: {error.cause}")
        self.crash(member, self.down_time())
