"""`SettingChanges`: streams get other numbers of replicas and other promises during a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from bascule.model import SyncPolicy, min_isr_in_force
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.operators.operator import ClusterOperator
from bascule.sim.cluster.streams import StreamTrait

REPLICAS_MAX: Final = 4
GROWN_MAX: Final = 6
"""Partitions of a stream, with those that it gets during a run."""


class SettingChanges:
    """Changes of settings. Checkers use the weakest promise that a stream has ever given."""

    def __init__(
        self,
        world: ClusterEnvironment,
        operator: ClusterOperator,
    ) -> None:
        self._world = world
        self._operator = operator

    def change(self) -> bool:
        """Change a setting of a stream."""
        world, prng, helper = self._world, self._world.prng, self._operator.any_ready()
        if helper is None or helper.running is None:
            return False
        name = prng.pick(world.stream_names)
        controller = helper.running.controller
        definition = controller.image.streams.get(name)
        if definition is None:
            return False
        before, changes = definition.config, self._draw()
        plan = world.weakest[name]
        count = changes.get("replicas", before.replicas)
        needed = min(count, min_isr_in_force(changes.get("min_isr", before.min_isr), count))
        sync = plan.sync if changes.get("sync", plan.sync) is plan.sync else SyncPolicy.INTERVAL
        world.weakest[name] = replace(
            plan,
            replicas=max(plan.replicas, count),
            min_isr=min(plan.needed_in_sync, needed),
            sync=sync,
            is_altered=True,
        )
        world.note(helper.node, f"is asked to alter {name}: {changes}")
        self._operator.run(helper, lambda: controller.alter_stream(name, changes))
        return True

    def grow(self) -> bool:
        """Give a stream with several partitions more of them. Groups of consumers and clients of
        data streaming know how many there are from the plan, so not one of theirs."""
        world, prng, helper = self._world, self._world.prng, self._operator.any_ready()
        grouped = {group.stream for group in world.plan.groups}
        names = [
            plan.name
            for plan in world.plan.streams
            if plan.partitions > 1
            and plan.name not in grouped
            and StreamTrait.PAYLOADS not in plan.traits
        ]
        if helper is None or helper.running is None or not names:
            return False
        name, controller = prng.pick(names), helper.running.controller
        definition = controller.image.streams.get(name)
        if definition is None or definition.config.partitions >= GROWN_MAX:
            return False
        count = prng.between(definition.config.partitions + 1, GROWN_MAX)
        world.on_grow(name, world.loop.now_ns)
        world.note(helper.node, f"is asked to give {name} {count} partitions")
        self._operator.run(helper, lambda: controller.alter_stream(name, {"partitions": count}))
        return True

    def _draw(self) -> dict[str, Any]:
        # Not more than the nodes that are never removed.
        prng, nodes = self._world.prng, len(self._world.founders)
        what = prng.pick(("replicas", "replicas", "min_isr", "sync"))
        if what == "replicas":
            return {what: prng.between(2, min(nodes, REPLICAS_MAX))}
        if what == "min_isr":
            return {what: prng.pick((0, 1, 2))}
        return {what: prng.pick((SyncPolicy.ALWAYS, SyncPolicy.ALWAYS, SyncPolicy.INTERVAL))}
