"""`TableClient`: a table of the cluster."""

# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from bascule.client.admin import Admin
from bascule.client.messages import Ack, Headers, is_header_value
from bascule.client.tables.read_connection import TableReader
from bascule.client.tables.watch import (
    OFFSET_MAX,
    WATCH_TIMEOUT_S,
    WatchStart,
    watch_table,
    watched_keys,
)
from bascule.errors import (
    BasculeError,
    ConfigError,
    Indeterminate,
    NotATable,
    OffsetOutOfRange,
    PublishRejected,
    UnknownKey,
    WrongVersion,
)
from bascule.host.real import RealRandom
from bascule.model import KeyFrom
from bascule.table_results import TableChange, TableEntry, TableInfo, TableValues
from bascule.wire.ack_codes import is_not_caught_up
from bascule.wire.tables.conditions import (
    expected_sequence,
    http_headers,
    message_headers,
    refusal_of,
)
from bascule.wire.tables.counters import incremented
from bascule.wire.tables.keys import TableKeys, why_not_opened
from bascule.wire.tables.patterns import is_pattern
from bascule.wire.tables.read_batches import KeyRead

PUBLISH_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.05
"""Until a table that has not caught up with its stream is asked again."""
WINDOW_PER_AGE: Final = 2
"""A dedupe window counts by the leader's clock, from when the message was stored."""
PAGE_KEYS: Final = 10_000
PAGE_ENTRIES: Final = 1_000
MESSAGE_ID_BYTES: Final = 12
CONSISTENCIES: Final = ("eventual", "session", "linearizable")

T = TypeVar("T")
Key: TypeAlias = bytes | str
Consistency: TypeAlias = Literal["eventual", "session", "linearizable"]


class Values(NamedTuple):
    """What `get_many` has found, all of it at one position."""

    position: int
    """The first offset that was not in the table."""
    entries: dict[bytes, TableEntry]
    """By key; without the keys that have no value."""


class Publish(Protocol):
    """`Client.publish`."""

    async def __call__(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        stream: str | None = None,
        timeout: float = ...,
    ) -> Ack: ...


class TableClient:
    """The latest value of each key. Made by `client.table(NAME)`.

    A write is a message to the stream's leader; it is acknowledged as every message. A read is
    served by any replica. With `consistency="session"` it waits until that replica has what this
    object has written and read before; with "eventual" it returns what the replica has. With
    "linearizable" the leader serves it, and it has every write that was acknowledged before.
    """

    def __init__(
        self,
        name: str,
        admin: Callable[[], Admin],
        publish: Publish,
        reader: Callable[[], TableReader],
        *,
        consistency: Consistency,
        at_least: int = 0,
    ) -> None:
        if consistency not in CONSISTENCIES:
            chosen = ", ".join(CONSISTENCIES[:-1])
            raise ConfigError(
                f"consistency is {chosen} or {CONSISTENCIES[-1]}, got {consistency!r}"
            )
        if not 0 <= at_least <= OFFSET_MAX:
            raise ConfigError(f"at_least is a position from 0 on, got {at_least}")
        if at_least and consistency != "session":
            raise ConfigError(f"at_least is for a session, not for {consistency} reads")
        self.name = name
        self._admin = admin
        self._publish = publish
        self._reader = reader
        self._consistency = consistency
        self._random = RealRandom()
        self._keys: TableKeys | None = None
        self._loading: asyncio.Task[TableKeys] | None = None
        """The request for the settings of the stream, which all first writes wait for."""
        self._at_least = at_least
        """Where the session was asked to begin."""
        self._seen = at_least
        """A position of a session: everything below was written or read here."""

    async def get(self, key: Key) -> TableEntry | None:
        """The value of a key with its version, or None.

        Raises: InvalidKey, UnknownStream, NotATable, Broken, RequestFailed.
        """
        name = _bytes(key)
        if self._consistency == "session":
            # The usual case, and most of what a client does for a get is to call and be woken.
            coming = self._reader().read_soon(KeyRead(self.name, [name], self._seen))
            if coming is not None:
                if (found := await coming) is None:
                    return await self._get_over_http(name, self._asked())
                if found.position > self._seen:
                    self._seen = found.position
                return found.entries[0] if found.entries else None
        return await self._get(name, self._asked())

    async def get_many(self, keys: Iterable[Key]) -> Values:
        """The values of several keys, all at one position.

        Raises: as `get`; RequestFailed for more than 10,000 keys, or more than 4 MiB of values.
        """
        wanted = [_bytes(key) for key in keys]
        if (values := await self._read_keys(wanted, self._asked())) is not None:
            return Values(values.position, {entry.key: entry for entry in values.entries})
        found = await self._read(
            lambda asked: self._admin().table_values(self.name, wanted, consistency=asked),
            self._asked(),
        )
        self._seen = max(self._seen, found.position)
        return Values(found.position, {entry.key: entry for entry in found.entries})

    async def set(
        self,
        key: Key,
        value: bytes,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        content_type: str | None = None,
        ttl: float | None = None,
        timeout: float = PUBLISH_TIMEOUT_S,
    ) -> int:
        """Set the value of a key; return its version, the offset of the record.

        After `ttl` seconds the key is removed, unless it was set meanwhile; without it, after the
        time to live of the table, if that has one. `math.inf`: never.

        With `if_version` only if the last record of the key has that version; with `if_absent` only
        if the key has no value. A write is stored once: after a lost ack it is sent again with the
        same message id, within the stream's dedupe window.

        Raises: as `client.publish`; Indeterminate also if it was sent again and its condition does
        not hold, and the window is too short to tell whether the first sending is stored;
        WrongVersion, InvalidKey, UnknownStream, NotATable; ConfigError for both conditions, or
        another time to live than 1 s to 100 years.
        """
        sequence = expected_sequence(if_version, if_absent)
        return await self._write(_bytes(key), value, sequence, content_type, timeout, ttl)

    async def remove(
        self, key: Key, *, if_version: int | None = None, timeout: float = PUBLISH_TIMEOUT_S
    ) -> int:
        """Remove a key, whether it has a value or not; return the offset of the record.

        Raises: as `set`.
        """
        sequence = expected_sequence(if_version, if_absent=False)
        return await self._write(_bytes(key), None, sequence, None, timeout)

    async def increment(
        self, key: Key, by: int = 1, *, timeout: float = PUBLISH_TIMEOUT_S
    ) -> tuple[int, int]:
        """Add to the value of a key, which is decimal digits; no value is 0.

        Returns the version and the number. Each increment is stored once. Raises: as `set`;
        NotANumber; WrongVersion if others have changed the key each time for `timeout` seconds.
        """
        name, loop = _bytes(key), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        asked = self._asked()
        while True:
            found = await self._get(name, asked)
            number = incremented(self.name, name, None if found is None else found.value, by)
            try:
                version = await self._write(
                    name,
                    b"%d" % number,
                    0 if found is None else found.version + 1,
                    None if found is None else found.content_type,
                    max(deadline - loop.time(), RETRY_S),
                )
            except WrongVersion as error:
                if loop.time() > deadline:
                    raise
                # Some replica may not have what was found.
                at_least = max(asked["at_least"] or 0, (error.found or 0) + 1)
                asked = {**asked, "at_least": at_least}
            else:
                return version, number

    async def keys(
        self, pattern: Key = b"", *, prefix: Key | None = None
    ) -> AsyncGenerator[tuple[bytes, int], None]:
        """All keys that match, with their versions, in the order of their bytes.

        In a pattern `*` is one token and `>`, at the end, all that follow: `user.*.name`, `user.>`.
        One without wildcards is a prefix, and so is always `prefix`. What is written meanwhile may
        be among them.

        Raises: as `get`; InvalidPattern.
        """
        async for entry in self._scan(_range(pattern, prefix), PAGE_KEYS, has_values=False):
            yield entry.key, entry.version

    async def entries(
        self, pattern: Key = b"", *, prefix: Key | None = None
    ) -> AsyncGenerator[TableEntry, None]:
        """As `keys`, with the values."""
        async for entry in self._scan(_range(pattern, prefix), PAGE_ENTRIES, has_values=True):
            yield entry

    async def range(
        self, first: Key = b"", end: Key | None = None, limit: int | None = None
    ) -> AsyncGenerator[TableEntry, None]:
        """The entries with keys from `first` on and below `end`, at most `limit`, by key.

        Raises: as `get`.
        """
        chosen = {"first": _bytes(first) or None, "end": None if end is None else _bytes(end)}
        left = limit
        if left is not None and left <= 0:
            return
        size = PAGE_ENTRIES if left is None else min(left, PAGE_ENTRIES)
        async for entry in self._scan(chosen, size, has_values=True):
            yield entry
            if left is not None:
                left -= 1
                if not left:
                    return

    def watch(
        self,
        pattern: Key = ">",
        *,
        key: Key | None = None,
        start: WatchStart = "now",
        timeout: float = WATCH_TIMEOUT_S,
        on_current: Callable[[int], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> AsyncGenerator[TableChange, None]:
        """The changes of the keys that match, without end: `async for change in table.watch(...)`.
        With `key` those of one key, which may be as a pattern is, such as `*`.

        With `start="state"` the present values come first, by key; with the `position` of a change
        what came behind it, and with an offset what was written there or later. A position of
        another table that had the name, or of records that were lost, is none of this table:
        `on_restart` is called. An offset does not say which table it is of.

        Each key's newest state is seen at last, in the order of its versions and each version once,
        also across failovers; a watcher that is slow sees the newest states only. `on_current` is
        called with a position when everything below it was seen: first behind the present values,
        later now and then. `on_restart` is called where a node cannot tell what was changed since
        the last event, or a connection was lost before the present values were all shown: they
        follow again, also versions that were seen, and what is not among them was removed.

        Raises: InvalidPattern, InvalidKey, UnknownStream, NotATable; ConfigError for both a pattern
        and a key; Broken if no node could be watched for `timeout` seconds.
        """
        return watch_table(
            self._admin, self.name, watched_keys(pattern, key), start=start, timeout=timeout,
            on_current=on_current, on_restart=on_restart,
        )  # fmt: skip

    async def info(self) -> TableInfo:
        """The table as one replica sees it; counts all keys. Raises: as `get`."""
        return await self._admin().table_info(self.name)

    def _asked(self) -> dict[str, Any]:
        """The query of a read."""
        if self._consistency == "linearizable":
            return {"at_least": None, "consistency": "linearizable"}
        return {"at_least": (self._seen or None) if self._consistency == "session" else None}

    async def _read_keys(self, keys: list[bytes], asked: dict[str, Any]) -> TableValues | None:
        """The values over the client listener; None: ask over HTTP."""
        linearizable = self._consistency == "linearizable"
        read = KeyRead(self.name, keys, asked["at_least"] or 0, linearizable)
        reader = self._reader()
        coming = reader.read_soon(read)
        found = await (reader.read(read) if coming is None else coming)
        if found is not None:
            self._seen = max(self._seen, found.position)
        return found

    async def _read(
        self, read: Callable[[dict[str, Any]], Awaitable[T]], asked: dict[str, Any]
    ) -> T:
        """Read with a query. The position of the session may be one of another table that had the
        name, since deleted: a new session begins, with what the leader has.

        Raises: OffsetOutOfRange if nothing was read or written beyond the position asked for."""
        try:
            return await read(asked)
        except OffsetOutOfRange:
            if 0 < self._seen <= self._at_least:
                raise
            self._seen = self._at_least = 0
            return await read({"at_least": None, "consistency": "linearizable"})

    async def _get(self, key: bytes, asked: dict[str, Any]) -> TableEntry | None:
        if (values := await self._read_keys([key], asked)) is not None:
            return values.entries[0] if values.entries else None
        return await self._get_over_http(key, asked)

    async def _get_over_http(self, key: bytes, asked: dict[str, Any]) -> TableEntry | None:
        try:
            position, found = await self._read(
                lambda asked: self._admin().table_value(self.name, key, consistency=asked), asked
            )
        except UnknownKey as error:
            self._seen = max(self._seen, error.position)
            return None
        self._seen = max(self._seen, position)
        return found

    async def _scan(
        self, chosen: dict[str, bytes | None], limit: int, *, has_values: bool
    ) -> AsyncGenerator[TableEntry, None]:
        after: bytes | None = None
        while True:
            query = {**chosen, "after": after, "limit": limit}
            page = await self._read(
                lambda asked, query=query: self._admin().table_page(  # type: ignore[misc]
                    self.name, {**query, **asked}, has_values=has_values
                ),
                self._asked(),
            )
            self._seen = max(self._seen, page.position)
            for entry in page.entries:
                yield entry
            if (after := page.next_after) is None:
                return

    async def _write(
        self,
        key: bytes,
        value: bytes | None,
        sequence: int | None,
        content_type: str | None,
        timeout: float,
        ttl: float | None = None,
    ) -> int:
        keys = self._keys or await self._load_keys()
        # A repetition with the same id gets the first ack, and is not compared again.
        id = self._random.bytes(MESSAGE_ID_BYTES).hex()
        headers = message_headers(
            sequence=sequence,
            message_id=id,
            content_type=content_type,
            ttl=ttl,
            removes=value is None,
        )
        if keys.prefix is None and not is_header_value(key):
            return await self._write_over_http(key, value, http_headers(headers), timeout)
        loop = asyncio.get_running_loop()
        first_sent, is_repeated = loop.time(), False
        deadline = first_sent + timeout
        while True:
            try:
                ack = await self._publish(
                    keys.subject(key),
                    value or b"",
                    key=None if keys.prefix is not None else key,
                    headers=headers,
                    stream=self.name,
                    timeout=max(deadline - loop.time(), RETRY_S),
                )
            except PublishRejected as error:
                is_repeated = is_repeated or error.is_repeated
                if not is_not_caught_up(error) or loop.time() > deadline:
                    refusal = refusal_of(error, self.name, key, sequence)
                    age = loop.time() - first_sent
                    if is_repeated and not await self._is_of_others(refusal, age):
                        raise Indeterminate(
                            f"the write was sent more than once, and the stream {self.name!r} may "
                            f"not remember its message id for so long: it is stored, or {refusal}"
                        ) from None
                    raise refusal from None
                await asyncio.sleep(RETRY_S)
            else:
                self._seen = max(self._seen, ack.offset + 1)
                return ack.offset

    async def _is_of_others(self, refusal: BasculeError, age: float) -> bool:
        """Whether the first sending of a write, `age` seconds ago, is not what it is refused for:
        the stream would have known its message id."""
        if not isinstance(refusal, WrongVersion):
            return True
        try:
            config = (await self._admin().stream(self.name)).definition.config
        except BasculeError:
            return False
        return config.dedupe_window_ms > WINDOW_PER_AGE * 1000 * age

    async def _write_over_http(
        self, key: bytes, value: bytes | None, headers: dict[str, str], timeout: float
    ) -> int:
        """Write a key that a message could not have in its header."""
        try:
            async with asyncio.timeout(timeout):
                version = await self._admin().put_key(self.name, key, value, headers)
        except TimeoutError:
            raise Indeterminate(
                f"no node has answered the write within {timeout} s; it may be stored"
            ) from None
        self._seen = max(self._seen, version + 1)
        return version

    async def _load_keys(self) -> TableKeys:
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._ask_keys())
        # Shielded: one who gives up takes the answer from nobody.
        return await asyncio.shield(self._loading)

    async def _ask_keys(self) -> TableKeys:
        config = (await self._admin().stream(self.name)).definition.config
        if not config.table:
            raise NotATable(self.name, why_not_opened(config))
        if config.key_from is KeyFrom.HEADER and config.literal_subject is None:
            raise NotATable(
                self.name,
                f"keys come from headers, and no message can be sent to {config.subject}: write "
                "with `client.publish(subject, value, key=key)`",
            )
        self._keys = TableKeys(config)
        return self._keys


def _bytes(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _range(pattern: Key, prefix: Key | None) -> dict[str, bytes | None]:
    """The query for a pattern or a prefix. Raises: ConfigError."""
    text = _bytes(pattern)
    if prefix is not None:
        if text:
            raise ConfigError("give one of a pattern and `prefix`")
        return {"prefix": _bytes(prefix) or None}
    return {"pattern": text} if is_pattern(text) else {"prefix": text or None}
