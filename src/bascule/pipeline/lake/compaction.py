"""Compacts small data files of any table format: selects groups and rewrites them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.file_writer import ParquetWriterSpec
from bascule.pipeline.lake.model import CompactionResult, DataFile

GroupKey = tuple[int, tuple[tuple[str, str | None], ...]]


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """Old files, and the new files with the same rows."""

    old: tuple[DataFile, ...]
    new: tuple[DataFile, ...]


def compact(
    held: Sequence[DataFile],
    spec: ParquetWriterSpec,
    *,
    file_bytes: int,
    replace_files: Callable[[list[RewrittenFiles]], list[RewrittenFiles]],
) -> CompactionResult:
    """Compact the small ones of the files `held`. `spec` writes files of the table.

    `replace_files` replaces old files with new ones in one commit of the table and returns what it
    replaced. It leaves out files that another compaction replaced in the meantime.
    """
    whole = replace(spec, options=replace(spec.options, file_bytes=2 * file_bytes))
    done = [
        rewrite(group, whole)
        for group in file_groups(held, file_bytes=file_bytes, fields=len(spec.partitioning))
    ]
    return outcome(replace_files(done) if done else [])


def file_groups(files: Sequence[DataFile], *, file_bytes: int, fields: int) -> list[list[DataFile]]:
    """Groups of adjacent files of one stream partition and lake partition, up to `file_bytes` each.

    Only adjacent files are grouped. Otherwise the spans would overlap. Left to the program that
    made them: files with several stream partitions, with deleted rows, or with another number of
    partition fields than `fields`.
    """
    assert file_bytes > 0, "files have bytes"
    by_group: dict[GroupKey, list[DataFile]] = {}
    for file in files:
        if file.is_shared or file.deleted_rows or len(file.partition_values) != fields:
            continue
        number = file.span.partition if file.span else -1
        by_group.setdefault((number, file.partition_values), []).append(file)
    found: list[list[DataFile]] = []
    for held in by_group.values():
        held.sort(key=lambda file: file.span.start if file.span else 0)
        run: list[DataFile] = []
        total = 0
        for file in held:
            if run and total + file.bytes > file_bytes:
                found.append(run)
                run, total = [], 0
            run.append(file)
            total += file.bytes
        found.append(run)
    return [run for run in found if len(run) > 1]


def rewrite(group: Sequence[DataFile], spec: ParquetWriterSpec) -> RewrittenFiles:
    """Rewrite the rows of a group. The new files are not committed."""
    number = group[0].span.partition if group[0].span else None
    writer = spec.open(stream_partition=number, values=group[0].partition_values)
    try:
        for batch in read_files(group, spec.schema):
            writer.write(batch)
        written = writer.finish()
    except BaseException:
        writer.abort()
        raise
    return RewrittenFiles(tuple(group), tuple(written))


def outcome(done: Sequence[RewrittenFiles]) -> CompactionResult:
    old = [file for each in done for file in each.old]
    new = [file for each in done for file in each.new]
    return CompactionResult(len(old), len(new), totals(old)[1], totals(new)[1])


def file_order(file: DataFile) -> tuple[int, int, str]:
    """Sort key of files: stream partition, offset, path."""
    return (*((file.span.partition, file.span.start) if file.span else (-1, 0)), file.path)


def totals(files: Sequence[DataFile]) -> tuple[int, int]:
    """Rows and bytes."""
    return sum(file.rows for file in files), sum(file.bytes for file in files)
