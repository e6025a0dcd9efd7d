"""An archive on a standalone cluster: a master and two workers, processes of their own.

spark-submit (driver) --- master --- worker 1 --- executor 1
                  \\                 worker 2 --- executor 2     each with Python workers
                   node, lake
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bascule.cli import exit_codes
from bascule.cli.demo.flights import load_flights
from bascule.cli.demo.processes import members_of_session
from bascule.client import Outgoing
from bascule.pipeline.jobs.model import JobResult
from support import spark_java
from support.lake_jobs import World
from support.processes import STARTED

pytestmark = [pytest.mark.tier3, pytest.mark.timeout(300)]
pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

WAIT_S = 120
BIN = Path(pyspark.__file__).parent / "bin"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL_JAVA = spark_java.options()
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SMALL_JAVA,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL_JAVA,
    "spark.ui.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
}


@dataclass
class Cluster:
    """Processes on loopback, each the leader of a session of its own."""

    folder: Path
    url: str = ""
    workers: tuple[subprocess.Popen[bytes], ...] = ()

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JAVA,
        }

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        STARTED.append(process)
        return process

    def start(self) -> None:
        daemon = (str(BIN / "spark-class"),)
        here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.spawn("master", *daemon, MASTER, *here)
        self.url = self.wait_for_line("master", r"Starting Spark master at (spark://\S+)")[1]
        size = ("--cores", "1", "--memory", "600m", "--work-dir", str(self.folder))
        self.workers = tuple(
            self.spawn(name, *daemon, WORKER, *here, *size, self.url)
            for name in ("worker1", "worker2")
        )
        for name in ("worker1", "worker2"):
            self.wait_for_line(name, "Successfully registered with master")

    def wait_for_line(self, name: str, pattern: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(re.finditer(pattern, self.log(name).read_text()))
            return bool(found)

        wait_until(look)
        return found[0]

    def submit(self, *arguments: str) -> subprocess.Popen[bytes]:
        """`spark-submit` of a declared pipeline."""
        settings = [text for pair in SETTINGS.items() for text in ("--conf", "=".join(pair))]
        application = (str(EXAMPLES / "run_pipeline.py"), *arguments)
        command = (str(BIN / "spark-submit"), "--master", self.url, *settings, *application)
        return self.spawn("driver", *command)

    def executors(self) -> list[int]:
        """Processes of Java that the workers started."""
        return [
            pid
            for worker in self.workers
            for pid in members_of_session(worker.pid)
            if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in command_of(pid)
        ]

    def ended(self, driver: subprocess.Popen[bytes]) -> int:
        """Its exit code, once its Python was asked to end in order."""
        for pid in members_of_session(driver.pid):
            command = command_of(pid)
            if command[0] == sys.executable.encode() and b"run_pipeline.py" in command[1]:
                os.kill(pid, signal.SIGTERM)
        return driver.wait(WAIT_S)


def command_of(pid: int) -> list[bytes]:
    """Its command and arguments; two empty ones where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b"", b""]


def wait_until(look: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    before = len(STARTED)
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        for process in reversed(STARTED[before:]):
            process.poll()
            for pid in {process.pid, *members_of_session(process.pid)}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait(WAIT_S)
        del STARTED[before:]


class Archive:
    """The example's archive of a stream with a name of its own."""

    def __init__(self, cluster: Cluster, world: World) -> None:
        self.cluster, self.world = cluster, world
        self.flights = load_flights(5_000, lambda done: None).messages

    def fill(self, rounds: int) -> None:
        """5,000 flights a round."""
        for _ in range(rounds):
            self.world.client.publish_many(
                Outgoing(f"{self.world.stream}.{flight.subject}", flight.value, flight.key)
                for flight in self.flights
            )

    def start(self) -> subprocess.Popen[bytes]:
        said = {
            "pipeline.server": self.world.node.addresses["http"],
            "source.stream": self.world.stream,
            "source.maxOffsetsPerTrigger": "5000",
            "pipeline.trigger": "500ms",
            "table.location": self.world.table.location,
        }
        settings = [text for key, value in said.items() for text in ("--set", f"{key}={value}")]
        return self.cluster.submit(str(EXAMPLES / "flights" / "archive.toml"), *settings)

    def committed(self) -> int:
        """Offsets in the table."""
        from bascule.errors import UnknownTable

        try:
            snapshot = self.world.open().snapshot()
        except UnknownTable:
            return 0
        return 0 if snapshot is None else snapshot.committed[0][1]

    def audit(self) -> JobResult:
        schema = (EXAMPLES / "flights" / "flight.ddl").read_text()
        found = self.world.audit(value={"valueFormat": "json", "valueSchema": schema})
        assert isinstance(found, JobResult)
        return found


@pytest.mark.long
def test_an_archive_outlives_an_executor(cluster: Cluster, world: World) -> None:
    """First undisturbed; then with an executor that dies by kill -9 under load."""
    archive = Archive(cluster, world)
    archive.fill(1)
    driver = archive.start()
    wait_until(lambda: archive.committed() == 5_000)
    clean = archive.audit()
    assert clean.ok, clean
    assert clean.summary["rows"] == 5_000

    wait_until(lambda: len(cluster.executors()) == 2)
    archive.fill(9)
    wait_until(lambda: archive.committed() > 5_000)
    os.kill(cluster.executors()[0], signal.SIGKILL)
    wait_until(lambda: archive.committed() == 50_000)
    cluster.wait_for_line("driver", "Lost executor")
    assert cluster.ended(driver) == exit_codes.INTERRUPTED
    found = archive.audit()
    assert found.ok, found
    assert (found.summary["rows"], found.summary["lag"]) == (50_000, 0)
    assert world.offsets() == list(range(50_000))
