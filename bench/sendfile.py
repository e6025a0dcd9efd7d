"""Server CPU per GiB served at 1 MiB fetches: sendfile over reading and sending.

The client is on the same machine, and waking a client that sleeps is billed to the server: on a
virtual machine more than the work itself, once per 64 KiB. A client behind a network costs no such
wake-ups, so the figure is taken with one that never sleeps; the other is told beside it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bascule.config import ClientConfig, Config
from bascule.groups import CommittedOffsetStore, GroupCoordinator
from bascule.host.api import File
from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.kafka import ClientListener, NodeIdentity
from bascule.listening import connection, sending
from bascule.model import NodeRegistration, PartitionState, StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import stamp
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.wire.connection import NEED_DATA, ClientConnection
from bascule.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from bench.harness import in_child, median_ratio, reap, report, work_directory

LOG_BYTES = 256 << 20
FETCH_BYTES = 1 << 20
LED = PartitionState((1,), (1,), 1, 0, 0)
"""The state of the partition: the only node leads it."""


class ReadingSender(sending.Sender):
    """What the listener would do without sendfile: read a stretch, send it."""

    __slots__ = ()

    async def _send_file(self, file: File, position: int, end: int) -> None:
        while position < end:
            data = os.pread(
                file.fileno(), min(end - position, sending.SENDFILE_CHUNK_BYTES), position
            )
            await self._send_bytes(data, 0)
            self._progress()
            position += len(data)


def make_log(directory: Path) -> PartitionLog:
    log = PartitionLog.open(RealFiles(), str(directory), LogConfig(1 << 30), RealClock())
    records = [Record(i, 1, None, b"x" * 128, (("subject", b"s"),)) for i in range(1_600)]
    batch = build_batch(records, base_offset=0, log_append_time=True)
    while log.end.position < LOG_BYTES:
        stamp(batch, base_offset=log.end.offset, leader_epoch=0)
        log.append(batch)
    log.sync()
    return log


class OneNode:
    """The `ClusterView` of a node alone."""

    controller_id = 1

    def nodes(self) -> list[NodeRegistration]:
        return [NodeRegistration(1, "here:9093", "here:9092", "http://here:9080", incarnation=1)]

    registrations = nodes

    def states(self, stream_id: bytes) -> list[PartitionState]:
        return [LED]


async def serve(log: PartitionLog, ready: Callable[[int], None], stop: asyncio.Event) -> None:
    definition = StreamDefinition("s", b"i" * 16, 0, StreamConfig("s"))
    partitions = Partitions()
    partitions.bind(asyncio.get_running_loop())
    partition = Partition(
        definition,
        0,
        log=log,
        failure=None,
        clock=RealClock(),
        on_changed=partitions.notify_watchers,
        hash_key=HashKey(bytes(16)),
    )
    partition.set_role(replace(LED, leader_epoch=partition.leader_epoch), 1, lag_ns_max=0)
    partitions.add((partition,))
    nobody: Any = None  # publishes or changes streams here
    offsets = CommittedOffsetStore(partitions, publisher=nobody, clock=RealClock())
    listener = ClientListener(
        partitions=partitions,
        offsets=offsets,
        groups=GroupCoordinator(partitions, offsets, RealRandom(1)),
        node=NodeIdentity(node_id=1, cluster_id="bench"),
        cluster=OneNode(),
        streams=nobody,
        config=Config(node_id=1, client=ClientConfig(administration="off")),
    )
    _, port = await listener.start("127.0.0.1", 0)
    ready(port)
    await stop.wait()
    await listener.close()


def receive_awake(sock: socket.socket, buffer: memoryview) -> int:
    """Receive without ever sleeping."""
    while True:
        try:
            return sock.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass


def drain(port: int, total: int, *, awake: bool) -> None:
    """Fetch `total` bytes in requests of 1 MiB from the log's beginning, and look at none."""
    receive = receive_awake if awake else socket.socket.recv_into
    sock = socket.create_connection(("127.0.0.1", port))
    client = ClientConnection(client_id="drain", frame_bytes_max=64 << 20)
    received = 0
    offset = 0
    while received < total:
        partition = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic="s", partitions=[partition])],
        )  # fmt: skip
        sock.sendall(client.send(request, version=12))
        while (event := client.next_event()) is NEED_DATA:
            client.received(receive(sock, client.get_buffer()))
        assert isinstance(event.message, FetchResponse)
        answer = event.message.responses[0].partitions[0]
        assert answer.error_code == 0, answer
        received += len(answer.records)
        offset = offset + 3_200 if offset + 6_400 < answer.high_watermark else 0
    sock.close()


def cpu_of(log: PartitionLog, sender: type[sending.Sender], total: int, *, awake: bool) -> float:
    """CPU seconds of the serving process for a GiB, measured over `total` bytes."""
    says, say = os.pipe()
    results, result = os.pipe()

    def work() -> None:
        connection.Sender = sender  # type: ignore[misc]

        async def main() -> None:
            stop = asyncio.Event()
            task = asyncio.create_task(
                serve(log, lambda port: (os.write(say, b"%d" % port), None)[1], stop)
            )
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(15, stop.set)
            await stop.wait()
            os.write(result, b"%.6f" % (time.process_time() - began))
            await task

        began = time.process_time()
        asyncio.run(main())

    child = in_child(work)
    port = int(os.read(says, 16))
    drain(port, total, awake=awake)
    os.kill(child, 15)
    seconds = float(os.read(results, 32))
    reap(child)
    for fd in (says, say, results, result):
        os.close(fd)
    return seconds * (1 << 30) / total


def run(*, quick: bool = False) -> None:
    total = (1 << 30) if quick else (4 << 30)
    with work_directory() as directory:
        log = make_log(directory)
        found = {}
        for awake in (True, False):
            ours, others = [], []
            for _ in range(3 if quick else 5):
                ours.append(cpu_of(log, sending.Sender, total, awake=awake))
                others.append(cpu_of(log, ReadingSender, total, awake=awake))
            found[awake] = median_ratio(ours, others)
        log.close()
    measured = {**found[True], "unit": "CPU s per GiB", "client_asleep": found[False]}
    report("sendfile", [{"figure": "sendfile over read-and-send", **measured}])
