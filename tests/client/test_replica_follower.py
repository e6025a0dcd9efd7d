"""Following a table: pages are asked for ahead of those that are applied."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from bascule.client.tables.replica import follower as follower_module
from bascule.client.tables.replica.conflicts import LocalWrite, Resolver, newer
from bascule.client.tables.replica.copy_rows import CopyState, RefusedWrite
from bascule.client.tables.replica.follower import (
    BEHIND_SECONDS,
    FAILED_AT_ONCE,
    WAIT_SECONDS,
    ReplicaFollower,
)
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.errors import Broken, ConfigError, RequestFailed, WrongVersion
from bascule.table_results import PageAsked, TableValues
from bascule.wire.tables.sync_pages import SyncPage, SyncRow

TABLE = bytes(range(16))
REFUSED: Final = b"refused"
"""The key of a write that is refused at once."""


def page(
    position: int, *, epoch: int, read_at: int, read_epoch: int, high_watermark: int = 100
) -> SyncPage:
    row = SyncRow(b"k%d" % position, position - 1, 1_000, b"v")
    return SyncPage(
        table=TABLE, position=position, epoch=epoch, oldest=0, is_full=position == 1, after=b"",
        next_after=None, high_watermark=high_watermark, keys=-1, rows=[row],
        read_at=read_at, read_epoch=read_epoch,
    )  # fmt: skip


class PagesOfANode:
    """Answers with some pages, and then not any more."""

    def __init__(self, *pages: SyncPage) -> None:
        self._pages = list(pages)
        self.asked: list[PageAsked] = []
        self.are_sent = asyncio.Event()
        """Set once there are no more."""

    async def table_changes(self, table: str, asked: PageAsked) -> SyncPage:
        self.asked.append(asked)
        if not self._pages:
            self.are_sent.set()
            await asyncio.Event().wait()
        return self._pages.pop(0)

    asked_server = "http://node"

    def turn_from(self, server: str) -> None:
        raise AssertionError("the follower has failed")


def test_what_is_asked_ahead_is_behind_the_last_page_that_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node must not send what the log has lost since a page that is not applied yet."""
    may_apply, apply = threading.Event(), ReplicaFile.apply

    def held(file: ReplicaFile, page: SyncPage) -> CopyState:
        assert may_apply.wait(20)
        return apply(file, page)

    monkeypatch.setattr(ReplicaFile, "apply", held)

    async def test() -> None:
        node = PagesOfANode(
            page(1, epoch=1, read_at=7, read_epoch=2),
            page(2, epoch=1, read_at=9, read_epoch=3),
            page(3, epoch=1, read_at=8, read_epoch=2),
        )
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        sent = asyncio.create_task(node.are_sent.wait())
        await asyncio.wait([following, sent], timeout=120, return_when=asyncio.FIRST_COMPLETED)
        assert sent.done()
        assert follower.state.position == 0
        assert [
            (each.since, each.epoch, each.seen, each.seen_epoch, each.applied)
            for each in node.asked
        ] == [(0, -1, 0, -1, 0), (1, 1, 7, 2, 0), (2, 1, 9, 3, 0), (3, 1, 9, 3, 0)]
        may_apply.set()
        assert await follower.wait(lambda: follower.state.position == 3, 120)
        assert (follower.state.seen, follower.state.seen_epoch) == (9, 3)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        file.close()

    asyncio.run(test())


class NodeThatStaysBehind(PagesOfANode):
    """Has nothing new behind the pages, though more is committed."""

    def __init__(self, *pages: SyncPage) -> None:
        super().__init__(*pages)
        self.last = pages[-1]
        self.has_turned, self.may_commit = asyncio.Event(), asyncio.Event()

    async def table_changes(self, table: str, asked: PageAsked) -> SyncPage:
        self.asked.append(asked)
        if self._pages:
            return self._pages.pop(0)
        if self.has_turned.is_set():
            await asyncio.Event().wait()
        await self.may_commit.wait()
        more = self.last.high_watermark + 1
        return msgspec.structs.replace(self.last, is_full=False, rows=[], high_watermark=more)

    def turn_from(self, server: str) -> None:
        self.has_turned.set()


def test_a_copy_leaves_a_node_whose_table_stays_behind(tmp_path: Path) -> None:
    """It asked that node again and again without a pause, and said that it had everything."""

    async def test() -> None:
        first = page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1)
        node = NodeThatStaysBehind(first)
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        assert await follower.wait(lambda: follower.is_current, 20)
        node.may_commit.set()
        assert await follower.wait(lambda: not follower.is_current, 20)
        await asyncio.wait_for(node.has_turned.wait(), 20)
        waits = [each.wait for each in node.asked[:3]]
        assert waits == [0.0, WAIT_SECONDS, BEHIND_SECONDS]
        assert "stays at offset 1, though 2 is committed" in str(follower.failure)
        following.cancel()
        await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())


def test_a_copy_stays_with_a_node_that_is_a_moment_behind(tmp_path: Path) -> None:
    """What is committed while a page is read comes with the next one."""

    async def test() -> None:
        first = page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1)
        behind = msgspec.structs.replace(first, is_full=False, rows=[], high_watermark=2)
        second = page(2, epoch=1, read_at=2, read_epoch=1, high_watermark=3)
        node = PagesOfANode(
            first,
            behind,
            second,
            msgspec.structs.replace(second, rows=[]),
            page(3, epoch=1, read_at=3, read_epoch=1, high_watermark=3),
        )
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        sent = asyncio.create_task(node.are_sent.wait())
        await asyncio.wait([following, sent], timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert sent.done()
        waits = [each.wait for each in node.asked]
        assert waits == [0.0, WAIT_SECONDS, BEHIND_SECONDS, 0.0, BEHIND_SECONDS, WAIT_SECONDS]
        assert await follower.wait(lambda: follower.is_current, 20)
        following.cancel()
        await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())


class NodeThatRefuses(PagesOfANode):
    """Refuses one of two writes at once. The other one stays without an answer, and is not ended at
    once either when it is cancelled."""

    def __init__(self, *pages: SyncPage) -> None:
        super().__init__(*pages)
        self.has_refused, self.has_turned = asyncio.Event(), asyncio.Event()
        self.is_lost, self.may_end = asyncio.Event(), asyncio.Event()

    async def table_changes(self, table: str, asked: PageAsked) -> SyncPage:
        if self._pages:
            return self._pages.pop(0)
        await self.is_lost.wait()
        raise Broken("the node is gone")

    async def write_key(self, table: str, key: bytes, value: bytes | None, **more: object) -> int:
        if key == REFUSED:
            self.has_refused.set()
            raise RequestFailed("PUT", "stream_paused", "the stream is paused")
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
        return 0

    def turn_from(self, server: str) -> None:
        self.has_turned.set()


@pytest.mark.parametrize("what", ["close", "a lost node"])
def test_following_ends_while_writes_are_refused(tmp_path: Path, what: str) -> None:
    """A task group that ends for an error drops a cancellation: the follower went on for ever."""

    async def test() -> None:
        node = NodeThatRefuses(page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1))
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        file.queue(LocalWrite(REFUSED, b"v", 1))
        file.queue(LocalWrite(b"other", b"v", 1))
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        await asyncio.wait_for(node.has_refused.wait(), 20)
        for _ in range(3):  # what ends for the refusal has begun to
            await asyncio.to_thread(int)
        if what == "close":
            following.cancel()
        else:
            node.is_lost.set()
        for _ in range(3):
            await asyncio.to_thread(int)
        node.may_end.set()
        if what == "close":
            await asyncio.wait([following], timeout=20)
            assert following.cancelled()
        else:
            await asyncio.wait_for(node.has_turned.wait(), 20)
            following.cancel()
            await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())


class NodeThatIsLost(PagesOfANode):
    """Answers with some pages, and fails once while the copy works on something."""

    def __init__(self, *pages: SyncPage) -> None:
        super().__init__(*pages)
        self.is_lost, self.has_turned = asyncio.Event(), asyncio.Event()

    async def table_changes(self, table: str, asked: PageAsked) -> SyncPage:
        if not self._pages and not self.has_turned.is_set():
            await self.is_lost.wait()
            raise Broken("the node is gone")
        return await super().table_changes(table, asked)

    async def write_key(self, table: str, key: bytes, value: bytes | None, **more: object) -> int:
        raise RequestFailed("PUT", "limit_exceeded", "too large")

    def turn_from(self, server: str) -> None:
        self.has_turned.set()


class Held:
    """A method of the file that waits on its thread."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, hold_on: Callable[..., bool]) -> None:
        self.has_begun, self._may_end = asyncio.Event(), threading.Event()
        loop, method = asyncio.get_running_loop(), getattr(ReplicaFile, name)

        def held(file: ReplicaFile, *given: object) -> object:
            if hold_on(*given):
                loop.call_soon_threadsafe(self.has_begun.set)
                assert self._may_end.wait(20)
            return method(file, *given)

        patch.setattr(ReplicaFile, name, held)

    def end(self) -> None:
        self._may_end.set()


async def some_turns() -> None:
    for _ in range(5):
        await asyncio.to_thread(int)


def test_a_page_that_is_being_applied_when_the_node_is_lost_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes were logged twice, and watchers of the copy saw versions twice."""
    monkeypatch.setattr(follower_module, "RETRY_SECONDS", (0.0,))

    async def test() -> None:
        applying = Held(monkeypatch, "apply", lambda page: page.position == 2)
        node = NodeThatIsLost(
            page(1, epoch=1, read_at=1, read_epoch=1), page(2, epoch=1, read_at=2, read_epoch=1)
        )
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        await asyncio.wait_for(applying.has_begun.wait(), 20)
        node.is_lost.set()
        await some_turns()
        applying.end()
        await asyncio.wait_for(node.are_sent.wait(), 20)
        assert [each.since for each in node.asked] == [0, 1, 2]
        assert follower.state == file.state()
        following.cancel()
        await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())


@pytest.mark.parametrize("what", ["close", "a lost node"])
def test_a_write_that_is_being_refused_when_following_ends_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def test() -> None:
        refusing = Held(monkeypatch, "refuse", lambda *_: True)
        node = NodeThatIsLost(page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1))
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        file.queue(LocalWrite(b"large", b"v", 1))
        told: list[RefusedWrite] = []
        follower = ReplicaFollower(
            "t", file, cast("Any", node), resolver=newer, on_refused=told.append
        )
        following = asyncio.create_task(follower.run())
        await asyncio.wait_for(refusing.has_begun.wait(), 20)
        if what == "close":
            following.cancel()
            await some_turns()
            following.cancel()
        else:
            node.is_lost.set()
        await some_turns()
        assert not following.done()
        refusing.end()
        if what == "a lost node":
            await asyncio.wait_for(node.has_turned.wait(), 20)
            following.cancel()
        await asyncio.wait([following], timeout=20)
        assert following.cancelled()
        assert [each.write.key for each in told] == [b"large"]
        file.close()

    asyncio.run(test())


class NodeWithATableMadeAnew(PagesOfANode):
    """Takes writes far ahead of the pages, the second of which is of another table."""

    def __init__(self, *pages: SyncPage) -> None:
        super().__init__(*pages)
        self.may_send = asyncio.Event()

    async def table_changes(self, table: str, asked: PageAsked) -> SyncPage:
        if asked.since:
            await self.may_send.wait()
        return await super().table_changes(table, asked)

    async def write_key(self, table: str, key: bytes, value: bytes | None, **more: object) -> int:
        return 50


def test_the_position_of_what_was_taken_ends_with_the_table(tmp_path: Path) -> None:
    """`flush` waited for it until the new table was as long."""

    async def test() -> None:
        first = page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1)
        node = NodeWithATableMadeAnew(first, msgspec.structs.replace(first, table=bytes(16)))
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        file.queue(LocalWrite(b"mine", b"v", 1))
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        assert await follower.wait(lambda: follower.settled == 51, 20)
        node.may_send.set()
        assert await follower.wait(lambda: follower.state.table == bytes(16), 20)
        assert follower.settled == 0
        following.cancel()
        await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())


class NodeThatIsBehind(PagesOfANode):
    """Has not heard of a write that the leader has taken."""

    def __init__(self, *pages: SyncPage) -> None:
        super().__init__(*pages)
        self.asked_leader = 0
        self.has_led = asyncio.Event()
        self.removed: list[tuple[bytes, object]] = []

    async def table_changes(self, table: str, asked: PageAsked) -> SyncPage:
        if asked.since == 1:
            await self.has_led.wait()
        return await super().table_changes(table, asked)

    async def table_values(
        self, table: str, keys: list[bytes], *, consistency: dict[str, str]
    ) -> TableValues:
        assert consistency == {"consistency": "linearizable"}
        self.asked_leader += 1
        if self.asked_leader == 1:
            raise RequestFailed("GET", "partition_failed", "nobody leads")
        self.has_led.set()
        return TableValues(2, [])  # what it has is read from the copy, once that is as far

    async def write_key(self, table: str, key: bytes, value: bytes | None, **more: object) -> int:
        assert value is None
        self.removed.append((key, more["if_version"]))
        return 2

    def turn_from(self, server: str) -> None:
        pass


def test_a_removal_behind_a_write_without_an_answer_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy knows of no value, but the write may be in the table: the key came back."""
    monkeypatch.setattr(follower_module, "OFFER_SECONDS", 0.01)

    async def test() -> None:
        node = NodeThatIsBehind(
            page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1),
            page(2, epoch=1, read_at=2, read_epoch=1, high_watermark=2),
        )
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        file.queue(LocalWrite(b"k2", b"v", 1))
        file.note_sent(file.pending(1))
        file.queue(LocalWrite(b"k2", None, 2))
        file.queue(LocalWrite(b"never there", None, 2))
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        assert await follower.wait(lambda: follower.settled == 3, 20)
        assert (node.asked_leader, node.removed) == (2, [(b"k2", 1)])
        assert (file.count_pending(), file.count_refused()) == (0, 0)
        following.cancel()
        await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())


class NodeThatTakes(PagesOfANode):
    """Takes writes of keys that have no value there, as `k1` has."""

    def __init__(self, *pages: SyncPage) -> None:
        super().__init__(*pages)
        self.taken: list[tuple[bytes, bytes | None]] = []
        self.turned_away = 0

    async def write_key(
        self, table: str, key: bytes, value: bytes | None, *, if_version: int | None, **_: object
    ) -> int:
        if key == b"k1" and if_version != 0:
            raise WrongVersion(table, key, expected=if_version, found=0)
        if value == b"not now":
            self.turned_away += 1
            raise RequestFailed("PUT", "unknown_path", "unknown path")
        if value == b"no type":
            raise ConfigError("a content type has 1 to 255 printable ASCII characters")
        self.taken.append((key, value))
        return len(self.taken)


def offered(
    tmp_path: Path, writes: list[LocalWrite], resolver: Resolver
) -> tuple[list[tuple[bytes, bytes | None]], list[str]]:
    """What the node takes of some writes, and why the others are refused."""
    found: list[tuple[bytes, bytes | None]] = []
    reasons: list[str] = []

    tmp_path.mkdir(exist_ok=True)

    async def test() -> None:
        node = NodeThatTakes(page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1))
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        for each in writes:
            file.queue(each)
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=resolver, on_refused=None)
        following = asyncio.create_task(follower.run())
        await follower.wait(lambda: file.count_pending() == 0, 20)
        assert (file.count_pending(), follower.failure) == (0, None)
        found.extend(node.taken)
        reasons.extend(each.reason for each in reversed(file.refused(10)))
        following.cancel()
        await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())
    return found, reasons


@pytest.mark.parametrize("count", [1, 3 * FAILED_AT_ONCE])
def test_writes_that_fail_hold_up_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The oldest ones were offered again and again, and no others."""
    monkeypatch.setattr(follower_module, "OFFER_SECONDS", 0.001)

    async def test() -> None:
        node = NodeThatTakes(page(1, epoch=1, read_at=1, read_epoch=1, high_watermark=1))
        file = ReplicaFile(tmp_path / "copy.db", "t", "me")
        for number in range(count):
            file.queue(LocalWrite(b"x\n%d" % number, b"not now", 1))
        file.queue(LocalWrite(b"good", b"v", 1))
        follower = ReplicaFollower("t", file, cast("Any", node), resolver=newer, on_refused=None)
        following = asyncio.create_task(follower.run())
        assert await follower.wait(lambda: file.count_pending() == count, 20)
        assert "unknown_path" in str(follower.failure)
        assert node.taken == [(b"good", b"v")]
        file.queue(LocalWrite(b"later", b"v", 1))
        follower.offers.set()
        assert await follower.wait(lambda: len(node.taken) == 2, 20)
        before = node.turned_away
        assert await follower.wait(lambda: node.turned_away > before + count, 20)
        assert follower.is_connected
        following.cancel()
        await asyncio.wait([following], timeout=20)
        file.close()

    asyncio.run(test())


def test_a_write_that_cannot_be_sent_holds_up_no_others(tmp_path: Path) -> None:
    """Earlier releases have kept such writes: they ended the following again and again."""
    writes = [
        LocalWrite(b"a", cast("bytes", "text"), 1),
        LocalWrite(b"b", cast("bytes", 7), 1),
        LocalWrite(b"c", b"v", 1, "a/b\nx: y"),
        LocalWrite(b"d", b"v", 1, ""),
        LocalWrite(b"e", b"no type", 1, "a/b"),
        LocalWrite(b"good", b"v", 1),
    ]
    taken, reasons = offered(tmp_path, writes, newer)
    assert taken == [(b"good", b"v")]
    assert [re.sub(" has .*", "", reason) for reason in reasons] == [
        "a value is bytes, got str", "a value is bytes, got int", *["a content type"] * 3
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (lambda conflict: True, "a LocalWrite or None, got bool"),
        (lambda conflict: conflict.theirs, "a LocalWrite or None, got RemoteState"),
        (lambda conflict: conflict.merged("text"), "a value is bytes, got str"),
        (lambda conflict: conflict.merged(b"v", content_type="a\n"), "printable ASCII"),
        (lambda conflict: conflict.merged(b"v", content_type=" a"), "printable ASCII"),
        (lambda conflict: conflict.merged(b"v", content_type=7), "a str or None"),
    ],
)
def test_what_a_function_for_conflicts_returns_is_checked(
    tmp_path: Path, chosen: Any, reason: str
) -> None:
    writes = [LocalWrite(b"k1", b"ours", 1), LocalWrite(b"good", b"v", 1)]
    taken, (refused,) = offered(tmp_path, writes, chosen)
    assert taken == [(b"good", b"v")]
    assert "the function for conflicts has failed" in refused
    assert reason in refused


def test_a_merged_value_is_any_bytes(tmp_path: Path) -> None:
    writes = [LocalWrite(b"k1", b"ours", 1)]
    merged = cast("bytes", bytearray(b"m"))
    taken, _ = offered(tmp_path, writes, lambda conflict: conflict.merged(merged))
    assert taken == [(b"k1", b"m")]


def test_another_content_type_of_the_same_value_is_a_conflict(tmp_path: Path) -> None:
    """It was dropped, as if the table had the write."""
    ours = LocalWrite(b"k1", b"v", 1, "application/json")
    refused = ["others have written: expected no value, found version 0"]
    assert offered(tmp_path / "a", [ours], lambda conflict: None) == ([], refused)
    assert offered(tmp_path / "b", [ours], lambda conflict: conflict.ours) == ([(b"k1", b"v")], [])
    ours = ours._replace(content_type=None)
    assert offered(tmp_path / "c", [ours], lambda conflict: None) == ([], [])
