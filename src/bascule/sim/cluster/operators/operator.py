"""`ClusterOperator`: moves replicas and leaders, drains nodes, replaces a machine that has lost its
disk, purges streams, and creates some that it deletes soon."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from bascule.errors import BasculeError, UnknownNode
from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionState, StreamConfig
from bascule.sim.cluster.checkers.log_contents import Key, key_of
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.world.loop import NS

REMOVE_NS: Final = 2 * NS
"""Between two attempts to remove a node."""
REPAIR_NS: Final = 10 * NS
"""Between two requests for the repair of a partition: the copy takes a while."""
FORGOTTEN_NS: Final = 26 * NS
"""So long after its node has died nothing of a request is under way: no later attempt removes the
node once more after it has joined."""


class ClusterOperator:
    """Uses the controller at nodes that run."""

    def __init__(self, world: ClusterEnvironment, machines: Mapping[int, Machine]) -> None:
        self._world = world
        self._machines = machines
        self._replaced: Machine | None = None
        """The machine whose node is to be removed, before it joins again."""
        self._attempt = 0
        self._drained_until_ns = -1
        """When the drained nodes go on; -1: none was drained yet."""
        self._short_lived: list[str] = []
        """Streams that are to be deleted."""
        self._asked_ns: dict[Key, int] = {}
        """Partition -> when its repair was asked for last."""
        self.repairs = 0
        """Requests to copy a replica once more that its node heals no more."""

    @property
    def is_busy(self) -> bool:
        """Whether a machine is being replaced."""
        return self._replaced is not None

    def state_of(self, stream: str, partition: int = 0) -> PartitionState | None:
        """What a node that runs knows of a stream's partition."""
        machine = self.any_ready()
        if machine is None or machine.running is None:
            return None
        image = machine.running.controller.image
        definition = image.streams.get(stream)
        return None if definition is None else image.partitions[definition.id][partition]

    # -- streams ------------------------------------------------------------------------------

    def purge(self) -> bool:
        """Remove the beginning of a log, up to a committed offset; of a table, values of keys that
        no client uses any more, since what is purged is gone without an operation."""
        machine, prng = self.any_ready(), self._world.prng
        plan = prng.pick(self._world.plan.streams)
        index = prng.below(plan.partitions)
        state = self.state_of(plan.name, index)
        leader = None if state is None else self._machines.get(state.leader)
        if machine is None or machine.running is None or leader is None or leader.running is None:
            return False
        held = leader.running.partitions.stream(plan.name) or ()
        if state is None or index >= len(held):
            return False
        controller, world = machine.running.controller, self._world
        limit = world.purge_limit(state.leader, held[index])
        if limit <= held[index].start_offset:
            return False
        offset = prng.between(held[index].start_offset + 1, limit)
        world.note(machine.node, f"is asked to purge {plan.name} {index} to {offset}")
        world.on_purge(plan.name, index, offset, False)

        async def purge() -> None:
            await controller.purge_stream(
                plan.name, to_offset=offset, before_ms=None, partition=index
            )
            world.on_purge(plan.name, index, offset, True)

        self.run(machine, purge)
        return True

    def churn(self) -> bool:
        """Create a stream, and delete it soon."""
        machine, world = self.any_ready(), self._world
        if machine is None or machine.running is None:
            return False
        name = f"x{len(self._short_lived)}"
        self._short_lived.append(name)
        config = StreamConfig(subject=name, replicas=world.plan.replicas)
        controller = machine.running.controller
        world.note(machine.node, f"is asked to create {name}")
        self.run(machine, lambda: controller.create_stream(name, config))
        world.after(world.prng.wait(world.plan.fault_lasts_ns), self._delete, name)
        return True

    def _delete(self, name: str) -> None:
        machine = self.any_ready()
        if machine is None or machine.running is None:
            return
        self._world.note(machine.node, f"is asked to delete {name}")
        self.run(machine, partial(machine.running.controller.delete_stream, name))

    def delete_left(self) -> str:
        """Delete the streams that are left of those; which there are, or empty."""
        machine = self.any_ready()
        if machine is None or machine.running is None:
            return "no node runs"
        left = [
            name for name in self._short_lived if name in machine.running.controller.image.streams
        ]
        for name in left:
            self._delete(name)
        return f"{left} are not deleted" if left else ""

    def allow_losses(self, image: Image) -> list[str]:
        """Allow an unclean election where nobody is sure to have every committed record: machines
        have lost what was not synced, or the last one in sync has lost its disk. The names of the
        streams."""
        found = []
        replaced = () if self._replaced is None else (self._replaced.node,)
        for plan in self._world.weakest.values():
            definition = image.streams.get(plan.name)
            states = image.partitions[definition.id] if definition else ()
            is_stuck = any(
                state.leader == NO_LEADER and not {*state.isr, *state.eligible}.difference(replaced)
                for state in states
            )
            is_weak = not plan.is_synced or plan.needed_in_sync == 1
            machine = self.any_ready()
            if not is_stuck or not is_weak or machine is None or machine.running is None:
                continue
            found.append(plan.name)
            self._world.note(machine.node, f"is asked for an unclean election of {plan.name}")
            alter = machine.running.controller.alter_stream
            self.run(machine, partial(alter, plan.name, {"unclean_election": True}))
        return found

    def repair_given_up(self, in_need_of_loss: Collection[Key]) -> None:
        """Ask for the copy of damaged replicas that their nodes heal no more, as they were healed
        too often: `bascule stream repair NAME --accept-loss`. Not for partitions where that would
        lose records."""
        for machine in self._machines.values():
            if not machine.is_ready or machine.running is None:
                continue
            held = machine.running.partitions.streams()
            for partition in [each for partitions in held.values() for each in partitions]:
                key, standing = key_of(partition), machine.running.controller.views.standing
                is_given_up = standing(partition).startswith("not healed: ")
                was_asked_ns = self._world.loop.now_ns - self._asked_ns.get(key, -REPAIR_NS)
                if is_given_up and key not in in_need_of_loss and was_asked_ns >= REPAIR_NS:
                    self._repair(machine, key)

    def _repair(self, machine: Machine, key: Key) -> None:
        assert machine.running is not None
        (name, index), controller = key, machine.running.controller
        self._world.note(machine.node, f"is asked to repair {name} {index}")
        self._asked_ns[key] = self._world.loop.now_ns
        self.repairs += 1
        repair = partial(controller.repair_stream, name, partition=index, accept_loss=True)
        self.run(machine, repair)

    def limit_copying(self, bytes_per_second: int) -> bool:
        """Have replicas that lag copy no faster than that; 0: as fast as they can."""
        machine = self.any_ready()
        if machine is None or machine.running is None:
            return False
        self._world.note(machine.node, f"is asked to copy {bytes_per_second} bytes a second")
        operations = machine.running.controller.operations
        self.run(machine, partial(operations.limit_catch_up, bytes_per_second))
        return True

    def lift_limit(self) -> None:
        """Have replicas copy as fast as they can, once a node says that it is so."""
        machine = self.any_ready()
        rate = machine.running.image.catch_up_rate if machine and machine.running else -1
        if rate:
            self.limit_copying(0)
            self._world.after(REMOVE_NS, self.lift_limit)

    # -- replicas, leaders and nodes ----------------------------------------------------------

    def move(self) -> bool:
        """Move a stream to other nodes, or give it another preferred leader."""
        return bool(self._move())

    def move_and_cancel(self) -> bool:
        """Move a stream, and take that back soon."""
        if not (name := self._move()):
            return False
        mean_ns = self._world.plan.fault_lasts_ns // 10
        self._world.after(self._world.prng.wait(mean_ns), self._cancel, name)
        return True

    def elect(self) -> bool:
        """Name a leader, or want the preferred one."""
        machine, prng = self.any_ready(), self._world.prng
        if machine is None or machine.running is None:
            return False
        name = prng.pick(self._world.stream_names)
        node = prng.pick([*self._machines, None])
        self._world.note(machine.node, f"is asked to have node {node} lead {name}")
        operations = machine.running.controller.operations
        self.run(machine, lambda: operations.elect_leaders(name, partition=None, node=node))
        return True

    def drain(self) -> bool:
        """Drain a node for some time; now and then its replicas move away."""
        machine, prng = self.any_ready(), self._world.prng
        if machine is None or machine.running is None:
            return False
        number, empties = prng.pick(list(self._machines)), prng.happens(0.4)
        what = "its leaders and replicas" if empties else "its leaders"
        self._world.note(machine.node, f"is asked to take {what} from node {number}")
        operations = machine.running.controller.operations
        self.run(machine, lambda: operations.drain_node(number, replicas=empties))
        self.keep_drained(self._world.prng.wait(self._world.plan.fault_lasts_ns))
        return True

    def keep_drained(self, duration_ns: int) -> None:
        """Have drained nodes go on after this time."""
        if self._drained_until_ns < 0:
            self._world.after(REMOVE_NS, self._resume)
        self._drained_until_ns = self._world.loop.now_ns + duration_ns

    def _resume(self) -> None:
        """Have drained nodes go on, once it is time; again and again, since requests may be lost or
        come late."""
        self._world.after(REMOVE_NS, self._resume)
        machine = self.any_ready()
        if machine is None or machine.running is None:
            return
        if self._world.loop.now_ns < self._drained_until_ns:
            return
        controller = machine.running.controller
        for number, node in sorted(controller.image.nodes.items()):
            if node.is_drained:
                self.run(machine, partial(controller.operations.resume_node, number))

    def _cancel(self, name: str) -> None:
        machine = self.any_ready()
        if machine is None or machine.running is None:
            return
        self._world.note(machine.node, f"is asked to cancel the move of {name}")
        operations = machine.running.controller.operations
        self.run(machine, lambda: operations.cancel_moves(name, partition=None))

    def _move(self) -> str:
        """Move a stream; its name, or an empty text where none can be moved."""
        machine, prng = self.any_ready(), self._world.prng
        nodes = [number for number, each in self._machines.items() if each.is_ready]
        count = self._world.plan.replicas
        if machine is None or machine.running is None or len(nodes) < count:
            return ""
        target: list[int] = []
        while len(target) < count:
            target.append(prng.pick([node for node in nodes if node not in target]))
        name = prng.pick(self._world.stream_names)
        self._world.note(machine.node, f"is asked to move {name} to {target}")
        operations = machine.running.controller.operations
        self.run(machine, lambda: operations.reassign_stream(name, target, partition=None))
        return name

    def replace(self) -> bool:
        """Wipe the disk of a machine, and have it join again. All replicas are in sync, and there
        are enough voters."""
        ready = [each for each in self._machines.values() if each.running and not each.is_paused]
        if self.is_busy or len(ready) < max(len(self._machines), 3):
            return False
        if any(each.damaged_ms for each in self._machines.values()):
            return False  # the two that are left in sync might be the damaged and the lost one
        nodes = [each.running for each in ready if each.running]
        if not all(node.voters >= 3 and _is_whole(node.controller.image) for node in nodes):
            return False
        machine = self._replaced = self._world.prng.pick(ready)
        machine.lose_power()
        machine.new_disk()
        machine.is_kept_down, machine.joins = True, True
        self._world.note(machine.node, "has lost its disk")
        self._remove()
        return True

    def _remove(self) -> None:
        replaced, helper = self._replaced, self.any_ready()
        if replaced is None:
            return
        if helper is None or helper.running is None:
            self._world.after(REMOVE_NS, self._remove)
            return
        controller, number, process = helper.running.controller, replaced.node, helper.process
        self._attempt += 1
        attempt = self._attempt

        def check() -> None:
            if attempt != self._attempt or self._replaced is not replaced:
                return
            is_dead = process is None or process.is_dead
            self._world.after(FORGOTTEN_NS if is_dead else REMOVE_NS, again if is_dead else check)

        def again() -> None:
            if attempt == self._attempt:
                self._remove()

        async def remove() -> None:
            if number in controller.image.nodes:
                try:
                    await controller.operations.remove_node(number, force=True)
                except UnknownNode:
                    pass
            if number not in controller.image.nodes and self._replaced is replaced:
                self._replaced = None
                replaced.is_kept_down = False
                self._world.note(number, "is removed, and may join")
                self._world.after(0, replaced.start_if_down)

        async def attempt_once() -> None:
            try:
                await remove()
            finally:
                self._world.after(REMOVE_NS, again)

        self.run(helper, attempt_once)
        check()

    def is_whole(self) -> bool:
        """Whether all nodes run, and all replicas but those that are being copied are in sync."""
        running = [each.running for each in self._machines.values() if each.is_ready]
        return len(running) == len(self._machines) and all(
            set(state.isr) >= set(state.replicas) - set(state.target)
            for node in running
            if node is not None
            for _, _, state in node.controller.image.partition_states()
        )

    def any_ready(self) -> Machine | None:
        """A node that runs, at random; None: there is none."""
        found = [each for each in self._machines.values() if each.is_ready and not each.is_paused]
        return self._world.prng.pick(found) if found else None

    def run(self, machine: Machine, request: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have a node carry out a request; that it is refused is only noted."""

        async def run() -> None:
            try:
                await request()
            except BasculeError as error:
                self._world.note(machine.node, f"refuses: {type(error).__name__}: {error}")

        assert machine.process is not None
        machine.process.context.run(self._world.loop.create_task, run())


def _is_whole(image: Image) -> bool:
    """Whether every replica is in sync, and none moves."""
    states = [state for _, _, state in image.partition_states()]
    return all(set(state.isr) == set(state.replicas) and not state.target for state in states)
