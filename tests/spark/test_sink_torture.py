"""A query is killed at any moment, again and again: each row is in the stream exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.client import SyncClient
from support.processes import Node

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

ROUNDS_USUAL = 1
ROWS_PER_ROUND = 16_000
ROWS_PER_BATCH = 4_000
WAIT_S = 120
PAUSES = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Query:
    """A process with a query from stream `in` to stream `out`; tasks of it fail by themselves."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "spark.log"

    def start(self, *, to_the_end: bool) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, __file__, self.node.addresses["http"], str(self.directory),
                    "end" if to_the_end else "on",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )  # fmt: skip

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """The driver and all its workers, at once."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait(20)

    def workers(self) -> list[int]:
        """Python processes that Spark's daemons forked: tasks run there."""
        assert self.process is not None
        group = os.getpgid(self.process.pid)
        found: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
                command = (stat.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[2]) == group and b"pyspark.daemon" in command:
                found[int(stat.parent.name)] = int(fields[1])
        return [pid for pid, parent in found.items() if parent in found]

    def wait(self, rows: int) -> None:
        """Until it has written all of `rows`, of which it had written some."""
        assert self.process is not None
        assert self.process.wait(WAIT_S + rows // 1_000) == 0, self.log.read_text()[-5_000:]


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    """With a node of its own, on ports that stay."""
    node = Node(tmp_path / "node", keep_ports=True)
    node.directory.mkdir()
    node.start()
    query = Query(node, tmp_path)
    yield query
    query.kill()
    node.stop()


@pytest.mark.long
@pytest.mark.timeout(0)
def test_each_row_is_stored_once(query: Query, request: pytest.FixtureRequest) -> None:
    """Driver, workers, node: `--rounds=50` kills them for half an hour, each time with new dice."""
    rounds = request.config.getoption("--rounds") or ROUNDS_USUAL
    seed = request.config.getoption("--seed") or 7
    print(f"seed {seed}")
    dice = random.Random(seed)
    window = {"dedupe_window_ms": 3_600_000, "dedupe_messages_max": 10_000_000}
    query.node.create("in", "in.>", partitions=2, partition_by="subject", sync="interval")
    query.node.create("out", "out.>", partitions=2, partition_by="key", **window)
    began, sent, met = time.monotonic(), 0, Counter[str]()
    for number in range(1, rounds + 1):
        with bascule.connect_sync(query.node.addresses["http"]) as client:
            client.publish_many(message(n) for n in range(sent, sent + ROWS_PER_ROUND))
            sent += ROWS_PER_ROUND
            met += live_and_die(query, client, dice, anywhere=number % 5 == 1 < rounds)
        print(f"round {number}: {dict(met)}, {time.monotonic() - began:.0f} s", flush=True)
    query.start(to_the_end=True)
    query.wait(sent)
    with bascule.connect_sync(query.node.addresses["http"]) as client:
        stored = Counter(
            int(m.value or b"-1")
            for partition in range(2)
            for m in client.read("out", partition=partition)
        )
        known = duplicates(client)
    assert stored == Counter(range(sent))
    print(f"{sent} rows, each once; {known} were sent again and known; {dict(met)}")
    # The last life ended within a batch, which was repeated.
    assert met["within a batch"] > 0
    assert known > 0


def message(n: int) -> tuple[str, bytes, bytes]:
    return f"in.{n % 5}", b"%d" % n, b"k%d" % (n % 11)


def ends(client: SyncClient) -> int:
    return sum(p.high_watermark for p in client.stream("out").partitions)


def duplicates(client: SyncClient) -> int:
    """Messages of `out` that came again since its node was started."""
    lines = client.metrics().splitlines()
    found = [x for x in lines if "duplicate" in x and '"out"' in x and not x.startswith("#")]
    assert found, "no metric counts duplicates"
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in found)


def live_and_die(
    query: Query, client: SyncClient, dice: random.Random, *, anywhere: bool
) -> Counter[str]:
    """Start the query, let it write for a while, hurt this or that, and kill it: within a batch, or
    `anywhere`.
    """
    met: Counter[str] = Counter()
    before = ends(client)
    query.start(to_the_end=False)
    wait_until(query, lambda: ends(client) > before)
    for _ in range(dice.randrange(3)):
        time.sleep(dice.uniform(0, 0.5))
        if dice.random() < 0.3:
            query.node.stop(signal.SIGKILL)
            query.node.start()
            met["node killed"] += 1
        elif workers := query.workers():
            try:
                os.kill(dice.choice(workers), signal.SIGKILL)
                met["worker killed"] += 1
            except ProcessLookupError:
                pass
    time.sleep(dice.uniform(0, 1))
    deadline = time.monotonic() + (0 if anywhere else 20)
    while (stored := ends(client)) % ROWS_PER_BATCH == 0 and time.monotonic() < deadline:
        time.sleep(0.002)
    query.kill()
    met["within a batch" if stored % ROWS_PER_BATCH else "between batches"] += 1
    return met


def wait_until(query: Query, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert query.is_alive(), query.log.read_text()[-5_000:]
        assert time.monotonic() < deadline, f"not within {WAIT_S} s"
        time.sleep(0.005)


def main(server: str, directory: Path, *, to_the_end: bool) -> None:
    """Small batches, as fast as they go, each task with up to four attempts."""
    from pyspark import TaskContext

    from bascule.pipeline.session import SHORT_LIVED, local_session

    spark: Any = local_session(
        directory / "session",
        master="local[2,4]",
        settings={**SHORT_LIVED, "spark.driver.memory": "1g", PAUSES: "200"},
    )

    def stumble(batches: Any) -> Any:
        """Some first attempts fail in their middle, after rows of theirs were published."""
        task = TaskContext.get()
        assert task is not None
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        fails = task.attemptNumber() == 0 and (batch + task.partitionId()) % 5 == 0
        for number, rows in enumerate(batches):
            if fails and number == 6:
                if batch % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("an attempt that fails")
            yield rows

    frame = (
        spark.readStream.format("bascule")
        .options(server=server, stream="in", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH))
        .load()
        .selectExpr("concat('out', substr(subject, 3)) AS subject", "key", "value")
    )
    writer = (
        frame.mapInArrow(stumble, frame.schema)
        .writeStream.format("bascule")
        .options(server=server, stream="out", window="400", dedupe="require")
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    trigger: dict[str, Any] = (
        {"availableNow": True} if to_the_end else {"processingTime": "0 seconds"}
    )
    writer.trigger(**trigger).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), to_the_end=sys.argv[3] == "end")
