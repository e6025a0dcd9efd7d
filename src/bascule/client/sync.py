"""The blocking client, for scripts, notebooks and Spark's workers.

An event loop on a separate thread runs the asynchronous client. Reads do not use it: the caller's
thread fetches and decodes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from bascule.client.admin import SyncAdminMixin
from bascule.client.batch_reader import End, Start, messages_of
from bascule.client.client import (
    BATCH_BYTES,
    FETCH_BYTES,
    PUBLISH_TIMEOUT_S,
    READ_TIMEOUT_S,
    RUN_TIMEOUT_S,
    WINDOW,
    Client,
)
from bascule.client.columnar.publisher import SyncColumnarMixin
from bascule.client.consumers import Consumer, GroupConsumer, GroupOptions, SyncConsumer
from bascule.client.consumers.blocking import with_hooks_on_threads
from bascule.client.fetcher import FetchOptions
from bascule.client.loop_thread import LoopThread
from bascule.client.messages import Ack, Acks, Headers, Message, MessageFields
from bascule.client.payloads import SyncPayloadMixin
from bascule.client.stream_reader import Order, StreamReader
from bascule.client.tables import SyncLocalReplica, SyncTableClient
from bascule.client.tables.replica import Conflicts, RefusedWrite
from bascule.client.tables.table import Consistency

T = TypeVar("T")


class SyncClient(SyncAdminMixin, SyncColumnarMixin, SyncPayloadMixin):
    """The blocking client: `with bascule.connect_sync() as client: ...`. Thread-safe."""

    def __init__(self, client_of_loop: Callable[[], Client]) -> None:
        self._loop = LoopThread("bascule-client")

        async def start() -> Client:
            return await client_of_loop().open()

        try:
            self._client = self._run(start())
            self._async_admin = self._async_columnar = self._async_payloads = self._client
        except BaseException:
            self._loop.stop()
            raise

    def close(self) -> None:
        """Send pending messages and close every connection. Idempotent."""
        if not self._loop.is_stopped:
            try:
                self._run(self._client.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        message_id: str | None = None,
        expected_last_sequence: int | None = None,
        stream: str | None = None,
        timeout: float = PUBLISH_TIMEOUT_S,
    ) -> Ack:
        """See `Client.publish`."""
        return self._run(
            self._client.publish(
                subject,
                value,
                key=key,
                headers=headers,
                message_id=message_id,
                expected_last_sequence=expected_last_sequence,
                stream=stream,
                timeout=timeout,
            )
        )

    def publish_many(
        self,
        messages: Iterable[MessageFields],
        *,
        window: int = WINDOW,
        stream: str | None = None,
        timeout: float = RUN_TIMEOUT_S,
        on_progress: Callable[[int], None] | None = None,
    ) -> Acks:
        """See `Client.publish_many`. `messages` and `on_progress` are called on another thread."""
        return self._run(
            self._client.publish_many(
                messages, window=window, stream=stream, timeout=timeout, on_progress=on_progress
            )
        )

    def publish_nowait(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
    ) -> None:
        """See `Client.publish_nowait`."""
        self._run(self._client.publish_nowait(subject, value, key=key, headers=headers))

    def flush(self, timeout: float = PUBLISH_TIMEOUT_S) -> None:
        """See `Client.flush`."""
        self._run(self._client.flush(timeout))

    def read_batches(
        self,
        stream: str,
        *,
        start: Start = "earliest",
        end: End = None,
        partition: int | None = None,
        order: Order = "partition",
        follow: bool = False,
        fetch_bytes: int = FETCH_BYTES,
        batch_bytes: int = BATCH_BYTES,
        timeout: float = READ_TIMEOUT_S,
    ) -> StreamReader:
        """See `Client.read_batches`. The reader is an iterator and a context manager."""
        return self._client.open_reader(
            stream,
            start=start,
            end=end,
            partition=partition,
            order=order,
            follow=follow,
            options=FetchOptions(fetch_bytes, batch_bytes, timeout),
        )

    def read(
        self,
        stream: str,
        *,
        start: Start = "earliest",
        end: End = None,
        partition: int | None = None,
        order: Order = "partition",
        follow: bool = False,
        timeout: float = READ_TIMEOUT_S,
    ) -> Iterator[Message]:
        """See `Client.read`."""
        with self.read_batches(
            stream,
            start=start,
            end=end,
            partition=partition,
            order=order,
            follow=follow,
            timeout=timeout,
        ) as batches:
            new_message = self._new_message(stream)
            for batch in batches:
                yield from messages_of(batch, new_message)

    def table(
        self, name: str, *, consistency: Consistency = "session", at_least: int = 0
    ) -> SyncTableClient:
        """See `Client.table`."""
        table = self._client.table(name, consistency=consistency, at_least=at_least)
        return SyncTableClient(table, self._run)

    def replica(
        self,
        table: str,
        directory: str | Path,
        *,
        follow: bool = True,
        conflicts: Conflicts = "reject",
        on_refused: Callable[[RefusedWrite], None] | None = None,
        anew: bool = False,
    ) -> SyncLocalReplica:
        """See `Client.replica`. It is open, with a loop and a thread of its own: use it as `with`,
        also beyond the client. Functions are called on that thread."""
        return SyncLocalReplica(
            lambda: self._client.replica(
                table, directory,
                follow=follow, conflicts=conflicts, on_refused=on_refused, anew=anew,
            )
        )  # fmt: skip

    @overload
    def consume(
        self,
        stream: str,
        consumer: str,
        *,
        start: Start = ...,
        partitions: Sequence[int] | None = ...,
        follow: bool = ...,
        commit_interval: float = ...,
        timeout: float = ...,
    ) -> SyncConsumer[Consumer]: ...
    @overload
    def consume(
        self,
        stream: str,
        *,
        group: str,
        start: Start = ...,
        follow: bool = ...,
        commit_interval: float = ...,
        timeout: float = ...,
        options: GroupOptions | None = ...,
    ) -> SyncConsumer[GroupConsumer]: ...
    def consume(
        self,
        stream: str,
        consumer: str | None = None,
        *,
        group: str | None = None,
        options: GroupOptions | None = None,
        **settings: Any,
    ) -> SyncConsumer[Consumer] | SyncConsumer[GroupConsumer]:
        """See `Client.consume`. Use it as `with`, and iterate inside. The functions of `options`
        are called on another thread."""
        options = None if options is None else with_hooks_on_threads(options)

        async def create() -> Any:
            return self._client.consume(
                stream,
                consumer,
                group=group,
                options=options,
                **settings,  # type: ignore[call-overload]
            )

        found: Any = self._run(create())
        found.make_messages(self._new_message(stream))
        return SyncConsumer(found, self._run)


def connect_sync(
    server: str | None = None,
    *,
    nats: str | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    nkey: str | None = None,
    nkey_seed: str | None = None,
    creds: str | None = None,
    tls: ssl.SSLContext | None = None,
    tls_first: bool = False,
    name: str = "bascule-client",
    timeout: float = 10.0,
) -> SyncClient:
    """Connect without asyncio. The arguments are those of `Client`."""

    def create() -> Client:
        return Client(
            server,
            nats=nats,
            user=user,
            password=password,
            token=token,
            nkey=nkey,
            nkey_seed=nkey_seed,
            creds=creds,
            tls=tls,
            tls_first=tls_first,
            name=name,
            timeout=timeout,
        )

    return SyncClient(create)
