"""The comparison of an audit finds what is wrong, and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.pipeline.jobs.audit.compare import (
    AuditFault,
    AuditFindings,
    RowComparison,
    extend_runs,
    offsets_of,
)
from bascule.pipeline.jobs.audit.deletions import RemovedRows, settle
from bascule.pipeline.jobs.audit.plan import span_groups_of, spans_of
from bascule.pipeline.jobs.audit.spec import AuditSpec
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake.model import DataFile, SnapshotEntry, Span, SpanDigest

SCHEMA = pa.schema(
    [("offset", pa.int64()), ("value", pa.struct([("x", pa.float64()), ("s", pa.string())]))]
)
ROWS = st.dictionaries(st.integers(0, 30), st.integers(0, 2))
COPIES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)))


def table(rows: list[tuple[int, object]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"offset": n, "value": v} for n, v in sorted(rows, key=str_key)], SCHEMA
    )


def str_key(row: tuple[int, object]) -> int:
    return row[0]


def compared(
    log: list[tuple[int, object]], lake: list[tuple[int, object]], *, compacted: bool = False
) -> AuditFindings:
    found = AuditFindings(3)
    comparison = RowComparison(found, compacted=compacted, faults_max=5)
    comparison.compare(table(log), table(lake))
    return found


def value(x: int) -> dict[str, object]:
    return {"x": float(x), "s": f"s{x}"}


@given(ROWS, COPIES, st.booleans())
def test_it_counts_as_a_person_would(
    log: dict[int, int], lake: list[tuple[int, int]], compacted: bool
) -> None:
    found = compared(
        [(n, value(x)) for n, x in log.items()],
        [(n, value(x)) for n, x in lake],
        compacted=compacted,
    )
    times = Counter(n for n, _ in lake)
    assert found.missing == len(log.keys() - times.keys())
    assert found.duplicate == sum(count - 1 for count in times.values())
    strangers = len(times.keys() - log.keys())
    assert (found.extra, found.compacted) == ((0, strangers) if compacted else (strangers, 0))
    first: dict[int, int] = {}
    for n, x in lake:
        first.setdefault(n, x)
    assert found.differing == sum(first[n] != log[n] for n in times.keys() & log.keys())
    assert found.is_clean == (not found.faults and not found.missing_runs)
    missing = [n for start, end in found.missing_runs for n in range(start, end)]
    assert missing == sorted(log.keys() - times.keys())


def test_faults_are_named() -> None:
    log = [(n, value(n)) for n in range(10)]
    lake = [(n, value(n)) for n in range(10) if n != 4]
    lake[6] = (lake[6][0], {"x": 1.5, "s": None})
    lake += [(2, value(2)), (12, value(12))]
    found = compared(log, lake)
    assert sorted(found.faults) == [
        AuditFault(3, 2, "duplicate"),
        AuditFault(3, 7, "differing", "value"),
        AuditFault(3, 12, "extra"),
    ]
    assert found.missing_runs == [(4, 5)]


def test_no_more_faults_than_asked_for_are_kept() -> None:
    found = compared([], [(n, value(n)) for n in range(100)])
    assert found.extra == 100
    assert [fault.offset for fault in found.faults] == [0, 1, 2, 3, 4]


def test_runs_continue_from_window_to_window() -> None:
    runs: list[tuple[int, int]] = []
    for window in ([0, 1, 3], [], [4, 5], [9], [10]):
        extend_runs(runs, np.array(window, np.int64))
    assert runs == [(0, 2), (3, 6), (9, 11)]
    assert offsets_of(runs).tolist() == [0, 1, 3, 4, 5, 9, 10]
    assert offsets_of([]).tolist() == []


@pytest.mark.parametrize("rows", [[(0, None)], [(0, {"x": math.nan, "s": None})]])
def test_null_and_nan_are_themselves(rows: list[tuple[int, object]]) -> None:
    assert compared(rows, rows).is_clean
    assert compared(rows, [(0, value(0))]).differing == 1


def test_spans_hold_what_was_recorded() -> None:
    found = AuditFindings(3)
    comparison = RowComparison(found, compacted=False, faults_max=5)
    comparison.check_span(Span(3, 0, 10), rows=(10, 10), crc=(7, 7))
    assert found.is_clean
    comparison.check_span(Span(3, 10, 20), rows=(11, 10), crc=(7, 8))
    assert (found.spans_checked, found.spans_wrong) == (2, 1)
    assert found.faults == [
        AuditFault(3, 10, "rows", "offsets [10, 20): 11 rows, 10 were archived; "
              "checksum 00000007, 00000008 was archived"),
    ]  # fmt: skip
    comparison.check_span(Span(3, 20, 30), rows=(7, 10), crc=(7, 8))
    assert (found.spans_checked, found.spans_wrong) == (3, 1)
    assert [(short.start, short.lacking) for short in found.short_spans] == [(20, 3)]


REMOVAL = RemovedRows(
    (SnapshotEntry("7", 1_795_262_400_000, "DELETE", is_own=False),), 3, 4, [(12, 13), (21, 24)]
)


def short(runs: list[tuple[int, int]]) -> AuditFindings:
    found = AuditFindings(3, missing=sum(end - start for start, end in runs), missing_runs=runs)
    comparison = RowComparison(found, compacted=False, faults_max=5)
    for start in (10, 20):
        lacking = sum(start <= a < start + 10 for run in runs for a in range(*run))
        comparison.check_span(Span(3, start, start + 10), rows=(10 - lacking, 10), crc=(1, 2))
    return found


def settled(found: AuditFindings, removed: list[RemovedRows], **keys: object) -> AuditFindings:
    spec = AuditSpec(name="a", stream="s", table=TableSpec(location="/l"), **keys)  # type: ignore[arg-type]
    settle(spec, found, removed, [Span(3, 10, 20), Span(3, 20, 30)])
    return found


def test_missing_rows_name_the_snapshot_that_removed_them() -> None:
    found = settled(short([(12, 13), (15, 16), (21, 24)]), [REMOVAL])
    assert (found.missing, found.deleted, found.spans_wrong) == (5, 0, 2)
    by = "removed by snapshot 7 (DELETE) of 2026-11-21T12:00:00.000Z"
    assert [fault for fault in found.faults if fault.kind == "missing"] == [
        AuditFault(3, 12, "missing", f"offset 12, {by}"),
        AuditFault(3, 15, "missing", "offset 15"),
        AuditFault(3, 21, "missing", f"offsets [21, 24), {by}"),
    ]


def test_deletions_may_be_allowed() -> None:
    found = settled(short([(12, 13), (21, 24)]), [REMOVAL], deletions="allowed")
    assert (found.missing, found.deleted, found.spans_wrong) == (0, 4, 0)
    assert found.is_clean
    # Offset 15 is missing, and no snapshot removed it.
    found = settled(short([(12, 13), (15, 16), (21, 24)]), [REMOVAL], deletions="allowed")
    assert (found.missing, found.deleted, found.spans_wrong) == (1, 4, 1)
    assert [(fault.offset, fault.kind) for fault in found.faults] == [(10, "rows"), (15, "missing")]


def test_a_removal_by_an_expired_snapshot_cannot_be_told() -> None:
    found = AuditFindings(3, missing=2, missing_runs=[(5, 6), (12, 13)])
    settled(found, [], deletions="allowed")
    assert (found.missing, found.deleted) == (1, 1)
    assert [fault.offset for fault in found.faults] == [12]


MARKS = st.lists(st.integers(0, 100), min_size=2, max_size=8, unique=True).map(sorted)


@given(MARKS, st.sets(st.integers(0, 7)), st.integers(1, 40))
def test_parts_tile_what_the_table_holds(marks: list[int], forgotten: set[int], size: int) -> None:
    whole = (marks[0], marks[-1])
    digests = [
        SpanDigest(Span(1, a, b), b - a, 0)
        for n, (a, b) in enumerate(pairwise(marks))
        if n not in forgotten
    ]
    files = [DataFile(f"{n}", 1, 1, sum.span) for n, sum in enumerate(digests)]
    spans = spans_of(1, whole, [*digests, *digests])
    assert {sum for _, sum in spans if sum} == set(digests)
    groups = span_groups_of({1: whole}, {1: whole}, digests, files, [], offsets_per_part=size)
    at = marks[0]
    for group in groups:
        for span in group.spans:
            assert span.start == at < span.end
            at = span.end
        low, high = group.spans[0].start, group.spans[-1].end
        assert set(group.files) == {
            f for f in files if f.span and f.span.start < high and low < f.span.end
        }
    assert at == marks[-1]
