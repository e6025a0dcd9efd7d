"""Cuts an audit into tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from bascule.pipeline.jobs.audit.task import SpanGroup
from bascule.pipeline.lake.model import DataFile, Span, SpanDigest

OFFSETS_PER_PART: Final = 1_000_000
"""About a second of work, so that progress is visible. Recorded spans are not cut."""

Extents = Mapping[int, tuple[int, int]]


def spans_of(
    partition: int, held: tuple[int, int], digests: Iterable[SpanDigest]
) -> list[tuple[Span, SpanDigest | None]]:
    """The spans that a table holds of a partition, without gap or overlap, with the recorded
    digests. Offsets without a digest are cut into new spans."""
    at, end = held
    spans: list[tuple[Span, SpanDigest | None]] = []
    mine = (sum for sum in digests if sum.span.partition == partition)
    for sum in sorted(mine, key=lambda sum: sum.span):
        if sum.span.start < at or sum.span.end > end:
            continue
        spans += [(span, None) for span in _unrecorded(partition, at, sum.span.start)]
        spans.append((sum.span, sum))
        at = sum.span.end
    return spans + [(span, None) for span in _unrecorded(partition, at, end)]


def _unrecorded(partition: int, start: int, end: int) -> list[Span]:
    marks = [*range(start, end, OFFSETS_PER_PART), end]
    return [Span(partition, a, b) for a, b in pairwise(marks)]


def span_groups_of(
    committed: Extents,
    log: Extents,
    digests: Sequence[SpanDigest],
    files: Sequence[DataFile],
    malformed_files: Sequence[DataFile],
    *,
    malformed_digests: Sequence[SpanDigest] = (),
    offsets_per_part: int = OFFSETS_PER_PART,
) -> list[SpanGroup]:
    """Tasks that together check every offset of a table, each with the files it may need.

    Each of `malformed_digests` that ends within the table is checked by one of them."""
    groups = []
    for partition, held in sorted(committed.items()):
        group: list[tuple[Span, SpanDigest | None]] = []
        spans = spans_of(partition, held, digests)
        malformed = spans_of(partition, (0, held[1]), malformed_digests)
        recorded = [digest for _, digest in malformed if digest is not None]
        for number, item in enumerate(spans):
            group.append(item)
            size = group[-1][0].end - group[0][0].start
            if size >= offsets_per_part or number == len(spans) - 1:
                end = group[-1][0].end
                ending = [digest for digest in recorded if digest.span.end <= end]
                recorded = recorded[len(ending) :]
                extent = log.get(partition, (held[1], 0))
                groups.append(_group(group, extent, files, malformed_files, ending))
                group = []
    return groups


def _group(
    group: Sequence[tuple[Span, SpanDigest | None]],
    log: tuple[int, int],
    files: Sequence[DataFile],
    malformed_files: Sequence[DataFile],
    malformed_digests: Sequence[SpanDigest],
) -> SpanGroup:
    whole = Span(group[0][0].partition, group[0][0].start, group[-1][0].end)
    return SpanGroup(
        spans=tuple(span for span, _ in group),
        digests=tuple(sum for _, sum in group),
        log_start=log[0],
        log_end=log[1],
        files=tuple(file for file in files if file.may_hold(whole)),
        malformed_files=tuple(file for file in malformed_files if file.may_hold(whole)),
        malformed_digests=tuple(
            (digest, tuple(file for file in malformed_files if file.may_hold(digest.span)))
            for digest in malformed_digests
        ),
    )
