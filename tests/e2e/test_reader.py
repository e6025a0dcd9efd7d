"""The reader against a real client listener over logs made by hand: corrupt, strange, huge."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from bascule.client.batch_reader import BatchReader, messages_of
from bascule.client.fetcher import FetchOptions
from bascule.client.stream_reader import StreamReader
from bascule.errors import Broken, CorruptData, OffsetOutOfRange, PartitionFailed, UnknownStream
from bascule.host.real import RealFiles
from bascule.kafka.handlers import SUPPORTED_VERSIONS
from bascule.model import Compression, PartitionState
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.compression import compress_batch
from bascule.record.header import CONTROL, seal
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.partition_log import LogConfig
from bascule.wire.messages.describe_configs import DescribeConfigsRequest
from support.keyed_logs import close_segment, compact
from support.served_stream import (
    TIMESTAMP,
    ListenerThread,
    append,
    make_records,
    open_stream,
    running_listener,
)


@pytest.fixture
def partitions() -> Partitions:
    return Partitions()


@pytest.fixture
def partition(partitions: Partitions, tmp_path: Path) -> Partition:
    """Stream `flights`, empty."""
    return open_stream(tmp_path, partitions, segment_bytes_max=40_000)


def read(listener: ListenerThread, *, fetch_bytes: int = 1 << 20, **options: Any) -> BatchReader:
    asked = {"start": "earliest", "end": None, "partition": 0, "follow": False, **options}
    return BatchReader(
        listener.address, "flights", options=FetchOptions(fetch_bytes=fetch_bytes), **asked
    )


def offsets(reader: BatchReader) -> list[int]:
    with reader:
        return [offset for batch in reader for offset in batch.column(0).to_pylist()]


def append_raw(partition: Partition, batch: bytearray) -> None:
    """Store and commit a batch as it is, past what a node would make of it."""
    assert partition.log is not None
    partition.log.append(batch)
    partition.sync()


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize("fetch_bytes", [1, 700, 4_096, 1 << 20])
def test_any_fetch_size_gives_the_same(
    partition: Partition, partitions: Partitions, fetch_bytes: int
) -> None:
    records = [record for n in range(0, 400, 20) for record in make_records(n, 20)]
    for n in range(0, 400, 20):
        append(partition, records[n : n + 20])
    with running_listener(partitions) as listener:
        for start, end in ((0, 400), (19, 21), (5, 6), (395, 400)):
            with read(listener, fetch_bytes=fetch_bytes, start=start, end=end) as reader:
                found = [m for batch in reader for m in messages_of(batch)]
            assert [m.offset for m in found] == list(range(start, end))
            assert [m.value for m in found] == [r.value for r in records[start:end]]
            assert [m.key for m in found] == [r.key for r in records[start:end]]


def test_a_server_that_does_not_tell_the_subject_stores_it(
    partition: Partition, partitions: Partitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a node of release 0.1.0."""
    monkeypatch.delitem(SUPPORTED_VERSIONS, DescribeConfigsRequest.API_KEY)
    records = [*make_records(0, 5), Record(5, TIMESTAMP, None, b"x")]
    append(partition, records)
    with running_listener(partitions) as listener, read(listener) as reader:
        found = [m.subject for batch in reader for m in messages_of(batch)]
    assert found == [*(f"flights.{n}" for n in range(5)), None]


def test_a_batch_with_a_wrong_crc_is_refused_and_named(
    partition: Partition, partitions: Partitions, tmp_path: Path
) -> None:
    for n in range(0, 30, 10):
        append(partition, make_records(n, 10))
    assert partition.log is not None
    (path,) = (tmp_path / "flights").glob("*.log")
    size = len(build_batch(make_records(0, 10), base_offset=0))
    flip(path, size + 200)
    with running_listener(partitions) as listener:
        assert offsets(read(listener, start=0, end=10, fetch_bytes=1)) == list(range(10))
        with pytest.raises(CorruptData) as corrupt:
            offsets(read(listener, start=3))
        assert "stream 'flights' partition 0 from offset 3" in str(corrupt.value)
        assert corrupt.value.at == size + 17
        assert "CRC" in corrupt.value.expected


@pytest.mark.parametrize("at", [8, 9, 10, 11, 16])
def test_a_batch_header_that_lies_ends_the_reading(
    partition: Partition, partitions: Partitions, tmp_path: Path, at: int
) -> None:
    for n in range(0, 30, 10):
        append(partition, make_records(n, 10))
    (path,) = (tmp_path / "flights").glob("*.log")
    flip(path, len(build_batch(make_records(0, 10), base_offset=0)) + at)
    with running_listener(partitions) as listener:
        reader = read(listener)
        with pytest.raises((CorruptData, PartitionFailed)):
            offsets(reader)


def test_control_batches_are_passed_over(partition: Partition, partitions: Partitions) -> None:
    append(partition, make_records(0, 5))
    control = build_batch([Record(5, TIMESTAMP, b"\0\0\0\1", b"")], base_offset=5)
    seal(
        control, record_count=1, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP,
        attributes=CONTROL, base_offset=5, leader_epoch=0,
    )  # fmt: skip
    append_raw(partition, control)
    append(partition, make_records(6, 4))
    with running_listener(partitions) as listener:
        assert offsets(read(listener)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert offsets(read(listener, start=5, end=6)) == []


def test_offsets_missing_within_a_batch_are_missing(
    partition: Partition, partitions: Partitions
) -> None:
    records = make_records(0, 10)
    append_raw(partition, build_batch([records[n] for n in (0, 3, 9)], base_offset=0))
    with running_listener(partitions) as listener:
        assert offsets(read(listener)) == [0, 3, 9]
        assert offsets(read(listener, start=1, end=9)) == [3]


@pytest.mark.parametrize("fetch_bytes", [200, 1 << 20])
def test_compressed_batches_are_decoded_a_few_at_a_time(
    partition: Partition,
    partitions: Partitions,
    monkeypatch: pytest.MonkeyPatch,
    fetch_bytes: int,
) -> None:
    monkeypatch.setattr("bascule.record.columns.DECODED_BYTES_MAX", 1)
    for number, codec in enumerate([*Compression] * 4):
        plain = build_batch(make_records(50 * number, 50), base_offset=50 * number)
        batch = bytearray(compress_batch(memoryview(plain), codec))
        seal(
            batch,
            record_count=50,
            base_timestamp=TIMESTAMP,
            max_timestamp=TIMESTAMP,
            base_offset=50 * number,
            keep_codec=True,
        )
        append_raw(partition, batch)
    with (
        running_listener(partitions) as listener,
        read(listener, fetch_bytes=fetch_bytes, start=70, end=990) as reader,
    ):
        batches = [batch.column(0).to_pylist() for batch in reader]
    assert [offset for batch in batches for offset in batch] == list(range(70, 990))
    assert len(batches) >= 16, "each of them alone, but for the plain ones"


def test_the_end_of_a_compacted_log_is_reached_and_reading_goes_on(
    partition: Partition, partitions: Partitions
) -> None:
    """Its last record stays, though it is a tombstone whose time is over."""
    assert partition.log is not None
    partition.log.configure(LogConfig(gaps_allowed=True))
    append(partition, [Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")])
    append(partition, [Record(2, 0, b"a", None)])
    close_segment(partition.log)
    partition.sync()
    for days in (1, 2):
        now_ms = TIMESTAMP + days * 86_400_000
        compact(RealFiles(), partition.log, now_ms=now_ms, retention_ms=1_000)
    assert partition.high_watermark.offset == 3
    with running_listener(partitions) as listener:
        assert offsets(read(listener)) == [1, 2]
        with read(listener, follow=True) as reader:
            assert next(reader).column(0).to_pylist() == [1, 2]
            listener.call(lambda: append(partition, [Record(3, 0, b"c", b"3")]))
            assert next(reader).column(0).to_pylist() == [3]


def test_a_record_of_many_megabytes(partition: Partition, partitions: Partitions) -> None:
    value = bytes(range(256)) * (20 << 12)
    append(partition, [Record(0, TIMESTAMP, None, value, (("subject", b"big"),))])
    append(partition, make_records(1, 5))
    with running_listener(partitions) as listener, read(listener, fetch_bytes=1_000) as reader:
        found = [m for batch in reader for m in messages_of(batch)]
    assert found[0].value == value
    assert [m.offset for m in found] == list(range(6))


def test_what_is_not_committed_is_waited_for(partition: Partition, partitions: Partitions) -> None:
    append(partition, make_records(0, 5))
    append(partition, make_records(5, 5), commit=False)
    with running_listener(partitions) as listener:
        assert offsets(read(listener)) == list(range(5))
        with pytest.raises(OffsetOutOfRange):
            read(listener, end=10)
        reader = read(listener, end=10, follow=True)
        assert next(reader).num_rows == 5
        threading.Timer(0.2, listener.call, [partition.sync]).start()
        assert offsets(reader) == [5, 6, 7, 8, 9]


def test_a_stream_that_is_created_again_is_not_read_on(
    partition: Partition, partitions: Partitions, tmp_path: Path
) -> None:
    """The reader connects again, as after a restart of its node, and finds another stream."""
    append(partition, make_records(0, 5))
    with running_listener(partitions) as listener:
        reader = read(listener)
        assert offsets(reader) == list(range(5))
        listener.call(lambda: partitions.remove(partition.definition))
        other = listener.call(lambda: open_stream(tmp_path / "2", partitions, id=b"2" * 16))
        listener.call(lambda: append(other, make_records(0, 10)))
        reader.follow()
        with pytest.raises(UnknownStream):
            next(reader)
        assert offsets(read(listener)) == list(range(10))


def test_a_node_that_knows_no_newer_leader_is_not_the_only_one_asked(
    partition: Partition, partitions: Partitions, tmp_path: Path
) -> None:
    """It is cut off from its cluster, and names itself."""
    append(partition, make_records(0, 5))
    others = Partitions()
    stale = open_stream(tmp_path / "stale", others)
    stale.set_role(PartitionState((7, 8), (8,), 8, 100, 0), 7, lag_ns_max=1 << 60)
    with running_listener(others) as first, running_listener(partitions) as second:
        reader = BatchReader(
            f"{first.address},{second.address}",
            "flights", start="earliest", end=None, partition=0, follow=False,
            options=FetchOptions(timeout=5),
        )  # fmt: skip
        assert offsets(reader) == list(range(5))


def test_a_partition_that_stops_is_told(partition: Partition, partitions: Partitions) -> None:
    append(partition, make_records(0, 5))
    with running_listener(partitions) as listener:
        reader = read(listener, follow=True)
        assert next(reader).num_rows == 5
        listener.call(lambda: partition.fail("the disk is gone"))
        for _ in range(2):  # an end would say that all was read
            with pytest.raises(PartitionFailed, match="see its log"):
                next(reader)
        reader.close()


def test_a_read_of_all_partitions_that_failed_does_not_end(
    partition: Partition, partitions: Partitions
) -> None:
    append(partition, make_records(0, 5))
    with running_listener(partitions) as listener, StreamReader(
        listener.address, "flights", start="earliest", end=None, partition=None,
        order="partition", follow=True, options=FetchOptions(),
    ) as reader:  # fmt: skip
        assert next(reader).num_rows == 5
        listener.call(lambda: partition.fail("the disk is gone"))
        for _ in range(2):
            with pytest.raises(PartitionFailed, match="see its log"):
                next(reader)


def test_a_door_that_goes_away_is_come_back_to(
    partition: Partition, partitions: Partitions
) -> None:
    """The second listener has another port: only the patience with the first is looked at."""
    append(partition, make_records(0, 5))
    options = FetchOptions(timeout=0.5)
    with running_listener(partitions) as listener:
        reader = BatchReader(
            listener.address,
            "flights",
            start=0,
            end=None,
            partition=0,
            follow=True,
            options=options,
        )
        assert next(reader).num_rows == 5
    with pytest.raises(Broken, match=r"failed at offset 5 for 0\.5 s"):
        next(reader)
