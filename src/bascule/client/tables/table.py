"""`TableClient`: a table of the cluster."""

# ruff: noqa: ASYNC109

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal, Protocol, TypeAlias

from bascule.client.admin import Admin
from bascule.client.messages import Ack, Headers
from bascule.client.tables.watch import WATCH_TIMEOUT_S, WatchStart, watch_table
from bascule.errors import ConfigError, NotATable, UnknownKey
from bascule.model import KeyFrom
from bascule.table_results import TableChange, TableEntry, TableInfo
from bascule.wire.tables.keys import TableKeys

PUBLISH_TIMEOUT_S: Final = 10.0
PAGE_KEYS: Final = 10_000
CONSISTENCIES: Final = ("eventual", "session")

Key: TypeAlias = bytes | str
Consistency: TypeAlias = Literal["eventual", "session"]


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
    object has written and read before; with "eventual" it returns what the replica has.
    """

    def __init__(
        self, name: str, admin: Callable[[], Admin], publish: Publish, *, consistency: Consistency
    ) -> None:
        if consistency not in CONSISTENCIES:
            raise ConfigError(f"consistency is {' or '.join(CONSISTENCIES)}, got {consistency!r}")
        self.name = name
        self._admin = admin
        self._publish = publish
        self._consistency = consistency
        self._keys: TableKeys | None = None
        self._seen = 0
        """A position of a session: everything below was written or read here."""

    async def get(self, key: Key) -> TableEntry | None:
        """The value of a key with its version, or None.

        Raises: InvalidKey, UnknownStream, NotATable, Broken, RequestFailed.
        """
        try:
            found = await self._admin().table_value(
                self.name, _bytes(key), at_least=self._at_least()
            )
        except UnknownKey:
            return None
        self._seen = max(self._seen, found.version + 1)
        return found

    async def set(self, key: Key, value: bytes, *, timeout: float = PUBLISH_TIMEOUT_S) -> int:
        """Set the value of a key; return its version, the offset of the record.

        Delivery is at least once: after a lost ack the value may be set twice, with two versions.

        Raises: as `client.publish`; InvalidKey, UnknownStream, NotATable.
        """
        return await self._write(_bytes(key), value, None, timeout)

    async def remove(self, key: Key, *, timeout: float = PUBLISH_TIMEOUT_S) -> int:
        """Remove a key, whether it has a value or not; return the offset of the record.

        Raises: as `set`.
        """
        return await self._write(_bytes(key), b"", {"KV-Operation": "DEL"}, timeout)

    async def keys(self, prefix: Key = b"") -> AsyncGenerator[tuple[bytes, int], None]:
        """All keys that begin with `prefix`, with their versions, in the order of their bytes.

        What is written meanwhile may be among them. Raises: as `get`.
        """
        after, is_last = None, False
        while not is_last:
            found, is_last = await self._admin().table_keys(
                self.name,
                prefix=_bytes(prefix),
                after=after,
                limit=PAGE_KEYS,
                at_least=self._at_least(),
            )
            for key, version in found:
                yield key, version
            after = found[-1][0] if found else after

    def watch(
        self,
        pattern: Key = ">",
        *,
        start: WatchStart = "now",
        timeout: float = WATCH_TIMEOUT_S,
        on_current: Callable[[int], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> AsyncGenerator[TableChange, None]:
        """The changes of the keys that match, without end: `async for change in table.watch(...)`.

        With `start="state"` the present values come first, by key. Each key's newest state is seen
        at last, in the order of its versions and each version once, also across failovers; a
        watcher that is slow sees the newest states only. `on_current` is called with a position
        when everything below it was seen: first behind the present values, later now and then.
        `on_restart` is called where a node cannot tell what was changed since the last event: the
        present values follow again, and what is not among them was removed.

        Raises: InvalidPattern, UnknownStream, NotATable; Broken if no node could be watched for
        `timeout` seconds.
        """
        return watch_table(
            self._admin, self.name, _bytes(pattern), start=start, timeout=timeout,
            on_current=on_current, on_restart=on_restart,
        )  # fmt: skip

    async def info(self) -> TableInfo:
        """The table as one replica sees it; counts all keys. Raises: as `get`."""
        return await self._admin().table_info(self.name)

    def _at_least(self) -> int:
        return self._seen if self._consistency == "session" else 0

    async def _write(
        self, key: bytes, value: bytes, headers: Headers | None, timeout: float
    ) -> int:
        keys = self._keys or await self._load_keys()
        ack = await self._publish(
            keys.subject(key),
            value,
            key=None if keys.prefix is not None else key,
            headers=headers,
            stream=self.name,
            timeout=timeout,
        )
        self._seen = max(self._seen, ack.offset + 1)
        return ack.offset

    async def _load_keys(self) -> TableKeys:
        config = (await self._admin().stream(self.name)).definition.config
        if not config.table:
            raise NotATable(self.name, "open it with `bascule stream alter --table`")
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
