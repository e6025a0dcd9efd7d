"""One Apache Kafka broker in KRaft mode, broker and controller in one process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.harness import Running

POM: Final = Path(__file__).parent / "pom.xml"
LOGGING: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
JAVA: Final = (
    "java", "-server", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true", *LOGGING,
)  # fmt: skip
"""What bin/kafka-server-start.sh of the distribution runs."""
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
"""
"""All else is left as it comes."""
PRODUCER: Final = {
    "batch.size": 256 << 10,
    "batch.num.messages": 100_000,
    "linger.ms": 50,
    "queue.buffering.max.messages": 1_000_000,
    "compression.type": "none",
}
"""Batches of 256 KiB: as many bytes as the node takes from a NATS connection at a time."""


def class_path(directory: Path) -> str:
    """The class path of the broker and the Java client, whose jars Maven copies to `directory`."""
    jars = directory / "jars"
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
         "-DincludeScope=runtime", f"-DoutputDirectory={jars}"],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
    return f"{jars}/*"


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@contextlib.contextmanager
def broker(directory: Path, jars: str, *, settings: str = "") -> Iterator[Running]:
    """A broker on a free port, with its data below `directory`, and these `settings` added."""
    port, controller = free_ports(2)
    properties = directory / "server.properties"
    properties.write_text(
        PROPERTIES.format(port=port, controller=controller, data=directory / "data") + settings
    )
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    with (directory / "broker.log").open("wb") as output:
        subprocess.run(
            ["java", "-cp", jars, *LOGGING, "kafka.tools.StorageTool", "format",
             "-t", cluster, "-c", str(properties)],
            check=True, stdout=output, stderr=output,
        )  # fmt: skip
        process = subprocess.Popen(
            [*JAVA, "-cp", jars, "kafka.Kafka", str(properties)], stdout=output, stderr=output
        )
    running = Running(process, f"127.0.0.1:{port}")
    try:
        wait_open(running, directory / "broker.log")
        yield running
    finally:
        running.stop()


def wait_open(running: Running, log: Path, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while True:
        assert running.process.poll() is None, log.read_text()
        try:
            AdminClient({"bootstrap.servers": running.url, "log_level": 0}).list_topics(timeout=2)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def fill(address: str, topic: str, *, size: int, records: int) -> None:
    """Produce `records` values of `size` bytes to a new topic of one partition."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": address, **PRODUCER})
    value = b"x" * size
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.05)
            else:
                break
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    assert left == 0, f"{left} records were not produced"
