"""Decides what a commit adds to a table: compares its spans with those of the table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from bascule.errors import LakeConflict
from bascule.pipeline.lake.model import DataFile, LakeCommit, LakeSnapshot, Span, SpanDigest

ONCE: Final = "once:"
"""The names of writers that write one batch begin so. A table remembers the last `ONCE_MAX` of
them: only the commit itself is repeated, at once."""
ONCE_MAX: Final = 100

Committed = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TableState:
    """The state that every snapshot records, besides its files."""

    stream: str = ""
    stream_id: str = ""
    committed: Mapping[int, tuple[int, int]] | None = None
    tokens: Mapping[str, int] | None = None
    """Writer -> last batch."""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The new part of a commit, and the state after it."""

    files: tuple[DataFile, ...]
    """Files to add."""
    digests: tuple[SpanDigest, ...]
    repeated: tuple[DataFile, ...]
    """Files of spans that the table already holds. They are not added."""
    state: TableState
    advances: bool
    """False for a repetition, which creates no snapshot."""


def plan_commit(table: str, state: TableState, commit: LakeCommit) -> CommitPlan:
    """Plan what `commit` adds to a table in `state`.

    A span that the table holds is left out with its files. Any other span must begin at the table's
    end.

    Raises: LakeConflict for a gap, a partial overlap, or another stream.
    """
    assert commit.token is not None or not commit.replaces, "offsets are only added"
    if commit.token is not None:
        return _plan_token(state, commit, commit.token)
    _check_stream(table, state, commit)
    committed: Committed = dict(state.committed or {})
    added: list[SpanDigest] = []
    for summed in sorted(commit.spans, key=lambda each: each.span):
        span = summed.span
        assert span.start <= span.end, f"{span} is no span"
        held = committed.get(span.partition)
        if span.start == span.end or (held and held[0] <= span.start and span.end <= held[1]):
            continue
        if held is None:
            committed[span.partition] = (span.start, span.end)
        elif span.start == held[1]:
            committed[span.partition] = (held[0], span.end)
        else:
            raise LakeConflict(table, _why(span, held))
        added.append(summed)
    files, repeated = _split_files(commit, added)
    return CommitPlan(
        files,
        tuple(added),
        repeated,
        TableState(
            commit.stream or state.stream,
            commit.stream_id or state.stream_id,
            committed,
            state.tokens,
        ),
        advances=bool(added),
    )


def _plan_token(state: TableState, commit: LakeCommit, token: tuple[str, int]) -> CommitPlan:
    assert not commit.spans, "a commit has spans or a token, not both"
    writer, batch = token
    tokens = dict(state.tokens or {})
    if batch <= tokens.get(writer, -1):
        return CommitPlan((), (), commit.files, state, advances=False)
    tokens[writer] = batch
    once = [each for each in tokens if each.startswith(ONCE)]
    for each in once[:-ONCE_MAX]:
        del tokens[each]
    after = TableState(state.stream, state.stream_id, state.committed, tokens)
    return CommitPlan(commit.files, (), (), after, advances=True)


def _check_stream(table: str, state: TableState, commit: LakeCommit) -> None:
    if state.stream_id and commit.stream_id != state.stream_id:
        raise LakeConflict(
            table,
            f"it archives stream {state.stream!r} of id {state.stream_id}, and this is "
            f"{commit.stream!r} of id {commit.stream_id or 'none'}: the stream was created again, "
            "or the table belongs to another stream",
        )


def _why(span: Span, held: tuple[int, int]) -> str:
    given = f"offsets [{span.start}, {span.end}) of partition {span.partition}"
    if span.start > held[1]:
        return f"{given} leave a gap after [{held[0]}, {held[1]}), which it holds"
    if span.end <= held[0]:
        return f"{given} lie before [{held[0]}, {held[1]}), which it holds"
    return f"{given} partially overlap [{held[0]}, {held[1]}), which it holds"


def _split_files(
    commit: LakeCommit, added: list[SpanDigest]
) -> tuple[tuple[DataFile, ...], tuple[DataFile, ...]]:
    files: list[DataFile] = []
    repeated: list[DataFile] = []
    for file in commit.files:
        assert file.span is not None, f"{file.path} has no span in a commit of spans"
        inside = [s.span for s in commit.spans if _holds(s.span, file.span)]
        assert inside, f"{file.path} holds {file.span}, which is in no span of its commit"
        is_new = any(_holds(each.span, file.span) for each in added)
        (files if is_new else repeated).append(file)
    return tuple(files), tuple(repeated)


def _holds(span: Span, part: Span) -> bool:
    return span.partition == part.partition and span.start <= part.start and part.end <= span.end


def snapshot_of(
    id: str, state: TableState, *, number: int, committed_ms: int, rows: int, bytes: int
) -> LakeSnapshot:
    return LakeSnapshot(
        id,
        committed_ms,
        state.stream,
        state.stream_id,
        dict(state.committed or {}),
        rows,
        bytes,
        number,
    )


def state_texts(state: TableState) -> dict[str, str]:
    """`stream`, `stream-id`, `committed` and `tokens`."""
    committed = {str(number): span for number, span in sorted((state.committed or {}).items())}
    return {
        "stream": state.stream,
        "stream-id": state.stream_id,
        "committed": msgspec.json.encode(committed).decode(),
        "tokens": msgspec.json.encode(dict(state.tokens or {})).decode(),
    }


def state_of(texts: Mapping[str, str]) -> TableState:
    """Raises: msgspec.DecodeError."""
    return TableState(
        texts.get("stream", ""),
        texts.get("stream-id", ""),
        msgspec.json.decode(texts.get("committed", "{}"), type=dict[int, tuple[int, int]]),
        msgspec.json.decode(texts.get("tokens", "{}"), type=dict[str, int]),
    )


def digests_text(digests: Sequence[SpanDigest]) -> str:
    """[[stream partition, start, end, rows, CRC-32C], ...]"""
    rows = [(s.span.partition, s.span.start, s.span.end, s.rows, s.crc) for s in digests]
    return msgspec.json.encode(rows).decode()


def digests_of(text: str) -> list[SpanDigest]:
    """Raises: msgspec.DecodeError."""
    rows = msgspec.json.decode(text, type=list[tuple[int, int, int, int, int]])
    return [SpanDigest(Span(p, start, end), rows_, crc) for p, start, end, rows_, crc in rows]
