"""What a lake table promises, on every format."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from bascule.errors import (
    ConfigError,
    LakeConflict,
    TableExists,
    UnknownSnapshot,
    UnknownTable,
)
from bascule.pipeline.lake import (
    LakeCommit,
    Span,
    SpanChecksum,
    SpanDigest,
    open_or_create,
    open_table,
    read_files,
)
from support.lake_rows import (
    SCHEMA,
    SPAN,
    STEPS,
    Lake,
    archive_elsewhere,
    commit_of,
    data_files,
    offsets_in,
    records,
    rows_of,
    summed,
    written,
)


def test_a_new_table_is_empty(lake: Lake) -> None:
    made = lake.create(["day(timestamp)"])
    for table in (made, open_table(lake.address())):
        assert table.snapshot() is None
        assert table.history() == []
        assert table.schema.equals(SCHEMA)
        assert table.partitioning == ("day(timestamp)",)


def test_rows_come_back_as_they_were(lake: Lake) -> None:
    table = lake.create()
    batch = records(2, 100, 150)
    snapshot = table.commit(commit_of(table, batch))
    again = open_table(lake.address())
    assert again.snapshot() == table.snapshot() == snapshot
    assert snapshot.stream == "flights"
    assert snapshot.stream_id == "ab12"
    assert snapshot.committed == {2: (100, 150)}
    assert snapshot.rows == 50
    assert rows_of(again).equals(pa.Table.from_batches([batch]))
    assert again.history() == [summed(batch)]


def test_files_say_what_they_hold(lake: Lake) -> None:
    table = lake.create(["hour(timestamp)", "subject"])
    table.commit(commit_of(table, records(0, 0, 90), records(1, 0, 30)))
    snapshot = table.snapshot()
    assert snapshot is not None
    files = open_table(lake.address()).files(snapshot)
    assert len(files) == 9
    assert [file.span.partition for file in files if file.span] == [0] * 6 + [1] * 3
    assert sum(file.rows for file in files) == 120
    assert snapshot.rows == 120
    assert snapshot.bytes == sum(file.bytes for file in files)
    for file in files:
        hour, subject = dict(file.partition_values).values()
        assert hour in ("2026-11-21-12", "2026-11-21-13")
        read = pa.Table.from_batches(read_files([file], SCHEMA))
        assert file.span is not None
        assert set(read["subject"].to_pylist()) == {subject}
        assert set(read["partition"].to_pylist()) == {file.span.partition}
        offsets = read["offset"].to_pylist()
        assert offsets == sorted(offsets)
        assert (offsets[0], offsets[-1] + 1) == (file.span.start, file.span.end)
        bounds = {each.path: (each.low, each.high) for each in file.bounds}
        assert bounds["offset"] == (offsets[0], offsets[-1])
        times = read["timestamp"].cast(pa.int64()).to_pylist()
        assert bounds["timestamp"] == (times[0], times[-1])


def test_a_repeated_commit_changes_nothing(lake: Lake) -> None:
    table = lake.create()
    first = table.commit(commit_of(table, records(0, 0, 20), records(1, 5, 9)))
    held = data_files(lake.folder)
    again = open_table(lake.address()).commit(commit_of(table, records(0, 0, 20), records(1, 5, 9)))
    assert again == first
    assert data_files(lake.folder) == held, "its files are gone"
    part = table.commit(commit_of(table, records(0, 3, 17)))
    assert part == first
    assert data_files(lake.folder) == held
    assert offsets_in(table) == {0: [*range(20)], 1: [*range(5, 9)]}


def test_the_same_files_committed_again_stay(lake: Lake) -> None:
    """The answer of the first commit was lost: its files must not be taken for a repetition's."""
    table = lake.create()
    commit = commit_of(table, records(0, 0, 20))
    first = table.commit(commit)
    assert table.commit(commit) == first
    table.compact(file_bytes=1 << 20)
    table.commit(commit)
    assert offsets_in(table) == {0: [*range(20)]}
    assert offsets_in(table, first.id) == {0: [*range(20)]}


def test_spans_that_follow_are_added(lake: Lake) -> None:
    table = lake.create()
    for start in range(0, 50, 10):
        snapshot = table.commit(commit_of(table, records(0, start, start + 10)))
        assert snapshot.committed == {0: (0, start + 10)}
    assert offsets_in(table) == {0: [*range(50)]}
    assert [each.span for each in table.history()] == [Span(0, n, n + 10) for n in range(0, 50, 10)]


def test_what_is_held_is_left_out_of_a_commit_that_also_adds(lake: Lake) -> None:
    table = lake.create()
    table.commit(commit_of(table, records(0, 0, 20)))
    held = data_files(lake.folder)
    table.commit(commit_of(table, records(0, 10, 20), records(1, 0, 5), records(0, 20, 30)))
    assert offsets_in(table) == {0: [*range(30)], 1: [*range(5)]}
    assert len(data_files(lake.folder) - held) == 2
    assert [each.span for each in table.history()] == [
        Span(0, 0, 20),
        Span(0, 20, 30),
        Span(1, 0, 5),
    ]


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        (21, 30, "leave a gap"),
        (19, 30, "overlap"),
        (5, 15, "overlap"),
        (5, 30, "overlap"),
        (0, 10, "lie before"),
    ],
)
def test_a_gap_or_a_partial_overlap_is_refused(lake: Lake, start: int, end: int, why: str) -> None:
    table = lake.create()
    first = table.commit(commit_of(table, records(0, 10, 20)))
    with pytest.raises(LakeConflict, match=why) as caught:
        table.commit(commit_of(table, records(1, 0, 5), records(0, start, end)))
    assert str(lake.address()) in str(caught.value)
    assert table.snapshot() == first


def test_another_stream_is_refused(lake: Lake) -> None:
    table = lake.create()
    first = table.commit(commit_of(table, records(0, 0, 20)))
    for start in (0, 20):
        batch = records(0, start, start + 20)
        with pytest.raises(LakeConflict, match="created again"):
            table.commit(commit_of(table, batch, stream_id="cd34"))
    assert table.snapshot() == first


def test_a_table_made_for_a_stream_refuses_another_from_the_start(lake: Lake) -> None:
    table = lake.create(stream="flights", stream_id="ab12")
    for each in (table, open_table(lake.address())):
        with pytest.raises(LakeConflict, match="id cd34"):
            each.commit(commit_of(table, records(0, 0, 20), stream_id="cd34"))
    table.commit(commit_of(table, records(0, 0, 20)))


def test_spans_without_records_are_kept(lake: Lake) -> None:
    """Of a compacted log, or one whose records expired before they were archived."""
    table = lake.create()
    nothing = SpanDigest(Span(0, 0, 100), 0, 0)
    snapshot = table.commit(LakeCommit((), "flights", "ab12", (nothing,)))
    assert snapshot.committed == {0: (0, 100)}
    table.commit(commit_of(table, records(0, 100, 110)))
    sparse = records(0, 110, 150).take(pa.array([3, 17, 39]))
    files = written(table, sparse)
    table.commit(
        LakeCommit(
            tuple(files), "flights", "ab12", (replace(summed(sparse), span=Span(0, 110, 160)),)
        )
    )
    assert offsets_in(table) == {0: [*range(100, 110), 113, 127, 149]}
    last = open_table(lake.address()).snapshot()
    assert last is not None
    assert last.committed == {0: (0, 160)}
    assert [each.rows for each in table.history()] == [0, 10, 3]


def test_a_commit_of_nothing(lake: Lake) -> None:
    table = lake.create()
    before = table.commit(LakeCommit((), "flights", "ab12", ()))
    assert before.committed == {}
    assert table.snapshot() is None
    first = table.commit(commit_of(table, records(0, 0, 5)))
    empty = SpanDigest(Span(1, 7, 7), 0, 0)
    assert table.commit(LakeCommit((), "flights", "ab12", (empty,))) == first


def test_tokens_make_a_batch_harmless_to_repeat(lake: Lake) -> None:
    schema = pa.schema([("carrier", pa.string()), ("flights", pa.int64())])
    table = lake.create(["carrier"], schema=schema)

    def commit(writer: str, batch: int, carrier: str) -> None:
        rows = pa.RecordBatch.from_pylist([{"carrier": carrier, "flights": batch}], schema)
        opened = table.writer().open()
        opened.write(rows)
        table.commit(LakeCommit(tuple(opened.finish()), token=(writer, batch)))

    for writer, batch, carrier in [
        ("rollup", 0, "AA"),
        ("rollup", 0, "AA"),
        ("rollup", 1, "UA"),
        ("other", 0, "DL"),
        ("rollup", 0, "AA"),
        ("rollup", 1, "UA"),
        ("rollup", 5, "AA"),
    ]:
        commit(writer, batch, carrier)
    found = sorted((row["carrier"], row["flights"]) for row in rows_of(table).to_pylist())
    assert found == [("AA", 0), ("AA", 5), ("DL", 0), ("UA", 1)]
    assert len(data_files(lake.folder)) == 4
    assert table.history() == []


def test_a_batch_may_replace_all_there_was(lake: Lake) -> None:
    schema = pa.schema([("carrier", pa.string()), ("flights", pa.int64())])
    table = lake.create(["carrier"], schema=schema)

    def replace(batch: int, carriers: list[str]) -> None:
        opened = table.writer().open()
        for carrier in carriers:
            row = {"carrier": carrier, "flights": batch}
            opened.write(pa.RecordBatch.from_pylist([row], schema))
        table.commit(LakeCommit(tuple(opened.finish()), token=("latest", batch), replaces=True))

    for batch, carriers, held in [
        (0, ["AA", "UA"], [("AA", 0), ("UA", 0)]),
        (1, ["UA", "DL"], [("DL", 1), ("UA", 1)]),
        (1, ["NK"], [("DL", 1), ("UA", 1)]),
        (2, [], []),
        (3, ["B6"], [("B6", 3)]),
    ]:
        replace(batch, carriers)
        found = sorted((row["carrier"], row["flights"]) for row in rows_of(table).to_pylist())
        assert found == held
        snapshot = table.snapshot()
        assert snapshot is not None
        assert snapshot.rows == len(held)


def test_time_travel(lake: Lake) -> None:
    table = lake.create()
    ids = [
        table.commit(commit_of(table, records(0, start, start + 10))).id for start in (0, 10, 20)
    ]
    for number, id in enumerate(ids):
        snapshot = table.snapshot(id)
        assert snapshot is not None
        assert snapshot.committed == {0: (0, 10 * number + 10)}
        assert offsets_in(open_table(lake.address()), id) == {0: [*range(10 * number + 10)]}
    times = [table.snapshot(id).committed_ms for id in ids]  # type: ignore[union-attr]
    assert times == sorted(times)
    for id in ("999", "no such", "", "-1", "0"):
        with pytest.raises(UnknownSnapshot):
            table.snapshot(id)


def test_files_that_are_not_committed_are_not_in_the_table(lake: Lake) -> None:
    """A writer that was killed between its files and their commit."""
    table = lake.create(["day(timestamp)"])
    first = table.commit(commit_of(table, records(0, 0, 10)))
    orphans = written(table, records(0, 10, 20))
    assert open_table(lake.address()).snapshot() == first
    assert offsets_in(table) == {0: [*range(10)]}
    table.commit(commit_of(table, records(0, 10, 20)))
    assert offsets_in(table) == {0: [*range(20)]}
    gone = table.expire(older_than_ms=2**52, keep=2)
    assert gone.files == len(orphans) == 1
    assert gone.bytes == orphans[0].bytes
    assert offsets_in(table) == {0: [*range(20)]}


def test_expiry_leaves_what_is_young(lake: Lake) -> None:
    table = lake.create()
    for start in (0, 10, 20):
        table.commit(commit_of(table, records(0, start, start + 10)))
    running = written(table, records(0, 30, 40))
    gone = table.expire(older_than_ms=0)
    assert (gone.snapshots, gone.files, gone.bytes) == (0, 0, 0)
    table.commit(LakeCommit(tuple(running), "flights", "ab12", (summed(records(0, 30, 40)),)))
    assert offsets_in(table) == {0: [*range(40)]}


def test_expiry_forgets_snapshots_and_keeps_the_table(lake: Lake) -> None:
    table = lake.create()
    ids = [
        table.commit(commit_of(table, records(0, start, start + 10))).id
        for start in range(0, 70, 10)
    ]
    before = table.snapshot()
    gone = open_table(lake.address()).expire(older_than_ms=2**52, keep=1)
    assert gone.files == 0, "every file is in the newest snapshot"
    assert gone.snapshots >= 6
    for each in (table, open_table(lake.address())):
        after = each.snapshot()
        assert after is not None
        assert before is not None
        assert after.number >= before.number
        same = replace(after, id=before.id, number=before.number, committed_ms=before.committed_ms)
        assert same == before
        assert offsets_in(each) == {0: [*range(70)]}
        with pytest.raises(UnknownSnapshot):
            each.snapshot(ids[0])
    table.commit(commit_of(table, records(0, 70, 80)))
    assert offsets_in(open_table(lake.address())) == {0: [*range(80)]}


def test_compaction_keeps_rows_order_and_spans(lake: Lake) -> None:
    table = lake.create(["hour(timestamp)", "subject"])
    for start in range(0, 120, 15):
        table.commit(commit_of(table, records(0, start, start + 15), records(1, start, start + 15)))
    before, rows, history = table.snapshot(), rows_of(table), table.history()
    assert before is not None
    assert len(table.files(before)) == 48
    done = open_table(lake.address()).compact(file_bytes=1 << 20)
    assert (done.files_before, done.files_after) == (48, 12)
    assert done.bytes_after < done.bytes_before
    after = table.snapshot()
    assert after is not None
    assert after.id != before.id
    assert after.committed == before.committed
    assert after.stream_id == before.stream_id
    assert after.rows == before.rows
    files = table.files(after)
    assert len(files) == 12
    assert after.bytes == sum(file.bytes for file in files)
    assert rows_of(table).equals(rows)
    assert table.history() == history
    assert offsets_in(table, before.id) == offsets_in(table)
    table.commit(commit_of(table, records(0, 120, 130)))
    assert table.compact(file_bytes=1).files_before == 0, "nothing is small enough to join"
    gone = table.expire(older_than_ms=2**52)
    assert gone.files == 48
    assert len(data_files(lake.folder)) == len(table.files(table.snapshot()))  # type: ignore[arg-type]
    assert offsets_in(open_table(lake.address())) == {0: [*range(130)], 1: [*range(120)]}


def test_a_repetition_after_compaction_is_still_one(lake: Lake) -> None:
    table = lake.create()
    for start in (0, 10):
        table.commit(commit_of(table, records(0, start, start + 10)))
    table.compact(file_bytes=1 << 20)
    table.expire(older_than_ms=2**52)
    again = open_table(lake.address())
    again.commit(commit_of(again, records(0, 10, 20)))
    with pytest.raises(LakeConflict, match="gap"):
        again.commit(commit_of(again, records(0, 21, 30)))
    assert offsets_in(again) == {0: [*range(20)]}


def test_typed_values(lake: Lake) -> None:
    value = pa.struct(
        [
            ("carrier", pa.string()),
            ("delay", pa.int32()),
            ("speed", pa.float64()),
            ("late", pa.bool_()),
            ("day", pa.date32()),
            ("fare", pa.decimal128(10, 2)),
            ("legs", pa.list_(pa.struct([("to", pa.string()), ("km", pa.int64())]))),
            ("tags", pa.map_(pa.string(), pa.string())),
        ]
    )
    schema = SCHEMA.set(1, pa.field("value", value))
    table = lake.create(["value.carrier", "month(value.day)"], schema=schema)
    base = records(0, 0, 60).drop_columns(["value"])
    values = [
        None
        if n % 7 == 0
        else {
            "carrier": None if n % 11 == 0 else ("AA", "U A/%")[n % 2],
            "delay": n - 20,
            "speed": n / 3,
            "late": n % 2 == 0,
            "day": 20_000 + n,
            "legs": [{"to": "SFO", "km": n}] * (n % 3),
            "tags": [("a", str(n))] * (n % 2),
        }
        for n in range(60)
    ]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(values, value) if name == "value" else base.column(name)
            for name in schema.names
        ],
        schema=schema,
    )
    digests = summed(batch)
    table.commit(commit_of(table, batch))
    again = open_table(lake.address())
    assert again.schema.equals(schema)
    assert rows_of(again, schema).equals(pa.Table.from_batches([batch]))
    checksum = SpanChecksum()
    snapshot = again.snapshot()
    assert snapshot is not None
    for read in read_files(again.files(snapshot), schema, batch_rows=7):
        checksum.update(read)
    assert (checksum.rows, checksum.value) == (digests.rows, digests.crc)
    carriers = {dict(file.partition_values)["value_carrier"] for file in again.files(snapshot)}
    assert carriers == {"AA", "U A/%", None}
    again.compact(file_bytes=1 << 20)
    assert rows_of(again, schema).equals(pa.Table.from_batches([batch]))


@pytest.mark.parametrize(
    ("partitioning", "why"),
    [
        (["bucket(16, key)"], "bucket is not supported"),
        (["truncate(subject, 3)"], "truncate is not supported"),
        (["day(subject)"], "not a time"),
        (["value"], "of type binary"),
        (["nothing"], "no column 'nothing'"),
        (["week(timestamp)"], "not one of year"),
        (["day(timestamp)", "day(timestamp)"], "twice"),
        (["day timestamp"], "expected a column"),
    ],
)
def test_a_partitioning_that_cannot_be(lake: Lake, partitioning: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        lake.create(partitioning)
    with pytest.raises(UnknownTable):
        open_table(lake.address())


def test_tables_are_made_once(lake: Lake) -> None:
    with pytest.raises(UnknownTable):
        open_table(lake.address())
    made = open_or_create(lake.address(), SCHEMA, ["day(timestamp)"])
    with pytest.raises(TableExists):
        lake.create()
    made.commit(commit_of(made, records(0, 0, 5)))
    again = open_or_create(lake.address(), SCHEMA, ["day( timestamp )"])
    assert again.snapshot() == made.snapshot()
    with pytest.raises(ConfigError, match=r"partitioned by day\(timestamp\)"):
        open_or_create(lake.address(), SCHEMA, ["hour(timestamp)"])
    with pytest.raises(ConfigError, match="has columns"):
        open_or_create(lake.address(), SCHEMA.remove(0), ["day(timestamp)"])


def test_what_a_writer_takes(lake: Lake) -> None:
    table = lake.create(["day(timestamp)"])
    spec = pickle.loads(pickle.dumps(table.writer()))
    writer = spec.open(stream_partition=0)
    with pytest.raises(ConfigError, match="lack columns of the table: key"):
        writer.write(records(0, 0, 5).drop_columns(["key"]))
    writer.write(records(0, 0, 5).select(SCHEMA.names[::-1]))
    writer.write(records(0, 5, 5))
    assert writer.finish()[0].rows == 5
    writer = spec.open(stream_partition=0)
    writer.write(records(0, 0, 4000))
    writer.finish()
    writer.abort()
    writer.abort()
    assert len(data_files(lake.folder)) == 1


def check_archived(lake: Lake) -> None:
    table = open_table(lake.address())
    assert offsets_in(table) == {0: [*range(STEPS * SPAN)]}
    assert [each.span for each in table.history()] == [
        Span(0, SPAN * n, SPAN * n + SPAN) for n in range(STEPS)
    ]
    snapshot = table.snapshot()
    assert snapshot is not None
    assert snapshot.rows == STEPS * SPAN


def test_threads_that_commit_the_same_spans(lake: Lake) -> None:
    lake.create()
    threads = [threading.Thread(target=archive_elsewhere, args=(lake.address(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    check_archived(lake)


def test_processes_that_commit_the_same_spans(lake: Lake) -> None:
    lake.create()
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=archive_elsewhere, args=(lake.address(),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    check_archived(lake)


def test_committers_of_other_partitions_all_get_through(lake: Lake) -> None:
    lake.create()

    def run(number: int) -> None:
        table = open_table(lake.address())
        for start in range(0, 15, 5):
            table.commit(commit_of(table, records(number, start, start + 5)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert offsets_in(open_table(lake.address())) == {n: [*range(15)] for n in range(4)}


def test_compaction_and_expiry_beside_commits(lake: Lake) -> None:
    lake.create()
    done = threading.Event()
    failures: list[BaseException] = []

    def tidy_up() -> None:
        table = open_table(lake.address())
        try:
            while not done.is_set():
                table.compact(file_bytes=1 << 20)
                table.expire(older_than_ms=0)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=tidy_up)
    thread.start()
    try:
        table = open_table(lake.address())
        for start in range(0, 60, 5):
            table.commit(commit_of(table, records(0, start, start + 5)))
    finally:
        done.set()
        thread.join(100)
    assert not failures
    assert offsets_in(open_table(lake.address())) == {0: [*range(60)]}


def test_offsets_interleaved_over_lake_partitions_are_read_in_order(lake: Lake) -> None:
    table = lake.create(["subject", "hour(timestamp)"])
    for start in (0, 100, 200):
        table.commit(
            commit_of(table, records(0, start, start + 100), records(3, start, start + 100))
        )
    assert offsets_in(table) == {0: [*range(300)], 3: [*range(300)]}
    snapshot = table.snapshot()
    assert snapshot is not None
    some = pa.Table.from_batches(
        read_files(
            table.files(snapshot),
            pa.schema([("subject", pa.string()), ("value", pa.binary())]),
            offset_start=37,
            offset_end=222,
            batch_rows=10,
        )
    )
    expected = [f"flights.{n % 3}" for n in range(37, 222)] * 2
    assert some["subject"].to_pylist() == expected
