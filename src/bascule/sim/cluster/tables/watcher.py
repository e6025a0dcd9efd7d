"""`SimTableWatcher`: follows one table, at one node after another, and keeps what it was told."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from bascule.controller.cluster.tables.cluster_tables import ClusterTables
from bascule.errors import BasculeError, PartitionFailed
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.consumers.consumer import ClientMachine
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.tables.checks import ORDERED, TableChecks
from bascule.sim.cluster.tables.requests import NodeRequests
from bascule.sim.cluster.world.network import host_of
from bascule.sim.cluster.world.process import SimProcess
from bascule.sim.cluster.world.threads import sleep
from bascule.tables.watching import (
    Begin,
    Caught,
    Change,
    Restarted,
    Start,
    WatchPosition,
    WatchStep,
)
from bascule.wire.tables.patterns import KeyPattern

FIRST_WATCHER: Final = 450
"""Watchers have machines with numbers from here on."""
RETRY_SECONDS: Final = 0.2
LEAVES: Final = 0.02
"""How likely a watcher is to go to another node after a step."""
SLOW: Final = 0.1
"""How likely it is to take its time after a step."""


class SimTableWatcher:
    """One watcher for the whole run."""

    def __init__(
        self,
        world: ClusterEnvironment,
        number: int,
        plan: StreamPlan,
        requests: NodeRequests,
        checks: TableChecks,
    ) -> None:
        self.world = world
        self.plan = plan
        self.machine = ClientMachine(world, FIRST_WATCHER + number)
        self.view: dict[bytes, tuple[int, bytes | None]] = {}
        """Key -> version and value, None: it was removed."""
        self.begins = Begin.STATE if world.prng.happens(0.7) else Begin.NOW
        self.since: int | None = None
        """What was written from this offset on has to be seen; None: it does not watch yet."""
        self.changes = 0
        self.restarts = 0
        self._requests = requests
        self._checks = checks
        self._start: Start = self.begins
        self._of: bytes | None = None
        """The id of the table that the start is of."""
        self._fresh: dict[bytes, tuple[int, bytes | None]] | None = None
        """While the state is shown: what was shown so far."""
        self._ordered = -1
        """The last version that was seen in order."""

    @property
    def name(self) -> str:
        return f"watcher {self.machine.node} of {self.plan.name}"

    def start(self) -> None:
        process = SimProcess(self.world.loop, self.machine, 1)
        process.context.run(process.start_thread, self._run, "table watcher")

    # -- on the thread of the process -----------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                self._follow(self.world.prng.pick(list(self.world.founders)))
            except BasculeError as error:
                self.world.note(self.machine.node, f"{self.name}: {error}")
            sleep(RETRY_SECONDS)

    def _follow(self, node: int) -> None:
        """Watch at one node. Raises: BasculeError."""
        prng, start, of = self.world.prng, self._start, self._of
        stream = self._requests.stream(
            node, lambda tables: _watch(tables, self.plan.name, start, of)
        )
        self._fresh, self._ordered = None, -1
        try:
            while True:
                id, step = stream.take()
                self._of = id
                self._take(step, host_of(node))
                if prng.happens(LEAVES):
                    return
                if prng.happens(SLOW):
                    sleep(prng.log_uniform(0.01, 1.0))
        finally:
            stream.close()

    def _take(self, step: WatchStep, host: str) -> None:
        match step:
            case Restarted():
                # If the connection breaks before all is shown, the state has to be shown again.
                self._fresh, self._start, self._ordered = {}, Begin.STATE, -1
                self.restarts += 1
            case Caught(position):
                self._on_caught(position)
            case _:
                for change in step:
                    self._on_change(change, host)

    def _on_caught(self, position: WatchPosition) -> None:
        if self._fresh is not None:
            # Other keys were removed.
            self.view, self._fresh = self._fresh, None
        if self.since is None:
            self.since = 0 if self.begins is Begin.STATE else position.offset
        self._start = position

    def _on_change(self, change: Change, host: str) -> None:
        key, seen = change.key, (change.version, change.value)
        self.changes += 1
        self._checks.on_seen(key.decode(), *seen)
        view = self.view if self._fresh is None else self._fresh
        before = view.get(key, (-1, None))[0]
        if change.version <= before:
            self._refuse(f"{key!r} at {change.version}, after {before}, from {host}")
        view[key] = seen
        if not change.is_ordered:
            return
        if change.version <= self._ordered:
            self._refuse(f"{key!r} at {change.version}, after {self._ordered}, from {host}")
        self._ordered = change.version
        if self._fresh is None:
            self._start = change.position

    def _refuse(self, text: str) -> None:
        self._checks.find(InvariantBroken(ORDERED, f"{self.name} was told of {text}"))


async def _watch(
    tables: ClusterTables, name: str, start: Start, of: bytes | None
) -> AsyncGenerator[tuple[bytes, WatchStep], None]:
    """As the handler of HTTP. Raises: BasculeError."""
    if tables.watches.where(name):
        raise PartitionFailed(name, 0, "another node has a replica")
    watch = tables.watches.watch(name, KeyPattern(b">"), start, of=of)
    async with aclosing(watch.steps):
        async for step in watch.steps:
            yield watch.table, step
