"""Pages for copies of tables: what the replica is asked, and what the copy is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from bascule.controller.cluster.tables.cluster_followers import ClusterFollowers
from bascule.host.real import RealClock
from bascule.table_results import PageAsked
from bascule.tables.oplog.changes import Changes
from bascule.tables.rows import NOTHING_SEEN, Row, TablePosition
from support.virtual_time import run_virtually as run

TABLE: Final = bytes(range(16))
ROWS: Final = [Row(b"k", 6, 1_000, b"v")]
ASKED: Final = PageAsked(
    table=TABLE, since=5, epoch=2, after=b"j", rows_max=7, bytes_max=99, wait=0.0, follower="f",
    applied=5, seen=8, seen_epoch=3,
)  # fmt: skip
FOUND: Final = Changes(
    ROWS, position=7, epoch=2, oldest=1, is_full=True, after=b"j", next_after=b"k",
    read_at=TablePosition(9, 4),
)  # fmt: skip


class AskedReplica:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.waited: list[tuple[int, float]] = []

    async def changes(self, since: int, **more: Any) -> Changes:
        self.asked.append((since, more))
        return FOUND

    async def wait_beyond(self, offset: int, seconds: float) -> None:
        self.waited.append((offset, seconds))


@pytest.fixture
def replica() -> AskedReplica:
    return AskedReplica()


@pytest.fixture
def followers(replica: AskedReplica) -> ClusterFollowers:
    definition = SimpleNamespace(id=TABLE)
    partition = SimpleNamespace(definition=definition, high_watermark=SimpleNamespace(offset=12))
    return ClusterFollowers(
        cast("Any", SimpleNamespace(replica=lambda *_: replica)),
        cast("Any", SimpleNamespace(stream=lambda _: (partition,))),
        cast("Any", SimpleNamespace(definition=lambda _: definition)),
        RealClock(),
    )


def test_the_replica_is_asked_for_what_the_copy_lacks(
    followers: ClusterFollowers, replica: AskedReplica
) -> None:
    run(followers.page("t", ASKED))
    expected = {
        "rows_max": 7, "bytes_max": 99, "epoch": 2, "after": b"j", "seen": TablePosition(8, 3),
    }  # fmt: skip
    assert replica.asked == [(5, expected)]
    assert replica.waited == [], "pages of all rows go on at once"


def test_a_copy_of_another_table_begins_with_nothing(
    followers: ClusterFollowers, replica: AskedReplica
) -> None:
    """What it has seen is of that table, and says nothing of this one."""
    for table in (None, bytes(16)):
        run(followers.page("t", ASKED._replace(table=table)))
    expected = {
        "rows_max": 7, "bytes_max": 99, "epoch": -1, "after": None, "seen": NOTHING_SEEN,
    }  # fmt: skip
    assert replica.asked == [(0, expected)] * 2


def test_a_page_says_what_the_replica_stood_at(followers: ClusterFollowers) -> None:
    page = run(followers.page("t", ASKED))
    assert (page.table, page.high_watermark, page.keys) == (TABLE, 12, -1)
    assert (page.position, page.epoch, page.oldest) == (7, 2, 1)
    assert (page.is_full, page.after, page.next_after) == (True, b"j", b"k")
    assert (page.read_at, page.read_epoch) == (9, 4)
    assert page.rows == cast("Any", ROWS)
