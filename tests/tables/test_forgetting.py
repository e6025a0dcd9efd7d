"""Rows that nobody needs any more are deleted, and whoever may miss one is told everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.host.real import RealFiles
from bascule.tables.ageing import forgotten
from bascule.tables.ageing.forgotten import ForgetLimits, Forgotten
from bascule.tables.oplog import oplog_file
from bascule.tables.oplog.changes import Bounds
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.rows import Rows
from bascule.tables.table_file import TableFile
from support.table_followers import TableFollower

LATER = 1 << 60
EVERY = Bounds(1_000_000, 1 << 40, 0)
OPLOG_BYTES = 8 * 6_400
"""Eight files of 255 operations."""


class Table:
    """A table and its oplog; the timestamp of a record is its offset."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open()

    def open(self) -> None:
        self.oplog = Oplog(
            RealFiles(), str(self.directory / "0.oplog"), table=7, bytes_max=OPLOG_BYTES
        )
        self.file = TableFile(str(self.directory / "0.db"), "t 0", self.oplog)

    def put(self, *changes: tuple[bytes, bytes | None]) -> None:
        start = self.file.position.offset
        rows = [
            (key, start + n, start + n, value, None, None) for n, (key, value) in enumerate(changes)
        ]
        self.file.apply(Rows(rows, start + len(rows), 0), 1)

    def fill_oplog(self) -> None:
        """The oplog has no operation from before any more."""
        for _ in range(30):
            self.put(*[(b"busy", b"%d" % n) for n in range(100)])

    def forget(
        self, *, oldest: int = 0, removed_before: int = LATER, rows_max: int = 1_000
    ) -> list[Forgotten]:
        walk, found = None, []
        while not found or not found[-1].is_done:
            limits = ForgetLimits(oldest, removed_before)
            found.append(self.file.forget(limits, walk, rows_max))
            walk = found[-1].walk
        return found

    def stored(self) -> dict[bytes, tuple[int, int, bytes | None]]:
        """Key -> id, version, value."""
        with self.file._reading() as reader:
            rows = reader.execute("select key, id, version, value from entries order by id")
            return {row[0]: row[1:] for row in rows}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def rows_of(found: list[Forgotten]) -> int:
    return sum(each.rows for each in found)


def test_removed_keys_go_once_the_oplog_does_not_name_them(table: Table) -> None:
    for n in range(100):
        table.put((b"token.%d" % n, b"x"), (b"token.%d" % n, None))
    table.put((b"kept", b"1"))
    assert rows_of(table.forget()) == 0
    table.fill_oplog()
    assert table.oplog.first > 201
    assert rows_of(table.forget()) == 100
    assert sorted(table.stored()) == [b"busy", b"kept"]
    assert rows_of(table.forget()) == 0


def test_rows_that_are_gone_hide_no_change(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows says how many keys the oplog may name."""
    monkeypatch.setattr(oplog_file, "READ_BLOCKS", 1)
    for n in range(9):
        table.put((b"token.%d" % n, b"x"), (b"token.%d" % n, None))
    table.fill_oplog()
    assert rows_of(table.forget()) == 9
    since = table.file.position.offset
    table.put((b"rare", b"1"))
    for n in range(800):
        table.put((b"busy", b"%d" % n))
    page = table.file.changes(since, None, EVERY)
    assert not page.is_full
    assert [row.key for row in page.rows] == [b"rare", b"busy"]


def test_removed_keys_stay_as_long_as_they_are_shown(table: Table) -> None:
    table.put((b"a", b"1"), (b"a", None), (b"b", b"1"), (b"b", None), (b"c", b"1"))
    table.fill_oplog()
    (found,) = table.forget(removed_before=3)
    assert (found.rows, found.due_ms) == (1, 3)
    assert sorted(table.stored()) == [b"b", b"busy", b"c"]
    (found,) = table.forget(removed_before=4)
    assert (found.rows, found.due_ms) == (1, None)


def put_secrets(table: Table) -> None:
    """51 records that are in the file of the database, and one behind them."""
    secret = b"secret-" * 20
    large = b"confidential-" * 5_000
    table.put(*[(b"private.%d" % n, secret) for n in range(50)], (b"large", large))
    table.put((b"kept", b"1"))
    table.file.sync()
    assert secrets(table.directory / "0.db")


def secrets(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [each for each in (b"secret-", b"confidential-", b"private.") if each in data]


def test_purged_values_are_in_the_files_no_more(table: Table) -> None:
    """Also while nothing else is written, and the table is open."""
    put_secrets(table)
    table.forget(oldest=51)
    assert sorted(table.stored()) == [b"kept"]
    for name in ("0.db", "0.db-wal"):
        assert not secrets(table.directory / name)


def test_what_is_applied_after_a_walk_is_forgotten_too(table: Table) -> None:
    """The start of the log may be beyond what a replica has applied: records that it has read
    before they were purged come to keys that the walk has passed."""
    table.put((b"a", b"1"), (b"b", b"1"))
    (found,) = table.forget(oldest=4)
    assert (found.rows, found.is_done) == (1, True)
    table.put((b"c", b"1"), (b"b", b"2"))
    table.put((b"kept", b"1"))
    table.forget(oldest=4)
    assert sorted(table.stored()) == [b"kept"]


@pytest.mark.parametrize("begins_anew", [False, True])
def test_purged_values_are_overwritten_once_nobody_reads_them(
    table: Table, begins_anew: bool
) -> None:
    """Also by a process that does not know where the one before has come to."""
    put_secrets(table)
    limits, walk = ForgetLimits(51, LATER), None
    with table.file._apart() as reader:
        assert reader.execute("select count(*) from entries").fetchone() == (52,)
        for _ in range(3):
            found = table.file.forget(limits, walk, 1_000)
            walk = found.walk
            assert (found.is_done, found.has_to_wait) == (False, True)
            table.put((b"kept", b"2"))  # nobody waits for the reader
        assert sorted(table.stored()) == [b"kept"]
        assert secrets(table.directory / "0.db")
    walk = None if begins_anew else walk
    found = table.file.forget(limits, walk, 1_000)
    assert (found.is_done, found.has_to_wait) == (True, False)
    for name in ("0.db", "0.db-wal"):
        assert not secrets(table.directory / name)


def test_a_transaction_deletes_few_bytes(table: Table) -> None:
    """The zeros that are written over large values go through the write-ahead log."""
    for n in range(40):
        table.put((b"k%d" % n, b"x" * (1 << 20)))
    table.put((b"kept", b"1"))
    found, log = [], table.directory / "0.db-wal"
    while not found or not found[-1].is_done:
        walk = found[-1].walk if found else None
        found.append(table.file.forget(ForgetLimits(40, LATER), walk, 1_000))
        assert log.stat().st_size < 24 << 20
    assert rows_of(found) == 40
    assert max(each.rows for each in found) < 5
    assert sorted(table.stored()) == [b"kept"]


def test_a_value_of_more_bytes_is_deleted_alone(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, "BYTES_AT_ONCE", 100)
    sizes = 10, 200, 40, 40, 300, 300, 1, 1
    table.put(*[(b"%d" % n, b"x" * size) for n, size in enumerate(sizes)], (b"kept", b"1"))
    found = table.forget(oldest=8)
    assert [each.rows for each in found if each.rows] == [1, 1, 2, 1, 1, 2]
    assert sorted(table.stored()) == [b"kept"]


def test_the_last_row_goes_only_once_there_is_another_one(table: Table) -> None:
    table.put((b"a", b"1"), (b"b", b"2"))
    table.forget(oldest=2)
    assert table.stored() == {b"b": (2, 1, None)}
    assert table.file.get([b"b"])[b"b"].content_type == "FORGOTTEN"
    assert rows_of(table.forget(oldest=2)) == 0
    table.put((b"c", b"3"))
    assert table.stored()[b"c"] == (3, 2, b"3")
    table.forget(oldest=2)
    assert table.stored() == {b"c": (3, 2, b"3")}
    table.forget(oldest=3)
    table.file.close()
    table.open()
    table.put((b"d", b"4"), (b"a", b"5"))
    assert [row[0] for row in table.stored().values()] == [3, 4, 5]


def test_a_key_that_was_forgotten_is_a_new_one(table: Table) -> None:
    table.put((b"a", b"1"), (b"a", None), (b"b", b"1"))
    table.fill_oplog()
    table.forget()
    assert list(table.file.versions([b"a"])) == []
    table.put((b"a", b"2"))
    assert table.stored()[b"a"][0] == 4
    page = table.file.changes(table.file.position.offset - 1, None, EVERY)
    assert [(row.key, row.value) for row in page.rows] == [(b"a", b"2")]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_reader_from_before_what_was_forgotten_gets_all_rows(
    table: Table, is_restarted: bool
) -> None:
    """Purged rows are deleted while the oplog names them."""
    table.put((b"a", b"1"), (b"b", b"2"), (b"b", None), (b"c", b"3"))
    early, late = TableFollower(), TableFollower()
    early.catch_up(table.file)
    table.put((b"a", b"4"), (b"c", None))
    late.catch_up(table.file)
    table.put((b"d", b"5"))
    assert (early.position, late.position) == (4, 6)
    before = early.full_pages, late.full_pages
    table.forget(oldest=6)
    if is_restarted:
        table.file.close()
        table.open()
    early.catch_up(table.file)
    late.catch_up(table.file)
    assert (early.full_pages, late.full_pages) == (before[0] + 1, before[1])
    assert sorted(early.rows) == [b"d"]
    assert not table.file.is_oplog_damaged


def test_a_reader_whose_pages_were_planned_gets_all_rows(table: Table) -> None:
    """The plan of the pages to come names rows that are deleted meanwhile."""
    table.put((b"x", b"0"))
    follower = TableFollower()
    follower.catch_up(table.file)
    table.put(*[(b"k%d" % n, b"1") for n in range(9)], *[(b"k%d" % n, None) for n in range(8)])
    assert follower.page_of(table.file, rows_max=2)
    table.fill_oplog()
    table.forget()
    follower.catch_up(table.file, rows_max=2)
    assert not table.file.is_oplog_damaged
    assert sorted(follower.rows) == [b"busy", b"k8", b"x"]


def test_the_rest_of_an_oplog_is_made_up_from_the_rows_that_are_left(table: Table) -> None:
    """After a power loss that the oplog's end was lost in."""
    table.put(*[(b"k%d" % n, b"1") for n in range(600)])
    table.put(*[(b"k%d" % n, None) for n in range(100)])
    table.forget(oldest=650)
    table.put((b"new", b"1"))
    table.file.close()
    (path,) = sorted((table.directory / "0.oplog").iterdir())[-1:]
    path.write_bytes(path.read_bytes()[:-700])
    table.open()
    assert table.file.changes(649, None, EVERY).is_full
    page = table.file.changes(650, None, EVERY)
    assert not page.is_full
    assert [row.version for row in page.rows] == [*range(650, 701)]
    assert not table.file.is_oplog_damaged


def test_little_is_forgotten_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgotten, "WALKED_ROWS", 7)
    table.put(*[(b"k%02d" % n, b"1") for n in range(60)])
    table.put(*[(b"k%02d" % n, None) for n in range(0, 60, 3)])
    table.put(*[(b"k%02d" % n, b"2") for n in range(1, 60, 3)])
    table.fill_oplog()
    found = table.forget(oldest=60, rows_max=3)
    assert rows_of(found) == 40
    assert max(each.rows for each in found) <= 3
    assert sorted(table.stored()) == [b"busy", *[b"k%02d" % n for n in range(1, 60, 3)]]
    (again,) = table.forget(oldest=60)
    assert again.rows == 0


def test_a_row_that_is_written_meanwhile_stays(table: Table) -> None:
    table.put((b"a", b"1"), (b"a", None), (b"b", b"1"), (b"b", None), (b"c", b"1"))
    with table.file._scanning() as reader:
        found = forgotten.find_forgettable(
            reader,
            ForgetLimits(0, LATER),
            None,
            position=table.file.position.offset,
            named_from=LATER,
            rows_max=9,
        )
    table.put((b"a", b"2"))
    assert found.remove(table.file._writer).rows == 1
    assert {key: row[2] for key, row in table.stored().items()} == {b"a": b"2", b"c": b"1"}


def test_keys_are_counted_without_reading_them(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bascule.tables import table_file

    monkeypatch.setattr(table_file, "COUNTED_KEYS", 10)
    for n in range(30):
        table.put((b"once.%d" % n, b"x"), (b"once.%d" % n, None))
    table.put(*[(b"k%d" % n, b"1") for n in range(12)])
    assert table.file.count_quickly() == 12
    assert table.file.at_version(71) is None
    table.fill_oplog()
    table.forget()
    assert table.file.count_quickly() == table.file.count() == 13


def test_what_is_looked_for_is_in_an_index(table: Table) -> None:
    with table.file._reading() as reader:
        for statement, variables in (
            (forgotten._PURGED, (0, 9, 9, 9)),
            (forgotten._REMOVALS, (9, 9, 9)),
        ):
            plan = [row[3] for row in reader.execute("explain query plan " + statement, variables)]
            assert len(plan) == 1, plan
            assert plan[0].startswith("SEARCH entries USING"), plan
        assert "COVERING INDEX removals" in plan[0]
        plan = [row[3] for row in reader.execute("explain query plan " + forgotten._COUNT)]
        assert "COVERING INDEX removals" in plan[0]
