"""Commits the files of one batch of the archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from bascule.pipeline.jobs.archive.plan import Committed
from bascule.pipeline.lake.model import DataFile, LakeCommit, LakeSnapshot, Span, SpanDigest

if TYPE_CHECKING:
    from bascule.pipeline.lake.model import LakeTable


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The output of one task, sent from the executor to the driver."""

    stream_id: str
    digest: SpanDigest
    files: tuple[DataFile, ...] = ()
    malformed: SpanDigest | None = None
    """Digest of the malformed records. None if the side table holds this range already or values
    are raw."""
    malformed_files: tuple[DataFile, ...] = ()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TaskOutput)


def encode_task_output(written: TaskOutput) -> str:
    """Encode as JSON for a Spark column."""
    return _ENCODER.encode(written).decode()


def decode_task_output(text: str) -> TaskOutput:
    """Raises: msgspec.DecodeError."""
    return _DECODER.decode(text)


def _committed(table: LakeTable) -> Committed:
    snapshot = table.snapshot()
    return {} if snapshot is None else snapshot.committed


@dataclass(frozen=True, slots=True)
class ArchiveCommitter:
    """Commits a batch: first the malformed records, then the main table.

    Both tables accept offsets once, so repeating the commit repairs a crash at any point. The table
    of malformed records gets a commit only if a batch has malformed records. The spans of that
    commit then start at the end of that table, so it has no gap either.
    """

    stream: str
    main: LakeTable
    side: LakeTable | None = None

    def commit(self, written: Iterable[TaskOutput]) -> LakeSnapshot | None:
        """Commit the task outputs. Raises: LakeConflict if a table has changed since the tasks
        began."""
        done = sorted(written, key=lambda task: task.digest.span)
        if not done:
            return self.main.snapshot()
        if self.side is not None:
            self._commit_side(self.side, done)
        return self.main.commit(
            LakeCommit(
                files=tuple(file for task in done for file in task.files),
                stream=self.stream,
                stream_id=done[0].stream_id,
                spans=tuple(task.digest for task in done),
            )
        )

    def _commit_side(self, side: LakeTable, done: Sequence[TaskOutput]) -> None:
        spans: list[SpanDigest] = []
        files: list[DataFile] = []
        held = _committed(side)
        begun = _committed(self.main)
        for partition, tasks in groupby(done, key=lambda task: task.digest.span.partition):
            digests = [task.malformed for task in tasks if task.malformed is not None]
            if not any(sum.rows for sum in digests):
                continue
            first = digests[0]
            begin = held[partition][1] if partition in held else first.span.start
            if partition in begun and partition not in held:
                begin = begun[partition][0]
            # Start at the end of the side table. If the side table ends later, this commit is a
            # repetition.
            whole = Span(partition, min(begin, first.span.start), first.span.end)
            digests[0] = SpanDigest(whole, first.rows, first.crc)
            spans += digests
        wanted = {sum.span.partition for sum in spans}
        files = [
            file
            for task in done
            if task.digest.span.partition in wanted
            for file in task.malformed_files
        ]
        if spans:
            side.commit(
                LakeCommit(
                    files=tuple(files),
                    stream=self.stream,
                    stream_id=done[0].stream_id,
                    spans=tuple(spans),
                )
            )
