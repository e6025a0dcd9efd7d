"""One stream, read by clients that nobody here wrote; all see the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec

from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.offsets import OFFSETS_STREAM
from support.kafka_readers import READERS, ClientRecord, decode_records
from support.served_stream import (
    TIMESTAMP,
    ListenerThread,
    ManualClock,
    append,
    make_records,
    open_stream,
    running_listener,
    stored_bytes,
)

with warnings.catch_warnings():
    # It reads its own schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

RECORD_COUNT = 5_000
BATCH_RECORDS = 50


class Scene(NamedTuple):
    listener: ListenerThread
    flights: Partition
    expected: list[ClientRecord]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    partitions, clock = Partitions(), ManualClock()
    flights = open_stream(
        tmp_path_factory.mktemp("streams"), partitions, segment_bytes_max=200_000, clock=clock
    )
    for first in range(0, RECORD_COUNT, BATCH_RECORDS):
        append(flights, make_records(first, BATCH_RECORDS))
        clock.wall_ms += 1000
    open_stream(tmp_path_factory.mktemp("offsets"), partitions, OFFSETS_STREAM)
    with running_listener(partitions) as listener:
        yield Scene(listener, flights, decode_records(stored_bytes(flights)))


def run_kcat(*arguments: str) -> bytes:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed (Debian package kcat)")
    return subprocess.run([kcat, *arguments], check=True, capture_output=True, timeout=60).stdout


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_record_byte_for_byte(
    scene: Scene, read: Callable[[str, str, int], list[ClientRecord]]
) -> None:
    assert [s.offset for s in scene.expected] == list(range(RECORD_COUNT))
    assert read(scene.listener.address, "flights", RECORD_COUNT) == scene.expected


def test_every_record_through_kcat(scene: Scene) -> None:
    output = run_kcat(
        "-b", scene.listener.address, "-C", "-t", "flights", "-o", "beginning", "-e", "-q",
        "-X", "check.crcs=true", "-f", "%o %T %K %k %S %s %h\\n",
    )  # fmt: skip

    def line(record: ClientRecord) -> bytes:
        key_size = -1 if record.key is None else len(record.key)
        value_size = -1 if record.value is None else len(record.value)
        parts = [b"%d %d %d" % (record.offset, record.timestamp, key_size), record.key or b""]
        parts += [b"%d" % value_size, record.value or b""]
        parts.append(b",".join(n.encode() + b"=" + (v or b"") for n, v in record.headers))
        return b" ".join(parts)

    lines = [text.replace(b"none=NULL", b"none=") for text in output.splitlines()]
    assert lines == [line(record) for record in scene.expected]


def test_kcat_lists_the_node(scene: Scene) -> None:
    listing = run_kcat("-b", scene.listener.address, "-L").decode()
    assert f"broker 7 at {scene.listener.address}" in listing
    assert 'topic "flights" with 1 partitions' in listing


def test_offsets_by_time_and_ends(scene: Scene) -> None:
    partition = confluent_kafka.TopicPartition("flights", 0, TIMESTAMP + 3_500)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": scene.listener.address, "group.id": "never joined"}
    )
    assert consumer.get_watermark_offsets(partition, timeout=10) == (0, RECORD_COUNT)
    (found,) = consumer.offsets_for_times([partition], timeout=10)
    assert found.offset == 4 * BATCH_RECORDS
    consumer.close()
    other = kafka.KafkaConsumer(bootstrap_servers=scene.listener.address)
    flights = kafka.TopicPartition("flights", 0)
    assert other.end_offsets([flights]) == {flights: RECORD_COUNT}
    assert other.beginning_offsets([flights]) == {flights: 0}
    assert other.offsets_for_times({flights: TIMESTAMP + 1})[flights].offset == BATCH_RECORDS
    other.close()


def test_all_topics_for_the_admin_client_of_librdkafka(scene: Scene) -> None:
    """Its request has three bytes more than it describes."""
    before = scene.listener.statistics()
    admin = AdminClient({"bootstrap.servers": scene.listener.address})
    topics = admin.list_topics(timeout=10).topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {
        "flights": 1,
        OFFSETS_STREAM: 1,
    }
    after = scene.listener.statistics()
    assert after.trailing_bytes > before.trailing_bytes
    assert after.protocol_errors == before.protocol_errors


def test_listed_offsets_have_their_leader_epoch(scene: Scene) -> None:
    admin = AdminClient({"bootstrap.servers": scene.listener.address})
    partition = confluent_kafka.TopicPartition("flights", 0)
    epoch = scene.flights.leader_epoch
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), RECORD_COUNT),
        (OffsetSpec.max_timestamp(), RECORD_COUNT - BATCH_RECORDS),
        (OffsetSpec.for_timestamp(TIMESTAMP + 3_500), 4 * BATCH_RECORDS),
    ):
        (found,) = admin.list_offsets({partition: spec}).values()
        result = found.result(20)
        assert (result.offset, result.leader_epoch) == (offset, epoch)


def test_a_producer_without_acks_is_cut_off_and_the_log_says_why(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": scene.listener.address,
            "client.id": "careless",
            "acks": 0,
            "error_cb": lambda error: failed.set(),
        }
    )
    while not failed.is_set():
        producer.produce("flights", b"x")
        producer.flush(1)
        producer.poll(0.1)
    (line,) = [
        record
        for record in caplog.records
        if record.getMessage() == "request refused" and record.client == "careless"  # type: ignore[attr-defined]
    ]
    assert "acks is 0" in line.reason  # type: ignore[attr-defined]
    assert scene.flights.high_watermark.offset == RECORD_COUNT


def test_a_producer_is_told_where_to_publish(scene: Scene) -> None:
    told: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": scene.listener.address})
    producer.produce("flights", b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(20) == 0
    (error,) = told
    assert error.code() == confluent_kafka.KafkaError.POLICY_VIOLATION
    assert not error.retriable()


def test_a_group_of_two_clients_goes_on_where_the_first_has_left_off(scene: Scene) -> None:
    options = {
        "bootstrap.servers": scene.listener.address,
        "group.id": "both",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    first = confluent_kafka.Consumer(options)
    first.subscribe(["flights"])
    while (message := first.poll(10)) is None:
        pass
    assert (message.error(), message.offset()) == (None, 0)
    first.commit(message=message, asynchronous=False)
    first.close()
    second = kafka.KafkaConsumer(
        "flights", bootstrap_servers=scene.listener.address, group_id="both"
    )
    assert next(second).offset == 1
    second.close()


def test_new_records_reach_a_reader_that_waits(tmp_path: Path) -> None:
    partitions = Partitions()
    live = open_stream(tmp_path, partitions)
    with running_listener(partitions) as listener:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": listener.address,
                "group.id": "g",
                # Else its end waits 45 s for a coordinator, which is not there.
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20_000,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition("flights", 0, 0)])
        offsets = []
        for first in range(0, 100, 10):
            while not listener.call(lambda: bool(live.watchers)):
                assert consumer.poll(0.01) is None
            append(live, make_records(first, 10))
            while len(offsets) < first + 10:
                if (message := consumer.poll(5)) is not None:
                    assert message.error() is None
                    offsets.append(message.offset())
        consumer.close()
        assert offsets == list(range(100))
