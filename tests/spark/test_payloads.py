"""Payloads in Spark: their sizes as a column, their content as the value."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow
import pytest

from bascule.client import SyncClient
from support.processes import Node

MIB = 1 << 20


def reading(spark: Any, node: Node, stream: str, **more: str) -> Any:
    asked = {"server": node.addresses["http"], "stream": stream, **more}
    return spark.read.format("bascule").options(**asked).load()


def test_payloads_are_described_and_read_inline(
    spark: Any, node: Node, client: SyncClient, stream: str
) -> None:
    contents = [random.Random(n).randbytes(size) for n, size in enumerate((5, 3 * MIB, 0))]
    for n, content in enumerate(contents):
        client.publish(f"{stream}.plain", b"%d" % n)
        with client.open_payload(stream, subject=f"{stream}.payload", key=f"k{n}") as out:
            out.write(content)
    sizes = reading(spark, node, stream, payloads="describe").select("payload_bytes", "value")
    found = [(row.payload_bytes, bytes(row.value)) for row in sizes.collect()]
    assert sorted(found, key=str) == sorted(
        [(None, b"0"), (None, b"1"), (None, b"2"), (5, b""), (3 * MIB, b""), (0, b"")], key=str
    )
    assert "payload_bytes" not in reading(spark, node, stream).columns
    inline = reading(spark, node, stream, payloads="inline")
    values = {row.key and bytes(row.key): bytes(row.value) for row in inline.collect() if row.key}
    assert values == {b"k%d" % n: content for n, content in enumerate(contents)}
    plain = inline.where("payload_bytes is null").select("value").collect()
    assert sorted(bytes(row.value) for row in plain) == [b"0", b"1", b"2"]
    selected = reading(spark, node, stream, payloads="inline", columns="value,offset")
    assert sum(len(row.value) for row in selected.collect()) == 3 * MIB + 5 + 3
    with pytest.raises(Exception, match="payloadBytesMax"):
        reading(spark, node, stream, payloads="inline", payloadBytesMax=str(MIB)).collect()


def test_a_batch_is_cut_where_contents_are_large(
    spark: Any, node: Node, client: SyncClient, stream: str
) -> None:
    for n in range(5):
        with client.open_payload(stream, subject=f"{stream}.p", key=f"k{n}") as out:
            out.write(bytes([n]) * (20 * MIB))
    inline = reading(spark, node, stream, payloads="inline").selectExpr(
        "cast(key as string) as key", "length(value) as size", "hex(substring(value, 1, 1)) as at"
    )
    assert sorted((row.key, row.size, row.at) for row in inline.collect()) == [
        (f"k{n}", 20 * MIB, f"0{n}") for n in range(5)
    ]


def test_executors_read_ranges(spark: Any, node: Node, client: SyncClient, stream: str) -> None:
    """As the page of the source says: the content does not pass through the value."""
    contents = [random.Random(n).randbytes(2 * MIB) for n in range(3)]
    client.publish(f"{stream}.plain", b"none")
    for n, content in enumerate(contents):
        with client.open_payload(stream, subject=f"{stream}.payload", key=f"k{n}") as out:
            out.write(content)
    server, start, end = node.addresses["http"], MIB - 3, MIB + 5

    def parts(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import bascule

        with bascule.connect_sync(server) as opened:
            for batch in batches:
                found = []
                for row in batch.to_pylist():
                    with opened.read_payload(
                        row["stream"], row["offset"], partition=row["partition"],
                        start=start, end=end,
                    ) as payload:  # fmt: skip
                        found.append(payload.read())
                columns = [batch.column("key"), pyarrow.array(found, pyarrow.binary())]
                yield pyarrow.RecordBatch.from_arrays(columns, ["key", "part"])

    described = reading(spark, node, stream, payloads="describe").where("payload_bytes > 0")
    asked = described.select("stream", "partition", "offset", "key")
    rows = asked.mapInArrow(parts, "key binary, part binary").collect()
    assert {bytes(row.key): bytes(row.part) for row in rows} == {
        b"k%d" % n: content[start:end] for n, content in enumerate(contents)
    }
