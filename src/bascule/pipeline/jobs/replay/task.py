"""One task of a replay: rows of one stream partition, published in the order of their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bascule.pipeline.clients import client_of, patiently
from bascule.pipeline.jobs.offset_cursor import Cursor
from bascule.pipeline.jobs.replay.messages import MessageMaker
from bascule.pipeline.jobs.replay.spec import ReplaySpec
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, RAW, TIMESTAMP
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.model import DataFile, Span
from bascule.pipeline.values.spec import ValueSpec


@dataclass(frozen=True, slots=True)
class Source:
    """What every task of a replay is told. Picklable."""

    spec: ReplaySpec
    stream_id: str
    schema: pa.Schema
    """Of the table."""
    value: ValueSpec


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets of one partition that one task publishes."""

    span: Span
    files: tuple[DataFile, ...]
    malformed_files: tuple[DataFile, ...] = ()
    stored: tuple[int, ...] = ()
    """Offsets that the target holds already."""


class Sent(msgspec.Struct):
    """What became of a stretch."""

    partition: int
    messages: int
    duplicates: int
    """Of `messages`: the target had them."""


def publish_stretch(source: Source, stretch: Stretch) -> str:
    """Publish, and return once all is acked: the JSON of a `Sent`.

    Raises: as `Client.publish_batches`.
    """
    spec = source.spec
    client = patiently(lambda: client_of(spec.server))
    fixed = None if spec.is_mapped() else spec.subject
    with client.batch_publisher(subject=fixed, stream=spec.to) as out:
        for batch in messages_of(source, stretch):
            out.send(batch)
        published = out.finish()
    sent = Sent(stretch.span.partition, published.messages, published.duplicates)
    return msgspec.json.encode(sent).decode()


def messages_of(source: Source, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """The messages of a stretch, the malformed records in their places among the others."""
    spec, span = source.spec, stretch.span
    typed = pa.types.is_struct(source.schema.field("value").type)
    encoder = source.value.encoder() if typed and RAW not in source.schema.names else None
    subject = spec.subject if spec.is_mapped() else ""
    main = MessageMaker(
        source.stream_id,
        subject=subject,
        original_headers=spec.original_headers,
        encoder=encoder,
    )
    side = MessageMaker(source.stream_id, subject=subject, original_headers=spec.original_headers)

    def rows(files: tuple[DataFile, ...], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        batches = read_files(files, schema, offset_start=span.start, offset_end=span.end)
        return (kept for batch in batches if (kept := _wanted(spec, stretch, batch)).num_rows)

    malformed = Cursor(rows(stretch.malformed_files, MALFORMED_SCHEMA), MALFORMED_SCHEMA)
    for batch in rows(stretch.files, source.schema):
        last = batch.column("offset")[-1].as_py()
        aside = malformed.until(last)
        yield _merged(main, batch, side, aside) if aside.num_rows else main.make(batch)
    for batch in malformed.until(span.end).to_batches():
        yield side.make(batch)


def _wanted(spec: ReplaySpec, stretch: Stretch, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows within the times asked for that the target does not hold."""
    keep = None
    times = batch.column("timestamp")
    for bound, test in ((spec.start_ms, pc.greater_equal), (spec.end_ms, pc.less)):
        if bound is not None:
            inside = test(times, pa.scalar(bound * 1_000, pa.int64()).cast(TIMESTAMP))
            keep = inside if keep is None else pc.and_(keep, inside)
    if stretch.stored:
        new = pc.invert(pc.is_in(batch.column("offset"), pa.array(stretch.stored, pa.int64())))
        keep = new if keep is None else pc.and_(keep, new)
    return batch if keep is None else batch.filter(keep)


def _merged(
    main: MessageMaker, batch: pa.RecordBatch, side: MessageMaker, aside: pa.Table
) -> pa.RecordBatch:
    parts = [main.make(batch), *(side.make(one) for one in aside.to_batches())]
    offsets = np.concatenate([batch.column("offset").to_numpy(), aside.column("offset").to_numpy()])
    return pa.concat_batches(parts).take(pa.array(np.argsort(offsets, kind="stable")))
