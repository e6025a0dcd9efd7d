"""Members of a group: they share the partitions of a stream, and the group's committed offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, Self, TypeAlias, TypeVar

from bascule.client.batch_reader import Start
from bascule.client.consumers.assignors import ASSIGNORS, COOPERATIVE
from bascule.client.consumers.base import MessageConsumer
from bascule.client.consumers.delivery import BatchSource, Delivery
from bascule.client.consumers.membership import GroupMembership, MemberSettings, Notice
from bascule.client.messages import Message
from bascule.client.stream_reader import check_positions
from bascule.errors import BasculeError, Closed, CommitFenced, ConfigError
from bascule.model import StreamInfo
from bascule.wire.offsets import check_consumer

log = logging.getLogger(__name__)
T = TypeVar("T")

OnPartitions: TypeAlias = Callable[[frozenset[int]], Awaitable[None] | None]
"""Called with partitions; a coroutine is awaited."""

RETRY_COMMIT_S: Final = 0.05
"""Between attempts to commit while a rebalance decides the generation."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Options of a member of a group. Times are in seconds; the defaults are Kafka's."""

    assignors: Sequence[str] = ("range", "roundrobin", COOPERATIVE)
    """Those that this member offers, the preferred one first; all members of a group must have one
    in common. The default has one in common with every Kafka client. With "cooperative-sticky"
    alone a member keeps its partitions during a rebalance."""
    session_timeout: float = 45.0
    """A member that is not heard of for so long is removed from the group."""
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    """A member that does not ask for the next message for so long leaves the group. A rebalance
    waits so long for members that work on a message."""
    instance: str | None = None
    """A static member's name, unique in the group. Such a member does not leave when it is closed,
    and gets its partitions again when it is back within the session timeout."""
    on_assigned: OnPartitions | None = None
    """Called with partitions that were assigned, before they are read."""
    on_revoked: OnPartitions | None = None
    """Called with partitions that are given up, before their done messages are committed. What
    works on several messages at a time finishes here."""
    on_lost: OnPartitions | None = None
    """Called instead of `on_revoked` with partitions that others may have already: nothing of them
    can be committed any more. None: `on_revoked` is called."""

    def check(self) -> None:
        """Raises: ConfigError."""
        unknown = [name for name in self.assignors if name not in ASSIGNORS]
        if unknown or not self.assignors or isinstance(self.assignors, str):
            raise ConfigError(
                f"assignors are {self.assignors!r}: expected a list of {', '.join(ASSIGNORS)}"
            )
        if not 0 < self.heartbeat_interval < self.session_timeout:
            raise ConfigError(
                f"heartbeat_interval is {self.heartbeat_interval:g} s: expected more than 0, and "
                f"less than session_timeout, which is {self.session_timeout:g} s"
            )
        if self.max_poll_interval <= 0:
            raise ConfigError(
                f"max_poll_interval is {self.max_poll_interval:g} s: expected more than 0"
            )


class GroupClient(BatchSource, Protocol):
    """The part of the client that a member uses."""

    async def stream(self, name: str) -> StreamInfo: ...


class GroupConsumer(MessageConsumer):
    """Messages of the partitions that the group has assigned to this member.

    Delivery is at least once. A message counts as done when the next one is requested, at `commit`,
    and when the `async with` block ends without an exception. Done messages are committed every
    `commit_interval` seconds, before their partition is given up, and at the end.

    Partitions are given up only while the next message is requested. Until then others that join
    the group wait, at most `max_poll_interval` seconds. Heartbeats are sent on another thread, so
    that the application may work, and block the event loop, for as long.
    """

    def __init__(
        self,
        client: GroupClient,
        bootstrap: str,
        stream: str,
        group: str,
        *,
        start: Start,
        follow: bool,
        commit_interval: float,
        timeout: float,
        options: GroupOptions,
    ) -> None:
        check_consumer(group)
        options.check()
        super().__init__(f"group {group}", Delivery(client, stream, follow=follow, timeout=timeout))
        self._client = client
        self._stream = stream
        self._group = group
        self._start: Start = start
        self._follow = follow
        self._interval = commit_interval
        self._options = options
        self._is_cooperative = tuple(options.assignors) == (COOPERATIVE,)
        self._committing = asyncio.Lock()
        self._polls = 0
        self._is_waiting = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._membership = GroupMembership(
            bootstrap,
            MemberSettings(
                group,
                stream,
                options.assignors,
                options.session_timeout,
                options.heartbeat_interval,
                options.max_poll_interval,
                options.instance,
            ),
            timeout=timeout,
            on_notice=self._on_notice_of_thread,
            poll_count=lambda: None if self._is_waiting else self._polls,
        )
        self._executor = ThreadPoolExecutor(2, thread_name_prefix=f"bascule-member-{group}")
        """One thread for a join, one for the other requests."""
        self._notice: Notice | None = Notice.REJOIN
        self._joining: asyncio.Task[frozenset[int] | None] | None = None
        self._turn: asyncio.Task[None] | None = None
        """Changes the partitions, while the application asks for the next message."""
        self._is_due = True
        """Whether a turn is needed before the next message."""
        self._stream_id = b""
        self._ends: dict[int, int | None] = {}
        """Ends of the partitions when this member was opened, for `start` latest; None: their
        leaders have not told."""
        self._commits: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> Self:
        """Check the stream and start. The group is joined by the first request for a message.

        Raises: UnknownStream, Broken, ConfigError.
        """
        info = await self._client.stream(self._stream)
        check_positions(self._stream, len(info.partitions), self._start)
        self._stream_id = info.definition.id
        self._ends = {each.partition: each.high_watermark for each in info.partitions}
        self._loop = asyncio.get_running_loop()
        self._commits = asyncio.create_task(self._commit_regularly())
        return self

    async def close(self, *, done: bool = True) -> None:
        """Stop reading, commit done messages and leave the group. With `done`, every delivered
        message counts as done.

        Idempotent. Raises: as `commit`; the group was left even then.
        """
        if self._closed:
            return
        self._closed = True
        self._membership.abort_join()
        tasks = [task for task in (self._commits, self._turn, self._joining) if task is not None]
        for task in tasks:
            if task is not self._joining:
                task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            if done:
                self._delivery.settle()
            if self._loop is not None:
                await self._give_up(self._delivery.partitions, raises=True)
        finally:
            await self._delivery.stop(self._delivery.partitions)
            await self._run(self._membership.leave)
            self._executor.shutdown(wait=False)

    def abort(self) -> None:
        """End what is in progress without leaving the group, because the client is closed."""
        self._membership.abort()

    async def commit(self) -> None:
        """Commit all delivered messages, including the last one. Return when the commit is stored.

        Raises: CommitFenced if the group went on without this member; Broken.
        """
        self._delivery.settle()
        while True:
            if await self._commit(self._delivery.done):
                return
            await asyncio.sleep(RETRY_COMMIT_S)

    def take(self) -> Message | None:
        """Return the next message that has arrived. The previous one is done."""
        self._polls += 1
        if self._is_due or self._turn is not None:
            self._delivery.settle()
            return None
        return self._delivery.take()

    async def refill(self) -> bool:
        """Take part in a rebalance if there is one, and wait for messages. Return False at the end.

        Raises: as `Client.read_batches`; GroupRefused, Broken without a coordinator; Closed.
        """
        if self._closed:
            raise Closed(f"the member of group {self._group!r} is closed")
        self._is_waiting = True
        try:
            if self._is_due or self._turn is not None:
                if self._turn is None:
                    self._turn = asyncio.create_task(self._change_partitions())
                # A caller that gives up waiting does not break a rebalance off.
                await asyncio.shield(self._turn)
            elif not self._follow and self._joining is None and self._delivery.has_ended:
                return False
            else:
                await self._delivery.wait()
            return True
        finally:
            self._polls += 1
            self._is_waiting = False

    # -- rebalances -----------------------------------------------------------------------------

    def _on_notice_of_thread(self, notice: Notice) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._on_notice, notice)
        except RuntimeError:
            self._membership.abort()  # the loop was closed, and nobody reads any more

    def _on_notice(self, notice: Notice) -> None:
        is_joining = self._joining is not None and not self._joining.done()
        if is_joining and (notice is Notice.REJOIN or not self._delivery.partitions):
            return  # it is older than the join
        if self._notice is not Notice.LOST:
            self._notice = notice
        self._call_turn()

    def _call_turn(self) -> None:
        self._is_due = True
        self._delivery.wake()

    async def _change_partitions(self) -> None:
        """Take the result of a join, give up what is not this member's own, and join if asked to.

        No message is being worked on meanwhile.
        """
        try:
            self._is_due = False
            if self._joining is not None and self._joining.done():
                joined, self._joining = self._joining, None
                await self._take_over(joined.result())
            if self._notice is Notice.LOST:
                self._notice = Notice.REJOIN
                await self._lose()
            if self._notice is not None and self._joining is None:
                self._notice = None
                if not self._is_cooperative:
                    await self._give_up(self._delivery.partitions)
                self._join()
        except BaseException:
            # The next request for a message tries again.
            self._notice, self._is_due = self._notice or Notice.REJOIN, True
            raise
        finally:
            self._turn = None

    def _join(self) -> None:
        owned = self._delivery.partitions
        self._joining = asyncio.create_task(self._run(lambda: self._membership.join(owned)))
        self._joining.add_done_callback(lambda _: self._call_turn())

    async def _take_over(self, assigned: frozenset[int] | None) -> None:
        """Own what the group has assigned; None: the group has removed this member."""
        if assigned is None or not self._membership.is_member:
            # The notice that says so may have come while this was still joining.
            self._notice = Notice.LOST
            return
        owned = self._delivery.partitions
        revoked, added = owned - assigned, assigned - owned
        if revoked:
            await self._give_up(revoked)
            # Others get them once this member joins without them.
            self._notice = self._notice or Notice.REJOIN
        starts = await self._starts(added) if added else {}
        await self._call(self._options.on_assigned, added)
        self._delivery.start(starts)
        # Stored, so that the next owner does not skip what comes until it begins.
        await self._commit({p: at for p, at in self._delivery.done.items() if p in added})

    async def _starts(self, partitions: frozenset[int]) -> dict[int, Start]:
        found = await self._run(lambda: self._membership.committed(partitions))
        self._committed |= found
        starts: dict[int, Start] = {}
        for partition in sorted(partitions):
            if partition in found:
                starts[partition] = found[partition]
            elif self._start != "latest":
                starts[partition] = self._start
            elif partition not in self._ends:
                starts[partition] = "earliest"  # it was added meanwhile
            elif (end := self._ends[partition]) is None:
                starts[partition] = "latest"
            else:
                starts[partition] = self._delivery.done[partition] = end
        return starts

    async def _give_up(self, partitions: frozenset[int], *, raises: bool = False) -> None:
        """Commit and stop partitions. A commit that fails is logged unless it `raises`."""
        if not partitions:
            return
        await self._call(self._options.on_revoked, partitions)
        done = {p: offset for p, offset in self._delivery.done.items() if p in partitions}
        try:
            if not await self._commit(done):
                log.warning(
                    "messages of partitions %s of %s come again: group %s rebalances, and takes no "
                    "commits", sorted(partitions), self._stream, self._group,
                )  # fmt: skip
        except BasculeError as error:
            if raises:
                raise
            log.warning("a commit of group %s failed: %s", self._group, error)
        finally:
            await self._drop(partitions)

    async def _lose(self) -> None:
        """Stop all partitions: others may have them already."""
        lost = self._delivery.partitions
        await self._drop(lost)
        if lost:
            log.warning(
                "group %s went on without this member: partitions %s of %s are lost, and messages "
                "since the last commit come again", self._group, sorted(lost), self._stream,
            )  # fmt: skip
            await self._call(self._options.on_lost or self._options.on_revoked, lost)

    async def _drop(self, partitions: frozenset[int]) -> None:
        await self._delivery.stop(partitions)
        for partition in partitions:
            self._delivery.done.pop(partition, None)
            self._committed.pop(partition, None)

    async def _call(self, hook: OnPartitions | None, partitions: frozenset[int]) -> None:
        if hook is not None and partitions:
            awaitable = hook(partitions)
            if awaitable is not None:
                await awaitable

    # -- commits --------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._commit(self._delivery.done)
            except CommitFenced:
                continue  # the next turn says so
            except BasculeError as error:
                log.warning(
                    "a commit of group %s failed and will be retried: %s", self._group, error
                )

    async def _commit(self, done: Mapping[int, int]) -> bool:
        """Commit what is not committed yet; False: a rebalance is deciding the generation."""
        # One commit at a time, so that an older offset is never stored after a newer one.
        async with self._committing:
            # The application's thread may add to it.
            offsets = {p: at for p, at in dict(done).items() if self._committed.get(p) != at}
            if not offsets:
                return True
            commit = partial(self._membership.commit, offsets, stream_id=self._stream_id)
            if not await self._run(commit):
                return False
            self._committed |= offsets
            return True

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
