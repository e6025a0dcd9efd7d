"""Copies and watchers of a table whose log loses records in unclean elections.

Two nodes have a log and a table of it each, and take turns as the leader. An `UncleanRun` draws
what happens from a seed, keeps a list of the records that the present leader has, and compares the
tables, copies and watchers with that list at the end. Its trace says what has happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.errors import BasculeError
from bascule.host.real import RealFiles
from bascule.http.table_watch import _event_id, watch_start
from bascule.replica.roles.commitment import LogFlags
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.tables import Tables
from bascule.tables.rows import TablePosition
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import Begin, Caught, Change, Restarted, WatchPosition, WatchStep
from bascule.wire.tables.patterns import KeyPattern
from bascule.wire.tables.sync_pages import SyncPage
from support.keyed_logs import close_segment, compact
from support.served_stream import TIMESTAMP
from support.table_followers import as_sent, may_go_on
from support.tables_harness import TablesHarness

EVERY: Final = KeyPattern(b">")
TABLE_OF_IDS: Final = b"-" + b"ab" * 16
END_SECONDS: Final = 120.0
"""For a table, a copy or a watcher to reach the end; a table that looks again takes 20 ms."""
PAGES_AHEAD: Final = 3

Values = dict[bytes, bytes | None]


async def give_way() -> None:
    """Let other tasks and threads run."""
    await asyncio.to_thread(lambda: None)


class ElectedNode:
    """A node that leads the partition or follows it, with its table."""

    def __init__(self, directory: Path, name: str) -> None:
        self.harness = TablesHarness(directory / name)
        self.partition = self.harness.partition
        self.name = name
        self._tables: Tables | None = None

    @property
    def log(self) -> PartitionLog:
        assert self.partition.log is not None
        return self.partition.log

    @property
    def replica(self) -> TableReplica:
        assert self._tables is not None
        return self._tables.replica("t", 0)

    def copy_from(self, leader: ElectedNode, to: int | None) -> None:
        """Replicate the leader's batches, up to that which has offset `to`."""
        while self.log.end.offset < leader.log.end.offset:
            piece = leader.log.plan_read(self.log.end.offset, bytes_max=1, end=leader.log.end)
            assert piece is not None
            data = memoryview(piece.file.read_at(piece.position, piece.length))
            self.partition.append_replicated(data, LogFlags(False, True))
            if to is not None and self.log.end.offset >= to:
                break
        self.partition.sync()
        self.partition.on_leader_watermark(
            leader.partition.high_watermark.offset, leader.partition.leader_epoch
        )

    def purge(self, to: int) -> None:
        self.log.advance_start(to, high_watermark=self.partition.committed_offset)
        self.partition.notify()

    def compact(self) -> None:
        """Remove what is not the last record of its key. Removals stay."""
        self.log.configure(LogConfig(segment_bytes_max=1_000, gaps_allowed=True))
        close_segment(self.log)
        compact(RealFiles(), self.log, now_ms=TIMESTAMP, retention_ms=1 << 50)

    async def start_table(self) -> None:
        self.harness.partitions.bind(asyncio.get_running_loop())
        self._tables = Tables(self.harness.partitions, self.harness.directory, RealFiles())
        await self._tables.start()

    async def stop_table(self) -> None:
        if self._tables is not None:
            await self._tables.close()

    def remove_table(self) -> None:
        for path in (self.harness.directory / "tables").glob("*/0.db*"):
            path.unlink()


class PipeliningCopy:
    """The copy of a client: it asks for pages before those before are applied, and drops what is
    not applied when a request fails."""

    def __init__(self, path: Path, random: Random) -> None:
        self._path = path
        self._random = random
        self.pages: list[SyncPage] = []
        """That have come and are not applied."""
        self._open()

    def _open(self) -> None:
        self._file = ReplicaFile(self._path, "t", "id")
        self.state = self._ahead = self._file.state()
        self.pages = []

    def close(self) -> None:
        self._file.close()

    async def step(self, replica: TableReplica) -> None:
        """Open the file anew, ask for a page or apply one."""
        chosen = self._random.random()
        if chosen < 0.08:
            self.close()
            self._open()
        elif len(self.pages) < PAGES_AHEAD and chosen < 0.6:
            try:
                await self._ask(replica, self._random.choice((1, 1, 2, 3, 50)))
            except BasculeError:
                self._begin_again()
        else:
            self._apply_one()

    async def finish(self, replicas: list[TableReplica]) -> None:
        """Ask one of them, and the next one after a failure, until nothing is newer."""
        while self.pages:
            self._apply_one()
        async with asyncio.timeout(END_SECONDS):
            more = True
            while more:
                try:
                    more = await self._ask(replicas[0], 3)
                except BasculeError:
                    await give_way()
                    self._begin_again()
                    replicas.reverse()
                else:
                    self._apply_one()

    def values(self) -> Values:
        return {entry.key: entry.value for entry in self._file.scan(b"", None, 1_000)}

    async def _ask(self, replica: TableReplica, rows_max: int) -> bool:
        """Whether there may be more."""
        state = self._ahead
        found = await replica.changes(
            state.position, epoch=state.epoch, after=state.after, rows_max=rows_max,
            bytes_max=1 << 20, seen=TablePosition(state.seen, state.seen_epoch),
        )  # fmt: skip
        page = as_sent(found)
        self.pages.append(page)
        self._ahead = self._ahead.behind(page)
        return may_go_on(found)

    def _apply_one(self) -> None:
        if self.pages:
            self.state = self._file.apply(self.pages.pop(0))

    def _begin_again(self) -> None:
        if self._random.random() < 0.5:
            while self.pages:
                self._apply_one()
        self.pages, self._ahead = [], self.state


class ResumingWatcher:
    """A watcher whose connections break; it goes on behind the last event that had an id."""

    def __init__(self) -> None:
        self.last_id = Begin.STATE.value
        self._rows: dict[bytes, tuple[int, bytes]] = {}

    async def watch_events(self, node: ElectedNode, count: int) -> None:
        """Watch until `count` changes have come. Raises: BasculeError."""
        async with aclosing(await self._steps(node.replica, 0.02)) as steps:
            async for step in steps:
                if isinstance(step, Restarted | Caught):
                    self._note(step)
                    continue
                for change in step:
                    self._see(change)
                    count -= 1
                    if not count:
                        return

    async def finish(self, node: ElectedNode, end: int) -> None:
        """Watch until everything below `end` was seen."""
        async with asyncio.timeout(END_SECONDS):
            while True:
                try:
                    return await self._watch_to(node, end)
                except BasculeError:
                    await give_way()

    def values(self, *, oldest: int) -> Values:
        return {key: value for key, (version, value) in self._rows.items() if version >= oldest}

    async def _watch_to(self, node: ElectedNode, end: int) -> None:
        async with aclosing(await self._steps(node.replica, 0.2)) as steps:
            async for step in steps:
                if isinstance(step, Restarted | Caught):
                    self._note(step)
                    if isinstance(step, Caught) and step.position.offset >= end:
                        return
                else:
                    for change in step:
                        self._see(change)

    async def _steps(
        self, replica: TableReplica, seconds: float
    ) -> AsyncGenerator[WatchStep, None]:
        """As the nodes do it for a request with that id."""
        start = watch_start(None, self.last_id).start
        if isinstance(start, WatchPosition) and not await replica.reaches(start, seconds):
            start = Begin.STATE
        found = replica._find()
        if isinstance(start, Begin) and found is not None:
            await replica.wait_position(found.high_watermark.offset)
        return replica.watches.watch(EVERY, start)

    def _note(self, step: Restarted | Caught) -> None:
        if isinstance(step, Restarted):
            self._rows, self.last_id = {}, Begin.STATE.value
        else:
            self.last_id = _event_id(step.position, TABLE_OF_IDS).decode()

    def _see(self, change: Change) -> None:
        if change.value is None:
            self._rows.pop(change.key, None)
        else:
            self._rows[change.key] = change.version, change.value
        if change.is_ordered:
            self.last_id = _event_id(change.position, TABLE_OF_IDS).decode()


@dataclass
class UncleanRun:
    """Two nodes, two copies and two watchers, and what happens to them."""

    directory: Path
    seed: int
    has_races: bool
    """Whether a leader that was voted out may lead on in its own opinion: it serves its table with
    records that the others have lost, until it hears of the election."""
    compacts: bool = False
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._compactions = Random(f"{self.seed} compactions")  # leaves the other draws as they are
        self.leader = ElectedNode(self.directory, "a")
        self.other = ElectedNode(self.directory, "b")
        self._nodes = self.leader, self.other
        self._epoch = self.leader.partition.leader_epoch + 1
        self._unclean_epoch = 0
        self._voted_out: list[tuple[ElectedNode, int]] = []
        """Leaders that have not heard of it, and where their records end that the others have."""
        self._records: list[tuple[bytes, bytes | None]] = []
        """What the leader has appended, purged and compacted records included."""
        self._copies = [
            PipeliningCopy(self.directory / f"copy-{n}.db", self._random) for n in range(2)
        ]
        self._watchers = [ResumingWatcher() for _ in range(2)]
        self._keys = self._random.choice((2, 4, 8))

    async def run(self) -> None:
        """Raises: AssertionError if something differs at the end. All errors have the trace as a
        note."""
        for node in self._nodes:
            node.harness.take_role(leads=node is self.leader, epoch=self._epoch, unclean_epoch=0)
        try:
            for node in self._nodes:
                await node.start_table()
            self._write()
            self._replicate()
            for _ in range(self._random.randint(6, 24)):
                await self._step()
                for _ in range(self._random.choice((0, 0, 1, 3))):
                    await give_way()
            await self._check()
        except BaseException as error:
            kind = f"seed {self.seed}, races: {self.has_races}, compaction: {self.compacts}"
            error.add_note("\n  ".join((kind, *self.trace)))
            raise
        finally:
            for copy in self._copies:
                copy.close()
            for node in self._nodes:
                await node.stop_table()
                node.log.close()

    async def _step(self) -> None:
        if self.compacts and self._compactions.random() < 0.1:
            self._compact()
        chosen = self._random.random()
        if chosen < 0.25:
            self._write()
        elif chosen < 0.35:
            self._settle()
            begin, end = self.other.log.end.offset, self.leader.log.end.offset
            self._replicate(
                self._random.randint(begin, end) if self._random.random() < 0.6 else None
            )
        elif chosen < 0.45:
            self._elect()
        elif chosen < 0.48 and len(self._records) > 6:
            self._purge()
        elif chosen < 0.51:
            await self._restart_table()
        elif chosen < 0.78:
            await self._step_copy()
        else:
            await self._watch()

    def _note(self, what: str, *details: object) -> None:
        self.trace.append(" ".join((what, *map(str, details))))

    def _write(self) -> None:
        some = self._random
        for _ in range(some.randint(1, 3)):
            batch = [
                (
                    b"%d" % some.randrange(self._keys),
                    some.choice(
                        (None, b"v%d" % some.randrange(10**6), b"w%d" % some.randrange(10**6))
                    ),
                )
                for _ in range(some.randint(1, 4))
            ]
            self.leader.harness.put(*batch)
            self._records += batch
        self._note("written: node, end", self.leader.name, len(self._records))

    def _replicate(self, to: int | None = None) -> None:
        self.other.copy_from(self.leader, to)
        self._note("replicated: node, end", self.other.name, self.other.log.end.offset)

    def _elect(self) -> None:
        """Have the other node lead, mostly without the last records of the leader."""
        some = self._random
        self._settle()
        is_unclean = some.random() < 0.8
        if not is_unclean:
            self._replicate()
        self._epoch += 1
        if is_unclean:
            self._unclean_epoch = self._epoch
        end, lost = self.other.log.end.offset, self.leader.log.end.offset
        del self._records[end:]
        self.other.harness.take_role(
            leads=True, epoch=self._epoch, unclean_epoch=self._unclean_epoch
        )
        self._note("elected: node, epoch, end, end before", self.other.name, self._epoch, end, lost)
        self._voted_out.append((self.leader, end))
        self.leader, self.other = self.other, self.leader
        if not self.has_races or some.random() < 0.5:
            self._settle()
        if some.random() < 0.5:
            self._write()
        if self.has_races and some.random() < 0.3:
            self._settle()
            self._replicate()

    def _settle(self) -> None:
        """Have a leader that was voted out hear of it, and remove what the others have lost."""
        for node, end in self._voted_out:
            node.harness.take_role(
                leads=False, epoch=self._epoch, unclean_epoch=self._unclean_epoch
            )
            if node.log.end.offset > end:
                node.partition.truncate_replicated(end)
            self._note("follows: node, end", node.name, end)
        self._voted_out.clear()

    def _purge(self) -> None:
        self._settle()
        self._replicate()
        to = self._random.randint(self.leader.log.start_offset, len(self._records))
        for node in self._nodes:
            node.purge(to)
        self._note("purged", to)

    def _compact(self) -> None:
        """Both logs have the records that remain: no election loses what another was removed
        for."""
        self._settle()
        self._replicate()
        self.leader.compact()
        self._note("compacted: node, end", self.leader.name, self.leader.log.end.offset)

    async def _restart_table(self) -> None:
        node = self._random.choice(self._nodes)
        await node.stop_table()
        if self._random.random() < 0.4:
            node.remove_table()
        await node.start_table()
        self._note("table started: node", node.name)

    async def _step_copy(self) -> None:
        copy = self._random.choice(self._copies)
        node = self._random.choice((self.leader, self.leader, self.other))
        for _ in range(self._random.randint(1, 3)):
            await copy.step(node.replica)
        number, waiting = self._copies.index(copy), len(copy.pages)
        self._note("copy asks: node, pages not applied, state", number, node.name, waiting)
        self._note("   ", copy.state)

    async def _watch(self) -> None:
        """Watch for some milliseconds, perhaps while there are writes."""
        watcher = self._random.choice(self._watchers)
        node = self._random.choice((self.leader, self.leader, self.other))
        count, seconds = self._random.randint(1, 5), self._random.choice((0.001, 0.004))
        watching = asyncio.create_task(watcher.watch_events(node, count))
        await asyncio.wait([watching], timeout=seconds)
        if not watching.done() and self._random.random() < 0.5:
            self._write()
            await asyncio.wait([watching], timeout=0.002)
        watching.cancel()
        (failure,) = await asyncio.gather(watching, return_exceptions=True)
        if not isinstance(failure, BasculeError | asyncio.CancelledError | None):
            raise failure
        number = self._watchers.index(watcher)
        self._note("watched: watcher, node, last id", number, node.name, watcher.last_id)

    async def _check(self) -> None:
        """Tables, copies and watchers end with what the leader has."""
        self._settle()
        self._replicate()
        end, oldest = self.leader.log.end.offset, self.leader.log.start_offset
        assert end == len(self._records)
        expected: Values = {}
        for offset, (key, value) in enumerate(self._records):
            expected.pop(key, None)
            if value is not None and offset >= oldest:
                expected[key] = value
        node = self._random.choice((self.leader, self.other))
        for each in self._nodes:
            assert await self._table_at(each.replica, end) == expected, f"the table of {each.name}"
        for number, copy in enumerate(self._copies):
            await copy.finish([node.replica, self.leader.replica])
            assert copy.values() == expected, f"copy {number}, {copy.state}"
        for number, watcher in enumerate(self._watchers):
            before = watcher.last_id
            await watcher.finish(node, end)
            assert watcher.values(oldest=oldest) == expected, f"watcher {number}, from {before}"

    async def _table_at(self, replica: TableReplica, end: int) -> Values:
        """What a table has once it has followed its log to `end`."""
        async with asyncio.timeout(END_SECONDS):
            while True:
                try:
                    page = await replica.changes(end, rows_max=1, bytes_max=1)
                    rows = await replica.scan(b"", None, 1_000, bytes_max=1 << 20)
                except BasculeError:
                    await give_way()
                else:
                    assert page.position == end
                    return {row.key: row.value for row in rows}
