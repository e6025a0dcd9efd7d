"""A byte of each kind of file damaged under a real node: it serves what was written or says so.

`tests/storage/test_any_byte.py` damages every byte of a log, without the node around it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bascule.errors import CorruptData
from bascule.record.batch import RecordBatch, scan_batches
from bascule.wire.error_codes import ErrorCode
from support.page_cache import drop_from_page_cache
from support.processes import Node, RawNats, running_node, wait_for
from support.raw_client import RawClient, fetch

COUNT = 600
VALUES = [b"value %d " % n + b"." * 100 for n in range(COUNT)]
SEGMENT = "00000000000000000000.log"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node stopped in good order, a stream of several segments in it."""
    directory = tmp_path_factory.mktemp("written")
    with running_node(directory) as node:
        node.create("flights", "flights", segment_bytes_max=20_000)
        nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
        for first in range(0, COUNT, 50):
            for value in VALUES[first : first + 50]:
                nats.send(b"PUB flights %d\r\n%s\r\n" % (len(value), value))
            node.wait_stored("flights", first + 50)
        nats.close()
    return directory


def read_flights(node: Node) -> tuple[list[bytes | None], ErrorCode]:
    """Every value that a consumer takes, from the first offset on, and what ended it."""
    host, port = node.addresses["client"].rsplit(":", 1)
    offset, values = 0, []
    with RawClient(host, int(port)) as client:
        while offset < COUNT:
            (found,) = client.request(fetch(offset), 11).responses[0].partitions
            if found.error_code:
                return values, ErrorCode(found.error_code)
            data = memoryview(found.records or b"")
            try:
                batches = list(scan_batches(data))
            except CorruptData:
                return values, ErrorCode.CORRUPT_MESSAGE
            for header, start, end in batches:
                assert header.base_offset == offset, "an offset that nobody wrote"
                values += [record.value for record in RecordBatch(data[start:end])]
                offset = header.end_offset
    return values, ErrorCode.NONE


HARMLESS = ["leader-epochs", "checkpoint", f"{SEGMENT[:-3]}index"]


@pytest.mark.parametrize("name", HARMLESS)
def test_files_that_help_cost_nothing(written: Path, tmp_path: Path, name: str) -> None:
    node = damaged(written, tmp_path, f"streams/flights/0/{name}", at=20)
    node.start()
    assert read_flights(node) == (VALUES, ErrorCode.NONE)
    assert node.stop() == 0


@pytest.mark.parametrize(("name", "at"), [("raft/raft.sqlite", 4_100), ("node.json", 30)])
def test_files_of_the_node_refuse_its_start(
    written: Path, tmp_path: Path, name: str, at: int
) -> None:
    node = damaged(written, tmp_path, name, at=at)
    with pytest.raises(AssertionError, match="exited with") as refused:
        node.start()
    text = re.sub(r"\s+", " ", str(refused.value))
    assert re.search(rf"{name} is corrupt at|{name}, table \w+ is corrupt", text), text
    assert "restore the file" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("at", [7, 14, 60], ids=lambda at: f"byte-{at}")
def test_a_segment_is_served_as_written_or_named(written: Path, tmp_path: Path, at: int) -> None:
    """Bytes of the first batch: its base offset, its leader epoch, its records."""
    node = damaged(written, tmp_path, f"streams/flights/0/{SEGMENT}", at=at)
    node.start()
    values, ended = read_flights(node)
    assert values == VALUES[: len(values)]
    assert ended in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE), "seen by somebody"
    node.wait_failed("flights")
    failure = node.partition("flights")["failure"]
    assert re.search(rf"{SEGMENT} is corrupt at byte \d+", failure)
    assert "restore the file from a copy" in failure
    assert node.stop() == 0
    assert "Traceback" not in node.log.read_text()


@pytest.mark.parametrize("at", [6, 14], ids=["base-offset", "leader-epoch"])
def test_what_the_disk_damages_later_where_no_crc_covers_it_is_named(
    written: Path, tmp_path: Path, at: int
) -> None:
    """The node has checked all of it, and the page cache does not have it any more."""
    shutil.copytree(written / "data", tmp_path / "data")
    path = tmp_path / f"data/streams/flights/0/{SEGMENT}"
    node = Node(tmp_path)
    node.start()
    assert read_flights(node) == (VALUES, ErrorCode.NONE)
    wait_for(lambda: "all logs checked" in node.log.read_text() or None, node.process, node.log)
    starts = [start for _, start, _ in scan_batches(memoryview(path.read_bytes()))]
    with path.open("r+b", buffering=0) as file:
        file.seek(starts[1] + at)
        byte = file.read(1)[0]
        file.seek(starts[1] + at)
        file.write(bytes([byte ^ 0x04]))
        drop_from_page_cache(file.fileno())
    values, ended = read_flights(node)
    assert values == VALUES[: len(values)]
    assert ended in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
    assert f"{SEGMENT} is corrupt at byte {starts[1] + at // 12 * 12}" in node.log.read_text()
    assert node.stop() == 0


def damaged(written: Path, directory: Path, name: str, *, at: int) -> Node:
    """A node over a copy in which one byte of `name` is another."""
    shutil.copytree(written / "data", directory / "data")
    path = directory / "data" / name
    data = bytearray(path.read_bytes())
    if at < len(data):
        data[at] ^= 0x01
    else:
        data.append(0)
    path.write_bytes(data)
    return Node(directory)
