"""Committed offsets over a real log: followed, asked, repaired, and read again at a start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bascule.errors import InvalidName, OffsetOutOfRange, PartitionFailed, UnknownPartition
from bascule.groups import Offsets, committed_offsets
from bascule.groups.offset_records import REPAIRS_HEADER
from bascule.host.real import RealFiles
from bascule.record.batch import Record
from bascule.replica.internal_publisher import InternalRecord
from bascule.replica.partitions import Partitions
from bascule.storage.partition_log import LogConfig
from bascule.wire.offsets import OFFSETS_STREAM, Commit, OffsetKey, commit_subject
from support.keyed_logs import close_segment, compact
from support.served_stream import (
    TIMESTAMP,
    DirectPublisher,
    StepClock,
    append,
    make_records,
    offsets_of,
    open_stream,
)

KEY = OffsetKey("billing", "flights", 0)


class Scene:
    """A stream of 30 records, the stream of offsets, and who publishes to it."""

    def __init__(self, directory: Path) -> None:
        self.clock = StepClock()
        self.partitions = Partitions()
        self.flights = open_stream(directory, self.partitions, clock=self.clock)
        for batch in range(3):
            append(self.flights, make_records(10 * batch, 10))
            self.clock.wall_ms += 1_000
        self.log = open_stream(directory, self.partitions, OFFSETS_STREAM, clock=self.clock)
        self.publisher = DirectPublisher(self.partitions)

    async def put(
        self,
        value: bytes | None,
        key: OffsetKey = KEY,
        *,
        subject: str | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> int:
        """A message as any NATS client may publish it."""
        name = subject or commit_subject(key)
        record = InternalRecord(name, commit_subject(key).encode(), value, headers)
        return await self.publisher.publish(OFFSETS_STREAM, 0, [record])

    async def until(self, reached: Callable[[], bool], offsets: Offsets) -> None:
        """Wait for what the node does by itself, with each record that it adds."""
        while not reached():
            await self.moved.wait()
            self.moved.clear()
            await offsets.caught_up()

    def run(self, test: Callable[[Offsets], Awaitable[None]]) -> Offsets:
        """Run `test` with offsets that have started."""
        offsets = offsets_of(self.partitions)

        async def scene() -> None:
            self.partitions.bind(asyncio.get_running_loop())
            self.moved = asyncio.Event()
            self.log.watchers.add(self.moved.set)
            offsets.start()
            await offsets.caught_up()
            try:
                await test(offsets)
            finally:
                await offsets.close()

        asyncio.run(scene())
        return offsets


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_commit_is_known_once_it_is_answered_and_after_a_start(scene: Scene) -> None:
    async def commit(offsets: Offsets) -> None:
        assert offsets.committed("billing", "flights", 0) is None
        await offsets.commit([(KEY, Commit(offset=5, leader_epoch=2, metadata="x"))])
        assert offsets.committed("billing", "flights", 0) == 5
        await offsets.commit(
            [(KEY, Commit(offset=9)), (KEY._replace(consumer="b.c"), Commit(offset=1))]
        )

    scene.run(commit)

    async def look(offsets: Offsets) -> None:
        assert offsets.committed("billing", "flights", 0) == 9
        assert offsets.committed("b.c", "flights", 0) == 1
        first, second = offsets.entries()
        assert (first.consumer, second.consumer) == ("b.c", "billing")
        assert second.committed_ms == TIMESTAMP
        assert (second.start_offset, second.high_watermark, second.lag) == (0, 30, 21)
        assert offsets.entries(consumer="b.c") == [first]
        assert offsets.entries(stream="other") == []

    counts = scene.run(look).counts
    assert (counts.commits, counts.held) == (3, 2)


def test_any_publisher_may_commit_and_remove(scene: Scene) -> None:
    async def test(offsets: Offsets) -> None:
        await scene.put(b'{"offset": 12}')
        await offsets.caught_up()
        (entry,) = offsets.entries()
        assert (entry.offset, entry.committed_ms) == (12, scene.clock.wall_ms)
        await scene.put(None)
        await offsets.caught_up()
        assert offsets.entries() == []

    counts = scene.run(test).counts
    assert (counts.commits, counts.removals, counts.held) == (1, 1, 0)


def test_what_is_no_commit_is_counted_and_the_good_one_is_made_again(scene: Scene) -> None:
    async def test(offsets: Offsets) -> None:
        await scene.put(b'{"offset": 12}')
        await scene.put(b"12")
        await offsets.caught_up()
        assert offsets.committed("billing", "flights", 0) == 12
        await scene.until(lambda: offsets.counts.commits == 2, offsets)
        await scene.put(b'{"offset": 1}', subject="_bascule.offsets.somebody.else.0")
        await offsets.caught_up()

    counts = scene.run(test).counts
    assert (counts.malformed, counts.repairs) == (2, 1)
    # The last record of the key is good again: what compaction keeps is the commit.
    last = stored(scene)[2]
    assert last.value is not None
    assert last.value.startswith(b'{"offset":12,')
    assert dict(last.headers)[REPAIRS_HEADER] == b"1"


def test_a_repair_is_made_at_the_next_start_where_the_node_died_before(scene: Scene) -> None:
    async def spoil() -> None:
        scene.partitions.bind(asyncio.get_running_loop())
        await scene.put(b'{"offset": 12}')
        await scene.put(b"rubbish")

    asyncio.run(spoil())

    async def test(offsets: Offsets) -> None:
        await scene.until(lambda: offsets.counts.repairs > 0, offsets)
        await offsets.caught_up()
        assert offsets.committed("billing", "flights", 0) == 12

    scene.run(test)


def test_a_repair_that_was_overtaken_does_not_go_back(scene: Scene) -> None:
    async def test(offsets: Offsets) -> None:
        await scene.put(b'{"offset": 12}')
        await scene.put(b"rubbish")
        await scene.put(b'{"offset": 20}')
        # What a node that had read only the first two records makes again.
        await scene.put(b'{"offset": 12}', headers=((REPAIRS_HEADER, b"1"),))
        await offsets.caught_up()
        assert offsets.committed("billing", "flights", 0) == 20
        await scene.until(lambda: offsets.counts.repairs > 0, offsets)
        await offsets.caught_up()

    scene.run(test)
    values = [record.value for record in stored(scene)]
    assert values[-1] is not None
    assert values[-1].startswith(b'{"offset":20,')


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["commit", "commit", "commit", "remove", "rubbish", "compact"]),
    ),
    max_size=60,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
def test_compaction_keeps_what_is_committed(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, str]]
) -> None:
    scene = Scene(tmp_path_factory.mktemp("scene"))
    log, model = scene.log.log, dict[tuple[str, str, int], int]()
    assert log is not None
    log.configure(LogConfig(gaps_allowed=True))

    async def test(offsets: Offsets) -> None:
        repairs = 0
        for offset, (consumer, what) in enumerate([*actions, (0, "compact")]):
            scene.clock.wall_ms += 1_000
            key = KEY._replace(consumer=f"consumer {consumer}")
            if what == "commit":
                await scene.put(b'{"offset": %d}' % offset, key)
                model[key] = offset
            elif what == "remove":
                await scene.put(None, key)
                model.pop(key, None)
            elif what == "rubbish":
                await scene.put(b"{}", key)
                repairs += key in model
                await scene.until(partial(are_repaired, offsets, repairs), offsets)
            else:
                close_segment(log)
                # A week later: tombstones go too.
                scene.clock.wall_ms += 7 * 86_400_000
                compact(RealFiles(), log, now_ms=scene.clock.wall_ms, retention_ms=1_000)
        await offsets.caught_up()
        assert held(offsets) == model

    scene.run(test)

    async def look(offsets: Offsets) -> None:
        assert held(offsets) == model

    scene.run(look)
    log.close()


def are_repaired(offsets: Offsets, repairs: int) -> bool:
    return offsets.counts.repairs == repairs


def held(offsets: Offsets) -> dict[tuple[str, str, int], int]:
    return {(e.consumer, e.stream, e.partition): e.offset for e in offsets.entries()}


def test_a_stream_made_anew_has_no_commits(scene: Scene, tmp_path: Path) -> None:
    async def commit(offsets: Offsets) -> None:
        await offsets.commit([(KEY, Commit(offset=5))])

    scene.run(commit)
    (gone,) = scene.partitions.remove(scene.partitions.stream("flights")[0].definition)
    assert gone.log is not None
    gone.log.close()
    again = open_stream(tmp_path / "again", scene.partitions, clock=scene.clock)
    object.__setattr__(again.definition, "created_ms", scene.clock.wall_ms + 1)

    async def look(offsets: Offsets) -> None:
        assert offsets.committed("billing", "flights", 0) is None
        assert offsets.entries() == []

    scene.run(look)


@pytest.mark.parametrize(
    ("to", "at_ms", "found"),
    [
        ("earliest", 0, 0),
        ("latest", 0, 30),
        (17, 0, 17),
        ("time", TIMESTAMP + 500, 10),
        ("time", TIMESTAMP + 50_000, 30),
    ],
)
def test_reset(scene: Scene, to: int | str, at_ms: int, found: int) -> None:
    async def test(offsets: Offsets) -> None:
        (entry,) = await offsets.reset("billing", "flights", None, to, at_ms=at_ms)
        assert entry.offset == found == offsets.committed("billing", "flights", 0)

    scene.run(test)


def test_a_reset_out_of_range_is_refused(scene: Scene) -> None:
    async def test(offsets: Offsets) -> None:
        with pytest.raises(OffsetOutOfRange):
            await offsets.reset("billing", "flights", 0, 31)
        with pytest.raises(UnknownPartition):
            await offsets.reset("billing", "flights", 1, "latest")
        with pytest.raises(InvalidName):
            await offsets.reset("", "flights", 0, "latest")
        assert offsets.entries() == []

    scene.run(test)


def test_remove(scene: Scene) -> None:
    async def test(offsets: Offsets) -> None:
        keys = [
            OffsetKey(consumer, stream, partition)
            for consumer in "ab"
            for stream in "st"
            for partition in (0, 1)
        ]
        await offsets.commit([(key, Commit(offset=1)) for key in keys])
        assert await offsets.remove(consumer="a", stream="s", partition=1) == [("a", "s", 1)]
        assert await offsets.remove(consumer="a", stream="s", partition=1) == []
        assert await offsets.remove(consumer=None, stream="t") == [k for k in keys if k[1] == "t"]
        assert [e[:2] for e in map(key_of, offsets.entries())] == [
            ("a", "s"),
            ("b", "s"),
            ("b", "s"),
        ]

    scene.run(test)


def key_of(entry: object) -> tuple[str, str, int]:
    return (entry.consumer, entry.stream, entry.partition)  # type: ignore[attr-defined]


def test_more_than_fit_are_ignored(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "COMMITS_MAX", 1)

    async def test(offsets: Offsets) -> None:
        await offsets.commit([(KEY, Commit(offset=1))])
        await offsets.commit([(KEY._replace(partition=1), Commit(offset=1))])
        await offsets.commit([(KEY, Commit(offset=2))])
        assert [(e.partition, e.offset) for e in offsets.entries()] == [(0, 2)]
        assert offsets.counts.malformed == 1

    scene.run(test)


def test_a_stream_that_failed_is_not_answered_for(scene: Scene) -> None:
    async def test(offsets: Offsets) -> None:
        await offsets.commit([(KEY, Commit(offset=1))])
        scene.log.fail("bad sector")
        for refused in (offsets.caught_up(), offsets.commit([(KEY, Commit(offset=2))])):
            with pytest.raises(PartitionFailed, match="bad sector"):
                await refused
        # Retention goes by the last that is known.
        assert offsets.committed("billing", "flights", 0) == 1

    scene.run(test)


def test_without_the_stream_nothing_is_known(tmp_path: Path) -> None:
    async def test() -> None:
        offsets = offsets_of(Partitions())
        offsets.start()
        assert offsets.committed("billing", "flights", 0) is None
        with pytest.raises(PartitionFailed):
            await offsets.caught_up()
        await offsets.close()

    asyncio.run(test())


def stored(scene: Scene) -> list[Record]:
    from support.stored_batches import read_records

    assert scene.log.log is not None
    return read_records(scene.log.log)
