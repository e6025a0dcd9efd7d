"""A table's state and the sums of spans as texts, for formats whose snapshots have properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bascule.pipeline.lake.model import Span, SpanSum
from bascule.pipeline.lake.spans import State


def of_state(state: State) -> dict[str, str]:
    """`stream`, `stream-id`, `committed` and `tokens`."""
    committed = {str(number): span for number, span in sorted((state.committed or {}).items())}
    return {
        "stream": state.stream,
        "stream-id": state.stream_id,
        "committed": msgspec.json.encode(committed).decode(),
        "tokens": msgspec.json.encode(dict(state.tokens or {})).decode(),
    }


def to_state(texts: Mapping[str, str]) -> State:
    """Raises: msgspec.DecodeError."""
    return State(
        texts.get("stream", ""),
        texts.get("stream-id", ""),
        msgspec.json.decode(texts.get("committed", "{}"), type=dict[int, tuple[int, int]]),
        msgspec.json.decode(texts.get("tokens", "{}"), type=dict[str, int]),
    )


def of_sums(sums: Sequence[SpanSum]) -> str:
    """[[stream partition, start, end, rows, CRC-32C], ...]"""
    rows = [(s.span.partition, s.span.start, s.span.end, s.rows, s.crc) for s in sums]
    return msgspec.json.encode(rows).decode()


def to_sums(text: str) -> list[SpanSum]:
    """Raises: msgspec.DecodeError."""
    rows = msgspec.json.decode(text, type=list[tuple[int, int, int, int, int]])
    return [SpanSum(Span(p, start, end), rows_, crc) for p, start, end, rows_, crc in rows]
