"""Kafka request handlers over real logs, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bascule.kafka.handlers import handle
from bascule.kafka.handlers.context import Context
from bascule.listening.refusals import RefusalLog
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.purgatory import Purgatory
from bascule.storage.partition_log import FileSlice
from bascule.wire.connection import ReceivedRequest
from bascule.wire.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchTopic,
)
from bascule.wire.schema import Message, Request
from support.served_stream import (
    NO_CONTROLLER,
    NODE,
    READING,
    ManualClock,
    OneNode,
    append,
    make_coordinator,
    make_offset_store,
    make_records,
    open_stream,
)

FLIGHTS_ID = b"flights#########"
UNKNOWN_ID = b"nobody's id 0000"
LONG_WAIT_MS = 30_000


@dataclass
class HandlerHarness:
    """The handlers over three streams: `flights` with 200 records, `empty`, and `broken`."""

    partitions: Partitions
    clock: ManualClock
    flights: Partition
    context: Context
    purgatory: Purgatory = field(default_factory=Purgatory)

    def handle(self, request: Request[Any], version: int) -> Any:
        return asyncio.run(self.handle_async(request, version))

    async def handle_async(self, request: Request[Any], version: int) -> Any:
        self.partitions.bind(asyncio.get_running_loop())
        received = ReceivedRequest(request.API_KEY, version, 1, "test", request, version)
        response = handle(received, self.context)
        return response if isinstance(response, Message) else await response

    def fetch(self, version: int = 12, **partition: Any) -> FetchPartitionResponse:
        request = fetch_request("flights", **partition)
        response: FetchPartitionResponse = self.handle(request, version).responses[0].partitions[0]
        return response


async def run_on_thread(function: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function)


def fetch_request(
    name: str, *, wait_ms: int = 0, bytes_min: int = 1, **partition: Any
) -> FetchRequest:
    partition.setdefault("partition_max_bytes", 1 << 20)
    topic = FetchTopic(name, partitions=[FetchPartition(**partition)])
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=bytes_min, topics=[topic])


def record_bytes(response: FetchPartitionResponse) -> int:
    return response.records.length if isinstance(response.records, FileSlice) else 0


def open_harness(tmp_path: Path) -> Iterator[HandlerHarness]:
    partitions, clock = Partitions(), ManualClock()
    flights = open_stream(tmp_path, partitions, clock=clock, segment_bytes_max=8_000)
    flights.leader_epoch = 3
    for batch in range(20):
        append(flights, make_records(batch * 10, 10))
        clock.wall_ms += 1000
    open_stream(tmp_path, partitions, "empty")
    open_stream(tmp_path, partitions, "broken", failure="bad sector")
    purgatory = Purgatory()
    offsets = make_offset_store(partitions)
    context = Context(
        partitions=partitions,
        offsets=offsets,
        groups=make_coordinator(partitions, offsets),
        node=NODE,
        host="here",
        port=9092,
        fetch_bytes_max=1 << 20,
        fetch_wait_ms_max=60_000,
        purgatory=purgatory,
        run_on_thread=run_on_thread,
        peer="192.0.2.1:50000",
        refusals=RefusalLog(lambda: 0.0),
        cluster=OneNode(partitions),
        config=READING,
        streams=NO_CONTROLLER,
    )
    yield HandlerHarness(partitions, clock, flights, context, purgatory)
    for stream in partitions.streams().values():
        if stream[0].log is not None:
            stream[0].log.close()
