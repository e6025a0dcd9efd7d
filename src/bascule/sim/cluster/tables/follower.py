"""`SimTableFollower`: keeps a copy of one table by asking for pages, at one node after another."""

from __future__ import annotations

from typing import Final

from bascule.controller.cluster.tables.cluster_tables import ClusterTables
from bascule.errors import BasculeError, PartitionFailed
from bascule.sim.cluster.consumers.consumer import ClientMachine
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.tables.requests import NodeRequests
from bascule.sim.cluster.world.process import SimProcess
from bascule.sim.cluster.world.threads import sleep
from bascule.table_results import PageAsked
from bascule.wire.tables.sync_pages import (
    SeenTable,
    SyncPage,
    checksum,
    decode_page,
    encode_page,
)

FIRST_FOLLOWER: Final = 480
"""Followers have machines with numbers from here on."""
ROWS_MAX: Final = (1, 3, 20)
BYTES_MAX: Final = 100_000
WAIT_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 8.0
AWAY_SECONDS: Final = (0.05, 5.0)
"""How long it does not ask, now and then."""
LEAVES: Final = 0.1


class SimTableFollower:
    """One copy for the whole run, which is applied as `tables.oplog.changes` says."""

    def __init__(
        self, world: ClusterEnvironment, number: int, plan: StreamPlan, requests: NodeRequests
    ) -> None:
        self.world = world
        self.plan = plan
        self.machine = ClientMachine(world, FIRST_FOLLOWER + number)
        self.view: dict[bytes, tuple[int, bytes | None]] = {}
        """Key -> version and value."""
        self.is_stopping = False
        """Nothing is written any more: it asks until it has all."""
        self.pages = 0
        self.full_pages = 0
        self._requests = requests
        self._rows_max = world.prng.pick(ROWS_MAX)
        self._table: bytes | None = None
        self._position, self._epoch = 0, -1
        self._after: bytes | None = None
        self._seen = SeenTable(0, -1)

    @property
    def name(self) -> str:
        return f"follower {self.machine.node} of {self.plan.name}"

    def start(self) -> None:
        process = SimProcess(self.world.loop, self.machine, 1)
        process.context.run(process.start_thread, self._run, "table follower")

    # -- on the thread of the process -----------------------------------------------------------

    def _run(self) -> None:
        prng = self.world.prng
        node = prng.pick(list(self.world.founders))
        low, high = AWAY_SECONDS
        while True:
            try:
                body = self._requests.ask(node, self._page, seconds=ANSWER_SECONDS)
                self._take(decode_page(body, checksum(body)))
            except BasculeError as error:
                self.world.note(self.machine.node, f"{self.name}: {error}")
                sleep(low)
                node = prng.pick(list(self.world.founders))
            if prng.happens(LEAVES) and not self.is_stopping:
                sleep(prng.log_uniform(low, high))
                node = prng.pick(list(self.world.founders))

    async def _page(self, tables: ClusterTables) -> bytes:
        """As the handler of HTTP. Raises: BasculeError."""
        name = self.plan.name
        if tables.followers.where(name):
            raise PartitionFailed(name, 0, "another node has a replica")
        asked = PageAsked(
            self._table, self._position, self._epoch, self._after, self._rows_max, BYTES_MAX,
            WAIT_SECONDS, self.name, self._position, *self._seen,
        )  # fmt: skip
        return encode_page(await tables.followers.page(name, asked))

    def _take(self, page: SyncPage) -> None:
        if self._table is not None and page.table != self._table:
            self.view = {}
        rows = {row.key: (row.version, row.value) for row in page.rows}
        if page.is_full:
            gone = [key for key in self.view if _is_between(key, page) and key not in rows]
            for key in gone:
                del self.view[key]
            self.full_pages += 1
        self.view |= rows
        self.view = {key: row for key, row in self.view.items() if row[0] >= page.oldest}
        self._seen = self._seen.after(page, is_same_table=page.table == self._table)
        self._table = page.table
        self._position, self._epoch, self._after = page.position, page.epoch, page.next_after
        self.pages += 1


def _is_between(key: bytes, page: SyncPage) -> bool:
    """Whether a full page would have the key."""
    return key > page.after and (page.next_after is None or key <= page.next_after)
