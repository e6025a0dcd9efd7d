"""Clients that read a topic of one partition from its start, and what a read took."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

Read = Callable[[str, str, int, int], tuple[float, float]]
"""Address, topic, records, bytes of a value -> seconds, CPU seconds of the client."""

TUNED: Final = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1 << 20,
    "fetch.message.max.bytes": 8 << 20,
    "fetch.queue.backoff.ms": 2,
}
CONSUMED: Final = 10_000
"""Messages that confluent-kafka hands over at a time."""
READ_ALL: Final = Path(__file__).parent / "ReadAll.java"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, threads that have ended included, in nanosecond steps.

    Linux makes the id of a process's CPU clock from its process id (clock_getcpuclockid).
    """
    return time.clock_gettime((~pid << 3) | 2)


def read_confluent(settings: dict[str, Any]) -> Read:
    def read(address: str, topic: str, records: int, size: int) -> tuple[float, float]:
        consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
            | settings
        )
        began, cpu = time.perf_counter(), time.process_time()
        consumer.assign([TopicPartition(topic, 0, 0)])
        count = 0
        while count < records:
            messages = consumer.consume(min(CONSUMED, records - count), timeout=10)
            assert messages, f"no record in 10 s at offset {count}"
            assert messages[0].error() is None, messages[0].error()
            assert messages[0].offset() == count, messages[0].offset()
            assert len(messages[0].value() or b"") == size
            count += len(messages)
        took = time.perf_counter() - began, time.process_time() - cpu
        consumer.close()
        return took

    return read


def read_kcat(address: str, topic: str, records: int, size: int) -> tuple[float, float]:
    """From the start of the process to its end; it writes the values, each with a line feed."""
    command = ["kcat", "-b", address, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-q",
               "-c", str(records)]  # fmt: skip
    received = 0
    began, cpu = time.perf_counter(), children_cpu_seconds()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        buffer = bytearray(1 << 20)
        while got := process.stdout.readinto(buffer):  # type: ignore[attr-defined]
            received += got
    took = time.perf_counter() - began, children_cpu_seconds() - cpu
    assert process.returncode == 0, process.returncode
    assert received == records * (size + 1), received
    return took


def children_cpu_seconds() -> float:
    """User and system time of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def java_reader(jars: str) -> Iterator[Read]:
    """The Java client, in one process for all reads."""
    command = ["java", "-Xmx1G", "-cp", jars, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
               str(READ_ALL)]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:

        def read(address: str, topic: str, records: int, size: int) -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            cpu = cpu_seconds(process.pid)
            process.stdin.write(f"{address} {topic} {records} {size}\n")
            line = process.stdout.readline()
            assert line, f"the Java client ended with {process.wait(10)}"
            return float(line), cpu_seconds(process.pid) - cpu

        yield read
