"""`PushConsumers`: watchers of buckets, which their clients make as push consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from bascule.errors import BasculeError, InvalidName
from bascule.host.api import Clock, Random
from bascule.keyvalue.buckets import STREAM_PREFIX
from bascule.keyvalue.consumer_start import (
    common,
    matches_one,
    missed,
    patterns_of,
    shown_since,
    start_of,
)
from bascule.keyvalue.held_tables import HeldTable
from bascule.keyvalue.messages import (
    BAD_REQUEST,
    KV_OPERATION,
    VALUE_BYTES,
    ApiError,
    deliver_with_headers,
    not_served,
    operation_of,
    time_text,
)
from bascule.keyvalue.oversize import OversizeReports
from bascule.keyvalue.requests import ApiRequest, ConsumerConfig, ConsumerRequest
from bascule.tables._hot import FORGOTTEN, PURGED
from bascule.tables.key_state import KeyPart, KeyState
from bascule.tables.watching import Begin, Caught, Change, Start, WatchPosition
from bascule.wire.subjects import check_subject
from bascule.wire.tables.patterns import KeyPattern

log = logging.getLogger("bascule.keyvalue")

CONSUMERS_MAX: Final = 20_000
CONTROL: Final = "$JS.FC."
"""Clients answer requests for flow control below it."""
ASK_BYTES: Final = 256 << 10
"""After so many bytes a client is asked whether it has read them."""
WINDOW_BYTES: Final = 2 << 20
"""A client that has so much unread is sent nothing until it answers."""
STALL_SECONDS_MAX: Final = 30.0
"""After so long without an answer the client is gone."""
HEARTBEAT_NS_MIN: Final = 100_000_000
LISTEN_SECONDS_MAX: Final = 10.0
"""A client subscribes within this time after it has made its consumer."""
PAGE_KEYS: Final = 500
REACH_SECONDS_MAX: Final = 3.0
"""For a replica to reach the sequence from which on a client wants messages."""


class Link(Protocol):
    """The connection that delivers."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def is_writable(self) -> bool: ...

    @property
    def payload_bytes_max(self) -> int: ...

    @property
    def may_take_more(self) -> bool: ...

    def renew(self) -> None: ...

    def has_interest(self, subject: str) -> bool: ...

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


@dataclass(slots=True)
class ConsumerCounts:
    """For metrics. Counts only grow, but for `consumers`."""

    consumers: int = 0
    """Push consumers now."""
    messages: int = 0
    """Messages sent to push consumers."""
    stalled: int = 0
    """How often a consumer waited for its client."""
    gone: int = 0
    """Consumers that ended since nobody listens any more."""
    oversize: int = 0
    """Values that were not sent, since the NATS server does not take as much in one message:
    watchers got the key without it, and reads an error."""


class _Consumer:
    """One watcher. Ends itself when nobody listens."""

    def __init__(
        self,
        owner: PushConsumers,
        table: HeldTable,
        name: str,
        config: ConsumerConfig,
        patterns: Sequence[KeyPattern],
        start: Start,
        state: KeyState | list[Change],
    ) -> None:
        """`state`: what to deliver before what follows `start`."""
        self.name = name
        self.bucket = table.bucket
        self.config = config
        self.created_ms = owner.clock.now_ms()
        self.delivered = self.sequence = 0
        """Messages sent, and the sequence of the last one."""
        self.pending = len(state)
        """Those of the state that are not delivered, at most."""
        self._state = state
        self._end: Change | None = None
        """The marker that says that the state is over, where no other message does."""
        self._owner = owner
        self._table = table
        self._patterns = patterns
        self._start = start
        self.subject = config.deliver_subject or ""
        self._ack = f"$JS.ACK.{STREAM_PREFIX}{table.bucket}.{name}.1."
        self._frame_start = f"LMSG {self.subject} {self._ack}".encode()
        self._headers_only = config.headers_only
        self._asks = config.flow_control
        heartbeat = config.idle_heartbeat
        self._beat_s = max(heartbeat, HEARTBEAT_NS_MIN) / 1e9
        self._unread = self._unasked = 0
        self._is_asking = False
        self._answered = asyncio.Event()
        self._listened = asyncio.Event()
        self._is_quiet = True
        self._timer: asyncio.TimerHandle | None = None
        if heartbeat:
            self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._beat)
        self.task = asyncio.create_task(self._run(), name=f"consumer {name}")

    def info(self) -> dict[str, Any]:
        position = {"consumer_seq": self.delivered, "stream_seq": self.sequence}
        return {
            "stream_name": f"{STREAM_PREFIX}{self.bucket}",
            "name": self.name,
            "created": time_text(self.created_ms),
            "config": {**msgspec.to_builtins(self.config), "name": self.name},
            "delivered": position,
            "ack_floor": position,
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": 0,
            "num_pending": self.pending,
            "push_bound": True,
        }

    def on_interest(self) -> None:
        """Begin once somebody listens; end when nobody does any more."""
        if self._owner.link.has_interest(self.subject):
            self._listened.set()
        elif self._listened.is_set():
            self._owner.counts.gone += 1
            self.task.cancel()

    def on_control(self) -> None:
        """The client has read what was sent until it was asked."""
        self._unread, self._is_asking = self._unasked, False
        self._answered.set()

    async def _run(self) -> None:
        pattern = common(self._patterns)
        try:
            self.on_interest()
            async with asyncio.timeout(LISTEN_SECONDS_MAX):
                await self._listened.wait()
            await self._deliver_state()
            watch = self._table.replica.watches.watch(pattern, self._start, self._take)
            async with aclosing(watch) as steps:
                async for step in steps:
                    if isinstance(step, list):
                        self._note_hidden(step)
                        await self._send(each for each in step if self._wants(each))
                    elif isinstance(step, Caught):
                        await self._end_state()
        except TimeoutError:
            self._owner.counts.gone += 1
        except BasculeError as error:
            log.warning(
                "watcher of a bucket ended", extra={"bucket": self.bucket, "error": str(error)}
            )
            if self.config.idle_heartbeat:
                # The client misses a message, and begins again at once, on another node. Without
                # one so far it misses the heartbeats later.
                self._send_heartbeat(self.delivered + 1)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._owner.remove(self)

    async def _deliver_state(self) -> None:
        """A key that was changed meanwhile comes later, with the change.

        The client takes the message behind which nothing is pending for the end of the state, so
        the last one is held back until it is known that there is no other.
        """
        state, self._state = self._state, []
        last = state.last if isinstance(state, KeyState) else None
        held: list[Change] = []
        if isinstance(state, list):
            held = state
            await self._send(held[:-1], in_state=True)
            held, state = held[-1:], KeyState()
        for page in state.pages(PAGE_KEYS):
            part: KeyPart | None = page
            while part is not None:
                rows, part = await self._table.replica.rows_of(part, bytes_max=WINDOW_BYTES)
                held += [Change(*row, -1) for row in rows]
                await self._send(held[:-1], in_state=True)
                held = held[-1:]
        self.pending = 0
        await self._send(held)
        if last is not None and not self.delivered:
            # All keys were changed, or purged, since the client was told how many there are.
            key, version = last
            now_ms = self._table.partition.now_ms()
            self._end = Change(key, version, now_ms, None, PURGED, -1)

    def _note_hidden(self, changes: Iterable[Change]) -> None:
        """A removal that is not shown may be the only message that there is to say; see `_end`."""
        if self._end is None:
            return
        for change in changes:
            if _is_hidden(change) and matches_one(self._patterns, change.key):
                self._end = change

    async def _end_state(self) -> None:
        """The client waits for a message behind which nothing is pending: it was told that there
        are some. What was changed since has come, if it is shown."""
        end, self._end = self._end, None
        if end is not None and not self.delivered:
            await self._send([end])

    async def _send(self, changes: Iterable[Change], *, in_state: bool = False) -> None:
        for change in changes:
            self.pending = max(self.pending - 1, 1) if in_state else 0
            self._deliver(change)
            if self._is_full:
                self._owner.counts.stalled += 1
                self._answered.clear()
                async with asyncio.timeout(STALL_SECONDS_MAX):
                    await self._answered.wait()
            if not self._owner.link.is_writable:
                await self._owner.link.drain()
        await self._owner.link.drain()

    def _take(self, change: Change) -> bool:
        """Deliver a change at once, unless the client or the connection has too much unread."""
        if self._is_full or not self._owner.link.is_writable:
            return False
        if self._wants(change):
            self._deliver(change)
        return True

    def _wants(self, change: Change) -> bool:
        """Whether a change that matches what is common to the patterns is to be delivered."""
        if _is_hidden(change):
            return False
        return len(self._patterns) == 1 or matches_one(self._patterns, change.key)

    @property
    def _is_full(self) -> bool:
        return self._asks and self._unread >= WINDOW_BYTES

    def _deliver(self, change: Change) -> None:
        """Send one message. Behind the @ is the subject that the client sees: it has the key."""
        self.delivered += 1
        self.sequence = change.version + 1
        if change.value is None or self._headers_only or self._is_oversize(change):
            frame = self._with_headers(change)
        else:
            end = change.frame_end
            if end is None:
                subject = self._table.keys.subject(change.key).encode()
                end = b"@%b %d\r\n%b\r\n" % (subject, len(change.value), change.value)
                change.frame_end = end
            frame = b"%b%d.%d.%d000000.%d%b" % (
                self._frame_start, self.sequence, self.delivered, change.timestamp, self.pending,
                end,
            )  # fmt: skip
        self._unread += len(frame)
        self._unasked += len(frame)
        self._owner.link.send(frame)
        self._owner.counts.messages += 1
        self._is_quiet = False
        if self._asks and self._unasked >= ASK_BYTES and not self._is_asking:
            self._ask()

    def _with_headers(self, change: Change) -> bytes:
        """Without the value, whose size a header says."""
        headers = {}
        if change.value is None:
            headers[KV_OPERATION] = operation_of(change.content_type)
        if self._headers_only or change.value is not None:
            headers[VALUE_BYTES] = str(len(change.value or b""))
        reply = (
            f"{self._ack}{self.sequence}.{self.delivered}.{change.timestamp}000000.{self.pending}"
            f"@{self._table.keys.subject(change.key)}"
        )
        return deliver_with_headers(self.subject, reply, headers, b"")

    def _is_oversize(self, change: Change) -> bool:
        """Whether the server would close the connection, which all watchers share, for a value."""
        link, value = self._owner.link, change.value
        if value is None or len(value) <= link.payload_bytes_max:
            return False
        if link.may_take_more:
            link.renew()
        else:
            self._owner.counts.oversize += 1
            self._owner.oversize.report(
                self.bucket,
                f"version {change.version} to a watcher",
                found=len(value),
                limit=link.payload_bytes_max,
            )
        return True

    def _ask(self) -> None:
        self._is_asking, self._unasked = True, 0
        status = "100 FlowControl Request"
        control = f"{self._owner.control}.{self.bucket}.{self.name}"
        self._owner.link.send(deliver_with_headers(self.subject, control, {}, b"", status=status))

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._beat)
        if self._is_quiet:
            self._send_heartbeat(self.delivered)
        self._is_quiet = True

    def _send_heartbeat(self, delivered: int) -> None:
        """Say that so many messages were sent."""
        headers = {"Nats-Last-Consumer": str(delivered), "Nats-Last-Stream": str(self.sequence)}
        status = "100 Idle Heartbeat"
        self._owner.link.send(deliver_with_headers(self.subject, "", headers, b"", status=status))


def _is_hidden(change: Change) -> bool:
    """Whether it is the second removal of a key, which purges its marker."""
    return change.value is None and change.content_type == FORGOTTEN


class PushConsumers:
    """The push consumers of this node. Belongs to the event loop."""

    def __init__(self, link: Link, clock: Clock, dice: Random) -> None:
        self.link = link
        self.clock = clock
        self.control = f"{CONTROL}{dice.bytes(6).hex()}"
        """The subject below which clients answer."""
        self.counts = ConsumerCounts()
        self.oversize = OversizeReports(clock)
        self._dice = dice
        self._consumers: dict[tuple[str, str], _Consumer] = {}
        """By bucket and name."""
        self._by_subject: dict[str, set[_Consumer]] = {}
        """By the subject that they deliver to."""

    @property
    def count(self) -> int:
        return len(self._consumers)

    def count_of(self, bucket: str) -> int:
        return sum(1 for found, _ in self._consumers if found == bucket)

    def listed(self, bucket: str) -> list[Any]:
        return [each.info() for (found, _), each in self._consumers.items() if found == bucket]

    async def create(self, table: HeldTable, request: ApiRequest) -> dict[str, Any]:
        """Raises: ApiError, InvalidPattern, PartitionFailed, Indeterminate."""
        config = request.decode(ConsumerRequest).config
        if config.deliver_subject is None:
            raise not_served("pull consumers; read the stream with a Kafka client")
        if config.ack_policy != "none" or config.durable_name:
            raise not_served("consumers that acknowledge, or are durable")
        if not self.link.is_connected:
            raise not_served(
                "watching and listing keys without a leafnode connection to the NATS server; set "
                "nats.leaf_url"
            )
        if len(self._consumers) >= CONSUMERS_MAX:
            raise ApiError(503, BAD_REQUEST, f"this node has {CONSUMERS_MAX} consumers, no more")
        patterns = patterns_of(table, config)
        await table.wait_applied()
        start = start_of(table, config)
        state: KeyState | list[Change] = []
        if isinstance(start, WatchPosition) and not await table.replica.reaches(
            start, REACH_SECONDS_MAX
        ):
            start = Begin.STATE  # of another bucket that had the name, or of records that were lost
        if start is Begin.STATE:
            offset = table.replica.position
            start = WatchPosition(offset, table.replica.epoch_of(offset - 1))
            state = await table.replica.state(
                patterns, below=offset, removed_since=shown_since(table)
            )
        elif isinstance(start, WatchPosition):
            start, state = await missed(table, patterns, start)
        name = request.rest.split(".")[0] or config.name or self._dice.bytes(8).hex()
        try:
            check_subject(config.deliver_subject, wildcards=False)
            check_subject(f"consumer.{name}", wildcards=False)
        except InvalidName as error:
            raise ApiError(400, BAD_REQUEST, str(error)) from error
        if (present := self._consumers.get((table.bucket, name))) is not None:
            present.task.cancel()
        consumer = _Consumer(self, table, name, config, patterns, start, state)
        self._consumers[table.bucket, name] = consumer
        self._by_subject.setdefault(consumer.subject, set()).add(consumer)
        self.counts.consumers = len(self._consumers)
        return consumer.info()

    def info(self, bucket: str, name: str) -> dict[str, Any] | None:
        found = self._consumers.get((bucket, name))
        return None if found is None else found.info()

    def delete(self, bucket: str, name: str) -> bool:
        found = self._consumers.get((bucket, name))
        if found is not None:
            found.task.cancel()
        return found is not None

    def on_control(self, subject: str) -> None:
        """A client has answered on a subject below `control`."""
        bucket, _, name = subject.removeprefix(f"{self.control}.").partition(".")
        if (found := self._consumers.get((bucket, name))) is not None:
            found.on_control()

    def on_interest(self, subject: str | None) -> None:
        """Somebody has begun to listen on a subject, or the last one has stopped; None: on one with
        wildcards."""
        if subject is None:
            found = set(self._consumers.values())
        else:
            found = set(self._by_subject.get(subject, ()))
        for consumer in found:
            consumer.on_interest()

    def end_all(self) -> None:
        """What was sent is lost, perhaps: clients have to begin again."""
        for consumer in self._consumers.values():
            consumer.task.cancel()

    def remove(self, consumer: _Consumer) -> None:
        key = consumer.bucket, consumer.name
        listening = self._by_subject.get(consumer.subject, set())
        listening.discard(consumer)
        if not listening:
            self._by_subject.pop(consumer.subject, None)
        if self._consumers.get(key) is consumer:
            del self._consumers[key]
            self.counts.consumers = len(self._consumers)

    async def close(self) -> None:
        tasks = [each.task for each in self._consumers.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
