"""`SimProcess`: one process of a node, from its start to its end."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Final

from greenlet import greenlet

from bascule.sim.cluster.world.loop import PROCESS, ClusterLoop, LoopHandle
from bascule.sim.cluster.world.threads import ThreadPool

KEPT_MIN: Final = 256
EXECUTOR_THREADS: Final = 6
"""The default executor of asyncio has so many threads on a machine with two cores."""


class SimProcess:
    """What belongs to it knows it by its context."""

    def __init__(self, loop: ClusterLoop, machine: Any, number: int) -> None:
        """`machine` is a `Machine`; `number` counts its processes."""
        self.loop = loop
        self.machine = machine
        self.name = f"n{machine.node}.{number}"
        self.is_dead = False
        self.is_paused = False
        self.parked: list[LoopHandle] = []
        """What was due while the process was paused."""
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self._kept: dict[Any, None] = {}
        """Tasks and threads. A killed process keeps them: nothing of them may run any more, not
        even what the collector would run."""
        self._kept_max = KEPT_MIN
        self.executor = ThreadPool(EXECUTOR_THREADS, "executor")

    def keep(self, each: Any) -> None:
        """A task or a thread of the process."""
        self._kept[each] = None
        if len(self._kept) > self._kept_max:
            self._kept = {found: None for found in self._kept if not _is_over(found)}
            self._kept_max = max(KEPT_MIN, 2 * len(self._kept))

    def start_thread(self, function: Callable[[], object], name: str) -> greenlet:
        """Run a function on a simulated thread soon."""

        def run() -> None:
            try:
                function()
            except Exception as error:  # boundary: the run reports it
                self.loop.report_exception(f"{self.name}, thread {name}", error)

        thread = greenlet(run, self.loop.hub)
        thread.gr_context = contextvars.copy_context()
        self.keep(thread)
        self.loop.switch_soon(self, thread)
        return thread


def _is_over(kept: Any) -> bool:
    return bool(kept.dead) if isinstance(kept, greenlet) else bool(kept.done())
