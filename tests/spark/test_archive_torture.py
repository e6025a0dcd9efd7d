"""kill -9 of an archive at any moment, again and again: the table holds each offset once.

Spark runs as a process of its own. Now and then one of its Python processes is killed alone, then
all of it at once; sometimes its checkpoint is lost as well. `--rounds 50` does it for longer.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bascule.pipeline.jobs.archive.run import run as archive
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.address import malformed_address
from bascule.pipeline.session import SHORT_LIVED, local_session
from support.lake_jobs import World

ROUNDS_USUAL = 1
WAIT_S = 120
VALUE = {"valueFormat": "json", "valueSchema": "n bigint"}


def is_bad(offset: int) -> bool:
    return offset % 97 == 5


class Life:
    """One life of an archive's process, and the stream growing meanwhile."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice = world, dice
        self.log = world.folder / "spark.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, __file__, world.node.addresses["http"], world.stream,
                 str(world.folder)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )  # fmt: skip

    def publish(self) -> None:
        world = self.world
        first = world.client.stream(world.stream).partitions[0].end_offset
        count = self.dice.randint(1, 100)
        world.client.publish_many(
            (f"{world.stream}.x", b"no json" if is_bad(n) else b'{"n": %d}' % n, f"k{n % 9}")
            for n in range(first, first + count)
        )

    def until_it_commits(self) -> None:
        """Two commits on: all of Spark's processes are there."""
        before, deadline = self.commits(), time.monotonic() + WAIT_S
        while self.commits() < before + 2:
            assert self.process.poll() is None, self.log.read_text()[-5_000:]
            assert time.monotonic() < deadline, "no commit"
            self.publish()
            time.sleep(0.1)

    def commits(self) -> int:
        folder = self.world.folder / "lake/_bascule/snapshots"
        return max((int(path.stem) for path in folder.glob("*.json")), default=0)

    def live(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.publish()
            time.sleep(self.dice.uniform(0, 0.1))

    def kill_one(self) -> str:
        """Kill a Python process of Spark's alone; Spark tries its task again, or ends."""
        chosen = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().decode()
                    if "pyspark" in words and os.getpgid(int(entry.name)) == self.process.pid:
                        chosen.append((int(entry.name), words.replace("\0", " ")))
        if not chosen:
            return "none"
        # Workers, which read and write, more often than what plans and commits.
        workers = [each for each in chosen if "pyspark.daemon" in each[1]]
        pid, words = self.dice.choice(workers if workers and self.dice.random() < 0.7 else chosen)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        return words[-60:]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_kill_9_at_any_moment(world: World, request: pytest.FixtureRequest) -> None:
    rounds = request.config.getoption("--rounds") or ROUNDS_USUAL
    seed = request.config.getoption("--seed") or 7
    print(f"seed {seed}")
    dice = random.Random(seed)
    for number in range(1, rounds + 1):
        life = Life(world, dice)
        try:
            life.until_it_commits()
            for _ in range(dice.randint(0, 2)):
                life.live(dice.uniform(0, 1.5))
                print(f"killed {life.kill_one()}")
            life.live(dice.uniform(0, 1.5))
        finally:
            life.kill()
        if dice.random() < 0.3:
            shutil.rmtree(world.folder / "checkpoint", ignore_errors=True)
        found = world.audit(value=VALUE, allow_lag=True)
        assert found.ok, found
        lag = found.summary["lag"]
        print(f"round {number}: {found.summary['rows']} rows, lag {lag}", flush=True)
    world.archive(value=VALUE, name="torture", compact_at_end=True)
    found = world.audit(value=VALUE)
    assert found.ok, found
    end = world.client.stream(world.stream).partitions[0].high_watermark
    assert world.offsets() == [n for n in range(end) if not is_bad(n)]
    side = world.rows(open_table(malformed_address(world.table.address())))
    assert [row["offset"] for row in side] == [n for n in range(end) if is_bad(n)]


def main(server: str, stream: str, folder: Path) -> None:
    """The archive that is killed: small batches, as fast as they go."""
    spark = local_session(folder / "own", master="local[2,4]", settings=SHORT_LIVED)
    spec = ArchiveSpec(
        name="torture",
        stream=stream,
        server=server,
        table=TableSpec(location=str(folder / "lake")),
        value=VALUE,
        checkpoint=str(folder / "checkpoint"),
        trigger="0s",
        offsets_per_trigger_max=400,
        compact_every=5,
    )
    archive(spark, spec)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
