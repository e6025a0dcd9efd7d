"""The databases of simulated tables lose what real ones would, and planted violations are found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from greenlet import getcurrent

from bascule.host.real import RealRandom
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.checkers.history import ClientOperation, OperationKind
from bascule.sim.cluster.checkers.log_contents import StoredRecord
from bascule.sim.cluster.simulation import make_prng
from bascule.sim.cluster.tables.checks import OPLOG, RISING, WATCHED, TableChecks
from bascule.sim.cluster.tables.contents import StoredOperation, StoredRow, StoredTable
from bascule.sim.cluster.tables.databases import NOW, SimConnection, TableDatabases
from bascule.sim.cluster.world.disk import DiskTimes, MachineFiles, ProcessFiles

PATH: Final = "/data/tables/t/0.db"
COMMITS: Final = 20


class FastDisk(DiskTimes):
    """A disk that takes no time, for threads outside a simulated loop."""

    def wait_sync(self) -> None:
        """Sync at once."""


class Disk:
    """The disk of a machine, and the databases of one process after another."""

    def __init__(self, seed: int = 1) -> None:
        self.files = MachineFiles(RealRandom(seed))
        self.files.make_dirs("/data/tables/t")
        self.databases = TableDatabases(self.files, make_prng(seed))
        self.reports: list[str] = []
        self.times = FastDisk(make_prng(seed), sync_ns=0, jitter_ns=0)
        self.in_thread = True
        loop = SimpleNamespace(report=lambda name, _, **__: self.reports.append(name))
        machine = SimpleNamespace(times=self.times)
        self.process = cast("Any", SimpleNamespace(loop=loop, machine=machine, name="n1.1"))
        self.process.is_dead = False

    def open(self) -> SimConnection:
        self.process.loop.hub, self.process.loop.is_in_thread = None, True
        files = ProcessFiles(self.process, self.files, self.times)
        found = self.databases.connect(self.process, files, PATH)
        found._prng = cast("Any", SimpleNamespace(happens=lambda _: False))
        found.execute("pragma journal_mode = wal")
        found.execute("pragma synchronous = normal")
        return found

    def write(self, connection: SimConnection) -> None:
        """COMMITS transactions, each with a row and the number of rows."""
        connection.executescript("create table r (n integer); create table s (rows integer);")
        connection.execute("insert into s values (0)")
        for number in range(COMMITS):
            connection.execute("begin")
            connection.execute("insert into r values (?)", (number,))
            connection.execute("update s set rows = ?", (number + 1,))
            connection.execute("commit")

    def rows(self) -> int:
        """How many transactions are left; they are the first ones, each whole."""
        with closing(self.open()) as connection:
            if not connection.execute("select count(*) from sqlite_master").fetchone()[0]:
                return 0
            try:
                said = connection.execute("select rows from s").fetchone()
            except sqlite3.OperationalError:
                return 0
            found = [n for (n,) in connection.execute("select n from r order by n")]
            assert found == list(range(said[0] if said else 0))
            return len(found)


@pytest.fixture
def disks() -> Iterator[Callable[[int], Disk]]:
    made: list[Disk] = []

    def make(seed: int) -> Disk:
        made.append(Disk(seed))
        return made[-1]

    yield make
    for each in made:
        each.databases.close()


def test_a_kill_loses_the_open_transaction_alone(disks: Callable[[int], Disk]) -> None:
    disk = disks(1)
    connection = disk.open()
    disk.write(connection)
    connection.execute("begin")
    connection.execute("insert into r values (99)")
    disk.databases.on_process_ended(has_power=True)
    assert disk.rows() == COMMITS


def test_a_loss_of_power_keeps_the_first_transactions(disks: Callable[[int], Disk]) -> None:
    left = set()
    for seed in range(30):
        disk = disks(seed)
        disk.write(disk.open())
        disk.databases.on_process_ended(has_power=False)
        left.add(disk.rows())
    assert len(left) > 5
    assert left <= set(range(COMMITS + 1))


def test_what_a_checkpoint_has_synced_survives_a_loss_of_power(
    disks: Callable[[int], Disk],
) -> None:
    left = set()
    for seed in range(30):
        disk = disks(seed)
        connection = disk.open()
        disk.write(connection)
        connection.execute("pragma wal_checkpoint(passive)")
        if seed % 2:
            connection.execute("begin")
            connection.execute("insert into r values (?)", (COMMITS,))
            connection.execute("update s set rows = ?", (COMMITS + 1,))
            connection.execute("commit")
        disk.databases.on_process_ended(has_power=False)
        left.add((seed % 2, disk.rows()))
    assert left == {(0, COMMITS), (1, COMMITS), (1, COMMITS + 1)}


def test_what_was_closed_in_order_survives_a_loss_of_power(disks: Callable[[int], Disk]) -> None:
    disk = disks(1)
    connection = disk.open()
    disk.write(connection)
    connection.close()
    disk.databases.on_process_ended(has_power=False)
    assert disk.rows() == COMMITS


def test_a_removed_database_is_made_anew(disks: Callable[[int], Disk]) -> None:
    disk = disks(1)
    connection = disk.open()
    disk.write(connection)
    connection.close()
    disk.files.remove(PATH)
    assert disk.rows() == 0


def test_a_full_disk_refuses_writes_alone(disks: Callable[[int], Disk]) -> None:
    disk = disks(1)
    connection = disk.open()
    disk.write(connection)
    disk.times.free_bytes = 100
    with pytest.raises(sqlite3.OperationalError, match="full"):
        connection.execute("insert into r values (99)")
    assert connection.execute("select count(*) from r").fetchone() == (COMMITS,)


def test_only_reading_keys_at_once_is_allowed_on_the_event_loop(
    disks: Callable[[int], Disk],
) -> None:
    disk = disks(1)
    connection = disk.open()
    connection.executescript(
        "create table state (position, key, version, timestamp, value, content_type);"
        "create table entries (key, version, timestamp, value, content_type)"
    )
    disk.process.loop.hub, disk.process.loop.is_in_thread = getcurrent(), False
    at_once, one_row = NOW
    connection.execute(at_once)
    connection.execute(one_row, (b"k",))
    assert not disk.reports
    connection.execute("begin")
    assert disk.reports == ["asyncio never waits for a disk"]


# -- checks -----------------------------------------------------------------------------------

ROW: Final = StoredRow(1, b"k", 4, b"v")
RECORD: Final = StoredRecord(4, "", b"k", b"v")


def broken_by(*operations: StoredOperation, row: StoredRow = ROW, position: int = 5) -> str:
    """The invariant that an oplog breaks which begins with operation 1."""
    table = StoredTable(position, (1, len(operations)), [row], 0, 0)
    try:
        TableChecks("t", lambda: False).check_oplog(1, table, 1, [*operations], {4: RECORD})
    except InvariantBroken as broken:
        return broken.name
    return ""


def test_an_oplog_has_the_operations_of_its_table() -> None:
    assert broken_by(StoredOperation(3, 1, 1), StoredOperation(5, 1, 1)) == ""
    assert broken_by(StoredOperation(5, 1, 1), StoredOperation(5, 1, 1)) == RISING
    assert broken_by(StoredOperation(3, 1, 1)) == OPLOG  # the last one is missing
    assert broken_by(StoredOperation(5, 1, 2)) == OPLOG  # the log says that it was set
    assert broken_by(StoredOperation(5, 1, 1), StoredOperation(7, 1, 1)) == OPLOG  # not applied
    assert broken_by(StoredOperation(5, 2, 1)) == OPLOG  # of a key that is nowhere
    assert broken_by(StoredOperation(5, 1, 1), row=ROW._replace(key=b"other")) == OPLOG


def test_versions_rise_from_one_write_to_the_next() -> None:
    checks = TableChecks("t", lambda: False)
    above = checks.on_invoke(ClientOperation(1, 0, "k", OperationKind.PUT, b"1"))
    checks.on_written(0, "k", 7, b"1", above=above)
    above = checks.on_invoke(ClientOperation(2, 1, "k", OperationKind.PUT, b"2"))
    checks.look()
    checks.on_written(1, "k", 7, b"2", above=above)
    with pytest.raises(InvariantBroken, match=RISING):
        checks.look()


def test_watchers_see_the_values_that_clients_see() -> None:
    checks = TableChecks("t", lambda: False)
    checks.on_seen("k", 7, b"1")
    checks.on_read(0, "k", 7, b"1")
    checks.look()
    checks.on_seen("k", 7, b"2")
    with pytest.raises(InvariantBroken, match=WATCHED):
        checks.look()


def test_nothing_is_known_after_an_unclean_election() -> None:
    checks = TableChecks("t", lambda: True)
    checks.on_seen("k", 7, b"1")
    checks.on_seen("k", 7, b"2")
    checks.look()
    checks.at_end({})
