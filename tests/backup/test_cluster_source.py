"""What is read from a leader while its log goes on, and is compacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.backup import cluster_source
from bascule.backup.cluster_source import ClusterSource, LeaderRead
from bascule.backup.sources import ReadExtent
from bascule.backup.taking import HISTORIES_MAX, Taken
from bascule.client.connection import Leader, LeaderMoved, PartitionConnector
from bascule.errors import BasculeError, Broken, UnknownStream
from bascule.host.real import RealClock
from bascule.log_connection import LogConnection
from bascule.model import Cleanup, StreamConfig, StreamDefinition
from bascule.storage.epochs import LeaderEpochs
from support.backup_sources import Backups, WrittenLogs
from support.stored_batches import make_batch


class Reading(LeaderRead):
    """Reads from a log of batches with five records; `on_fetch` is called after each fetch."""

    def __init__(self, *, cleanup: Cleanup, batches: int) -> None:
        definition = StreamDefinition("kv", b"i" * 16, 1, StreamConfig("kv.>", cleanup=(cleanup,)))
        super().__init__(PartitionConnector("", "kv", 0), definition, RealClock())
        self.batches = {5 * n: make_batch(5 * n, 5) for n in range(batches)}
        self._extent = ReadExtent(0, self.high_watermark)
        self.on_fetch: Callable[[], None] = lambda: None

    @property
    def high_watermark(self) -> int:
        return max(self.batches) + 5

    def write(self) -> None:
        self.batches[self.high_watermark] = make_batch(self.high_watermark, 5)

    def _retried(self, ask: partial[Any]) -> Any:  # type: ignore[override]
        offset = ask.keywords["offset"]
        found = next((self.batches[at] for at in sorted(self.batches) if at + 5 > offset), None)
        end = self.high_watermark
        self.on_fetch()
        return (None, end) if found is None else (memoryview(found), end)

    def offsets(self, start: int = 0) -> list[int]:
        """The base offsets of the batches that were read."""
        return [int.from_bytes(block[:8], "big") for block in self.read(start)]


def test_what_replaced_a_record_that_compaction_has_removed_is_read() -> None:
    """A key whose older record is removed before it is read would be in no batch of the backup."""
    reading = Reading(cleanup=Cleanup.COMPACT, batches=4)

    def on_fetch() -> None:
        if 10 in reading.batches:
            reading.write()  # the same keys as those at 10
            del reading.batches[10]

    reading.on_fetch = on_fetch
    assert reading.offsets() == [0, 5, 15, 20]


def test_the_last_batches_may_be_compacted_away() -> None:
    reading = Reading(cleanup=Cleanup.COMPACT, batches=4)
    reading._extent = ReadExtent(0, 30)
    reading.batches[40] = make_batch(40, 5)

    def on_fetch() -> None:
        reading.batches.pop(15, None)

    reading.on_fetch = on_fetch
    assert reading.offsets() == [0, 5, 10, 40]


def test_a_log_without_compaction_is_read_to_where_it_ended() -> None:
    reading = Reading(cleanup=Cleanup.DELETE, batches=4)
    reading.on_fetch = reading.write
    assert reading.offsets() == [0, 5, 10, 15]


def test_a_log_that_grows_faster_than_it_is_read_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_source, "ROUNDS_MAX", 5)
    reading = Reading(cleanup=Cleanup.COMPACT, batches=4)

    def on_fetch() -> None:
        reading.write()
        reading.write()

    reading.on_fetch = on_fetch
    with pytest.raises(Broken, match="faster than they are read"):
        reading.offsets()


class Log:
    """The log of a leader: batches of five records."""

    def __init__(self, epoch: int, *epochs: int) -> None:
        """`epochs` are those of the batches, `epoch` that of the leader."""
        self.epoch = epoch
        self.batches = [make_batch(5 * n, 5, leader_epoch=each) for n, each in enumerate(epochs)]
        known = LeaderEpochs()
        for n, each in enumerate(epochs):
            if each > known.latest:
                known = known.with_epoch(each, 5 * n)
        self.epochs = known

    @property
    def end(self) -> int:
        return 5 * len(self.batches)


class Connection:
    """To the leader with this log."""

    address = "here"

    def __init__(self, log: Log) -> None:
        self.log = log

    def set_timeout(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class Elections(WrittenLogs):
    """A source of one partition. Each leader but the last of `logs` gives way to the next one at a
    fetch from offset `moves_at` on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.definition = self.add("orders")
        self.logs: list[Log] = []
        self.moves_at = 0

    @contextmanager
    def open(self, definition: StreamDefinition, partition: int) -> Iterator[LeaderRead]:  # type: ignore[override]
        reading = Followed(cast(PartitionConnector, Connector(self)), definition, RealClock())
        reading.start()
        yield reading
        reading.close()


class Connector:
    """Finds the leader of `Elections`."""

    stream, partition, bootstrap = "orders", 0, ""

    def __init__(self, source: Elections) -> None:
        self.source = source

    def open(self) -> tuple[Connection, Leader]:
        log = self.source.logs[0]
        return Connection(log), Leader("", 0, self.source.definition.id, log.epoch, None)

    def extent(self, connection: Connection) -> tuple[int, int]:
        return 0, connection.log.end


class Followed(LeaderRead):
    """Asks the logs of `Elections`."""

    def _ask_end(self, connection: LogConnection, leader: Leader, epoch: int) -> tuple[int, int]:
        log = self._log(connection)
        return log.epochs.end_of(epoch, end_offset=log.end)

    def _fetch(
        self, connection: LogConnection, leader: Leader, offset: int
    ) -> tuple[memoryview | None, int]:
        source, log = cast(Connector, self._connector).source, self._log(connection)
        if len(source.logs) > 1 and offset >= source.moves_at:
            source.logs.pop(0)
        return memoryview(self._log(connection).batches[offset // 5]), log.end

    def _log(self, connection: LogConnection) -> Log:
        log = cast(Connection, connection).log
        if log is not cast(Connector, self._connector).source.logs[0]:
            raise LeaderMoved("it leads no more")
        return log


@pytest.fixture
def elections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Elections, Backups]:
    monkeypatch.setattr(cluster_source, "RETRY_SECONDS", 0)
    backups, source = Backups(tmp_path), Elections(tmp_path / "elections")
    backups.logs = source
    return source, backups


def check_has(backups: Backups, taken: Taken, log: Log) -> None:
    assert taken.manifest.failures() == []
    assert backups.content(taken.manifest, "orders") == b"".join(log.batches)


@pytest.mark.parametrize("moves_at", [0, 5, 10, 15])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_unclean_election_while_a_partition_is_read_leaves_one_history(
    elections: tuple[Elections, Backups], moves_at: int, goes_on: bool
) -> None:
    source, backups = elections
    source.moves_at = moves_at
    if goes_on:
        source.logs = [Log(1, 1)]
        backups.take()
    source.logs = [Log(1, 1, 1, 1, 1), Log(3, 1, 3, 3, 3, 3)]
    taken = backups.take()
    has_read_lost = moves_at > 5
    check_has(backups, taken, Log(3, 1, 3, 3, 3, 3) if has_read_lost else Log(3, 1, 3, 3, 3))
    assert len(taken.read_anew) == (has_read_lost and goes_on)


def test_what_the_backup_before_has_is_compared_with_a_leader_elected_since(
    elections: tuple[Elections, Backups],
) -> None:
    source, backups = elections
    source.logs = [Log(1, 1, 1)]
    backups.take()
    source.logs = [Log(1, 1, 1, 1), Log(3, 1, 3, 3, 3)]
    taken = backups.take()
    check_has(backups, taken, source.logs[0])
    ((_, _, why),) = taken.read_anew
    assert why == (
        "the log has another history now: it had epoch 1 up to offset 10, and has epoch 1 up to 5"
    )


def test_an_election_that_loses_nothing_has_nothing_read_again(
    elections: tuple[Elections, Backups],
) -> None:
    source, backups = elections
    source.moves_at = 10
    source.logs = [Log(1, 1, 1, 1), Log(2, 1, 1, 1, 2)]
    taken = backups.take()
    assert backups.partition(taken.manifest, "orders").end_offset == 15
    assert taken.bytes_written == sum(map(len, source.logs[0].batches[:3]))


def test_a_partition_that_never_keeps_its_history_keeps_its_last_backup(
    elections: tuple[Elections, Backups],
) -> None:
    source, backups = elections
    source.logs = [Log(1, 1)]
    first = backups.take().manifest
    source.moves_at = 10
    others = [Log(2 * n + 1, 2 * n, 2 * n, 2 * n) for n in range(1, HISTORIES_MAX + 2)]
    source.logs = [Log(1, 1, 1, 1), *others]
    manifest = backups.take().manifest
    assert "another history" in manifest.failures()[0][2]
    assert manifest.files() == first.files()


class FakeAdmin:
    """A node: `confirmed` is what the controller answers it, one after the other."""

    confirmed: list[list[str] | BasculeError | None]
    known: list[str]

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def node(self) -> SimpleNamespace:
        return SimpleNamespace(cluster_id="c1", bootstrap="here:1")

    async def confirmed_streams(self) -> list[SimpleNamespace] | None:
        found = self.confirmed.pop(0) if len(self.confirmed) > 1 else self.confirmed[0]
        if isinstance(found, BasculeError):
            raise found
        return None if found is None else infos(found)

    async def streams(self) -> list[SimpleNamespace]:
        return infos(self.known)

    async def stream(self, name: str) -> SimpleNamespace:
        raise UnknownStream(name)

    async def close(self) -> None:
        pass


def infos(names: list[str]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            name=name, definition=StreamDefinition(name, b"i" * 16, 1, StreamConfig("a"))
        )
        for name in names
    ]


@pytest.mark.parametrize(
    ("confirmed", "found", "is_proof", "failure"),
    [
        ([["a", "new"]], ["a", "new"], True, ""),
        ([Broken("no controller"), ["a", "new"]], ["a", "new"], True, ""),
        ([None], ["a"], False, ""),
        ([Broken("no controller")], ["a"], False, "(no controller): streams that were made"),
    ],
)
def test_the_list_of_streams_is_that_of_the_controller_or_proves_no_deletion(
    monkeypatch: pytest.MonkeyPatch,
    confirmed: list[list[str] | BasculeError | None],
    found: list[str],
    is_proof: bool,
    failure: str,
) -> None:
    times = iter(range(0, 1_000, 20))
    clock = SimpleNamespace(monotonic_ns=lambda: next(times) * 1_000_000_000)
    monkeypatch.setattr(cluster_source, "RETRY_SECONDS", 0)
    monkeypatch.setattr(cluster_source, "Admin", FakeAdmin)
    FakeAdmin.confirmed, FakeAdmin.known = confirmed, ["a"]
    source = ClusterSource("http://here:1", cast(Any, clock))
    assert [each.name for each in source.streams()] == found
    assert source.names_all_streams == is_proof
    assert failure in source.failure
    assert bool(source.failure) == bool(failure)
