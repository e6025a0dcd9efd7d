"""What Java reads and writes: the codecs of Kafka's own client, and that client where it is there.

The codecs come with pyspark. The client is `kafka-clients` in the local Maven repository, to which
Maven fetches it once, or what KAFKA_CLIENTS_JAR names; without it those tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.java_gateway import launch_gateway

import bascule
from bascule.model import Compression
from bascule.record.compression import CODECS, compress_batch, decompress_records
from bascule.record.header import HEADER_BYTES
from support.processes import Node, running_node

TEXT = b"".join(b'{"flight": %d, "carrier": "UA", "origin": "EWR"}' % i for i in range(5_000))
CODEC_NAMES = [codec.value for codec in Compression if codec is not Compression.NONE]
MESSAGES = 500
CLIENT = "org.apache.kafka:kafka-clients:4.1.1"


def client_jar() -> Path | None:
    """The jar of Kafka's client; None where there is none and Maven does not get it."""
    if named := os.environ.get("KAFKA_CLIENTS_JAR"):
        return Path(named)
    if (found := newest_jar()) is None and (maven := shutil.which("mvn")):
        fetch = f"{maven} -q -B dependency:get -Dtransitive=false -Dartifact={CLIENT}".split()
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(fetch, check=False, capture_output=True, timeout=120)
        found = newest_jar()
    return found


def newest_jar() -> Path | None:
    found = Path.home().glob(".m2/repository/org/apache/kafka/kafka-clients/*/kafka-clients-*.jar")
    return max(found, default=None)


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A Java machine that has Kafka's client, if it was found."""
    jar = client_jar()
    options = f"--driver-class-path {jar} pyspark-shell" if jar else "pyspark-shell"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", options)
        gateway = launch_gateway()
    yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(20)


@pytest.fixture
def client_jvm(jvm: Any) -> Any:
    if newest_jar() is None and "KAFKA_CLIENTS_JAR" not in os.environ:
        pytest.skip("no kafka-clients jar; see the module")
    return jvm


def streams(jvm: Any, codec: Compression) -> tuple[Any, Any]:
    """The classes that Kafka's client reads and writes a codec with; of LZ4 its library's own."""
    return {
        Compression.GZIP: (jvm.java.util.zip.GZIPInputStream, jvm.java.util.zip.GZIPOutputStream),
        Compression.SNAPPY: (
            jvm.org.xerial.snappy.SnappyInputStream,
            jvm.org.xerial.snappy.SnappyOutputStream,
        ),
        Compression.LZ4: (
            jvm.net.jpountz.lz4.LZ4FrameInputStream,
            jvm.net.jpountz.lz4.LZ4FrameOutputStream,
        ),
        Compression.ZSTD: (
            jvm.com.github.luben.zstd.ZstdInputStreamNoFinalizer,
            jvm.com.github.luben.zstd.ZstdOutputStreamNoFinalizer,
        ),
    }[codec]


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_java_s_codecs_both_ways(jvm: Any, name: str) -> None:
    codec = Compression(name)
    reading, writing = streams(jvm, codec)
    packed = compress_batch(memoryview(bytearray(HEADER_BYTES) + TEXT), codec)[HEADER_BYTES:]
    source = jvm.java.io.ByteArrayInputStream(bytearray(packed))
    assert reading(source).readAllBytes() == TEXT
    target = jvm.java.io.ByteArrayOutputStream()
    stream = writing(target)
    stream.write(bytearray(TEXT))
    stream.close()
    assert decompress_records(CODECS[codec], target.toByteArray()) == TEXT


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("java")) as node:
        with bascule.connect_sync(node.addresses["http"]) as client:
            for codec in Compression:
                name = codec.value
                client.create_stream(name, f"{name}.>", compression=codec)
                client.publish_many((f"{name}.a", TEXT[n : n + 60]) for n in range(MESSAGES))
        yield node


def java_consumer(jvm: Any, node: Node, group: str, topic: str) -> tuple[Any, Any]:
    """A consumer of Apache Kafka's Java client, assigned to the topic, and its TopicPartition."""
    settings = jvm.java.util.Properties()
    for key, value in {
        "bootstrap.servers": node.addresses["client"],
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
        "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    }.items():
        settings.put(key, value)
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    partition = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
    consumer.assign(jvm.java.util.List.of(partition))
    return consumer, partition


def poll(jvm: Any, consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll(jvm.java.time.Duration.ofSeconds(5)).iterator()
    return found


@pytest.mark.parametrize("codec", Compression)
def test_the_java_client_reads_commits_and_resumes(
    client_jvm: Any, node: Node, codec: Compression
) -> None:
    consumer, partition = java_consumer(client_jvm, node, "com.example.app", codec.value)
    found = poll(client_jvm, consumer, MESSAGES)
    assert [record.offset() for record in found] == list(range(MESSAGES))
    assert [record.value() for record in found] == [TEXT[n : n + 60] for n in range(MESSAGES)]
    place = client_jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(123, "half")
    consumer.commitSync(client_jvm.java.util.Map.of(partition, place))
    consumer.close()
    again, partition = java_consumer(client_jvm, node, "com.example.app", codec.value)
    held = again.committed(client_jvm.java.util.Set.of(partition)).get(partition)
    assert (held.offset(), held.metadata()) == (123, "half")
    assert poll(client_jvm, again, 1)[0].offset() == 123
    again.close()


def test_the_java_client_finds_offsets_and_returns_from_beyond_the_end(
    client_jvm: Any, node: Node
) -> None:
    consumer, partition = java_consumer(client_jvm, node, "seeker", "none")
    these = client_jvm.java.util.List.of(partition)
    assert consumer.beginningOffsets(these).get(partition) == 0
    assert consumer.endOffsets(these).get(partition) == MESSAGES
    consumer.seek(partition, MESSAGES + 1_000)
    assert poll(client_jvm, consumer, 1)[0].offset() == 0  # auto.offset.reset=earliest
    consumer.seek(partition, 321)
    record = poll(client_jvm, consumer, 1)[0]
    assert record.offset() == 321
    assert record.timestampType().toString() == "LogAppendTime"
    assert record.leaderEpoch().get() == 0
    times = client_jvm.java.util.HashMap()
    times.put(partition, record.timestamp())
    found = consumer.offsetsForTimes(times).get(partition)
    assert found.offset() <= 321
    assert found.timestamp() == record.timestamp()
    consumer.close()


def test_the_java_admin_client_administers_groups(client_jvm: Any, node: Node) -> None:
    settings = client_jvm.java.util.Properties()
    settings.put("bootstrap.servers", node.addresses["client"])
    admin = client_jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    place = client_jvm.org.apache.kafka.common.TopicPartition("none", 0)
    other = client_jvm.org.apache.kafka.common.TopicPartition("gzip", 0)
    at = client_jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(7)
    committed = client_jvm.java.util.Map.of(place, at, other, at)
    admin.alterConsumerGroupOffsets("administered", committed).all().get()

    listed = {each.groupId(): each for each in admin.listGroups().all().get()}
    assert listed["administered"].groupState().get().toString() == "Empty"
    assert listed["administered"].type().get().toString() == "Classic"
    names = client_jvm.java.util.List.of("administered")
    described = admin.describeConsumerGroups(names).all().get().get("administered")
    assert described.groupState().toString() == "Empty"
    assert described.coordinator().id() == node.call("GET", "/v1/node")["node_id"]

    def offsets() -> dict[str, int]:
        found = admin.listConsumerGroupOffsets("administered").partitionsToOffsetAndMetadata().get()
        return {each.topic(): found.get(each).offset() for each in found.keySet()}

    assert offsets() == {"none": 7, "gzip": 7}
    places = client_jvm.java.util.Set.of(other)
    admin.deleteConsumerGroupOffsets("administered", places).all().get()
    assert offsets() == {"none": 7}
    admin.deleteConsumerGroups(names).all().get()
    assert "administered" not in {each.groupId() for each in admin.listGroups().all().get()}
    admin.close()
