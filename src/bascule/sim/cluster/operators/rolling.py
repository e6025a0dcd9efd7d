"""`RollingRestart`: drains a node, restarts it, waits until it is in sync, takes the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.operators.operator import ClusterOperator
from bascule.sim.cluster.plan import MS
from bascule.sim.cluster.world.loop import NS

LOOK_NS: Final = 200 * MS
NODE_NS: Final = 10 * NS
"""After this time with one node the operator gives the restarts up."""


class RollingRestart:
    """One at a time."""

    def __init__(
        self,
        world: ClusterEnvironment,
        machines: Mapping[int, Machine],
        operator: ClusterOperator,
    ) -> None:
        self._world = world
        self._machines = machines
        self._operator = operator
        self._left: list[int] = []
        """The nodes that are not restarted yet; the first one is being restarted."""
        self._until_ns = 0
        self._is_drained = False
        self._starts = 0
        """Of the first node, before it is stopped; 0: it was not."""
        self.finished = 0
        """Restarts of all nodes."""

    def begin(self) -> bool:
        """Restart all nodes, unless that is under way."""
        if self._left:
            return False
        self._world.note(0, "begins to restart all nodes")
        self._left = list(self._machines)
        self._drain()
        self._world.after(LOOK_NS, self._look)
        return True

    def end(self) -> None:
        """Restart no further node."""
        self._left.clear()

    def _drain(self) -> None:
        """Ask for the drain of the first node that is left."""
        number = self._left[0]
        self._until_ns = self._world.loop.now_ns + NODE_NS
        self._is_drained, self._starts = False, 0
        helper = self._operator.any_ready()
        if helper is None or helper.running is None:
            return
        operations = helper.running.controller.operations
        self._operator.keep_drained(NODE_NS)

        async def drain() -> None:
            await operations.drain_node(number, replicas=False)
            if self._left[:1] == [number]:
                self._is_drained = True

        self._world.note(helper.node, f"is asked to drain node {number} for a restart")
        self._operator.run(helper, drain)

    def _look(self) -> None:
        if not self._left:
            return
        self._world.after(LOOK_NS, self._look)
        machine = self._machines.get(self._left[0])
        if machine is None or self._world.loop.now_ns >= self._until_ns:
            self._world.note(0, f"restarts no more nodes than those before {self._left[0]}")
            self.end()
        elif not self._starts:
            if self._is_drained and machine.is_ready and not machine.is_paused:
                self._starts = machine.starts
                machine.stop()
                self._world.after(LOOK_NS, machine.start_when_stopped)
        elif machine.starts > self._starts and machine.is_ready and self._is_in_sync(machine):
            self._resume(machine.node)
            del self._left[0]
            if self._left:
                self._drain()
            else:
                self.finished += 1
                self._world.note(0, "has restarted all nodes")

    def _resume(self, number: int) -> None:
        helper = self._operator.any_ready()
        if helper is not None and helper.running is not None:
            operations = helper.running.controller.operations
            self._operator.run(helper, lambda: operations.resume_node(number))

    def _is_in_sync(self, machine: Machine) -> bool:
        assert machine.running is not None
        states = machine.running.controller.image.partition_states()
        return all(
            machine.node in state.isr for _, _, state in states if machine.node in state.replicas
        )
