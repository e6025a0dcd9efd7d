"""Source, sink and archive on a cluster whose nodes die: no query ends, each row is there once."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.client import SyncClient
from bascule.pipeline.jobs.archive.run import run as archive
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.file_reader import read_files
from support.clusters import RunningCluster, running_cluster
from support.ids_published import IdsPublished
from support.processes import running_nats

WAIT_S = 180
ROWS = 500
"""Written before and after each kill."""


class Load(threading.Thread):
    """Publishes to `flights` until it is stopped."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="load")
        self._servers = servers
        self._ends = threading.Event()
        self.published: IdsPublished | None = None

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        async with bascule.connect(self._servers) as client:
            self.published = IdsPublished(client)
            run = asyncio.create_task(self.published.run())
            await asyncio.to_thread(self._ends.wait)
            self.published.stopping = True
            await run

    def finish(self) -> int:
        """Stop; return how many messages are acked."""
        self._ends.set()
        self.join(WAIT_S)
        assert self.published is not None
        return len(self.published.offsets)


class Archiving(threading.Thread):
    """Archives `flights` again and again, each time to its end."""

    def __init__(self, spark: Any, spec: ArchiveSpec) -> None:
        super().__init__(name="archive")
        self._spark, self._spec = spark, spec
        self._ends = threading.Event()
        self.runs = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ends.is_set():
                archive(self._spark, self._spec)
                self.runs += 1
        except BaseException as error:  # the test shows it
            self.error = error

    def finish(self) -> None:
        self._ends.set()
        self.join(WAIT_S)
        if self.error is not None:
            raise self.error
        archive(self._spark, self._spec)


def written(client: SyncClient) -> int:
    return sum(each.high_watermark for each in client.stream("out").partitions)


def wait_for(condition: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        error = query.exception()
        assert error is None, str(error)
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def kill_leaders(cluster: RunningCluster, client: SyncClient, query: Any) -> None:
    """Of the stream that is read, and of the one that is written."""
    for stream in ("flights", "out"):
        for step in ("before", "after"):
            count = written(client) + ROWS
            wait_for(lambda count=count: written(client) >= count, query)
            if step == "before":
                victim = cluster.leader(stream)
                cluster.nodes[victim].stop(signal.SIGKILL)
        cluster.start(victim)
        for each in ("flights", "out", "_offsets"):
            cluster.wait_in_sync(each)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_source_sink_and_archive_go_on_when_a_leader_is_killed(spark: Any, tmp_path: Path) -> None:
    lake = TableSpec(location=str(tmp_path / "lake"))
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path, nats=nats.url) as cluster,
    ):
        servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
        spread = {"partitions": 2, "replicas": 3, "dedupe_window_ms": 3_600_000}
        cluster.nodes[1].create("flights", "flights.>", partition_by="subject", **spread)
        cluster.nodes[1].create("out", "out.>", partition_by="subject", **spread)
        spec = ArchiveSpec(name="archive", stream="flights", table=lake, server=servers)
        load, archiving = Load(servers), Archiving(spark, spec)
        load.start()
        query = (
            spark.readStream.format("bascule")
            .options(server=servers, stream="flights", startingOffsets="earliest")
            .load()
            .selectExpr("concat('out', substr(subject, 8)) AS subject", "value")
            .writeStream.format("bascule")
            .options(server=servers, stream="out", dedupe="require")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        archiving.start()
        with bascule.connect_sync(servers) as client:
            try:
                kill_leaders(cluster, client, query)
                count = load.finish()
                wait_for(lambda: written(client) >= count, query)
            finally:
                load.finish()
                query.stop()
                archiving.finish()
            stored = Counter(int(m.value or b"-1") for m in client.read("out"))
            offsets = Counter((m.partition, m.offset) for m in client.read("flights"))
    assert stored == Counter(range(count))
    assert archiving.runs > 0
    table = open_table(lake.address())
    snapshot = table.snapshot()
    assert snapshot is not None
    rows = [row for b in read_files(table.files(snapshot), table.schema) for row in b.to_pylist()]
    assert Counter((row["partition"], row["offset"]) for row in rows) == offsets
