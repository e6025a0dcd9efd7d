"""One commit for each batch of the archive: what the tasks wrote, put into the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from bascule.pipeline.jobs.archive.plan import Committed
from bascule.pipeline.lake.model import Commit, DataFile, Snapshot, Span, SpanSum

if TYPE_CHECKING:
    from bascule.pipeline.lake.model import LakeTable


@dataclass(frozen=True, slots=True)
class Written:
    """What one task wrote: the one small thing that travels from executor to driver."""

    stream_id: str
    sum: SpanSum
    files: tuple[DataFile, ...] = ()
    malformed: SpanSum | None = None
    """Of the side table; None where its part is there already, or the values are bytes."""
    malformed_files: tuple[DataFile, ...] = ()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Written)


def encode_written(written: Written) -> str:
    """As JSON, for a column of Spark's."""
    return _ENCODER.encode(written).decode()


def decode_written(text: str) -> Written:
    """Raises: msgspec.DecodeError."""
    return _DECODER.decode(text)


def _committed(table: LakeTable) -> Committed:
    snapshot = table.snapshot()
    return {} if snapshot is None else snapshot.committed


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits the work of a batch: the malformed records first, then the rest.

    Both tables take offsets once only, so a crash between the two, or anywhere else, is repaired by
    doing it again. The table of malformed records gets a commit only when there are any; its spans
    reach back to where it ended, so it has no gap either.
    """

    stream: str
    main: LakeTable
    side: LakeTable | None = None

    def commit(self, written: Iterable[Written]) -> Snapshot | None:
        """Raises: LakeConflict where the tables are not where the tasks began."""
        done = sorted(written, key=lambda task: task.sum.span)
        if not done:
            return self.main.snapshot()
        if self.side is not None:
            self._commit_side(self.side, done)
        return self.main.commit(
            Commit(
                files=tuple(file for task in done for file in task.files),
                stream=self.stream,
                stream_id=done[0].stream_id,
                spans=tuple(task.sum for task in done),
            )
        )

    def _commit_side(self, side: LakeTable, done: Sequence[Written]) -> None:
        spans: list[SpanSum] = []
        files: list[DataFile] = []
        held = _committed(side)
        begun = _committed(self.main)
        for partition, tasks in groupby(done, key=lambda task: task.sum.span.partition):
            sums = [task.malformed for task in tasks if task.malformed is not None]
            if not any(sum.rows for sum in sums):
                continue
            first = sums[0]
            begin = held[partition][1] if partition in held else first.span.start
            if partition in begun and partition not in held:
                begin = begun[partition][0]
            # Back to where the table ends; where it ends further on, this is a repetition.
            whole = Span(partition, min(begin, first.span.start), first.span.end)
            sums[0] = SpanSum(whole, first.rows, first.crc)
            spans += sums
        wanted = {sum.span.partition for sum in spans}
        files = [
            file
            for task in done
            if task.sum.span.partition in wanted
            for file in task.malformed_files
        ]
        if spans:
            side.commit(
                Commit(
                    files=tuple(files),
                    stream=self.stream,
                    stream_id=done[0].stream_id,
                    spans=tuple(spans),
                )
            )
