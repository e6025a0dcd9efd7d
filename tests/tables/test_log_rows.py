"""Reading the rows of a table from a log that loses records meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bascule.errors import CorruptData
from bascule.record.batch import Record
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.tables import log_rows
from bascule.tables.log_rows import apply_log_rows, is_beyond, read_log_rows
from bascule.tables.rows import Rows, TablePosition
from bascule.tables.table_file import TableFile
from bascule.wire.tables.keys import TableKeys
from support.served_stream import TIMESTAMP, append
from support.tables_harness import TablesHarness


@pytest.mark.parametrize("loss", ["before the read", "after the read"])
def test_nothing_is_applied_of_a_log_that_was_truncated_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """What was read may be lost records, or lack those that have come in their place."""
    harness = TablesHarness(tmp_path)
    partition, epoch = harness.partition, harness.partition.leader_epoch
    store = partition.log
    assert store is not None
    file = TableFile(str(tmp_path / "0.db"), "t 0")
    keys = TableKeys(partition.definition.config)

    def apply() -> Rows | None:
        version, end = store.truncation_version, store.end
        return apply_log_rows(file, store, keys, end, version, bytes_max=1 << 20)

    def lose_last_record() -> None:
        harness.lose_from(1, epoch=epoch + 1)
        append(partition, [Record(1, TIMESTAMP, b"a", b"3", ())])

    def read(
        log: PartitionLog, keys: TableKeys, start: int, end: LogPosition, *, bytes_max: int
    ) -> Rows:
        if loss == "before the read":
            lose_last_record()
        found = read_log_rows(log, keys, start, end, bytes_max=bytes_max)
        if loss == "after the read":
            lose_last_record()
        return found

    harness.put((b"k", b"1"))
    assert apply() is not None
    harness.put((b"a", b"2"))
    with monkeypatch.context() as patched:
        patched.setattr(log_rows, "read_log_rows", read)
        assert apply() is None
    assert file.position == TablePosition(1, epoch)
    assert apply() is not None
    assert file.position == TablePosition(2, epoch + 2)
    assert file.get([b"a"])[b"a"].value == b"3"
    assert [file.epoch_of(offset) for offset in (0, 1)] == [epoch, epoch + 2]
    file.close()
    store.close()


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("has_others", [False, True])
@pytest.mark.parametrize("when", ["before the plan", "before the bytes"])
def test_a_truncation_during_the_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, has_others: bool, when: str
) -> None:
    """The end that was looked up is beyond the log then, or its bytes are gone or of others."""
    harness = TablesHarness(tmp_path)
    partition, epoch = harness.partition, harness.partition.leader_epoch
    store = partition.log
    assert store is not None
    file = TableFile(str(tmp_path / "0.db"), "t 0")
    keys = TableKeys(partition.definition.config)
    plan_read = PartitionLog.plan_read

    def apply() -> Rows | None:
        version, end = store.truncation_version, store.end
        return apply_log_rows(file, store, keys, end, version, bytes_max=1 << 20)

    def lose() -> None:
        harness.lose_from(left, epoch=epoch + 1)
        if has_others:
            append(partition, [Record(left, TIMESTAMP, b"a", b"3" * 40, ())])

    def plan(log: PartitionLog, start: int, **chosen: Any) -> Any:
        monkeypatch.undo()
        if when == "before the plan":
            lose()
        found = plan_read(log, start, **chosen)
        if when == "before the bytes":
            lose()
        return found

    harness.put((b"k", b"1"))
    harness.put((b"l", b"1"))
    assert apply() is not None
    harness.put((b"a", b"2"))
    harness.put((b"b", b"2"))
    monkeypatch.setattr(PartitionLog, "plan_read", plan)
    assert apply() is None
    assert file.position == TablePosition(2, epoch)
    file.close()
    store.close()


def test_damage_without_a_truncation_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = TablesHarness(tmp_path)
    store = harness.partition.log
    assert store is not None
    file = TableFile(str(tmp_path / "0.db"), "t 0")
    keys = TableKeys(harness.partition.definition.config)
    harness.put((b"k", b"1"))

    def fail(log: PartitionLog, start: int, **chosen: Any) -> Any:
        raise CorruptData("a segment", 0, "a batch", "none")

    monkeypatch.setattr(PartitionLog, "plan_read", fail)
    with pytest.raises(CorruptData):
        version = store.truncation_version
        apply_log_rows(file, store, keys, store.end, version, bytes_max=1 << 20)
    file.close()
    store.close()


def test_a_table_knows_the_epochs_of_what_it_has_applied(tmp_path: Path) -> None:
    """Also once the log has lost it: with the epoch of what the log has now it would take that for
    what it has applied."""
    harness = TablesHarness(tmp_path)
    partition, epoch = harness.partition, harness.partition.leader_epoch
    store = partition.log
    assert store is not None
    file = TableFile(str(tmp_path / "0.db"), "t 0")
    harness.put((b"k", b"1"), (b"a", b"2"))
    keys, version = TableKeys(partition.definition.config), store.truncation_version
    assert apply_log_rows(file, store, keys, store.end, version, bytes_max=1 << 20) is not None
    harness.take_role(leads=False, epoch=epoch + 1, unclean_epoch=epoch + 1)
    partition.truncate_replicated(0)
    assert file.position == TablePosition(2, epoch)
    assert is_beyond(file.position, store)
    assert file.epoch_of(1) == epoch
    file.close()
    store.close()
