"""Streams compressed by a node at ingest, each codec, read by clients that nobody here wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bascule
from bascule.model import Compression
from bascule.record.batch import scan_batches
from bascule.record.compression import CODECS
from support.kafka_readers import READERS, ClientRecord, decode_records
from support.processes import BIN, Node, running_node

MESSAGES = 1_500
CODEC_NAMES = [codec.value for codec in Compression if codec is not Compression.NONE]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a stream of each codec, named as the codec."""
    with running_node(tmp_path_factory.mktemp("compressed")) as node:
        for codec in CODEC_NAMES:
            node.create(codec, f"{codec}.>", compression=codec, segment_bytes_max=1 << 20)
        with bascule.connect_sync(node.addresses["http"]) as client:
            for codec in CODEC_NAMES:
                client.publish_many(message(codec, n) for n in range(MESSAGES))
        yield node


def message(codec: str, n: int) -> tuple[str, bytes, str | None, list[tuple[str, str]]]:
    value = b"" if n % 50 == 0 else b'{"flight": %d, "origin": "EWR"}' % n * (n % 9 + 1)
    return f"{codec}.{n % 7}", value, None if n % 3 else f"key {n}", [("n", str(n))]


def log_files(node: Node, codec: str) -> list[Path]:
    return sorted((node.directory / "data" / "streams" / codec / "0").glob("*.log"))


def on_disk(node: Node, codec: str) -> bytes:
    return b"".join(file.read_bytes() for file in log_files(node, codec))


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_log_holds_what_was_published(node: Node, codec: str) -> None:
    data = on_disk(node, codec)
    batches = list(scan_batches(data))
    assert CODECS[Compression(codec)] in {batch.header.codec for batch in batches}
    seen = decode_records(data)
    assert [s.offset for s in seen] == list(range(MESSAGES))
    for n, record in enumerate(seen):
        subject, value, key, headers = message(codec, n)
        assert record.value == value
        assert record.key == (None if key is None else key.encode())
        assert dict(record.headers)["subject"] == subject.encode()
        assert dict(record.headers)["n"] == headers[0][1].encode()


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_record_byte_for_byte(
    node: Node, codec: str, read: Callable[[str, str, int], list[ClientRecord]]
) -> None:
    seen = read(node.addresses["client"], codec, MESSAGES)
    assert seen == decode_records(on_disk(node, codec))


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_every_record_through_kcat(node: Node, codec: str) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed (Debian package kcat)")
    output = subprocess.run(
        [
            kcat, "-b", node.addresses["client"], "-C", "-t", codec, "-o", "beginning", "-e", "-q",
            "-X", "check.crcs=true", "-f", "%o %T %S %s\\n",
        ],
        check=True, capture_output=True, timeout=60,
    ).stdout  # fmt: skip
    assert output.splitlines() == [
        b"%d %d %d %b" % (s.offset, s.timestamp, len(s.value or b""), s.value or b"")
        for s in decode_records(on_disk(node, codec))
    ]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_python_client_reads_from_anywhere(node: Node, codec: str) -> None:
    expected = decode_records(on_disk(node, codec))
    with bascule.connect_sync(node.addresses["http"]) as client:
        for start, end in ((0, MESSAGES), (1_111, 1_200), (MESSAGES - 1, MESSAGES)):
            found = list(client.read(codec, start=start, end=end))
            assert [(m.offset, m.timestamp_ms, m.key, m.value) for m in found] == [
                (s.offset, s.timestamp, s.key, s.value) for s in expected[start:end]
            ]


@pytest.mark.parametrize("codec", ["snappy"])
def test_inspect_shows_the_records(node: Node, codec: str) -> None:
    file = log_files(node, codec)[0]
    batches = subprocess.run(
        [str(BIN / "bascule"), "inspect", str(file), "--json"],
        check=True, capture_output=True, timeout=60,
    ).stdout  # fmt: skip
    rows = [json.loads(line) for line in batches.splitlines()]
    assert codec in {row["codec"] for row in rows}
    records = subprocess.run(
        [str(BIN / "bascule"), "inspect", str(file), "--records", "--json"],
        check=True, capture_output=True, timeout=60,
    ).stdout  # fmt: skip
    first = [json.loads(line) for line in records.splitlines()][1]
    assert (first["offset"], first["value"]) == (1, message(codec, 1)[1].decode())
