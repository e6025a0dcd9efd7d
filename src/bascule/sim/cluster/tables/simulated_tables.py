"""`SimulatedTables`: the tables of a run, with their clients, watchers and checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from bascule.errors import CorruptData
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers import ClusterCheckers
from bascule.sim.cluster.checkers.log_contents import Key, batches_of, key_of, records_of
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import DATA, Machine
from bascule.sim.cluster.plan import ClusterFault
from bascule.sim.cluster.publishers import Publication
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.tables.checks import OPLOG, TableChecks
from bascule.sim.cluster.tables.client import (
    CONSISTENCIES,
    EXPIRING,
    KEY_NS,
    SimTableClient,
    period_of,
)
from bascule.sim.cluster.tables.contents import StoredTable, read_oplog, read_table
from bascule.sim.cluster.tables.follower import SimTableFollower
from bascule.sim.cluster.tables.requests import NodeRequests
from bascule.sim.cluster.tables.watcher import SimTableWatcher
from bascule.sim.cluster.world.loop import NS

LOOKS: Final = 10
"""The oplogs are read at every so many looks."""
CLIENTS: Final = 2
"""Of each consistency, at most."""
WATCHERS: Final = 2

Row = tuple[int, bytes | None]
"""Version and value."""


class SimulatedTables:
    """All tables of a run; a run without tables has none."""

    def __init__(
        self,
        world: ClusterEnvironment,
        machines: Mapping[int, Machine],
        checkers: ClusterCheckers,
        on_ack: Callable[[Publication, dict[str, Any]], None],
    ) -> None:
        self._world = world
        self._machines = machines
        self._checkers = checkers
        self._looks = 0
        self._clocks_jump = ClusterFault.CLOCK_JUMP in world.plan.faults
        self.clients: list[SimTableClient] = []
        self.watchers: list[SimTableWatcher] = []
        self.followers: list[SimTableFollower] = []
        self._checks: dict[str, TableChecks] = {}
        self._folded: dict[tuple[int, Partition, int, int], dict[bytes, Row]] = {}
        """What logs were when `not_settled` looked, by node, replica, start and end."""
        world.purge_limit = self._purge_limit
        requests = NodeRequests(world.loop, world.network, machines)
        for plan in world.plan.streams:
            if plan.is_table:
                self._add(plan, requests, on_ack)

    def _add(
        self,
        plan: StreamPlan,
        requests: NodeRequests,
        on_ack: Callable[[Publication, dict[str, Any]], None],
    ) -> None:
        world, losses = self._world, self._checkers.losses
        checks = TableChecks(plan.name, lambda: bool(losses.epoch((plan.name, 0))))
        self._checks[plan.name] = checks
        for consistency in CONSISTENCIES:
            for _ in range(world.prng.between(1, CLIENTS)):
                made = SimTableClient(
                    world, len(self.clients), plan, consistency, requests, checks, on_ack
                )
                self.clients.append(made)
        for _ in range(WATCHERS):
            watcher = SimTableWatcher(world, len(self.watchers), plan, requests, checks)
            self.watchers.append(watcher)
        self.followers.append(SimTableFollower(world, len(self.followers), plan, requests))

    @property
    def reads(self) -> int:
        """Reads of clients that were answered."""
        return sum(checks.reads for checks in self._checks.values())

    @property
    def writes(self) -> int:
        """Writes of clients that were acknowledged."""
        return sum(checks.writes for checks in self._checks.values())

    @property
    def watched(self) -> int:
        """Changes that watchers were told of."""
        return sum(watcher.changes for watcher in self.watchers)

    @property
    def forgotten(self) -> int:
        """Rows that were deleted from the databases that replicas have."""
        held = [self._held(node, partition) for node, partition in self._replicas(())]
        return sum(each.forgotten_rows for each in held if each is not None)

    # -- phases -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read, write and watch."""
        starts = [client.start for client in self.clients]
        starts += [watcher.start for watcher in self.watchers]
        starts += [follower.start for follower in self.followers]
        for start in starts:
            self._world.after(self._world.prng.wait(NS), start)

    def places(self) -> list[int]:
        """How far each client is."""
        return [client.answered for client in self.clients]

    def not_served(self, places: list[int], unrepaired: Collection[Key]) -> str:
        """Which client gets no further than this; empty: none."""
        for client, place in zip(self.clients, places, strict=True):
            if client.answered <= place and (client.plan.name, 0) not in unrepaired:
                return f"{client.name} gets no answer"
        return ""

    def stop(self) -> None:
        """Nothing is written any more, once all that is under way has ended."""
        for client in self.clients:
            client.is_stopping = True
        for follower in self.followers:
            follower.is_stopping = True

    def not_settled(self, unrepaired: Collection[Key]) -> str:
        """Which table differs from its log, or which watcher from that; empty: none."""
        # Logs are read again where all agrees: what is known of them is for the wait only.
        reason = self._not_settled(unrepaired)
        if not reason:
            self._folded.clear()
            reason = self._not_settled(unrepaired)
        return reason

    def _not_settled(self, unrepaired: Collection[Key]) -> str:
        for client in self.clients:
            if not client.is_idle:
                return f"{client.name} waits for an answer"
        folds: dict[str, tuple[int, dict[bytes, Row]]] = {}
        held = list(self._replicas(unrepaired))
        for node, partition in held:
            if reason := self._not_applied(node, partition):
                return reason
        for node, partition in held:
            fold = self._fold(node, partition)
            if reason := self._difference(node, partition, fold):
                return reason
            folds[partition.definition.name] = partition.start_offset, fold
            kept = [key for key in fold if key.startswith(EXPIRING)]
            if kept and not self._clocks_jump:
                return f"{kept[0]!r} of {partition.definition.name} has not expired"
        for follower in self.followers:
            known = folds.get(follower.plan.name)
            if known is not None and (reason := _missed(follower, known[1])):
                return reason
        for watcher in self.watchers:
            known = folds.get(watcher.plan.name)
            if known is not None and (reason := _unseen(watcher, *known)):
                return reason
        return ""

    def look(self) -> None:
        """Check what was seen, and now and then the oplogs. Raises: InvariantBroken."""
        for checks in self._checks.values():
            checks.look()
        self._looks += 1
        if self._checks and self._looks % LOOKS == 0:
            for node, partition in self._replicas(()):
                self._look_at_oplog(node, partition)

    def at_end(self, unrepaired: Collection[Key]) -> None:
        """Raises: InvariantBroken."""
        for node, partition in self._replicas(unrepaired):
            self._look_at_oplog(node, partition)
        for name, checks in self._checks.items():
            if (name, 0) not in unrepaired:
                checks.at_end(self._checkers.committed_records((name, 0)))

    # -- replicas ---------------------------------------------------------------------------------

    def _replicas(self, unrepaired: Collection[Key]) -> Iterator[tuple[int, Partition]]:
        for node, partition in self._checkers.replicas():
            if partition.definition.name in self._checks and key_of(partition) not in unrepaired:
                yield node, partition

    def _purge_limit(self, node: int, partition: Partition) -> int:
        """Before the values of keys that clients use, if it is of a table; the log start where its
        log is damaged, which nobody may have noticed."""
        name, limit = partition.definition.name, partition.committed_offset
        if name not in self._checks:
            return limit
        busy = {client.key.encode() for client in self.clients}
        period = self._world.loop.now_ns // KEY_NS
        try:
            fold = self._read_fold(node, partition)
        except CorruptData:
            return partition.start_offset
        used = [fold[key][0] for key in fold if key in busy or period_of(key) >= period]
        return min(used, default=limit)

    def _fold(self, node: int, partition: Partition) -> dict[bytes, Row]:
        """As `_read_fold`, once while the log has the same start and end."""
        assert partition.log is not None
        place = node, partition, partition.start_offset, partition.log.end.offset
        if place not in self._folded:
            self._folded[place] = self._read_fold(node, partition)
        return self._folded[place]

    def _read_fold(self, node: int, partition: Partition) -> dict[bytes, Row]:
        """The last record of each key in the log of a replica; removed keys have none."""
        assert partition.log is not None
        start, end = partition.start_offset, partition.log.end.offset
        found: dict[bytes, Row] = {}
        for batch in batches_of(partition, self._machines[node].files, start, end):
            for record in records_of(batch):
                if record.offset >= start and record.key is not None:
                    found[record.key] = record.offset, record.body
        return {key: row for key, row in found.items() if row[1] is not None}

    def _not_applied(self, node: int, partition: Partition) -> str:
        held, end = self._held(node, partition), partition.high_watermark.offset
        position = None if held is None else held.position
        if position == end:
            return ""
        return f"{partition.definition.name} of node {node} is at {position}, not {end}"

    def _held(self, node: int, partition: Partition) -> StoredTable | None:
        return read_table(self._machines[node].databases, table_path(partition))

    def _difference(self, node: int, partition: Partition, fold: dict[bytes, Row]) -> str:
        """In what a table differs from its log; empty: in nothing."""
        name = f"the table {partition.definition.name} of node {node}"
        held = self._held(node, partition)
        stored = () if held is None else held.rows
        rows = {
            row.key: (row.version, row.value)
            for row in stored
            if row.value is not None and row.version >= partition.start_offset
        }
        wrong = sorted(key for key in {*rows, *fold} if rows.get(key) != fold.get(key))
        if wrong:
            return f"{name} has {rows.get(wrong[0])} of {wrong[0]!r}, its log {fold.get(wrong[0])}"
        return ""

    def _look_at_oplog(self, node: int, partition: Partition) -> None:
        machine, path = self._machines[node], table_path(partition)
        running = machine.running
        if running is None or not running.has_table(partition):
            return
        held = self._held(node, partition)
        if held is None or held.mark is None:
            return
        checks = self._checks[partition.definition.name]
        id = int.from_bytes(partition.definition.id[:8], "little")
        try:
            first, found = read_oplog(
                machine.files, f"{path.removesuffix('.db')}.oplog", held.mark, id
            )
        except (OSError, ValueError) as error:
            raise InvariantBroken(OPLOG, f"{path} of node {node}: {error}") from error
        records = self._checkers.committed_records(key_of(partition))
        checks.check_oplog(node, held, first, found, records)


def table_path(partition: Partition) -> str:
    """The database of a replica."""
    return f"{DATA}/tables/{partition.definition.id.hex()}/{partition.index}.db"


def _unseen(watcher: SimTableWatcher, start: int, fold: dict[bytes, Row]) -> str:
    """What a watcher has not seen yet, or has and should not, of a log from `start` on. Watchers
    are not told of what is purged."""
    if watcher.since is None:
        return f"{watcher.name} does not watch yet"
    view = watcher.view.items()
    seen = {key: row for key, row in view if row[1] is not None and row[0] >= start}
    wanted = {key: row for key, row in fold.items() if row[0] >= watcher.since or key in seen}
    wrong = sorted(key for key in {*seen, *wanted} if seen.get(key) != wanted.get(key))
    if not wrong:
        return ""
    key = wrong[0]
    return f"{watcher.name} has seen {seen.get(key)} of {key!r}, and it is {wanted.get(key)}"


def _missed(follower: SimTableFollower, fold: dict[bytes, Row]) -> str:
    """What a copy has not, or has and should not."""
    seen = {key: row for key, row in follower.view.items() if row[1] is not None}
    wrong = sorted(key for key in {*seen, *fold} if seen.get(key) != fold.get(key))
    if not wrong:
        return ""
    return f"{follower.name} has {seen.get(wrong[0])} of {wrong[0]!r}, not {fold.get(wrong[0])}"
