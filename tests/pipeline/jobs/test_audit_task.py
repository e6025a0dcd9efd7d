"""A task of an audit: what it finds where only digests tell, and how much it has in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from bascule.pipeline.jobs.audit import task as task_module
from bascule.pipeline.jobs.audit.compare import AuditFindings
from bascule.pipeline.jobs.audit.deletions import settle
from bascule.pipeline.jobs.audit.plan import span_groups_of
from bascule.pipeline.jobs.audit.spec import AuditSpec
from bascule.pipeline.jobs.audit.task import AuditTaskSpec, check_span_group
from bascule.pipeline.jobs.offset_cursor import OffsetCursor
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, archive_schema
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake.model import DataFile, LakeTable, Span, SpanDigest
from bascule.pipeline.values.spec import ValueSpec
from bascule.record.columns import SCHEMA as FETCHED
from support.lake_rows import Lake, summed, written

VALUES = ValueSpec.from_options({"valueformat": "json", "valueschema": "a int"})
END = 300
BAD = range(0, END, 10)
TASK = AuditTaskSpec("nowhere", "flights", VALUES, False, compacted=False, faults_max=20)


def row(offset: int, value: object) -> dict[str, Any]:
    return {"key": b"k", "value": value, "subject": "flights", "partition": 0, "offset": offset,
            "timestamp": offset, "headers": None}  # fmt: skip


def malformed(offsets: Sequence[int]) -> pa.RecordBatch:
    rows = [{**row(n, b"{%d" % n), "reason": "truncated"} for n in offsets]
    return pa.RecordBatch.from_pylist(rows, MALFORMED_SCHEMA)


def digest(span: Span, batch: pa.RecordBatch) -> SpanDigest:
    return replace(summed(batch), span=span)


class Archive:
    """The files of both tables, and what the archive recorded of them."""

    def __init__(self, folder: Path) -> None:
        lake = Lake("parquet", folder)
        schema = archive_schema(VALUES.arrow_type(), raw=False)
        self.side: LakeTable = lake.create(schema=MALFORMED_SCHEMA, name="malformed")
        good = [row(n, {"a": n}) for n in range(END) if n not in BAD]
        parts = [
            pa.RecordBatch.from_pylist(
                [r for r in good if start <= r["offset"] < start + 50], schema
            )
            for start in range(0, END, 50)
        ]
        self.files = written(lake.create(schema=schema), *parts)
        self.digests = [
            digest(Span(0, start, start + 50), part)
            for start, part in zip(range(0, END, 50), parts, strict=True)
        ]
        self.malformed_files = [
            *written(self.side, malformed(BAD[:12])), *written(self.side, malformed(BAD[12:]))
        ]  # fmt: skip
        self.malformed_digests = [
            digest(Span(0, 0, 120), malformed(BAD[:12])),
            digest(Span(0, 120, END), malformed(BAD[12:])),
        ]

    def audited(
        self, files: Sequence[DataFile], *, task: AuditTaskSpec = TASK, parts: int = END
    ) -> AuditFindings:
        found = AuditFindings(0)
        for group in span_groups_of(
            {0: (0, END)}, {0: (END, END)}, self.digests, self.files, files,
            malformed_digests=self.malformed_digests, offsets_per_part=parts,
        ):  # fmt: skip
            one = msgspec.json.decode(check_span_group(task, group), type=AuditFindings)
            found.add(one, faults_max=20)
        settle(AuditSpec(name="a", stream="flights", table=TableSpec(location="x")), found, [], [])
        return found


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def test_sound_malformed_records_are_no_fault(archive: Archive) -> None:
    found = archive.audited(archive.malformed_files)
    assert found.is_clean
    assert (found.lake_rows, found.malformed, found.spans_checked) == (END, len(BAD), 8)


def test_lost_malformed_records_are_a_fault(archive: Archive) -> None:
    found = archive.audited(archive.malformed_files[:1])
    assert not found.is_clean
    (fault,) = found.faults
    assert (fault.kind, fault.offset) == ("rows", 120)
    assert "0 rows, 18 were archived" in fault.detail
    allowed = replace(TASK, deletions_allowed=True)
    assert archive.audited(archive.malformed_files[:1], task=allowed).is_clean


def test_a_changed_malformed_record_is_a_fault(archive: Archive) -> None:
    changed = malformed(BAD[:12]).to_pylist()
    changed[3]["value"] = b"other"
    batch = pa.RecordBatch.from_pylist(changed, MALFORMED_SCHEMA)
    found = archive.audited([*written(archive.side, batch), archive.malformed_files[1]])
    assert [(fault.kind, fault.offset) for fault in found.faults] == [("crc", 0)]
    assert not found.is_clean


def test_each_digest_is_checked_once(archive: Archive) -> None:
    found = archive.audited(archive.malformed_files, parts=50)
    assert found.is_clean
    assert found.spans_checked == 8


def test_few_rows_are_in_memory_where_compaction_left_few_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = 1_000
    monkeypatch.setattr(task_module, "WINDOW_ROWS", 64)
    table = Lake("parquet", tmp_path).create(schema=archive_schema(pa.binary(), raw=False))
    batch = pa.RecordBatch.from_pylist([row(n, b"v") for n in range(end)], table.schema)
    log = batch.filter(pa.array([n in (3, 4, 70, 600) for n in range(end)]))
    stored = pa.record_batch([log.column(name) for name in FETCHED.names], schema=FETCHED)
    monkeypatch.setattr(task_module, "read_log", lambda *_, **__: iter([stored]))
    sizes: list[int] = []
    until = OffsetCursor.until

    def counted(cursor: OffsetCursor, bound: int) -> pa.Table:
        rows = until(cursor, bound)
        sizes.append(rows.num_rows)
        return rows

    monkeypatch.setattr(OffsetCursor, "until", counted)
    task = replace(TASK, value=ValueSpec(), compacted=True)
    (group,) = span_groups_of(
        {0: (0, end)}, {0: (0, end)}, [digest(Span(0, 0, end), batch)], written(table, batch), []
    )
    found = msgspec.json.decode(check_span_group(task, group), type=AuditFindings)
    assert (found.lake_rows, found.log_rows, found.compacted) == (end, 4, end - 4)
    assert found.is_clean
    assert max(sizes) == 64
