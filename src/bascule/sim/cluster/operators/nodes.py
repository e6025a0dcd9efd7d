"""`NodeChanges`: a node joins, and is removed later as planned; now and then that is taken back."""

from __future__ import annotations

from functools import partial
from typing import Final

from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.operators.operator import REMOVE_NS, ClusterOperator

CANCELS: Final = 0.4
"""How likely it is that a removal is taken back."""


class NodeChanges:
    """One more node at a time."""

    def __init__(
        self,
        world: ClusterEnvironment,
        machines: dict[int, Machine],
        operator: ClusterOperator,
    ) -> None:
        """`machines` gets those that join, and loses those whose nodes are removed."""
        self._world = world
        self._machines = machines
        self._operator = operator
        self._extra: Machine | None = None
        self._latest = max(machines)
        """The highest number of a node. None is used again."""
        self.is_removing = False
        """Whether the node is to be removed, and nobody takes that back."""

    def change(self) -> bool:
        """Have a node join; or remove the one that has joined."""
        if self._operator.is_busy or self.is_removing:
            return False
        if self._extra is None:
            self._join()
            return True
        return self._remove()

    def pending(self) -> str:
        """Which removal is under way; empty: none."""
        extra = self._extra
        return f"node {extra.node} is not removed yet" if extra and self.is_removing else ""

    def _join(self) -> None:
        self._latest += 1
        self._extra = machine = Machine(self._world, self._latest)
        machine.joins = True
        self._machines[machine.node] = machine
        self._world.note(machine.node, "is new, and joins")
        machine.start()

    def _remove(self) -> bool:
        extra, helper = self._extra, self._operator.any_ready()
        if extra is None or helper is None or helper.running is None:
            return False
        if extra.node not in helper.running.controller.image.nodes:
            return False
        self._ask()
        if self._world.prng.happens(CANCELS):
            mean_ns = self._world.plan.fault_lasts_ns
            self._world.after(self._world.prng.wait(mean_ns), self._take_back, extra.node)
        else:
            self.is_removing = extra.is_leaving = True
            self._world.after(REMOVE_NS, self._look)
        return True

    def _ask(self) -> None:
        """Ask for the removal."""
        extra, helper = self._extra, self._operator.any_ready()
        if extra is None or helper is None or helper.running is None:
            return
        number, controller = extra.node, helper.running.controller
        self._world.note(helper.node, f"is asked to remove node {number}")
        # Nobody takes it for an error of a start that the removal is over before it is taken back.
        extra.is_leaving = True
        self._operator.run(helper, lambda: controller.operations.remove_node(number, force=False))

    def _take_back(self, number: int) -> None:
        helper, extra = self._operator.any_ready(), self._extra
        if extra is None or extra.node != number or self.is_removing:
            return
        self._world.after(REMOVE_NS, self._look)
        if helper is not None and helper.running is not None:
            self._world.note(helper.node, f"is asked to keep node {number} after all")
            operations = helper.running.controller.operations
            self._operator.run(helper, partial(operations.cancel_removal, number))
        else:
            self.is_removing = True

    def _look(self) -> None:
        """Whether the node has left, also where taking that back came too late."""
        extra = self._extra
        if extra is None:
            return
        self._world.after(REMOVE_NS, self._look)
        images = [
            each.running.controller.image
            for each in self._machines.values()
            if each is not extra and each.running is not None
        ]
        if images and all(extra.node in image.removed for image in images):
            self._world.note(extra.node, "has left the cluster")
            if extra.is_up:
                extra.kill()
            extra.is_kept_down = True
            del self._machines[extra.node]
            self._extra, self.is_removing = None, False
        elif self.is_removing and any(extra.node in image.nodes for image in images):
            self._ask()
