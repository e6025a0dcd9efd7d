"""Converts rows of a lake table to columns of messages, without Python code per row.

A message has the record's key, value, headers and subject, and headers with the record's origin:

    Bascule-Original-Timestamp: 1764000000000      (Unix ms)
    Bascule-Original-Offset: 41
    Bascule-Original-Partition: 0

The message id is `<stream id>.<partition>.<offset>`, so that the target stores the message once
within its dedupe window. Headers that addressed the original stream are left out: message ids,
expectations, the ack policy and the reply subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bascule.pipeline.jobs.replay.spec import PLACEHOLDER
from bascule.pipeline.jobs.rows import RAW
from bascule.record.columns import HEADERS_TYPE

if TYPE_CHECKING:
    from bascule.pipeline.values.model import ValueEncoder

ORIGINAL_HEADERS: Final = (
    "Bascule-Original-Timestamp",
    "Bascule-Original-Offset",
    "Bascule-Original-Partition",
)
PUBLISH_HEADERS: Final = pa.array(
    [
        "nats-msg-id", "nats-expected-stream", "nats-expected-last-sequence",
        "nats-expected-last-msg-id", "nats-header-block", "bascule-ack",
        *(name.lower() for name in ORIGINAL_HEADERS),
    ]
)  # fmt: skip
"""Lower-case names of headers that are instructions to the stream and not content."""
REPLY: Final = "reply"
"""Name of the first header of a record that had a reply subject."""


class MessageBuilder:
    """Builds messages from rows. `stream_id` is the id of the archived stream."""

    def __init__(
        self,
        stream_id: str,
        *,
        subject: str = "",
        original_headers: bool = True,
        encoder: ValueEncoder | None = None,
    ) -> None:
        self._stream_id = stream_id
        self._subject = subject
        self._original = original_headers
        self._encoder = encoder

    def make(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Build the columns subject, key, value, headers, message_id. Raises: ValueError for a
        value that the encoder's format cannot express."""
        offsets, partitions = rows.column("offset"), rows.column("partition")
        texts = (
            pc.divide(rows.column("timestamp").cast(pa.int64()), 1_000).cast(pa.string()),
            offsets.cast(pa.string()),
            partitions.cast(pa.string()),
        )
        headers = without_publish_headers(rows.column("headers"))
        if self._original:
            headers = with_headers(headers, dict(zip(ORIGINAL_HEADERS, texts, strict=True)))
        ids = pc.binary_join_element_wise(self._stream_id, texts[2], texts[1], ".")
        return pa.record_batch(
            [self._subjects(rows.column("subject")), rows.column("key"), self._values(rows),
             headers, ids],
            ["subject", "key", "value", "headers", "message_id"],
        )  # fmt: skip

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        if RAW in rows.schema.names:
            return rows.column(RAW)
        values = rows.column("value")
        return values if self._encoder is None else self._encoder.encode(values)

    def _subjects(self, subjects: pa.Array) -> pa.Array:
        if not self._subject:
            return subjects
        known = pc.unique(subjects)
        mapped = pa.array([mapped_subject(self._subject, old) for old in known.to_pylist()])
        return mapped.cast(pa.string()).take(pc.index_in(subjects, known))


def mapped_subject(pattern: str, old: str | None) -> str:
    """Fill `{subject}`, `{1}`, `{2}` in `pattern` from `old`. A missing token stays in braces,
    which no stream accepts as a subject."""
    tokens = (old or "").split(".")

    def fill(found: object) -> str:
        assert hasattr(found, "group")
        name: str = found.group(1)
        if name == "subject":
            return old or ""
        return tokens[int(name) - 1] if int(name) <= len(tokens) else f"{{{name}}}"

    return PLACEHOLDER.sub(fill, pattern)


def without_publish_headers(headers: pa.ListArray) -> pa.ListArray:
    """Remove publish headers and reply subjects from the header lists."""
    entries = headers.flatten()
    if not len(entries):
        return headers
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    names = entries.field(0)
    is_reply = pc.equal(names, REPLY).to_numpy(zero_copy_only=False)
    is_first = np.zeros(len(entries), bool)
    is_first[starts[counts > 0]] = True
    is_order = pc.is_in(pc.ascii_lower(names), PUBLISH_HEADERS).to_numpy(zero_copy_only=False)
    kept = ~(is_order | (is_reply & is_first))
    if kept.all():
        return headers
    rows = np.repeat(np.arange(len(headers)), counts)
    left = np.bincount(rows[kept], minlength=len(headers))
    return _lists(left, entries.filter(pa.array(kept)))


def with_headers(headers: pa.ListArray, more: dict[str, pa.Array]) -> pa.ListArray:
    """Append one entry for each of `more` (name -> value of each row) to the header lists."""
    rows, width = len(headers), len(more)
    entries = headers.flatten()
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy().astype(np.int64)
    ends = np.cumsum(counts + width)
    starts = ends - (counts + width)
    order = np.empty(len(entries) + rows * width, np.int64)
    inside = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
    order[np.repeat(starts, counts) + inside] = np.arange(len(entries))
    names = [entries.field(0)]
    values = [entries.field(1)]
    for place, (name, texts) in enumerate(more.items()):
        order[starts + counts + place] = len(entries) + place * rows + np.arange(rows)
        names.append(pa.repeat(name, rows))
        values.append(texts.cast(pa.binary()))
    taken = pa.array(order)
    return _lists(
        counts + width,
        pa.StructArray.from_arrays(
            [pa.concat_arrays(names).take(taken), pa.concat_arrays(values).take(taken)],
            fields=list(HEADERS_TYPE.value_type),
        ),
    )


def _lists(counts: np.ndarray[tuple[int], np.dtype[np.int64]], entries: pa.Array) -> pa.ListArray:
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), entries, type=HEADERS_TYPE)
