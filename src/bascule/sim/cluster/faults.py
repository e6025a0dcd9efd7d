"""Faults: each kind begins at random times, lasts for some time and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import Machine
from bascule.sim.cluster.plan import ClusterFault


class ClusterFaults:
    """All faults of a run."""

    def __init__(self, world: ClusterEnvironment, machines: Mapping[int, Machine]) -> None:
        self._world = world
        self._machines = machines
        self._prng = world.prng
        self.is_active = True
        self.counts: dict[ClusterFault, int] = {}
        self._kinds: dict[ClusterFault, Callable[[], bool]] = {
            ClusterFault.KILL: self._kill,
        }

    def start(self) -> None:
        """Begin to draw faults."""
        for kind in self._world.plan.faults:
            self._draw_next(kind)

    def stop(self) -> None:
        """No faults any more: everything works again."""
        self.is_active = False
        for machine in self._machines.values():
            machine.start_if_down()

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

    # -- the kinds ----------------------------------------------------------------------------

    def _kill(self) -> bool:
        machine = self._pick(lambda each: each.is_up)
        if machine is None:
            return False
        machine.kill()
        self._later(machine.start_if_down)
        return True
