"""Faults: each kind begins at random times, lasts for some time and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from bascule.sim.cluster.consumers import SimConsumer
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.operators import (
    ClusterOperator,
    NodeChanges,
    RollingRestart,
    SettingChanges,
)
from bascule.sim.cluster.plan import LOSSLESS, MS, ClusterFault
from bascule.sim.cluster.scenes import Scenes
from bascule.sim.cluster.streams import DEDUPE_MS, StreamTrait
from bascule.sim.cluster.world.damage import (
    Damage,
    cut_end,
    flip_bit,
    flip_header,
    flip_small,
)
from bascule.sim.cluster.world.disk import PAYLOADS
from bascule.sim.cluster.world.loop import NS

Link = tuple[int, int]
Victim = tuple[Machine, str, int]
"""A replica: its machine, stream and partition."""
DAMAGES_MAX: Final = 2
"""Of one replica: a node heals it three times in 24 h."""
MEMBER_PAUSE_NS: Final = 6 * NS
"""Mean duration: some pauses outlast a session time-out."""
NATS_LOSS_NS_MIN, NATS_LOSS_NS_MAX = 3 * NS, 10 * NS
"""From times after which nothing has moved yet to those after which others lead."""
LIMITED_NS_MAX: Final = 20 * NS
"""After the faults: every request for a limit of copying has taken effect, or never will."""
AWAY_NS: Final = 60 * NS
"""Mean time for which a machine is away in a long outage: some are not waited for."""
JUMP_MS_MAX: Final = DEDUPE_MS // 4
"""No clock is further off. Two of them differ by less than message ids are kept."""


class ClusterFaults:
    """All faults of a run."""

    def __init__(
        self,
        world: ClusterEnvironment,
        machines: dict[int, Machine],
        members: Sequence[SimConsumer],
    ) -> None:
        self._world = world
        self._machines = machines
        self._members = members
        self._prng = world.prng
        self.operator = self._operator = ClusterOperator(world, machines)
        self._rolling = RollingRestart(world, machines, self._operator)
        self.nodes = NodeChanges(world, machines, self._operator)
        self._settings = SettingChanges(world, self._operator)
        self._scenes = Scenes(world, machines, self._operator, self._lose_somehow)
        self.is_active = True
        self.counts: dict[ClusterFault, int] = {}
        self._awaits_ack = False
        self._victims: dict[tuple[str, int], tuple[int, int]] = {}
        """Stream and partition -> the node whose replica is damaged, and how often it was."""
        self._kinds: dict[ClusterFault, Callable[[], bool]] = {
            ClusterFault.KILL: lambda: self._lose(self._pick(is_up), _Loss.KILL),
            ClusterFault.POWER: lambda: self._lose(self._pick(is_up), _Loss.POWER),
            ClusterFault.OUTAGE: self._outage,
            ClusterFault.ACKED_OUTAGE: self._await_ack,
            ClusterFault.LONG_OUTAGE: self._long_outage,
            ClusterFault.PAUSE: lambda: self._lose(self._pick(is_up), _Loss.PAUSE),
            ClusterFault.STOP: self._stop,
            ClusterFault.CONTROLLER: lambda: self._lose_somehow(self._pick(is_controller)),
            ClusterFault.LEADER: lambda: self._lose_somehow(self._pick(leads)),
            ClusterFault.RECEIVER: lambda: self._lose_somehow(self._pick(receives)),
            ClusterFault.SPLIT: self._split,
            ClusterFault.ISOLATE: lambda: self._lose(self._pick(is_up), _Loss.CUT),
            ClusterFault.LINK: self._cut_link,
            ClusterFault.SLOW_LINK: self._slow_link,
            ClusterFault.SLOW_DISK: self._slow_disk,
            ClusterFault.STALL_DISK: self._stall_disk,
            ClusterFault.FULL_DISK: self._fill_disk,
            ClusterFault.RENAMES: self._fail_renames,
            ClusterFault.ERRORS: self._fail_calls,
            ClusterFault.FLIP: lambda: self._damage(cuts=False),
            ClusterFault.CUT: lambda: self._damage(cuts=True),
            ClusterFault.CLOCK_JUMP: self._jump,
            ClusterFault.REASSIGN: self._operator.move,
            ClusterFault.REPLACE: lambda: not self.nodes.is_removing and self._operator.replace(),
            ClusterFault.CANCEL: self._operator.move_and_cancel,
            ClusterFault.DRAIN: self._operator.drain,
            ClusterFault.ELECT: self._operator.elect,
            ClusterFault.PURGE: self._operator.purge,
            ClusterFault.CHURN: self._operator.churn,
            ClusterFault.MEMBER: self._lose_member,
            ClusterFault.NATS_DROP: self._drop_nats,
            ClusterFault.NATS_CUT: self._cut_nats,
            ClusterFault.RING: self._cut_ring,
            ClusterFault.PAUSE_KILL: self._pause_and_kill,
            ClusterFault.ROLLING: self._rolling.begin,
            ClusterFault.NODES: self.nodes.change,
            ClusterFault.ALTER: self._settings.change,
            ClusterFault.GROW: self._settings.grow,
            ClusterFault.THROTTLE: self._limit_copying,
            ClusterFault.CUT_DOWN: lambda: self._damage_down(cut_end),
            ClusterFault.FLIP_HEADER: lambda: self._damage_down(flip_header),
            ClusterFault.FLIP_SMALL: lambda: self._damage_down(flip_small),
            ClusterFault.COPIED: self._scenes.await_copy,
            ClusterFault.UNHEARD: self._scenes.return_unheard,
            ClusterFault.DEPOSED: self._scenes.depose_unheard,
            ClusterFault.NATS_LOSS: self._lose_nats,
            ClusterFault.OLDER: self._scenes.copy_metadata,
        }

    def start(self) -> None:
        """Begin to draw faults."""
        for kind in self._world.plan.faults:
            self._draw_next(kind)

    def stop(self) -> None:
        """No faults any more: everything works again."""
        self.is_active = self._scenes.is_active = False
        self._rolling.end()
        self._world.network.restore()
        for machine in self._machines.values():
            self._world.network.slow(self._links_of(machine.node), 0)
            self._world.nats.restore(machine.node)
            self._end_errors(machine)
            machine.times.heal()
            machine.go_on()
            machine.start_if_down()
        for member in self._members:
            member.go_on()
            member.start()
            member.end_double()
        if ClusterFault.THROTTLE in self._world.plan.faults:
            # A request for a limit can take effect after the one that should have lifted it.
            for wait_ns in (0, LIMITED_NS_MAX):
                self._world.after(wait_ns, self._operator.lift_limit)

    def _draw_next(self, kind: ClusterFault) -> None:
        self._world.after(self._prng.wait(self._world.plan.faults[kind]), self._begin, kind)

    def _begin(self, kind: ClusterFault) -> None:
        if not self.is_active:
            return
        if self._kinds[kind]():
            self.counts[kind] = self.counts.get(kind, 0) + 1
        self._draw_next(kind)

    def _later(self, function: Callable[..., object], *args: object) -> None:
        """End a fault after some time."""
        self._world.after(self._prng.wait(self._world.plan.fault_lasts_ns), function, *args)

    def _pick(self, wanted: Callable[[Machine], bool]) -> Machine | None:
        found = [machine for machine in self._machines.values() if wanted(machine)]
        return self._prng.pick(found) if found else None

    def _links_of(self, node: int) -> list[Link]:
        """All links from and to a node."""
        others = [other for other in self._machines if other != node]
        return [*((node, other) for other in others), *((other, node) for other in others)]

    # -- losses of nodes ----------------------------------------------------------------------

    def _lose_somehow(self, machine: Machine | None) -> bool:
        return self._lose(machine, self._prng.pick(list(_Loss)))

    def _lose(self, machine: Machine | None, loss: _Loss) -> bool:
        if machine is None or not machine.is_up:
            return False
        if loss is _Loss.KILL:
            machine.kill()
            self._later(machine.start_if_down)
        elif loss is _Loss.POWER:
            machine.lose_power()
            self._later(machine.start_if_down)
        elif loss is _Loss.PAUSE:
            machine.pause()
            self._later(machine.go_on)
        elif loss is _Loss.CUT:
            self._isolate(machine.node)
        elif machine.is_ready and not machine.is_paused:
            machine.stop()
            self._later(machine.start_when_stopped)
        else:
            return False
        return True

    def _stop(self) -> bool:
        """Stop a node. Where no message may be lost, all others are in sync then, as an operator
        sees to: without a majority nobody can take over."""
        is_lossless = LOSSLESS.issuperset(self._world.plan.faults)
        if is_lossless and not self._operator.is_whole():
            return False
        return self._lose(self._pick(is_up), _Loss.STOP)

    def _pause_and_kill(self) -> bool:
        machine = self._pick(is_up)
        if machine is None:
            return False
        machine.pause()
        self._later(self._kill_paused, machine, machine.process)
        return True

    def _kill_paused(self, machine: Machine, process: object) -> None:
        if machine.process is process and machine.is_paused:
            machine.kill()
            self._later(machine.start_if_down)

    def on_ack(self) -> None:
        """A publisher has got an ack."""
        if self._awaits_ack and self.is_active:
            self._awaits_ack = False
            self._outage()
            for machine in self._machines.values():
                machine.times.heal()

    def _await_ack(self) -> bool:
        if self._awaits_ack:
            return False
        self._awaits_ack = True
        # Slow disks, so that an ack which does not wait for them is seen to be early.
        factor = self._prng.pick((1, 20, 100))
        for machine in self._machines.values():
            machine.times.factor = factor
        return True

    def _outage(self) -> bool:
        for machine in self._machines.values():
            if machine.is_up:
                machine.lose_power()
            self._later(machine.start_if_down)
        return True

    def _long_outage(self) -> bool:
        machines = self._machines.values()
        if not all(machine.is_ready for machine in machines):
            return False
        victim = self._pick_victim()
        for machine in machines:
            machine.lose_power()
            self._world.after(self._prng.wait(AWAY_NS), machine.start_if_down)
        if victim is not None:
            machine, stream, index = victim
            self._note_damage(victim, machine.damage_down(stream, index, flip_bit))
        return True

    # -- the network --------------------------------------------------------------------------

    def _cut(self, links: list[Link], what: str) -> None:
        self._world.note(0, f"cuts {what}")
        self._world.network.cut(links)
        self._later(self._restore, links, what)

    def _restore(self, links: list[Link], what: str) -> None:
        self._world.note(0, f"restores {what}")
        self._world.network.restore(links)

    def _split(self) -> bool:
        nodes = list(self._machines)
        part = [node for node in nodes if self._prng.happens(0.5)]
        rest = [node for node in nodes if node not in part]
        if not part or not rest:
            return False
        links = [link for a in part for b in rest for link in ((a, b), (b, a))]
        self._cut(links, f"nodes {part} from {rest}")
        return True

    def _cut_ring(self) -> bool:
        nodes = list(self._machines)
        count = len(nodes)
        if count < 3:
            return False
        near = (0, 1) if count == 3 else (0, 1, count - 1)
        links = [
            (a, b)
            for at, a in enumerate(nodes)
            for to, b in enumerate(nodes)
            if (to - at) % count not in near
        ]
        self._cut(links, f"all but the neighbours of the ring {nodes}")
        return True

    def _isolate(self, node: int) -> None:
        links = self._links_of(node)
        half = len(links) // 2
        chosen = self._prng.pick((links, links, links[:half], links[half:]))
        ways = "" if len(chosen) > half else "from " if chosen == links[:half] else "to "
        self._cut(chosen, f"everything {ways}node {node}")

    def _cut_link(self) -> bool:
        source, target = self._pick_link()
        self._cut([(source, target)], f"the link {source} to {target}")
        return True

    def _pick_link(self) -> Link:
        source = self._prng.pick(list(self._machines))
        return source, self._prng.pick([node for node in self._machines if node != source])

    def _slow_link(self) -> bool:
        links = self._links_of(self._prng.pick(list(self._machines)))
        self._world.network.slow(links, int(self._prng.log_uniform(5 * MS, 500 * MS)))
        self._later(self._world.network.slow, links, 0)
        return True

    # -- consumers ----------------------------------------------------------------------------

    def _lose_member(self) -> bool:
        up = [member for member in self._members if member.is_up]
        if not up:
            return False
        member = self._prng.pick(up)
        loss = self._prng.pick(("kill", "pause", "cut", "leave"))
        if loss == "kill":
            member.kill()
            self._later(member.start)
        elif loss == "pause":
            member.pause()
            member.replace()
            self._world.after(self._prng.wait(MEMBER_PAUSE_NS), member.go_on)
        elif loss == "cut":
            nodes, client = self._machines, member.machine.node
            links = [link for node in nodes for link in ((client, node), (node, client))]
            self._cut(links, f"member {client} from all nodes")
            member.replace()
        else:
            member.leave()
        return True

    # -- disks, clocks, NATS ------------------------------------------------------------------

    def _any(self) -> Machine:
        return self._prng.pick(list(self._machines.values()))

    def _slow_disk(self) -> bool:
        times = self._any().times
        times.factor = self._prng.pick((5, 20, 100))
        self._later(times.heal)
        return True

    def _stall_disk(self) -> bool:
        machine = self._any()
        self._world.note(machine.node, "has a disk that hangs")
        machine.times.stall()
        self._later(self._heal, machine)
        return True

    def _fill_disk(self) -> bool:
        machine = self._any()
        self._world.note(machine.node, "has a full disk")
        machine.times.free_bytes = self._prng.pick((0, 1_000, 100_000))
        self._later(self._heal, machine)
        return True

    def _fail_renames(self) -> bool:
        machine = self._any()
        self._world.note(machine.node, "has a disk that cannot rename payloads")
        machine.times.failed_renames = self._prng.pick((0.1, 0.5, 1.0))
        self._later(self._heal, machine)
        return True

    def _fail_calls(self) -> bool:
        machine = self._any()
        times = machine.times
        times.errors_in = self._prng.pick(("", PAYLOADS))
        times.errors = self._prng.pick((0.01, 0.1, 1.0))
        what = f"{times.errors:.0%} of the calls for {'payloads' if times.errors_in else 'files'}"
        self._world.note(machine.node, f"has a disk that fails {what}")
        self._later(self._end_errors, machine)
        return True

    def _end_errors(self, machine: Machine) -> None:
        """A log that could not be synced has stopped until its node is started again."""
        if machine.times.errors:
            machine.times.errors = 0.0
            self._heal(machine)
            self._lose(machine, _Loss.KILL)
            machine.times.has_failed = False

    def _heal(self, machine: Machine) -> None:
        self._world.note(machine.node, "has a disk that works")
        machine.times.heal()

    def _damage(self, *, cuts: bool) -> bool:
        """Damage a replica."""
        victim = self._pick_victim()
        if victim is None:
            return False
        machine, stream, index = victim
        has_payloads = StreamTrait.PAYLOADS in self._world.weakest[stream].traits
        if has_payloads and not cuts and self._prng.happens(0.5):
            return self._note_damage(victim, machine.damage_payload(stream, index))
        return self._note_damage(victim, machine.damage(stream, index, cuts=cuts))

    def _damage_down(self, damage: Damage) -> bool:
        """Damage a replica whose node is down: it is killed, unless it is."""
        victim = self._pick_victim()
        if victim is None:
            return False
        machine, stream, index = victim
        if machine.is_ready and not machine.is_paused:
            self._lose(machine, _Loss.KILL)
        return self._note_damage(victim, machine.damage_down(stream, index, damage))

    def _note_damage(self, victim: Victim, is_done: bool) -> bool:
        if is_done:
            machine, stream, index = victim
            _, count = self._victims.get((stream, index), (0, 0))
            self._victims[stream, index] = machine.node, count + 1
        return is_done

    def _pick_victim(self) -> Victim | None:
        """A replica that may be damaged; of each partition always that on the same node."""
        plan = self._world.weakest[self._prng.pick(self._world.plan.streams).name]
        index = self._prng.below(plan.partitions) if plan.partitions > 1 else 0
        stream, state = plan.name, self._operator.state_of(plan.name, index)
        if state is None or not plan.is_synced or self._operator.is_busy:
            return None  # what was not synced may be cut without anybody noticing it
        victim, count = self._victims.get((stream, index), (0, 0))
        if not victim:
            is_leader = state.leader in state.replicas and self._prng.happens(0.5)
            victim = state.leader if is_leader else self._prng.pick(state.replicas)
        machine = self._machines.get(victim)
        others = [node for node in state.isr if node != victim]
        if machine is None or victim not in state.replicas or len(others) < 2:
            return None
        return None if count >= DAMAGES_MAX else (machine, stream, index)

    def _jump(self) -> bool:
        machine = self._any()
        by_ms = int(self._prng.log_uniform(10, JUMP_MS_MAX)) * self._prng.pick((1, -1))
        if abs(machine.clock_ahead_ms + by_ms) > JUMP_MS_MAX:
            by_ms = -machine.clock_ahead_ms
        machine.jump(by_ms)
        return True

    def _limit_copying(self) -> bool:
        rate = int(self._prng.log_uniform(1_000, 1_000_000))
        if not self._operator.limit_copying(rate):
            return False
        self._later(self._operator.lift_limit)
        return True

    def _drop_nats(self) -> bool:
        machine = self._any()
        self._world.note(machine.node, "is disconnected from NATS")
        self._world.nats.disconnect(machine.node)
        return True

    def _cut_nats(self) -> bool:
        machine = self._any()
        self._world.note(machine.node, "is cut off from NATS")
        self._world.nats.cut_off(machine.node)
        self._later(self._world.nats.restore, machine.node)
        return True

    def _lose_nats(self) -> bool:
        machine = self._pick(leads)
        if machine is None:
            return False
        self._world.note(machine.node, "leads, and is cut off from NATS")
        self._world.nats.cut_off(machine.node)
        lasts_ns = self._prng.between(NATS_LOSS_NS_MIN, NATS_LOSS_NS_MAX)
        self._world.after(lasts_ns, self._world.nats.restore, machine.node)
        return True


class _Loss(Enum):
    """How a node is lost."""

    KILL = 0
    POWER = 1
    PAUSE = 2
    CUT = 3
    STOP = 4


def is_up(machine: Machine) -> bool:
    """Whether a process runs there, and is not paused."""
    return machine.is_up and not machine.is_paused


def is_controller(machine: Machine) -> bool:
    """Whether the node takes itself for the controller."""
    return machine.running is not None and machine.running.is_controller


def receives(machine: Machine) -> bool:
    """Whether a payload is sent to the node."""
    if machine.running is None or machine.is_paused:
        return False
    return machine.running.controller.payloads.streams.counts.sessions > 0


def leads(machine: Machine) -> bool:
    """Whether the node leads a partition."""
    if machine.running is None or machine.is_paused:
        return False
    streams = machine.running.partitions.streams().values()
    return any(partition.is_leader for partitions in streams for partition in partitions)
