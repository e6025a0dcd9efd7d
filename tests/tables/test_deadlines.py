"""Which keys of a table are due, by its database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.tables.rows import Rows
from bascule.tables.table_file import TableFile

TTL_MS = 10_000
FOREVER = 0


@pytest.fixture
def file(tmp_path: Path) -> Iterator[TableFile]:
    file = TableFile(str(tmp_path / "0.db"), "t 0")
    yield file
    file.close()


def put(file: TableFile, *changes: tuple[bytes, int, bytes | None, int | None]) -> None:
    """Apply key, timestamp, value and time to live of each change."""
    start = file.position.offset
    rows = [
        (key, start + n, timestamp, value, None, ttl)
        for n, (key, timestamp, value, ttl) in enumerate(changes)
    ]
    file.apply(Rows(rows, start + len(rows), 0), 1)


def due(file: TableFile, now_ms: int, ttl_ms: int = 0) -> tuple[list[bytes], int | None]:
    found, first = file.expired(ttl_ms, now_ms, 10)
    return [each.key for each in found], first


def test_a_key_is_due_once_its_own_time_is_over(file: TableFile) -> None:
    put(file, (b"a", 1_000, b"", 5_000), (b"b", 1_000, b"", 2_000), (b"c", 0, b"", None))
    assert due(file, 2_999) == ([], 3_000)
    assert due(file, 3_000) == ([b"b"], 3_000)
    assert due(file, 9_000) == ([b"b", b"a"], 3_000)


def test_the_time_of_the_table_is_for_keys_without_their_own(file: TableFile) -> None:
    put(file, (b"a", 1_000, b"", None), (b"b", 2_000, b"", FOREVER), (b"c", 3_000, b"", 90_000))
    assert due(file, 80_000) == ([], 93_000)
    file.index_ages(TTL_MS)
    assert due(file, 10_999, TTL_MS) == ([], 11_000)
    assert due(file, 11_000, TTL_MS) == ([b"a"], 11_000)
    file.index_ages(TTL_MS)  # as after a restart
    file.index_ages(0)
    assert due(file, 80_000) == ([], 93_000)


def test_what_is_set_anew_or_removed_is_not_due(file: TableFile) -> None:
    file.index_ages(TTL_MS)
    put(file, (b"a", 1_000, b"", 5_000), (b"b", 1_000, b"", None), (b"c", 1_000, b"", 5_000))
    put(file, (b"a", 9_000, b"", 5_000), (b"b", 9_000, None, None), (b"c", 9_000, b"", FOREVER))
    assert due(file, 13_999, TTL_MS) == ([], 14_000)
    assert due(file, 14_000, TTL_MS) == ([b"a"], 14_000)


def test_no_more_than_asked_for_the_earliest_first(file: TableFile) -> None:
    file.index_ages(TTL_MS)
    put(file, *((b"%02d" % n, 1_000 - n, b"", 5_000) for n in range(10)), (b"old", 0, b"", None))
    found, first = file.expired(TTL_MS, 60_000, 3)
    assert [each.key for each in found] == [b"09", b"08", b"07"]
    assert first == 5_991
    assert found[0].version == 9
    found, _ = file.expired(TTL_MS, 60_000, 11)
    assert found[-1].key == b"old"


def test_purged_keys_are_given_up(file: TableFile) -> None:
    """Nothing is left to remove of them; they must not be found again and again."""
    file.index_ages(TTL_MS)
    put(file, (b"a", 0, b"", 2_000), (b"b", 0, b"", None), (b"c", 1_000, b"", None))
    found, _ = file.expired(TTL_MS, 60_000, 10, oldest=2)
    assert [each.key for each in found] == [b"c"]
    assert due(file, 60_000, TTL_MS) == ([b"c"], 11_000)


def test_the_lookups_use_the_indexes(file: TableFile) -> None:
    """A table of many keys is not read through every time one may be due."""
    from bascule.tables.ageing import deadlines

    file.index_ages(TTL_MS)
    with file._reading() as reader:
        for statement, variables in (
            (deadlines._EXPIRED_OWN, (0, 1)),
            (deadlines._EXPIRED_OF_TABLE, (0, 1)),
        ):
            plan = [row[3] for row in reader.execute("explain query plan " + statement, variables)]
            assert len(plan) == 1, plan
            assert plan[0].startswith("SEARCH entries USING")
