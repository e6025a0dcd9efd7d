"""Payloads through three nodes beside the data streaming of Apache Ratis 3.1.3, which they are
modelled on: its FileStore example, packets of 1 MiB along a chain, synced at the end of each file.

Rounds alternate. Ratis's servers live as long as ours and get a file first, so that Java's compiler
has seen them. Everything on the disk is synced before each measurement: nobody waits for what
others have written. What is compared is what each client says of itself: ours sends from memory,
Ratis's from a local file by `sendfile`, after it has made the file. Neither counts its start.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import bascule
from bench.clusters import NODES, bascule_cluster
from bench.harness import free_ports, median_ratio, report_one, row, work_directory
from bench.payloads import BYTES, PARALLEL, PARALLEL_BYTES, ROUNDS, STREAM, send, send_together

PROJECT: Final = Path(__file__).parent / "ratis"
RUNNER: Final = "org.apache.ratis.examples.common.Runner"
PACKET_BYTES: Final = 1 << 20
WARM_BYTES: Final = 128 << 20
READY_SECONDS_MAX: Final = 120.0
CLIENT_SECONDS_MAX: Final = 600.0
WARM_SECONDS_MAX: Final = 60.0
WARM_TRIES: Final = 5
LEADER: Final = re.compile(r"change Leader from \w+ to (n\d)")
LOGGING: Final = """log4j.rootLogger=WARN, console
log4j.logger.org.apache.ratis.server.RaftServer$Division=INFO
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1} - %m%n
"""


class RatisFailed(Exception):
    """Its client gave up."""


class RatisServers:
    """Three servers of the FileStore example, and its client."""

    def __init__(self, directory: Path, jars: Path) -> None:
        directory.mkdir()
        self._directory = directory
        logging = directory / "log4j.properties"
        logging.write_text(LOGGING)
        self._java = [
            "java", f"-Dlog4j.configuration=file:{logging}", "-cp", f"{jars}/*", RUNNER,
            "filestore",
        ]  # fmt: skip
        ports = iter(free_ports(4 * NODES))
        self._addresses = [
            ":".join([f"n{n}", "127.0.0.1", *(str(next(ports)) for _ in range(4))])
            for n in range(NODES)
        ]
        self._peers = ",".join(self._addresses)
        self._runs = 0
        self._servers = [self._start(n) for n in range(NODES)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        place = self._directory / f"n{number}"
        place.mkdir()
        with (self._directory / f"n{number}.log").open("wb") as log:
            return subprocess.Popen(
                [*self._java, "server", "--id", f"n{number}", "--storage", str(place),
                 "--peers", self._peers],
                stdout=log, stderr=log,
            )  # fmt: skip

    def wait_ready(self) -> None:
        """Return once each server knows the leader. Clients name it first, so that it is their
        primary."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        logs = [self._directory / f"n{n}.log" for n in range(NODES)]
        while True:
            found = [LEADER.findall(log.read_text(errors="replace")) for log in logs]
            if all(found) and len({each[-1] for each in found}) == 1:
                break
            assert time.monotonic() < deadline, logs[0].read_text()[-2_000:]
            time.sleep(0.2)
        leader = found[0][-1]
        self._addresses.sort(key=lambda address: not address.startswith(f"{leader}:"))
        self._peers = ",".join(self._addresses)

    def warm(self) -> None:
        """Send a first file. A packet that is not answered within 10 s fails, and the client then
        does not end: on a machine that is that busy the file is sent again."""
        for _ in range(WARM_TRIES - 1):
            try:
                self.send(WARM_BYTES, 1, seconds_max=WARM_SECONDS_MAX)
                return
            except AssertionError as error:
                print(
                    f"Ratis did not answer in {WARM_SECONDS_MAX} s: {str(error)[:300]}",
                    file=sys.stderr,
                )
        self.send(WARM_BYTES, 1, seconds_max=WARM_SECONDS_MAX)

    def send(self, size: int, count: int, *, seconds_max: float = CLIENT_SECONDS_MAX) -> float:
        """Send files at once, each with a client of its own; the seconds that the program says.

        Raises: AssertionError if it has sent other bytes, or says nothing in time.
        """
        self._runs += 1
        os.sync()
        files = self._directory / f"client{self._runs}"
        files.mkdir()
        arguments = [
            "datastream", "--type", "NettyFileRegion", "--bufferSize", str(PACKET_BYTES),
            "--size", str(size), "--syncSize", str(size), "--numFiles", str(count),
            "--numClients", str(count), "--storage", str(files), "--peers", self._peers,
        ]  # fmt: skip
        client = subprocess.Popen(
            [*self._java, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        timer = threading.Timer(seconds_max, client.kill)
        timer.start()
        assert client.stdout is not None
        said = ""
        try:
            for line in client.stdout:
                said += line
                if "Total time taken" in line:
                    break
        finally:
            timer.cancel()
            client.kill()  # some versions do not end by themselves
            client.wait()
            client.stdout.close()
            shutil.rmtree(files)
        written = re.search(r"Total data written: (\d+) bytes", said)
        if written is None:
            raise RatisFailed(next((one for one in said.splitlines() if "Timeout" in one), said))
        assert int(written[1]) == size * count, said
        took = re.search(r"Total time taken: (\d+) millis", said)
        assert took is not None, said
        return int(took[1]) / 1e3

    def remove_files(self, size: int) -> None:
        """Remove what was stored, after each node was seen to have a file of this size."""
        for number in range(NODES):
            place = self._directory / f"n{number}" / f"n{number}"
            found = [each for each in place.rglob("*") if each.is_file()]
            assert any(each.stat().st_size == size for each in found), f"n{number} has no such file"
            for each in found:
                each.unlink()

    def close(self) -> None:
        for server in self._servers:
            server.kill()
            server.wait()


@contextmanager
def ratis_servers(directory: Path) -> Iterator[RatisServers]:
    """Servers that have taken a first file. Maven brings them."""
    jars = directory / "jars"
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(PROJECT / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={jars}"],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
    servers = RatisServers(directory / "ratis", jars)
    try:
        servers.wait_ready()
        servers.warm()
        servers.remove_files(WARM_BYTES)
        yield servers
    finally:
        servers.close()


def run(*, quick: bool = False) -> None:
    if not (shutil.which("mvn") and shutil.which("java")):
        print("no Java or Maven: Ratis is not measured")
        return
    size, count = (128 << 20, 4) if quick else (BYTES, PARALLEL)
    part = size // 4 if quick else PARALLEL_BYTES
    ones: list[float] = []
    manys: list[float] = []
    their_ones: list[float] = []
    their_manys: list[float] = []
    failed: list[str] = []

    async def our_round(server: str) -> tuple[float, float]:
        async with bascule.connect(server) as client:
            await asyncio.to_thread(os.sync)
            one = await send(client, size)
            await asyncio.to_thread(os.sync)
            many = await send_together(client, count, part)
            await client.purge_stream(STREAM)
            return one, many

    with (
        work_directory() as directory,
        ratis_servers(directory) as ratis,
        bascule_cluster(directory / "ours") as cluster,
    ):
        cluster.create(STREAM, STREAM)
        asyncio.run(our_round(cluster.nodes[1].http))
        for _ in range(1 if quick else ROUNDS):
            one, many = asyncio.run(our_round(cluster.nodes[1].http))
            ones.append((size >> 20) / one)
            their_ones.append((size >> 20) / ratis.send(size, 1))
            ratis.remove_files(size)
            try:
                their_manys.append((count * part >> 20) / ratis.send(part, count))
                manys.append((count * part >> 20) / many)
                ratis.remove_files(part)
            except RatisFailed as error:
                failed.append(str(error))  # its packets time out after 10 s on a slow disk
    report_one(
        "payloads_ratis",
        row(
            f"one payload of {size >> 20} MiB, MiB/s over Ratis's data streaming",
            median_ratio(ones, their_ones),
            at_least=1.0,
        ),
    )
    if not manys:
        raise SystemExit(f"Ratis's client gave up in each round: {failed}")
    report_one(
        "payloads_ratis",
        row(
            f"{count} payloads of {part >> 20} MiB at once, MiB/s over Ratis's",
            median_ratio(manys, their_manys) | {"rounds_ratis_failed": failed},
            at_least=1.0,
        ),
    )
