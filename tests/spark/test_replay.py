"""The replay on Spark: what a table holds is in a stream again, in order and once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import ConfigError
from bascule.pipeline.jobs.replay.run import run as replay
from bascule.pipeline.jobs.replay.spec import ReplaySpec
from bascule.pipeline.jobs.replay.state import FILE
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.session import SHORT_LIVED, local_session
from support.lake_jobs import World


class Copy:
    """A stream that a replay fills."""

    def __init__(self, world: World, **config: Any) -> None:
        self.world, self.name = world, f"copy_{world.stream}"
        world.client.create_stream(self.name, f"{self.name}.>", sync="interval", **config)

    def replay(self, **more: Any) -> Any:
        wanted = {"subject": f"{self.name}.{{subject}}", "table": self.world.table, **more}
        spec = ReplaySpec(
            name="replay", to=self.name, server=self.world.node.addresses["http"], **wanted
        )
        return replay(self.world.spark, spec)

    def messages(self) -> list[Any]:
        info = self.world.client.stream(self.name)
        return [
            message
            for partition in info.partitions
            for message in self.world.client.read(self.name, partition=partition.partition)
        ]

    def originals(self) -> list[int]:
        return [int(dict(m.headers)["Bascule-Original-Offset"]) for m in self.messages()]


@pytest.mark.long
def test_subjects_that_records_do_not_repeat_are_archived_and_replayed(world: World) -> None:
    client, subject = world.client, "replay.literal"
    world.stream = f"{world.stream}_literal"
    client.create_stream(world.stream, subject, record_headers=["subject", "reply"])
    client.publish_many((subject, b"%d" % n) for n in range(50))
    client.alter_stream(world.stream, record_headers=[])
    client.publish_many((subject, b"%d" % n) for n in range(50, 100))
    assert world.archive().ok
    rows = world.rows()
    assert [row["subject"] for row in rows] == [subject] * 100
    assert [len(row["headers"]) for row in rows] == [1] * 50 + [0] * 50
    assert world.audit().ok
    copy = Copy(world)
    copy.replay()
    assert [m.subject for m in copy.messages()] == [f"{copy.name}.{subject}"] * 100


def test_messages_come_back_as_they_were(world: World) -> None:
    world.fill(500)
    world.client.publish(f"{world.stream}.gone", b"", key="k1", headers={"KV-Operation": "DEL"})
    world.archive()
    copy = Copy(world)
    done = copy.replay(rows_per_round=200)
    assert (done.summary["messages"], done.summary["duplicates"]) == (501, 0)
    originals = list(world.client.read(world.stream))
    for old, new in zip(originals, copy.messages(), strict=True):
        assert (new.key, new.value) == (old.key, old.value)
        assert new.subject == f"{copy.name}.{old.subject}"
        headers = dict(new.headers)
        assert headers.pop("Nats-Msg-Id").decode().endswith(f".0.{old.offset}")
        assert headers.pop("Bascule-Original-Offset") == b"%d" % old.offset
        assert headers.pop("Bascule-Original-Partition") == b"0"
        assert headers.pop("Bascule-Original-Timestamp") == b"%d" % old.timestamp_ms
        assert headers == dict(old.headers)
    again = copy.replay()
    assert (again.summary["messages"], again.summary["duplicates"]) == (501, 501)
    assert len(copy.messages()) == 501


@pytest.mark.long
def test_a_killed_replay_goes_on_without_a_window(world: World) -> None:
    """As after a kill: the note is of the second round, and more is in the stream by then."""
    world.fill(1_000)
    world.archive()
    copy = Copy(world, dedupe_window_ms=0)
    folder = world.folder / "replay"
    copy.replay(rows_per_round=300, end_offset=300, checkpoint=str(folder))
    note = (folder / FILE).read_bytes()
    copy.replay(rows_per_round=300, end_offset=550, checkpoint=str(folder))
    (folder / FILE).write_bytes(note)
    done = copy.replay(rows_per_round=300, checkpoint=str(folder))
    assert done.summary["messages"] == 450
    assert copy.originals() == list(range(1_000))
    assert copy.replay(checkpoint=str(folder)).summary["messages"] == 0
    with pytest.raises(ConfigError, match="another replay"):
        other = Copy(World(world.spark, world.node, world.client, f"o{world.stream}", folder))
        other.replay(table=world.table, checkpoint=str(folder))


@pytest.mark.long
def test_kill_9_within_a_round(world: World) -> None:
    """Spark as a process of its own; what it published and did not note is not published again."""
    world.fill(20_000)
    world.archive()
    copy = Copy(world)
    folder = world.folder / "replay"
    with (world.folder / "spark.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, world.node.addresses["http"], copy.name, str(world.folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
    try:
        deadline = time.monotonic() + 120
        while len(copy.messages()) < 3_000:
            assert process.poll() is None, (world.folder / "spark.log").read_text()[-5_000:]
            assert time.monotonic() < deadline, "nothing is replayed"
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    before = len(copy.messages())
    done = copy.replay(checkpoint=str(folder))
    assert done.summary["messages"] < 20_000
    assert copy.originals() == list(range(20_000))
    print(f"{before} before the kill, {done.summary} after it")


@pytest.mark.long
def test_ranges(world: World) -> None:
    world.fill(100)
    time.sleep(0.05)
    middle = round(datetime.now(UTC).timestamp() * 1000)
    time.sleep(0.05)
    world.fill(100, first=100)
    world.archive()
    copy = Copy(world)
    copy.replay(start_offset={"0": 10}, end_offset=20)
    assert copy.originals() == list(range(10, 20))
    copy.replay(start_ms=middle, end_offset=150)
    assert copy.originals() == [*range(10, 20), *range(100, 150)]
    copy.replay(end_ms=middle, start_offset=90)
    assert copy.originals() == [*range(10, 20), *range(100, 150), *range(90, 100)]


def test_columns_become_values_again(world: World) -> None:
    check_values(world, raw=False)


@pytest.mark.long
def test_raw_bytes_come_back(world: World) -> None:
    check_values(world, raw=True)


def check_values(world: World, *, raw: bool) -> None:
    values = [json.dumps({"n": n}).encode() for n in range(200)]
    values[7] = values[150] = b"no json"
    world.client.publish_many((f"{world.stream}.x", value, "k") for value in values)
    value = {"valueFormat": "json", "valueSchema": "n bigint"}
    world.archive(value=value, raw=raw)
    copy = Copy(world)
    copy.replay(value={} if raw else value)
    assert copy.originals() == list(range(200))
    got = [message.value for message in copy.messages()]
    if raw:
        assert got == values
    else:
        assert [v if v == b"no json" else json.loads(v) for v in got] == [
            v if v == b"no json" else json.loads(v) for v in values
        ]
        with pytest.raises(ConfigError, match="to encode them"):
            copy.replay()


@pytest.mark.long
def test_partitions_keep_their_order(world: World) -> None:
    name = world.stream = f"parts_{world.stream}"
    world.client.create_stream(name, f"{name}.>", partitions=3, partition_by="key")
    world.fill(600)
    done = world.archive(offsets_per_trigger_max=150)
    assert done.summary["rows"] == 600
    assert world.audit().ok
    copy = Copy(world, partitions=2, partition_by="key")
    copy.replay(rows_per_round=70)
    by_partition: dict[bytes, list[int]] = {}
    for message in copy.messages():
        headers = dict(message.headers)
        by_partition.setdefault(headers["Bascule-Original-Partition"] + message.key, []).append(
            int(headers["Bascule-Original-Offset"])
        )
    assert all(offsets == sorted(offsets) for offsets in by_partition.values())
    assert sum(map(len, by_partition.values())) == 600


def main(server: str, to: str, folder: Path) -> None:
    """The replay that is killed: short rounds."""
    spark = local_session(folder / "own", master="local[2]", settings=SHORT_LIVED)
    spec = ReplaySpec(
        name="replay",
        to=to,
        server=server,
        subject=f"{to}.{{subject}}",
        table=TableSpec(location=str(folder / "lake")),
        checkpoint=str(folder / "replay"),
        rows_per_round=1_000,
    )
    replay(spark, spec)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
