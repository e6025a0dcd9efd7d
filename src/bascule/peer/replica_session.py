"""The partitions that one follower fetches over one connection, and which of them have news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple, TypeAlias

from bascule.replica.partition import Partition
from bascule.replica.roles.commitment import ReplicatedEnd
from bascule.storage.compaction.segment_replacement import CleanedPart
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchPartition

Key: TypeAlias = tuple[bytes, int]
"""Stream id and partition."""
NOTHING_SAID: Final = CleanedPart(-1, -1)
NEWS_DELAY_SECONDS: Final = 0.002
"""How long a new high watermark waits for records that it can travel with, where such have come in
that time after the one before."""

VAIN_MAX: Final = 6
"""Then one of 64 news waits in vain."""


class PartitionNews(NamedTuple):
    """What a follower hears of a partition besides its records."""

    high_watermark: int
    start_offset: int
    replicated: ReplicatedEnd


class FetchedPartition:
    """One partition in a session, as the follower has reported it and what it was told."""

    __slots__ = (
        "attempt",
        "cleaned",
        "fetch_offset",
        "is_checked",
        "key",
        "partition",
        "report",
        "sent_from",
        "told",
        "wake",
    )  # fmt: skip

    def __init__(
        self,
        key: Key,
        partition: Partition,
        report: ReplicaFetchPartition,
        wake: Callable[[], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self.wake = wake
        """Called when the partition has changed."""
        self.begin(report)

    def begin(self, report: ReplicaFetchPartition) -> None:
        """Begin a new attempt."""
        self.report = report
        self.attempt = report.attempt
        self.is_checked = False
        """Whether the follower's log was compared with this one's; its position counts then."""
        self.cleaned = NOTHING_SAID
        """What was removed from this log when the attempt began; said to replicas out of sync."""
        self.fetch_offset = report.fetch_offset
        """The next offset to send; -1 while records are on their way to the follower."""
        self.sent_from = -1
        """Where the records began that were sent last. A report that still asks for them was
        sent before they arrived."""
        self.told: PartitionNews | None = None
        """What the follower has heard last."""

    @property
    def news(self) -> PartitionNews:
        """What there is to hear now."""
        partition = self.partition
        return PartitionNews(
            partition.committed_offset, partition.start_offset, partition.commitment.replicated
        )

    @property
    def has_records(self) -> bool:
        """Whether there are records to send now."""
        store = self.partition.log
        return store is None or 0 <= self.fetch_offset < store.end.offset


class ReplicaSession:
    """Belongs to the event loop. `watchers` are called when a partition has changed."""

    def __init__(self, on_changed: Callable[[Partition], None]) -> None:
        """`on_changed` is called with each partition that has changed on this node."""
        self._on_changed = on_changed
        self.watchers: set[Callable[[], None]] = set()
        self.fetched: dict[Key, FetchedPartition] = {}
        self.changed: dict[Key, None] = {}
        """Partitions to look at for the next response, in order."""
        self._news: dict[Key, None] = {}
        """Partitions that have changed and have no records to send: they are told later."""
        self._timer: asyncio.TimerHandle | None = None
        self._news_at = 0.0
        """Loop time at which the first of them was noted."""
        self._delays_news = True
        """Whether news wait: records have come soon behind those before."""
        self._told_at = -inf
        """Loop time at which news were last told without a delay."""
        self._vain = 0
        """How often news have waited in vain since they last travelled with records."""
        self._not_yet = 0
        """So many records that come soon behind news say nothing: see `_note_vain`."""
        self._delayed: dict[Key, None] = {}
        """Partitions with records that may be sent later."""
        self._delay: asyncio.TimerHandle | None = None

    def begin(self, key: Key, partition: Partition, report: ReplicaFetchPartition) -> None:
        """Fetch a partition from now on, or begin another attempt."""
        found = self.fetched.get(key)
        if found is not None and found.partition is not partition:
            self.forget(key)
            found = None
        if found is None:
            found = FetchedPartition(key, partition, report, lambda: self.note(key))
            self.fetched[key] = found
            partition.replica_watchers.add(found.wake)
        else:
            found.begin(report)
        self.changed[key] = None

    def forget(self, key: Key) -> FetchedPartition | None:
        """Do not fetch a partition any more."""
        found = self.fetched.pop(key, None)
        if found is not None:
            found.partition.replica_watchers.discard(found.wake)
            self.changed.pop(key, None)
            self._news.pop(key, None)
        return found

    def note(self, key: Key) -> None:
        """A partition has changed on this node."""
        fetched = self.fetched.get(key)
        if fetched is None:
            return
        self._on_changed(fetched.partition)
        if fetched.is_checked and not fetched.has_records:
            self._note_news(fetched)
            return
        if self._delays_news:
            if self._news:
                self._vain = 0
        elif self._not_yet:
            self._not_yet -= 1
        else:
            now = asyncio.get_running_loop().time()
            self._delays_news = now - self._told_at < NEWS_DELAY_SECONDS
        self.changed[key] = None
        self._wake()

    def note_asked(self, fetched: FetchedPartition) -> None:
        """The follower has what it was sent, and asks for the next records."""
        if fetched.is_checked and not fetched.has_records:
            self._note_news(fetched)
        else:
            self.changed[fetched.key] = None

    def _note_news(self, fetched: FetchedPartition) -> None:
        """Tell news with the next records if these are likely to come soon, else now.

        They are where the last ones did: publishers send while others wait for their acks. Where
        none came, whoever waits for the high watermark on the follower would wait in vain.
        """
        loop = asyncio.get_running_loop()
        if not self._delays_news and fetched.told != fetched.news:
            self._told_at = loop.time()
            self.changed[fetched.key] = None
            self._wake()
            return
        if not self._news:
            self._news_at = loop.time()
        self._news[fetched.key] = None
        if self._timer is None:
            self._timer = loop.call_later(NEWS_DELAY_SECONDS, self._tell_news)

    def note_later(self, key: Key, seconds: float) -> None:
        """Look at a partition again, at the latest after so many seconds."""
        self._delayed[key] = None
        if self._delay is None:
            self._delay = asyncio.get_running_loop().call_later(seconds, self._end_delay)

    def _end_delay(self) -> None:
        self._delay = None
        self.changed.update((key, None) for key in self._delayed if key in self.fetched)
        self._delayed.clear()
        self._wake()

    def _tell_news(self) -> None:
        self._timer = None
        if not self._news:
            return
        loop = asyncio.get_running_loop()
        # The timer may have begun for news that have travelled with records since.
        left = self._news_at + NEWS_DELAY_SECONDS - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._tell_news)
            return
        waiting = (self.fetched[key] for key in self._news)
        if self._delays_news and any(each.told != each.news for each in waiting):
            self._note_vain()
        self._take_news()
        self._wake()

    def _note_vain(self) -> None:
        """No records came while news waited.

        Those that come soon behind the next news may come because of these, as where a client waits
        for a change before it makes another one. So after each time in vain the session tries again
        after twice as many.
        """
        self._delays_news = False
        self._vain = min(self._vain + 1, VAIN_MAX)
        self._not_yet = (1 << self._vain) - 1

    def _take_news(self) -> None:
        self.changed.update(self._news)
        self._news.clear()

    def _wake(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()

    def take_changed(self) -> list[FetchedPartition]:
        """The partitions to look at, which are unchanged from now on."""
        self._take_news()
        found = [self.fetched[key] for key in self.changed if key in self.fetched]
        self.changed.clear()
        return found

    def close(self) -> list[FetchedPartition]:
        """Forget all partitions; return them."""
        if self._timer is not None:
            self._timer.cancel()
        if self._delay is not None:
            self._delay.cancel()
        return [found for key in list(self.fetched) if (found := self.forget(key)) is not None]
