"""`Scenes`: faults that wait for a moment which chance seldom brings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from bascule.model import PartitionState
from bascule.raft.testing.memory_store import MemoryStore
from bascule.replica.roles import PartitionRole
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.operators import ClusterOperator
from bascule.sim.cluster.plan import MS
from bascule.sim.cluster.tables.client import FIRST_CLIENT
from bascule.sim.cluster.world.loop import NS
from bascule.storage.compaction.tombstones_end import read_tombstones_end
from bascule.storage.partition_log import PartitionLog
from bascule.storage.truncation.partial_copy import NOT_TOLD

COPY_LOOK_NS: Final = 2 * MS
"""Between two looks for a copy that has begun; a packet of it takes as long, or longer."""
HELD_LOOK_SECONDS: Final = 0.05
STEP_NS: Final = NS
"""Between two requests for the same move."""
REMOVED_NS: Final = 8 * NS
"""So long a replica is away: meanwhile the cleaner comes so often that a tombstone is closed,
compacted and removed."""
TABLE_CLIENTS: Final = range(FIRST_CLIENT, FIRST_CLIENT + 40)
"""Their machines."""
DEPOSED_NS: Final = 4 * NS
"""Another node leads after half of it."""
OLDER_NS: Final = 4 * NS
"""Mean age of a copy of metadata."""
HAS_COPY: Final = 0.7
"""How likely there is a copy."""
MISSING: Final = 0.7
"""How likely a leader is lost only when another one lacks a tombstone that a copy needs."""


class Scenes:
    """One of each kind at a time."""

    def __init__(
        self,
        world: ClusterEnvironment,
        machines: dict[int, Machine],
        operator: ClusterOperator,
        lose: Callable[[Machine], object],
    ) -> None:
        """`lose` has a machine fail for some time."""
        self._world = world
        self._machines = machines
        self._operator = operator
        self._lose = lose
        self._awaits_copy = self._awaits_missing = False
        self._absent: int | None = None
        """The node that hears nothing of the moves of its replica."""
        self.is_active = True
        self._is_held = False
        """Whether the absent node follows no image."""

    # -- a copy loses its leader ----------------------------------------------------------------

    def await_copy(self) -> bool:
        """Lose the leader of the next log that is copied from its beginning, in the middle."""
        if self._awaits_copy:
            return False
        self._awaits_copy, self._awaits_missing = True, self._world.prng.happens(MISSING)
        self._world.after(COPY_LOOK_NS, self._look_for_copy)
        return True

    def _look_for_copy(self) -> None:
        if not self.is_active:
            return
        for machine in self._machines.values():
            if (leader := self._copied_leader(machine)) is not None:
                self._awaits_copy = False
                self._world.note(leader.node, f"leads what node {machine.node} copies")
                self._lose(leader)
                return
        self._world.after(COPY_LOOK_NS, self._look_for_copy)

    def _copied_leader(self, machine: Machine) -> Machine | None:
        """The leader of a partition that a machine has copied a part of; None: there is none."""
        if machine.running is None or machine.is_paused:
            return None
        for partitions in machine.running.partitions.streams().values():
            for partition in partitions:
                log, state = partition.log, partition.state
                if log is None or state is None or partition.role is not PartitionRole.FOLLOWER:
                    continue
                epoch, is_empty = log.partial_copy.known_epoch, log.end.offset == log.start_offset
                leader = self._machines.get(state.leader)
                if epoch != partition.leader_epoch or is_empty or not leader or not leader.is_up:
                    continue
                if not self._awaits_missing or self._is_missed(log, state):
                    return leader
        return None

    def _is_missed(self, log: PartitionLog, state: PartitionState) -> bool:
        """Whether a replica in sync lacks tombstones behind the copy, and the copy may have what
        they remove."""
        clean_offset = log.partial_copy.known_clean_offset
        if clean_offset == NOT_TOLD:
            return False
        held = max(log.end.offset, clean_offset)
        return any(
            read_tombstones_end(self._machines[node].files, log.directory, log_end=0) > held
            for node in state.isr
            if node != state.leader and node in self._machines
        )

    # -- a replica leaves and comes back, and its node hears of neither -------------------------

    def return_unheard(self) -> bool:
        """Move a replica away, and back once tombstones are removed, while its node is too busy to
        follow its image: it goes on with the last one only."""
        name = self._world.prng.pick(self._world.stream_names)
        state = self._operator.state_of(name)
        ready = [node for node, machine in self._machines.items() if is_reached(machine)]
        if self._absent is not None or state is None or len(ready) < len(self._machines):
            return False
        spare = [node for node in ready if node not in state.replicas]
        if state.target or set(state.isr) != set(state.replicas) or not spare:
            return False
        node = self._absent = self._world.prng.pick(state.replicas)
        others = [each for each in state.replicas if each != node]
        away = [*others, self._world.prng.pick(spare)]
        self._world.note(node, f"hears nothing of the moves of {name} to {away} and back")
        self._hold_image(self._machines[node])
        back = partial(self._move, name, [*others, node], self._restore)
        self._move(name, away, partial(self._world.after, REMOVED_NS, back))
        return True

    # -- a node comes back with an older copy of its metadata -----------------------------------

    def copy_metadata(self) -> bool:
        """Copy the metadata of a node; later have it start with the copy, or with none."""
        prng = self._world.prng
        ready = [machine for machine in self._machines.values() if is_reached(machine)]
        if not ready:
            return False
        machine = prng.pick(ready)
        stores = machine.copied_stores() if prng.happens(HAS_COPY) else {}
        self._world.after(prng.wait(OLDER_NS), self._start_older, machine, stores)
        return True

    def _start_older(self, machine: Machine, stores: dict[int, MemoryStore]) -> None:
        is_leaving = machine.is_leaving or machine.is_kept_down
        if not self.is_active or is_leaving or not is_reached(machine):
            return
        machine.kill()
        if machine.replace_stores(stores):
            self._world.note(machine.node, f"has {'an older copy' if stores else 'none'} of raft/")
        machine.start()

    # -- a leader does not hear of its successor ------------------------------------------------

    def depose_unheard(self) -> bool:
        """Cut a leader off from the other nodes until another one leads, and for some time after
        that, while it is too busy to follow its image: it goes on with what comes over NATS. Often
        it serves clients of its table, too; else they publish what it must not answer."""
        name = self._world.prng.pick(self._world.stream_names)
        state = self._operator.state_of(name)
        machine = self._machines.get(state.leader) if state is not None else None
        if self._absent is not None or machine is None or not is_reached(machine):
            return False
        node = self._absent = machine.node
        self._world.note(node, f"leads {name} and hears of no other leader")
        self._hold_image(machine)
        others = [other for other in self._machines if other != node]
        if self._world.prng.happens(0.5):
            self._world.publishes_swaps = True
            others += TABLE_CLIENTS
        links = [*((node, other) for other in others), *((other, node) for other in others)]
        self._world.network.cut(links)
        self._world.after(DEPOSED_NS, self._reach, links)
        return True

    def _reach(self, links: list[tuple[int, int]]) -> None:
        self._world.publishes_swaps = False
        self._world.network.restore(links)
        self._restore()

    def _hold_image(self, machine: Machine) -> None:
        """Have a node follow no image until `_restore`."""
        assert machine.running is not None
        assert machine.process is not None
        follower = machine.running.controller.follower
        self._is_held = True

        async def hold() -> None:
            async with follower.lock:
                # No event: the process may have ended when it is set.
                while self._is_held and self.is_active:  # noqa: ASYNC110
                    await asyncio.sleep(HELD_LOOK_SECONDS)

        machine.process.context.run(self._world.loop.create_task, hold())

    def _move(self, name: str, target: list[int], then: Callable[[], object]) -> None:
        """Ask for a move until the absent node is a replica, or is none, as `target` says."""
        node, world = self._absent, self._world
        if node is None or not self.is_active:
            self._absent = None
            return
        helpers = [m for m in self._machines.values() if m.node != node and is_reached(m)]
        helper = world.prng.pick(helpers) if helpers else None
        if helper is not None and helper.running is not None:
            state = _state(helper, name)
            if state is not None and (node in state.replicas) == (node in target):
                then()
                return
            world.note(helper.node, f"is asked to move {name} to {target}")
            operations = helper.running.controller.operations
            self._operator.run(
                helper, partial(operations.reassign_stream, name, target, partition=None)
            )
        world.after(STEP_NS, self._move, name, target, then)

    def _restore(self) -> None:
        """Have the absent node hear of both moves at once."""
        node, self._absent = self._absent, None
        assert node is not None
        self._world.note(node, "follows its image again")
        self._is_held = False


def _state(machine: Machine, stream: str) -> PartitionState | None:
    """What a node knows of a stream's first partition."""
    assert machine.running is not None
    image = machine.running.controller.image
    definition = image.streams.get(stream)
    return None if definition is None else image.partitions[definition.id][0]


def is_reached(machine: Machine) -> bool:
    """Whether the node has started, and is not paused."""
    return machine.is_ready and not machine.is_paused
