"""Pages of changes from the file of a table and its oplog: paging, crashes, damage."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import Indeterminate, LogFailed
from bascule.host.api import Files
from bascule.host.real import RealFiles, RealRandom
from bascule.sim.disk import SimFiles
from bascule.tables import table_file
from bascule.tables.oplog import changes, oplog_file
from bascule.tables.oplog.changes import Bounds
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.rows import Row, Rows, TablePosition
from bascule.tables.table_file import TableFile
from support.table_followers import TableFollower

EVERY = Bounds(1_000_000, 1 << 40, 0)


@dataclass
class TableModel:
    """A table, the log that it is fed from, and where it is."""

    directory: Path
    files: Files = field(default_factory=RealFiles)
    bytes_max: int = 8 * 6_400
    log: list[tuple[bytes, int, int, bytes | None, str | None, int | None]] = field(
        default_factory=list
    )
    """All records; the offset is the place."""
    file: TableFile = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        oplog = Oplog(self.files, f"{self.directory}/0.oplog", table=7, bytes_max=self.bytes_max)
        self.file = TableFile(str(self.directory / "0.db"), "t 0", oplog)

    def put(self, *changes: tuple[bytes, bytes | None]) -> None:
        self.log += [
            (key, len(self.log) + n, 5, value, None, None) for n, (key, value) in enumerate(changes)
        ]

    def apply(self, count: int = 1 << 30, missing: int = 0) -> None:
        """Apply the next `count` records."""
        start = self.file.position.offset
        end = min(start + count, len(self.log))
        if end > start:
            self.file.apply(Rows(self.log[start:end], end, 0, missing), 1)

    def values(self, end: int) -> dict[bytes, bytes | None]:
        latest = {key: value for key, _, _, value, _, _ in self.log[:end]}
        return {key: value for key, value in latest.items() if value is not None}


@pytest.fixture
def table(tmp_path: Path) -> TableModel:
    return TableModel(tmp_path)


def changed(table: TableModel, since: int, bounds: Bounds = EVERY) -> list[tuple[bytes, int]]:
    page = table.file.changes(since, None, bounds)
    assert not page.is_full
    return [(row.key, row.version) for row in page.rows]


def test_the_last_state_of_each_key_in_the_order_of_versions(table: TableModel) -> None:
    table.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"a", b"4"), (b"b", None))
    table.apply(3)
    table.apply()
    page = table.file.changes(1, None, EVERY)
    assert page.rows == [Row(b"c", 2, 5, b"3"), Row(b"a", 3, 5, b"4"), Row(b"b", 4, 5, None)]
    assert (page.position, page.is_full, page.next_after) == (5, False, None)
    assert changed(table, 4) == [(b"b", 4)]
    assert changed(table, 5) == []
    with pytest.raises(Indeterminate, match="at offset 5, not 6"):
        table.file.changes(6, None, EVERY)


def test_all_pages_have_content_types(table: TableModel) -> None:
    table.put((b"a", b"1"), (b"b", b"2"), (b"a", None))
    table.log[1:] = [(b"b", 1, 5, b"2", "text/plain", None), (b"a", 2, 5, None, "PURGE", None)]
    table.apply()
    latest = [Row(b"b", 1, 5, b"2", "text/plain"), Row(b"a", 2, 5, None, "PURGE")]
    assert table.file.changes(1, None, EVERY).rows == latest
    full = table.file.changes(0, None, EVERY)
    assert full.is_full
    assert full.rows == [latest[0]]


def test_pages_have_at_most_so_many_rows_and_bytes(table: TableModel) -> None:
    table.put(*[(b"%03d" % (n % 40), b"x" * (n % 90)) for n in range(400)])
    table.apply()
    latest = [(b"%03d" % n, 360 + n) for n in range(40)]
    for rows_max, bytes_max in ((1, 1 << 20), (7, 1 << 20), (40, 1 << 20), (99, 1), (99, 200)):
        since, got = 1, []
        while True:
            page = table.file.changes(since, None, Bounds(rows_max, bytes_max, 0))
            size = sum(len(r.key + (r.value or b"")) + changes.ROW_BYTES for r in page.rows)
            assert len(page.rows) <= rows_max
            assert size <= bytes_max or len(page.rows) == 1
            got += [(row.key, row.version) for row in page.rows]
            since = page.position
            if not page.rows:
                break
        assert got == latest
        assert since == 400


def test_full_pages_go_on_after_a_key(table: TableModel) -> None:
    table.put(*[(b"%02d" % n, b"x") for n in range(20)], (b"03", None))
    table.apply()
    follower = TableFollower()
    assert follower.page_of(table.file, rows_max=5)
    assert follower.after == b"05"
    table.put((b"01", b"new"), (b"19", None), (b"99", b"x"), (b"06", b"y"))
    table.apply()
    follower.catch_up(table.file, rows_max=5)
    assert follower.values() == table.values(25)
    assert follower.full_pages == 4


def test_what_was_purged_is_left_out(table: TableModel) -> None:
    table.put(*[(b"%d" % n, b"x") for n in range(10)])
    table.apply()
    assert changed(table, 2, Bounds(3, 1 << 20, 5)) == [(b"5", 5), (b"6", 6), (b"7", 7)]
    page = table.file.changes(0, None, Bounds(3, 1 << 20, 5))
    assert [row.key for row in page.rows] == [b"5", b"6", b"7"]
    assert changed(table, 2, Bounds(3, 1 << 20, 10)) == []


def test_more_keys_than_are_remembered(table: TableModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PLAN_KEYS_MAX", 10)
    monkeypatch.setattr(changes, "PLANS_MAX", 2)
    table.put((b"x", b"x"), *[(b"%03d" % (n % 100), b"%d" % n) for n in range(300)])
    table.apply()
    followers = [TableFollower(position=1) for _ in range(4)]
    more = True
    while more:
        answers = [each.page_of(table.file, rows_max=3) for each in followers]
        more = any(answers)
        table.put((b"%03d" % (len(table.log) % 7), b"later"))
        if len(table.log) < 330:
            table.apply()
    for each in followers:
        assert each.full_pages == 0
        assert {**each.values(), b"x": b"x"} == table.values(table.file.position.offset)


def test_a_key_that_changed_long_before_all_others(
    table: TableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oplog is read until all keys of the table are found, and no further."""
    monkeypatch.setattr(oplog_file, "READ_BLOCKS", 1)
    busy = [(b"%d" % (n % 9), b"x") for n in range(1_000)]
    table.put((b"first", b"1"), (b"rare", b"1"), *busy)
    table.apply()
    assert changed(table, 1) == [
        (b"rare", 1),
        *((b"%d" % (n % 9), 2 + n) for n in range(991, 1_000)),
    ]
    (path,) = (table.directory / "0.oplog").iterdir()
    data = bytearray(path.read_bytes())
    data[48 + 6_400 + 1_000] ^= 1  # in the second block
    path.write_bytes(data)
    table.put((b"first", b"2"), (b"rare", b"2"))
    table.apply()
    assert len(changed(table, 1)) == 11
    assert not table.file.is_oplog_damaged


def test_a_log_with_gaps_makes_a_new_oplog(table: TableModel) -> None:
    """Compaction may have removed what removed a key, and a reader from before would keep it."""
    table.put(*[(b"%d" % n, b"x") for n in range(10)])
    table.apply(4)
    table.apply(2, missing=1)
    assert table.file.changes(6, None, EVERY).rows == []
    assert table.file.changes(5, None, EVERY).is_full
    table.apply(2)
    assert changed(table, 6) == [(b"6", 6), (b"7", 7)]
    assert table.file.changes(5, None, EVERY).is_full
    table.file.close()
    table.open()
    assert changed(table, 7) == [(b"7", 7)]


def test_a_table_without_an_oplog_has_full_pages(tmp_path: Path) -> None:
    file = TableFile(str(tmp_path / "0.db"), "t 0")
    file.apply(Rows([(b"a", 0, 5, b"1", None, None)], 1, 0), 1)
    file.apply(Rows([(b"a", 1, 5, b"1", None, None)], 2, 0), 1)
    assert file.changes(1, None, EVERY).is_full
    assert not file.changes(2, None, EVERY).is_full
    file.close()


def test_a_damaged_oplog_is_begun_anew(table: TableModel, caplog: pytest.LogCaptureFixture) -> None:
    table.put(*[(b"%d" % (n % 9), b"x") for n in range(300)])
    table.apply()
    (path,) = (table.directory / "0.oplog").iterdir()
    data = bytearray(path.read_bytes())
    data[1_000] ^= 1
    path.write_bytes(data)
    assert table.file.changes(200, None, EVERY).is_full
    assert table.file.is_oplog_damaged
    table.file.mend_oplog()
    assert "oplog of a table begun anew" in caplog.text
    assert not table.file.is_oplog_damaged
    assert table.file.changes(299, None, EVERY).is_full
    table.put((b"1", b"y"))
    table.apply()
    assert changed(table, 300) == [(b"1", 300)]


def test_an_operation_that_is_not_that_of_its_row_is_damage(table: TableModel) -> None:
    """As of an oplog that is beside another database."""
    table.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    table.apply()
    table.file._writer.execute("update entries set version = 0 where key = ?", (b"b",))
    assert table.file.changes(1, None, EVERY).is_full
    assert table.file.is_oplog_damaged


def test_a_table_goes_on_while_its_oplog_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = SimFiles(RealRandom(1))
    table = TableModel(tmp_path, files)
    table.put(*[(b"%d" % (n % 9), b"x") for n in range(100)])
    table.apply(50)
    for _ in range(3):
        files.fail(1, 28)
        table.apply(5)
        assert table.file.changes(40, None, EVERY).is_full
    assert caplog.text.count("oplog of a table cannot be written") == 1
    table.apply(5)
    assert changed(table, 68) == [(b"5", 68), (b"6", 69)]
    assert table.file.changes(64, None, EVERY).is_full


def test_a_transaction_that_fails_is_none_in_the_oplog(table: TableModel) -> None:
    table.put(*[(b"%d" % n, b"x") for n in range(20)])
    table.apply(10)
    broken = [*table.log[10:12], (None, 12, 5, b"", None, None)]
    with pytest.raises(Exception, match="NOT NULL"):
        table.file.apply(Rows(broken, 13, 0), 1)  # type: ignore[arg-type]
    assert changed(table, 8) == [(b"8", 8), (b"9", 9)]
    table.apply()
    assert changed(table, 9) == [(b"%d" % n, n) for n in range(9, 20)]


def test_operations_of_a_transaction_that_does_not_commit_are_cut(
    table: TableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.put(*[(b"%d" % n, b"x") for n in range(600)])
    table.apply(300)
    with monkeypatch.context() as patch:
        patch.setattr(table_file, "_POSITION", "update none set a = ?, b = ?, c = ?, d = ?, e = ?")
        for _ in range(2):
            with pytest.raises(LogFailed, match="no such table"):
                table.apply(290)
    assert changed(table, 298) == [(b"298", 298), (b"299", 299)]
    table.apply()
    assert changed(table, 298) == [(b"%d" % n, n) for n in range(298, 600)]


steps = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "apply", "apply", "page", "page", "page", "new", "reopen")),
        st.integers(0, 60),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 1000))
@settings(max_examples=60)
def test_a_follower_misses_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], seed: int
) -> None:
    table = TableModel(tmp_path_factory.mktemp("changes"))
    random = Random(seed)
    followers = [TableFollower()]
    for step, number in steps:
        if step == "put":
            table.put(*[random_change(random) for _ in range(number)])
        elif step == "apply":
            table.apply(number)
        elif step == "page":
            followers[number % len(followers)].page_of(table.file, rows_max=1 + number % 9)
        elif step == "new":
            followers.append(TableFollower())
        else:
            table.file.close()
            table.open()
    table.apply()
    for each in followers:
        each.catch_up(table.file)
        assert each.values() == table.values(len(table.log))
    table.file.close()


def random_change(random: Random) -> tuple[bytes, bytes | None]:
    key = b"%d" % min(random.randint(0, 60), random.randint(0, 60))
    return key, None if random.random() < 0.2 else b"%d" % random.randint(0, 1 << 30)


def sqlite_copy(file: TableFile) -> bytes:
    data: bytes = file._writer.serialize()
    return data


@pytest.mark.parametrize("seed", range(40))
def test_a_follower_misses_nothing_whatever_a_crash_leaves(tmp_path: Path, seed: int) -> None:
    """The database stands at one of the last transactions; the oplog keeps what the disk has."""
    random = Random(seed)
    files = SimFiles(RealRandom(seed))
    table = TableModel(tmp_path, files, bytes_max=random.choice((20_000, 100_000)))
    followers = [TableFollower() for _ in range(3)]
    for _ in range(8):
        copies = [sqlite_copy(table.file)]
        for _ in range(random.randint(1, 8)):
            table.put(*[random_change(random) for _ in range(random.choice((1, 9, 90)))])
            table.apply(random.choice((1, 50, 1_000)))
            copies = [*copies[-2:], sqlite_copy(table.file)]
            for each in followers:
                # One that is ahead of a table that was set back waits for it.
                if each.position <= table.file.position.offset and random.random() < 0.4:
                    each.page_of(table.file, rows_max=random.choice((1, 5, 50)))
        what = random.choice(("kill", "kill", "power", "damage"))
        if what == "power":
            files.crash()
        elif what == "damage":
            flip_a_bit(files, f"{tmp_path}/0.oplog", random)
        table.file.close()
        for path in tmp_path.glob("0.db*"):
            path.unlink()
        (tmp_path / "0.db").write_bytes(random.choice(copies[-1:] * 2 + copies))
        table.open()
        if what == "damage" and table.file.is_oplog_damaged:
            table.file.mend_oplog()
    table.apply()
    for each in followers:
        each.catch_up(table.file, rows_max=7)
        assert each.values() == table.values(len(table.log))
    table.file.close()


def flip_a_bit(files: SimFiles, directory: str, random: Random) -> None:
    names = files.list_dir(directory) if files.exists(directory) else []
    if names:
        path = f"{directory}/{random.choice(names)}"
        at = random.randrange(files.size(path))
        byte = files.read_bytes(path)[at]
        files.open(path).write_at(at, bytes([byte ^ 1 << random.randrange(8)]))


def test_an_oplog_that_is_gone_or_of_another_time_is_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = TableModel(tmp_path)
    table.put(*[(b"%d" % n, b"x") for n in range(10)])
    table.apply(5)
    shutil.copytree(tmp_path / "0.oplog", tmp_path / "earlier")
    table.apply(3)
    table.file.close()
    shutil.rmtree(tmp_path / "0.oplog")
    (tmp_path / "earlier").rename(tmp_path / "0.oplog")
    table.open()
    assert "oplog of a table completed from its rows" in caplog.text
    assert changed(table, 2) == [(b"%d" % n, n) for n in range(2, 8)]
    table.file.close()
    shutil.rmtree(tmp_path / "0.oplog")
    table.open()
    assert "oplog of a table begun anew" in caplog.text
    assert table.file.changes(7, None, EVERY).is_full
    assert changed(table, 8) == []


def test_a_disk_without_the_directory_fails_as_before(tmp_path: Path) -> None:
    with pytest.raises(LogFailed):
        TableModel(tmp_path / "none")


def test_each_full_page_says_what_the_table_stood_at_when_it_was_read(table: TableModel) -> None:
    """A later one may lack what has changed since the first, which its position does not show."""
    table.put(*[(b"%02d" % n, b"x") for n in range(9)])
    table.apply()
    found: list[tuple[int, TablePosition]] = []
    position, after = 0, None
    while not found or after is not None:
        page = table.file.changes(position, after, Bounds(3, 1 << 20, 0))
        position, after = page.position, page.next_after
        found.append((position, page.read_at))
        table.put((b"08", b"new"))
        table.apply()
    first, *later = range(9, 9 + len(found))
    assert found == [(first, TablePosition(each, 1)) for each in (first, *later)]
    assert later
