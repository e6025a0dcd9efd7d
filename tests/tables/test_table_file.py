"""The file of a table: rows and position in one transaction, damage, restarts."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import CorruptData, LimitExceeded, LogFailed
from bascule.storage.epochs import Epoch, LeaderEpochs
from bascule.table_results import TableKey
from bascule.tables import key_ranges
from bascule.tables.key_ranges import PageRange
from bascule.tables.key_state import KeyPart
from bascule.tables.oplog.changes import Bounds
from bascule.tables.rows import Row, Rows
from bascule.tables.table_file import TableFile, TablePosition
from bascule.wire.tables.patterns import KeyPattern


def open_file(path: Path, partition: str = "t 0") -> TableFile:
    return TableFile(str(path / "0.db"), partition)


def rows(*changes: tuple[bytes, bytes | None], start: int = 0) -> Rows:
    every = [(key, start + n, 1_000, value, None, None) for n, (key, value) in enumerate(changes)]
    return Rows(every, start + len(changes), 0)


def test_rows_and_position_are_there_after_a_restart(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    assert file.position == TablePosition(0, -1)
    file.apply(rows((b"a", b"1"), (b"b", b"2"), (b"a", b"3")), 4)
    file.apply(rows((b"b", None), start=3), 5)
    file.close()
    file = open_file(tmp_path)
    assert file.position == TablePosition(4, 5)
    assert file.get([b"a", b"b", b"c"]) == {
        b"a": Row(b"a", 2, 1_000, b"3"),
        b"b": Row(b"b", 3, 1_000, None),
    }
    assert file.count() == 1
    file.close()


@given(
    st.lists(st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=9)), max_size=20),
    st.lists(st.binary(max_size=2), min_size=1, max_size=9),
    st.integers(1, 20),
)
def test_keys_are_read_at_once_as_otherwise(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[bytes, bytes | None]],
    keys: list[bytes],
    bytes_max: int,
) -> None:
    file = open_file(tmp_path_factory.mktemp("now"))
    file.apply(rows(*changes), 0)
    found = file.read_now(keys, bytes_max)
    try:
        position, wanted = file.read(list(dict.fromkeys(keys)), bytes_max=bytes_max)
    except LimitExceeded:
        assert found is None
    else:
        if found is not None:
            assert found[0] == position
            assert {row[0]: Row(*row) for row in found[1] if row[0] is not None} == wanted
        else:
            assert len(keys) > 1
            assert sum(len(row.value or b"") for row in wanted.values()) > bytes_max
    file.close()


def test_one_key_is_read_while_a_transaction_ends(tmp_path: Path) -> None:
    """The row may be of a transaction that the position in memory does not have yet."""
    file = open_file(tmp_path)
    file.apply(rows((b"a", b"1")), 0)
    before = file.position
    file.apply(rows((b"b", b"2"), (b"a", b"3"), (b"c", b"4"), start=1), 0)
    file.position = before
    found = file.read_now([b"a"], 1)
    assert found is not None
    assert (found[0], found[1][0][1:4:2]) == (3, (2, b"3")), "the position behind the row"
    assert file.read_now([b"z"], 1) == (1, [])
    file.close()


def on_disk(path: Path) -> tuple[int, list[bytes]]:
    """Position and keys of what a loss of power leaves at least: the file without its log."""
    copy = path / "copy"
    copy.mkdir()
    (copy / "0.db").write_bytes((path / "0.db").read_bytes())
    file = open_file(copy)
    found = file.position.offset, [row.key for row in file.scan(b"", None, 10, bytes_max=1 << 20)]
    file.close()
    shutil.rmtree(copy)
    return found


def test_what_is_synced_survives_a_loss_of_power(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows((b"a", b"1"), (b"b", b"1")), 0)
    assert file.synced == 0
    assert on_disk(tmp_path) == (0, [])
    file.sync()
    assert file.synced == 2
    assert on_disk(tmp_path) == (2, [b"a", b"b"])
    file.apply(rows((b"a", None), start=2), 0)
    assert (file.synced, on_disk(tmp_path)) == (2, (2, [b"a", b"b"]))
    file.sync()
    assert (file.synced, on_disk(tmp_path)) == (3, (3, [b"b"]))
    file.close()
    file = open_file(tmp_path)
    assert file.synced == 0, "whether it was is not known"
    file.sync()
    assert file.synced == 3
    file.close()


def test_a_sync_waits_for_no_reader_and_does_not_say_more_than_is_true(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows((b"a", b"1")), 0)
    with file._reading() as reader:
        assert reader.execute("select count(*) from entries").fetchone() == (1,)
        file.apply(rows((b"b", b"1"), start=1), 0)
        file.sync()
        assert file.synced == 0
    file.sync()
    assert (file.synced, on_disk(tmp_path)) == (2, (2, [b"a", b"b"]))
    file.close()


def test_rows_that_fail_leave_nothing(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows((b"a", b"1")), 0)
    broken = Rows([(b"b", 1, 1_000, b"2", None, None), (None, 2, 1_000, b"3", None, None)], 3, 0)  # type: ignore[list-item]
    with pytest.raises(CorruptData):
        file.apply(broken, 0)
    assert file.position == TablePosition(1, 0)
    assert file.get([b"b"]) == {}
    file.apply(rows((b"c", b"4"), start=1), 0)
    assert [row.key for row in file.scan(b"", None, 10, bytes_max=1 << 20)] == [b"a", b"c"]
    file.close()


@given(
    st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=30),
    st.binary(max_size=2),
    st.none() | st.binary(max_size=2),
    st.integers(1, 5),
    st.integers(0, 30),
)
def test_scans_are_those_of_a_sorted_dict(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[bytes, bytes | None]],
    first: bytes,
    end: bytes | None,
    limit: int,
    oldest: int,
) -> None:
    file = open_file(tmp_path_factory.mktemp("scan"))
    file.apply(rows(*changes), 0)
    latest = {key: (n, value) for n, (key, value) in enumerate(changes)}
    present = {k: v for k, v in latest.items() if v[1] is not None and v[0] >= oldest}
    wanted = [
        Row(key, *[present[key][0], 1_000, present[key][1]])
        for key in sorted(present)
        if key >= first and (end is None or key < end)
    ]
    assert file.scan(first, end, limit, oldest=oldest, bytes_max=1 << 20) == wanted[:limit]
    assert file.count(oldest=oldest) == len(present)
    file.close()


def test_pages_have_the_keys_that_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "SCANNED_KEYS", 4)
    file = open_file(tmp_path)
    keys = [b"k.%d.%s" % (n, b"a" if n in (1, 2, 7, 8) else b"b") for n in range(10)]
    file.apply(rows(*[(key, key) for key in keys], (keys[3], None)), 0)
    found = file.get(keys)
    asked = PageRange(b"")
    first = [found[key] for key in keys[:3]]
    assert file.page(asked, 3, bytes_max=1_000) == (11, first, keys[2])
    assert file.page(asked, 3, bytes_max=10) == (11, first[:2], keys[1])
    assert file.page(asked, 3, bytes_max=1) == (11, first[:1], keys[0])
    position, heads, after = file.key_page(asked, 3)
    assert (position, [head.key for head in heads], after) == (11, keys[:3], keys[2])
    assert heads[0] == TableKey(keys[0], 0, 1_000, len(keys[0]))

    def pages(limit: int, pattern: bytes) -> tuple[list[bytes], list[int]]:
        seen: list[bytes] = []
        sizes, first = [], keys[1]
        while True:
            asked = PageRange(first, keys[9], KeyPattern(pattern))
            _, page, after = file.page(asked, limit, bytes_max=1_000)
            assert file.key_page(asked, limit)[2] == after
            seen += [row.key for row in page]
            sizes.append(len(page))
            if after is None:
                return seen, sizes
            first = after + b"\0"

    wanted = [keys[n] for n in (1, 2, 7, 8)]
    assert pages(2, b"k.*.a") == (wanted, [2, 2])
    assert pages(1, b"*.*.a") == (wanted, [1, 1, 1, 1])
    assert pages(3, b"k.*.c") == ([], [0, 0])
    assert pages(3, b"k.*.b") == ([keys[n] for n in (4, 5, 6)], [2, 1])
    file.close()


def test_values_that_are_too_large_together_are_not_read(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows((b"a", bytes(6)), (b"b", bytes(5)), (b"gone", None)), 0)
    assert len(file.read([b"a", b"b", b"gone"], bytes_max=11)[1]) == 3
    assert len(file.read([b"a"], bytes_max=1)[1]) == 1
    with pytest.raises(LimitExceeded, match="is 10, asked for 11"):
        file.read([b"a", b"b"], bytes_max=10)
    file.close()


def test_more_keys_than_one_statement_takes(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    keys = [b"%04d" % n for n in range(2_500)]
    file.apply(rows(*[(key, key) for key in keys]), 0)
    assert list(file.get(keys)) == keys
    file.close()


def test_a_file_of_another_partition_or_format_is_refused(tmp_path: Path) -> None:
    open_file(tmp_path).close()
    with pytest.raises(CorruptData, match=r"format 4 of u 0, found \(4, 't 0'"):
        open_file(tmp_path, "u 0")


@pytest.mark.parametrize("at", [0, 20, 4_096])
def test_a_damaged_file_is_refused(tmp_path: Path, at: int) -> None:
    file = open_file(tmp_path)
    file.apply(rows(*[(b"%d" % n, b"x" * 50) for n in range(1_000)]), 0)
    file.close()
    path = tmp_path / "0.db"
    data = bytearray(path.read_bytes())
    data[at : at + 100] = b"?" * 100
    path.write_bytes(data)
    with pytest.raises(CorruptData):
        damaged = open_file(tmp_path)
        try:
            damaged.scan(b"", None, 10_000, bytes_max=1 << 20)
        finally:
            damaged.close()


def test_a_directory_that_is_not_there_is_a_failure_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(LogFailed):
        open_file(tmp_path / "nowhere")


class SlowValue:
    """A value that SQLite gets when it is let."""

    def __init__(self) -> None:
        self.asked, self.let = threading.Event(), threading.Event()

    def __conform__(self, _: object) -> bytes:
        self.asked.set()
        self.let.wait(10)
        return b"1"


def test_a_file_is_not_closed_under_who_writes(tmp_path: Path) -> None:
    """As when a node stops: the task that applies is cancelled, its thread goes on."""
    file = open_file(tmp_path)
    slow = SlowValue()
    with ThreadPoolExecutor(2) as pool:
        applied = pool.submit(file.apply, rows((b"a", slow)), 0)  # type: ignore[arg-type]
        assert slow.asked.wait(10)
        closed = pool.submit(file.close)
        for _ in range(1_000):
            if closed.done():
                break
            os.sched_yield()
        assert not closed.done()
        slow.let.set()
        applied.result(10)
        closed.result(10)
    with pytest.raises(LogFailed, match="closed"):
        file.apply(rows((b"a", b"1"), start=1), 0)
    with pytest.raises(LogFailed, match="closed"):
        file.get([b"a"])
    with pytest.raises(LogFailed, match="closed"):
        file.changes(1, None, Bounds(1, 1, 0))
    file = open_file(tmp_path)
    assert file.position.offset == 1
    file.close()


def test_keys_are_read_while_pages_and_states_are(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows((b"k.a", b"1"), (b"k.b", b"2")), 0)
    found = []

    class Reading(KeyPattern):
        def matches(self, key: bytes) -> bool:
            found.append(file.get([key])[key].value)
            return super().matches(key)

    pattern = Reading(b"k.*")

    def read() -> None:
        file.page(PageRange(b"", pattern=pattern), 10, bytes_max=100)
        file.key_page(PageRange(b"", pattern=pattern), 10)
        file.state([pattern], oldest=0, below=10)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(20)
    assert found == [b"1", b"2"] * 3
    file.close()


def test_pages_are_read_while_a_state_is(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows((b"k.a", b"1"), (b"k.b", b"2")), 0)
    found = []

    class Reading(KeyPattern):
        def matches(self, key: bytes) -> bool:
            found.append(len(file.scan(b"", None, 10, bytes_max=1 << 20)))
            return super().matches(key)

    thread = threading.Thread(
        target=lambda: file.state([Reading(b">")], oldest=0, below=10), daemon=True
    )
    thread.start()
    thread.join(20)
    assert found == [2, 2]
    file.close()


def test_a_state_is_by_version_and_leaves_out_what_has_changed(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    changes = [(b"k.%d" % n, b"%d" % n) for n in range(6)]
    file.apply(rows(*changes, (b"k.0", b"6"), (b"k.1", None), (b"other", b"8")), 0)
    patterns = [KeyPattern(b"k.*")]
    state = file.state(patterns, oldest=3, below=7)
    assert len(state) == 4
    file.apply(rows((b"k.4", b"9"), start=9), 0)
    parts = list(state.pages(2))
    found = [row for part in parts for row in file.rows_of(part, bytes_max=1 << 20)[0]]
    assert [(row.version, row.key) for row in found] == [(3, b"k.3"), (5, b"k.5"), (6, b"k.0")]
    assert len(file.state([KeyPattern(b"k.2")], oldest=0, below=10)) == 1
    assert len(file.state([KeyPattern(b"k.2"), KeyPattern(b"other")], oldest=0, below=10)) == 2
    file.close()


def test_pages_of_values_have_a_bound_in_bytes(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows(*((b"k.%d" % n, b"x" * 100) for n in range(6))), 0)
    assert [row.key for row in file.scan(b"", None, 10, bytes_max=250)] == [b"k.0", b"k.1", b"k.2"]
    assert [row.key for row in file.scan(b"k.3", None, 10, bytes_max=1)] == [b"k.3"]
    part: KeyPart | None = next(file.state([KeyPattern(b">")], oldest=0, below=10).pages(10))
    counts = []
    while part is not None:
        found, part = file.rows_of(part, bytes_max=250)
        counts.append(len(found))
    assert counts == [2, 2, 2]
    file.close()


def test_a_state_may_have_keys_that_were_removed_lately(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    found = [
        (b"a", 0, 100, None, None, None),
        (b"b", 1, 200, None, "PURGE", None),
        (b"c", 2, 201, None, "FORGOTTEN", None),
        (b"d", 3, 100, b"v", None, None),
        (b"e", 4, 202, None, None, None),
    ]
    file.apply(Rows(found, 5, 0), 0)

    def shown(removed_since: int | None) -> list[bytes]:
        state = file.state([KeyPattern(b">")], oldest=0, below=10, removed_since=removed_since)
        parts = state.pages(10)
        return [row.key for part in parts for row in file.rows_of(part, bytes_max=1 << 20)[0]]

    assert shown(None) == [b"d"]
    assert shown(200) == [b"b", b"d", b"e"]
    assert shown(0) == [b"a", b"b", b"d", b"e"]
    file.close()


def test_a_file_is_closed_once_a_state_is_read(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.apply(rows((b"a", b"1")), 0)
    began, goes_on, order = threading.Event(), threading.Event(), []

    class Waiting(KeyPattern):
        def matches(self, key: bytes) -> bool:
            began.set()
            assert goes_on.wait(20)
            order.append("read")
            return True

    with ThreadPoolExecutor(2) as pool:
        state = pool.submit(file.state, [Waiting(b">")], oldest=0, below=9)
        assert began.wait(20)
        closed = pool.submit(lambda: (file.close(), order.append("closed")))
        goes_on.set()
        assert len(state.result(20)) == 1
        closed.result(20)
    assert order == ["read", "closed"]
    with pytest.raises(LogFailed):
        file.count()


def test_epochs_of_the_log_beyond_the_position_are_not_those_of_the_table(tmp_path: Path) -> None:
    """The log may lose those records before the table gets to them."""
    file = open_file(tmp_path)
    file.apply(rows((b"a", b"1"), (b"b", b"2")), 1)
    file.begin_epochs(LeaderEpochs((Epoch(1, 0), Epoch(5, 2))))
    assert [file.epoch_of(offset) for offset in (0, 1)] == [1, 1]
    file.apply(rows((b"c", b"3"), start=2)._replace(epochs=(Epoch(3, 2),)), 3)
    assert [file.epoch_of(offset) for offset in (0, 1, 2)] == [1, 1, 3]
    file.close()


def test_each_record_has_the_epoch_that_was_applied(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    some = rows(*[(b"%d" % n, b"x") for n in range(5)])
    file.apply(some._replace(epochs=(Epoch(1, 0), Epoch(4, 2), Epoch(6, 4))), 6)
    assert [file.epoch_of(offset) for offset in range(5)] == [1, 1, 4, 4, 6]
    file.close()
