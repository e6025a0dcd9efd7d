"""Crashes between any two steps of an archive, without Spark: each offset is there once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from bascule.errors import LakeConflict, MalformedValue
from bascule.pipeline.jobs.archive import malformed, task
from bascule.pipeline.jobs.archive.commit import (
    ArchiveCommitter,
    decode_task_output,
    encode_task_output,
)
from bascule.pipeline.jobs.archive.malformed import malformed_reasons
from bascule.pipeline.jobs.archive.plan import ArchiveRange, split_ranges
from bascule.pipeline.jobs.archive.task import ArchiveTaskSpec, archive_range
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, archive_schema
from bascule.pipeline.jobs.tables import TableSpec, ensure_table
from bascule.pipeline.lake.address import malformed_address
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.model import LakeCommit, LakeSnapshot, LakeTable, Span, SpanDigest
from bascule.pipeline.values.spec import ValueSpec
from bascule.record.columns import SCHEMA

VALUE = ValueSpec(format="json", schema="n bigint")


def is_bad(offset: int) -> bool:
    return offset % 7 == 3


def batch(partition: int, start: int, end: int) -> pa.RecordBatch:
    rows = [
        {
            "offset": offset,
            "partition": partition,
            "timestamp": offset * 1_000,
            "key": b"k%d" % (offset % 3),
            "value": b"no json" if is_bad(offset) else b'{"n": %d}' % offset,
            "subject": f"s.{offset % 2}",
            "headers": [],
        }
        for offset in range(start, end)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that holds what is asked for."""

    def read(
        server: str, stream: str, partition: int, start: int, end: int, *, retry_timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        for at in range(start, end, 5):
            yield batch(partition, at, min(at + 5, end))

    monkeypatch.setattr(task, "read_log", read)


@dataclass
class Tables:
    main: LakeTable
    side: LakeTable

    def work(self) -> ArchiveTaskSpec:
        return ArchiveTaskSpec("", "s", "ab", VALUE, False, self.main.writer(), self.side.writer())


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    address = TableSpec(location=str(tmp_path / "lake")).address()
    schema = archive_schema(VALUE.arrow_type(), raw=False)
    return Tables(
        ensure_table(address, schema), ensure_table(malformed_address(address), MALFORMED_SCHEMA)
    )


class Crash(Exception):
    """The process is gone."""


class Crashing:
    """A table whose commit may be the last thing a process does, or the one before."""

    def __init__(self, table: LakeTable, dice: random.Random) -> None:
        self._table, self._dice = table, dice

    def snapshot(self) -> LakeSnapshot | None:
        return self._table.snapshot()

    def commit(self, commit: LakeCommit) -> LakeSnapshot:
        if self._dice.random() < 0.4:
            raise Crash
        done = self._table.commit(commit)
        if self._dice.random() < 0.4:
            raise Crash
        return done


def offsets_of(table: LakeTable) -> list[tuple[int, int]]:
    snapshot = table.snapshot()
    if snapshot is None:
        return []
    rows = [
        row
        for rows in read_files(table.files(snapshot), table.schema)
        for row in rows.select(["partition", "offset"]).to_pylist()
    ]
    return [(row["partition"], row["offset"]) for row in rows]


def ends_of(table: LakeTable) -> dict[int, int]:
    snapshot = table.snapshot()
    return {} if snapshot is None else {p: end for p, (_, end) in snapshot.committed.items()}


@pytest.mark.parametrize("seed", range(4))
def test_crashes_leave_each_offset_once(tables: Tables, seed: int) -> None:
    dice = random.Random(seed)
    total = {0: 60, 1: 25, 2: 3}
    crashes = 0
    while ends_of(tables.main) != total:
        starts = {p: ends_of(tables.main).get(p, 0) for p in total}
        ends = {p: min(end, starts[p] + dice.randint(0, 30)) for p, end in total.items()}
        ranges = split_ranges(starts, ends, tasks=2, rows_min=4, side=ends_of(tables.side))
        written = [archive_range(tables.work(), piece) for piece in ranges]
        # As through Spark: text, and in the order in which tasks ended.
        texts = [encode_task_output(one) for one in written]
        dice.shuffle(texts)
        committer = ArchiveCommitter("s", Crashing(tables.main, dice), Crashing(tables.side, dice))  # type: ignore[arg-type]
        try:
            committer.commit(decode_task_output(text) for text in texts)
        except Crash:
            crashes += 1
    everything = [(p, n) for p, end in total.items() for n in range(end)]
    assert offsets_of(tables.main) == [(p, n) for p, n in everything if not is_bad(n)]
    assert offsets_of(tables.side) == [(p, n) for p, n in everything if is_bad(n)]
    assert sum(sum.rows for sum in tables.main.history()) == len(offsets_of(tables.main))
    assert crashes


def test_a_repeated_commit_changes_nothing(tables: Tables) -> None:
    written = [archive_range(tables.work(), ArchiveRange(0, 0, 20))]
    again = [archive_range(tables.work(), ArchiveRange(0, 0, 20))]
    committer = ArchiveCommitter("s", tables.main, tables.side)
    committer.commit(written)
    committer.commit(again)
    assert len(offsets_of(tables.main)) + len(offsets_of(tables.side)) == 20
    kept = {file.path for one in written for file in (*one.files, *one.malformed_files)}
    gone = {file.path for one in again for file in (*one.files, *one.malformed_files)}
    assert all(Path(path).exists() for path in kept)
    assert not any(Path(path).exists() for path in gone)


def test_reasons_of_malformed_records_are_counted(tables: Tables) -> None:
    committer = ArchiveCommitter("s", tables.main, tables.side)
    assert malformed_reasons(tables.side, {0: (0, 40)}) is None
    committer.commit([archive_range(tables.work(), ArchiveRange(0, 0, 20))])
    committer.commit([archive_range(tables.work(), ArchiveRange(0, 20, 40))])
    table = malformed_reasons(tables.side, {0: (0, 40)})
    assert table is not None
    ((count, reason, partition, offset),) = table.rows
    assert (count, partition, offset) == (sum(map(is_bad, range(40))), 0, 3)
    assert reason
    later = malformed_reasons(tables.side, {0: (20, 40), 1: (0, 9)})
    assert later is not None
    assert later.rows[0][0] == sum(map(is_bad, range(20, 40)))
    assert malformed_reasons(tables.side, {0: (4, 10)}) is None


def test_rare_reasons_are_counted_together(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malformed, "REASONS_MAX", 2)
    reasons = ["often"] * 5 + ["seldom"] * 2 + ["once", "once more"]
    rows = [{"reason": reason, "offset": n, "partition": 0} for n, reason in enumerate(reasons)]
    batch = pa.RecordBatch.from_pylist(rows, schema=MALFORMED_SCHEMA)
    writer = tables.side.writer().open(stream_partition=0)
    writer.write(batch)
    files = tuple(writer.finish())
    digest = SpanDigest(Span(0, 0, 9), 9, 0)
    tables.side.commit(LakeCommit(files, "s", "ab", (digest,)))
    table = malformed_reasons(tables.side, {0: (0, 9)})
    assert table is not None
    assert table.rows == (
        (5, "often", 0, 0), (2, "seldom", 0, 5), (2, "2 other reasons", "", ""),
    )  # fmt: skip


def test_a_gap_is_refused(tables: Tables) -> None:
    committer = ArchiveCommitter("s", tables.main, tables.side)
    committer.commit([archive_range(tables.work(), ArchiveRange(0, 0, 10))])
    with pytest.raises(LakeConflict, match="gap"):
        committer.commit([archive_range(tables.work(), ArchiveRange(0, 12, 20))])


def test_a_task_that_fails_leaves_no_file(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: object, retry_timeout_ms: int) -> Iterator[pa.RecordBatch]:
        yield batch(0, 0, 10)
        raise ConnectionError

    monkeypatch.setattr(task, "read_log", read)
    with pytest.raises(ConnectionError):
        archive_range(tables.work(), ArchiveRange(0, 0, 20))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_malformed_value_may_end_the_run(tables: Tables, tmp_path: Path) -> None:
    work = replace(tables.work(), value=replace(VALUE, mode="FAILFAST"))
    with pytest.raises(MalformedValue, match="offset 10 of stream 's' partition 0"):
        archive_range(work, ArchiveRange(0, 4, 20))
    assert list(tmp_path.rglob("*.parquet")) == []
