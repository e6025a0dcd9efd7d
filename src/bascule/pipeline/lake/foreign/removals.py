"""Finds the snapshots that removed rows from a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from bascule.errors import BasculeError, UnknownSnapshot
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.foreign.spans import POSITIONS
from bascule.pipeline.lake.model import DataFile

if TYPE_CHECKING:
    from bascule.pipeline.lake.model import LakeTable, SnapshotEntry

Offsets = npt.NDArray[np.int64]
REWRITES: Final = frozenset({"append", "replace", "OPTIMIZE"})
"""Operations that remove no rows. Bascule's own commits remove none either."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows of one partition that one snapshot removed."""

    snapshots: tuple[SnapshotEntry, ...]
    """The snapshot. Several if any of them may have removed the rows, because the files before them
    are deleted already."""
    partition: int
    offsets: Offsets
    """Ascending."""


def find_removals(table: LakeTable, missing: Mapping[int, Offsets]) -> list[Removal]:
    """Find the snapshots that removed the rows of given offsets (partition -> ascending offsets).

    Each snapshot of another program is compared with the one before it. Offsets without a removal
    were removed by a snapshot whose predecessor has expired, or without a snapshot.
    """
    left = {partition: offsets for partition, offsets in missing.items() if len(offsets)}
    found: list[Removal] = []
    possible: list[Removal] = []
    history = table.snapshots() if left else []
    for before, after in reversed(list(pairwise(history))):
        if after.is_own or after.operation in REWRITES:
            continue
        try:
            gone, more = _difference(_files(table, before), _files(table, after))
        except UnknownSnapshot:
            continue  # its metadata has expired
        for partition, offsets in left.items():
            held, unread = _held(gone, partition, offsets)
            kept, _ = _held(more, partition, offsets)
            removed = np.setdiff1d(held, kept)
            if len(removed):
                found.append(Removal((after,), partition, removed))
                left[partition] = np.setdiff1d(offsets, removed, assume_unique=True)
            unread = np.setdiff1d(unread, np.union1d(held, kept))
            if len(unread):
                possible.append(Removal((after,), partition, unread))
    for partition, offsets in left.items():
        found += _uncertain([each for each in possible if each.partition == partition], offsets)
    return sorted(found, key=lambda each: (each.snapshots[0].committed_ms, each.partition))


def _uncertain(possible: list[Removal], offsets: Offsets) -> list[Removal]:
    """Group offsets by the snapshots that may have removed them."""
    if not possible:
        return []
    marks = np.array([np.isin(offsets, each.offsets) for each in possible])
    found = []
    for mark in np.unique(marks, axis=1).T:
        snapshots = [
            each.snapshots[0] for each, is_one in zip(possible, mark, strict=True) if is_one
        ]
        if snapshots:
            chosen = offsets[(marks == mark[:, None]).all(axis=0)]
            found.append(Removal(tuple(reversed(snapshots)), possible[0].partition, chosen))
    return found


def _files(table: LakeTable, entry: SnapshotEntry) -> list[DataFile]:
    snapshot = table.snapshot(entry.id)
    return table.files(snapshot) if snapshot else []


def _difference(
    before: Iterable[DataFile], after: Iterable[DataFile]
) -> tuple[list[DataFile], list[DataFile]]:
    """The entries that only one of two snapshots has. A file that lost rows is another entry."""
    old = {(file.path, file.span, file.deleted_rows): file for file in before}
    new = {(file.path, file.span, file.deleted_rows): file for file in after}
    return (
        [file for key, file in old.items() if key not in new],
        [file for key, file in new.items() if key not in old],
    )


def _held(files: list[DataFile], partition: int, offsets: Offsets) -> tuple[Offsets, Offsets]:
    """Those of `offsets` that files hold, and those in the span of a file that cannot be read."""
    held = [np.empty(0, np.int64)]
    unread = [np.empty(0, np.int64)]
    for file in files:
        span = file.span
        if span is None or span.partition != partition:
            continue
        sought = offsets[(offsets >= span.start) & (offsets < span.end)]
        if not len(sought):
            continue
        low, high = int(sought[0]), int(sought[-1]) + 1
        try:
            for batch in read_files([file], POSITIONS, offset_start=low, offset_end=high):
                held.append(np.intersect1d(batch.column("offset").to_numpy(), sought))
        except (BasculeError, OSError):
            unread.append(sought)
    return np.unique(np.concatenate(held)), np.unique(np.concatenate(unread))
