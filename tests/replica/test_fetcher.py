"""The thread that copies logs from one node, over connections that end at the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.cluster_version import NEWEST
from bascule.errors import Broken
from bascule.host.real import RealClock
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.follower import fetcher, unheard
from bascule.replica.follower.fetcher import FollowerFetcher, PeerIdentity
from bascule.replica.follower.receive_buffers import BUFFERS
from bascule.replica.roles.commitment import LogFlags
from bascule.wire.codec import encode
from bascule.wire.messages.peer.control import PeerHelloRequest, PeerHelloResponse
from bascule.wire.messages.peer.replica_fetch import (
    ReplicaFetchPartition,
    ReplicaFetchPartitionResponse,
    ReplicaFetchResponse,
)
from bascule.wire.primitives import Piece
from support.replica_nodes import wait_until

STREAM = b"i" * 16
RECORDS = bytes(build_batch([Record(0, 1, None, bytes(100_000), ())], base_offset=0))
"""More than the fetcher receives into its own memory."""


class Followed:
    """A partition of which one batch is missing, again and again."""

    key = STREAM, 0
    is_in_force = True
    partition = SimpleNamespace(
        needs_sync=False, failure=None, definition=SimpleNamespace(name="orders"), index=0
    )

    def __init__(self) -> None:
        self.attempt = self.begun = 0
        self.appended = 0
        self.flags: list[LogFlags] = []
        self.has_ended = False
        self.counts = True
        """Whether the leader counts this replica as one in sync."""
        self.bug: Exception | None = None

    def begin(self) -> bool:
        self.attempt = 1
        self.begun += 1
        return True

    def end_attempt(self) -> None:
        self.attempt = 0

    def fail(self, error: Exception, send: object) -> None:
        self.failures = SimpleNamespace(count=1)

    failures = SimpleNamespace(count=0)
    fetch_offset = 10

    def is_in_sync(self, node_id: int) -> bool:
        return self.counts

    def report(self) -> ReplicaFetchPartition:
        return ReplicaFetchPartition(STREAM, 0)

    def on_news(self, response: object) -> None:
        pass

    def has_to_take_over(self, leader_log: object) -> bool:
        return False

    def advance(self, attempt: int, end_offset: int) -> int:
        return 0

    def append(
        self, attempt: int, start: int, data: memoryview, flags: LogFlags, arrived: object
    ) -> bool:
        assert data == RECORDS
        if self.bug is not None:
            raise self.bug
        self.appended += 1
        self.flags.append(flags)
        return True


class Writer:
    """A log writer that does everything at once, or what is queued when it is told to."""

    def __init__(self) -> None:
        self.is_disk_full = False
        self.queued: list[Callable[[], object]] | None = None
        self.run_here = 0
        """How often somebody would have appended by himself."""

    def call(self, function: Callable[[], object]) -> None:
        if self.queued is not None:
            self.queued.append(function)
        else:
            function()

    def run(self, function: Callable[[], object]) -> None:
        self.run_here += 1
        self.call(function)


@dataclass
class Leader:
    """What a fetcher connects to. Each connection brings one response, and then it has ended."""

    epochs: list[int] = field(default_factory=list)
    """That of the follower, as each connection has stated it."""
    versions: list[int] = field(default_factory=list)
    """Of the requests for records."""
    is_silent: bool = False
    """Whether its responses say nothing of the partition, and the connection goes on."""
    watermark: int = 0
    waits: int = 0
    """How often a connection was waited for before the next request."""
    on_hello: Callable[[], None] = lambda: None
    """Called while the leader answers the hello."""

    def connect(self, *_: object, **__: object) -> Connection:
        return Connection(self)


class Connection:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._is_received = False

    def send(self, request: object, *, version: int) -> None:
        if isinstance(request, PeerHelloRequest):
            self._leader.epochs.append(request.node_epoch)
        else:
            self._version = version
            self._leader.versions.append(version)
        if self._is_received:
            raise Broken("the leader closed the connection")

    def receive(self) -> PeerHelloResponse:
        self._leader.on_hello()
        return PeerHelloResponse()

    def receive_size(self) -> tuple[int, int]:
        parts: list[Piece] = []
        watermark = self._leader.watermark
        answer = ReplicaFetchPartitionResponse(
            STREAM, 0, 1, may_have_gaps=False, records=RECORDS, high_watermark=watermark
        )
        answers = [] if self._leader.is_silent else [answer]
        encode(ReplicaFetchResponse(partitions=answers), self._version, parts)
        self._response = b"".join(cast("list[bytes]", parts))
        return self._version, len(self._response)

    def wait_readable(self, seconds: float) -> bool:
        self._leader.waits += self._is_received
        return False

    def receive_into(self, view: memoryview) -> None:
        view[:] = self._response
        self._is_received = not self._leader.is_silent

    def check_head(self, frame: memoryview) -> int:
        return 0

    def set_timeout(self, timeout: float) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    made = Leader()
    monkeypatch.setattr(fetcher, "LogConnection", made.connect)
    monkeypatch.setattr(fetcher, "RETRY_SECONDS_MAX", 0.01)
    return made


@pytest.fixture
def node() -> Iterator[SimpleNamespace]:
    """A follower: its epoch, and what it follows."""
    found = SimpleNamespace(
        epoch=1, followed=Followed(), fetcher=None, cluster_version=NEWEST, writer=Writer()
    )
    yield found
    found.fetcher.close()


def follow(node: SimpleNamespace) -> None:
    node.fetcher = FollowerFetcher(
        2,
        PeerIdentity(1, ClusterIdentity("c"), lambda: node.epoch, lambda: node.cluster_version),
        address=lambda: ("127.0.0.1", 1),
        writer=node.writer,
        syncer=cast(Any, None),
        send_acks=lambda _: None,
        on_silent=lambda *_: None,
        clock=RealClock(),
        silence_seconds_max=1.0,
    )
    node.fetcher.follow(node.followed)


def test_records_are_appended_although_the_connection_has_ended(
    leader: Leader, node: SimpleNamespace
) -> None:
    """Otherwise the memory that they were received into never becomes free again."""
    follow(node)
    wait_until(lambda: node.followed.appended > 2 * BUFFERS)


@pytest.mark.parametrize("is_small", [False, True])
def test_what_is_small_is_appended_by_the_thread_that_has_received_it(
    leader: Leader, node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    if is_small:
        monkeypatch.setattr(fetcher, "SMALL_BYTES", 2 * len(RECORDS))
    follow(node)
    wait_until(lambda: node.followed.appended > 0)
    assert (node.writer.run_here > 0) is is_small


@pytest.mark.parametrize("watermark", [10, 11])
def test_a_follower_that_is_behind_asks_for_more_before_it_has_synced(
    leader: Leader, node: SimpleNamespace, watermark: int
) -> None:
    """Otherwise it copies small segments more slowly than the leader makes them."""
    leader.watermark = watermark
    node.followed.attempt, node.writer.queued = 1, []
    follow(node)
    wait_until(lambda: len(node.writer.queued) >= 4)  # of two connections
    is_behind = watermark > Followed.fetch_offset
    assert (leader.waits == 0) is is_behind


@pytest.mark.parametrize(("in_force", "version", "gaps"), [(1, 0, True), (2, 1, False)])
def test_a_leader_is_asked_in_the_way_that_all_nodes_know(
    leader: Leader, node: SimpleNamespace, in_force: int, version: int, gaps: bool
) -> None:
    """A leader that does not say whether its log has gaps may have some."""
    node.cluster_version = in_force
    follow(node)
    wait_until(lambda: node.followed.appended > 0)
    assert set(leader.versions) == {version}
    assert node.followed.flags[0] == LogFlags(may_have_ids=False, may_have_gaps=gaps)


def test_an_epoch_that_changes_during_a_hello_is_stated_again(
    leader: Leader, node: SimpleNamespace
) -> None:
    """The leader would count this node as its former self, which never joins the ISR."""

    def on_hello() -> None:
        if node.epoch == 1:
            node.epoch = 2
            node.fetcher.renew()

    leader.on_hello = on_hello
    follow(node)
    wait_until(lambda: node.followed.appended > 0)
    assert leader.epochs[:2] == [1, 2]


def test_a_leader_that_says_nothing_about_a_partition_is_asked_again(
    leader: Leader, node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, or it had not heard that it leads. Nobody else would ask again."""
    monkeypatch.setattr(unheard, "UNHEARD_SECONDS", 0.02)
    leader.is_silent = True
    follow(node)
    wait_until(lambda: node.followed.begun > 3)
    leader.is_silent = False
    wait_until(lambda: node.followed.appended > 0)


def test_an_attempt_that_is_answered_does_not_begin_again(
    leader: Leader, node: SimpleNamespace
) -> None:
    follow(node)
    wait_until(lambda: node.followed.appended > 0)
    assert not len(node.fetcher._unheard)


def test_a_replica_that_its_leader_does_not_count_asks_again(
    leader: Leader, node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unheard, "UNHEARD_SECONDS", 0.02)
    monkeypatch.setattr(unheard, "UNCOUNTED_SECONDS", 0.05)
    node.followed.counts = False
    follow(node)
    wait_until(lambda: node.followed.appended > 0)
    leader.is_silent = True
    begun = node.followed.begun
    wait_until(lambda: node.followed.begun > begun + 3)


def test_what_is_followed_no_longer_does_not_keep_its_successor_from_another_attempt(
    leader: Leader, node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by torture: the disk was full while the leader epoch changed. The append of the old
    epoch failed after the attempt of the new one had to wait, and took its place."""
    monkeypatch.setattr(unheard, "UNHEARD_SECONDS", 3_600)

    def on_hello() -> None:
        leader.is_silent = len(leader.epochs) > 1  # the second connection lasts

    leader.on_hello = on_hello
    queued: list[Callable[[], object]] = []

    def begin_and_queue_the_rest() -> bool:
        node.writer.queued = queued
        return Followed.begin(old)

    old = node.followed
    old.begin = begin_and_queue_the_rest
    follow(node)
    wait_until(lambda: len(queued) == 2)  # an append, and the attempts of the second connection
    node.writer.is_disk_full = True
    node.followed = Followed()
    node.fetcher.forget(old)
    node.writer.queued = None
    node.fetcher.follow(node.followed)
    for late in queued:
        late()
    node.writer.is_disk_full = False
    wait_until(lambda: node.followed.begun > 0)


def test_a_bug_ends_one_attempt_and_not_the_copying(
    leader: Leader, node: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    node.followed.bug = ValueError("a bug")
    follow(node)
    wait_until(lambda: "fetcher failed" in caplog.text)
    node.followed.bug = None
    wait_until(lambda: node.followed.appended > 0)
