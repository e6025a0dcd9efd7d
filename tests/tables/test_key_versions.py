"""The last records of keys, those of the log's tail among them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bascule.model import Cleanup
from bascule.publish.preconditions import NO_KEY_OF_TABLE, UNKNOWN_VERSION
from bascule.record.batch import Record
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.tables import key_versions
from bascule.tables.key_versions import KeyVersions
from bascule.tables.log_rows import read_log_rows
from bascule.tables.table_file import TableFile
from bascule.wire.tables.keys import TableKeys
from support.served_stream import TIMESTAMP, append, open_stream

pytestmark = pytest.mark.tier2


class Log:
    """A stream that is a table, and a table's file that applies the log when it is told."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "t.db")
        self.file = TableFile(self.path, "t 0")
        partition = open_stream(directory, Partitions(), "t", segment_bytes_max=1_000)
        config = replace(partition.definition.config, cleanup=(Cleanup.COMPACT,), table=True)
        partition.configure(replace(partition.definition, config=config))
        self.partition: Partition = partition
        self.is_open = True
        self.versions = KeyVersions(
            lambda: self.partition, lambda: self.file if self.is_open else None
        )

    @property
    def end(self) -> int:
        assert self.partition.log is not None
        return self.partition.log.end.offset

    def put(self, *changes: tuple[bytes | None, bytes | None]) -> None:
        records = [Record(self.end + n, TIMESTAMP, *each, ()) for n, each in enumerate(changes)]
        append(self.partition, records)

    def apply(self, *, bytes_max: int = 1 << 20) -> None:
        store = self.partition.log
        assert store is not None
        keys = TableKeys(self.partition.definition.config)
        rows = read_log_rows(store, keys, self.file.position.offset, store.end, bytes_max=bytes_max)
        self.file.apply(rows, store.epochs.at(rows.end - 1))

    def find(self, *keys: bytes) -> list[tuple[int, bool]]:
        found = self.versions.find(list(keys), self.end)
        return [(found[2 * n], bool(found[2 * n + 1])) for n in range(len(keys))]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    found = Log(tmp_path)
    yield found
    found.file.close()
    assert found.partition.log is not None
    found.partition.log.close()


def test_the_table_and_the_tail_of_the_log_are_one(log: Log) -> None:
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    assert log.find(b"a") == [(0, True)]
    log.apply()
    log.put((b"b", None), (b"c", b"2"))
    log.put((b"d", b"1"), (None, b"no key"))
    assert log.find(b"a", b"b", b"c", b"d", b"e") == [
        (0, True), (3, False), (4, True), (5, True), (-1, False)
    ]  # fmt: skip
    assert log.find(b"", b"x" * 1025) == [(NO_KEY_OF_TABLE, False)] * 2


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_does_not_depend_on_what_the_table_has(
    seed: int, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_versions, "TRIM_KEYS", 4)
    chance = random.Random(seed)
    keys = [b"%d" % n for n in range(12)]
    model: dict[bytes, tuple[int, bool]] = {}
    for _ in range(120):
        step = chance.random()
        if step < 0.5:
            changes = [
                (chance.choice(keys), chance.choice([b"v", None]))
                for _ in range(chance.randint(1, 6))
            ]
            for n, (key, value) in enumerate(changes):
                model[key] = log.end + n, value is not None
            log.put(*changes)
        elif step < 0.7 and log.file.position.offset < log.end:
            log.apply(bytes_max=chance.choice([1, 200, 1 << 20]))
        elif step < 0.72:
            log.file.close()
            Path(log.path).unlink()
            log.file = TableFile(log.path, "t 0")
        elif step < 0.78:
            log.is_open = not log.is_open
        else:
            asked = chance.sample(keys, 5)
            assert log.find(*asked) == [model.get(key, (-1, False)) for key in asked]


def test_purged_records_have_no_value(log: Log) -> None:
    log.put((b"a", b"1"), (b"b", b"1"))
    log.apply()
    log.put((b"c", b"1"))
    assert log.partition.log is not None
    log.partition.log.advance_start(1, high_watermark=3)
    assert log.find(b"a", b"b", b"c") == [(0, False), (1, True), (2, True)]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_value_that_was_looked_for_before_it_was_purged_is_none(log: Log, is_open: bool) -> None:
    log.is_open = is_open
    log.put((b"a", b"1"), (b"b", b"1"))
    assert log.find(b"a", b"b") == [(0, True), (1, True)]
    assert log.partition.log is not None
    log.partition.log.advance_start(1, high_watermark=log.end)
    assert log.find(b"a", b"b") == [(0, False), (1, True)]


def test_a_log_answers_alone_until_the_table_is_open(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_versions, "BEHIND_RECORDS_MAX", 2)
    log.is_open = False
    log.put((b"a", b"1"), (b"b", None))
    assert log.find(b"a", b"b", b"c") == [(0, True), (1, False), (-1, False)]
    log.versions = KeyVersions(lambda: log.partition, lambda: None)
    log.put((b"a", b"2"))
    assert log.find(b"a") == [(UNKNOWN_VERSION, False)]


def test_a_table_that_opens_late_is_checked(log: Log) -> None:
    log.put((b"a", b"1"))
    log.put((b"b", b"2"))
    log.apply()
    log.is_open = False
    assert log.partition.log is not None
    log.partition.log.truncate_to(1, log.partition.leader_epoch + 1, high_watermark=1)
    log.partition.leader_epoch += 2
    assert log.find(b"a", b"b") == [(0, True), (-1, False)]
    log.is_open = True
    assert log.find(b"a", b"b") == [(UNKNOWN_VERSION, False)] * 2


def test_a_table_that_lags_behind_is_not_waited_for(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_versions, "BEHIND_RECORDS_MAX", 2)
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    assert log.find(b"a") == [(UNKNOWN_VERSION, False)]
    log.apply()
    assert log.find(b"a") == [(0, True)]
    log.put(*[(b"%d" % n, b"1") for n in range(2)])
    assert log.find(b"1") == [(4, True)]


def test_more_keys_than_are_remembered(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_versions, "TAIL_KEYS_MAX", 3)
    log.put(*[(b"%d" % n, b"1") for n in range(4)])
    assert log.find(b"1") == [(UNKNOWN_VERSION, False)]
    log.apply()
    assert log.find(b"1") == [(1, True)]


def test_without_a_table_no_version_is_known(log: Log) -> None:
    log.put((b"a", b"1"))
    log.file.close()
    assert log.find(b"other") == [(UNKNOWN_VERSION, False)]
    log.file = TableFile(log.path, "t 0")
    assert log.find(b"a") == [(0, True)]


def test_a_table_with_records_that_the_log_has_lost_is_not_believed(log: Log) -> None:
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.apply()
    assert log.find(b"a") == [(1, True)]
    assert log.partition.log is not None
    log.partition.log.truncate_to(1, log.partition.leader_epoch + 1, high_watermark=1)
    log.partition.leader_epoch += 2
    assert log.find(b"a") == [(UNKNOWN_VERSION, False)]
