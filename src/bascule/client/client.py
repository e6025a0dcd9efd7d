"""The asynchronous client."""

# A timeout here bounds retries and says what it did; it is no cancel scope.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from bascule.client.admin import Admin, AdminMixin, server_url
from bascule.client.batch_reader import BatchReader, End, Start, messages_of
from bascule.client.columnar.publisher import ColumnarMixin
from bascule.client.consumer import COMMIT_INTERVAL_S, Consumer
from bascule.client.fetcher import FetchOptions
from bascule.client.messages import Ack, Acks, Headers, Message, MessageFields, with_publish_headers
from bascule.client.nats import NatsConnection
from bascule.client.publisher import Publisher
from bascule.errors import Closed, ConfigError
from bascule.model import NodeInfo
from bascule.wire.nats import ConnectOptions, parse_server_url

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISH_TIMEOUT_S: Final = 10.0
RUN_TIMEOUT_S: Final = 60.0
WINDOW: Final = 5_000
FETCH_BYTES: Final = FetchOptions().fetch_bytes
BATCH_BYTES: Final = FetchOptions().batch_bytes
READ_TIMEOUT_S: Final = FetchOptions().timeout


class Client(AdminMixin, ColumnarMixin):
    """One node's streams: `async with bascule.connect() as client: ...`

    Admin goes over HTTP, publishing over a NATS connection opened by the first publish, reading
    over connections of its own to the client listener. All methods belong to one event loop.
    """

    def __init__(
        self,
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
    ) -> None:
        """`server` is the node's HTTP address; else BASCULE_SERVER, else http://127.0.0.1:9080.

        `nats` names the NATS servers, comma separated, instead of the one the node tells;
        credentials in a URL win over `user` and `password`, `token`, `nkey` (a file with an NKey
        seed), `nkey_seed` (the seed) and `creds` (a credentials file). With `tls` nothing is sent
        in the clear; `tls_first` begins with TLS, as some servers want it. `timeout` (seconds)
        bounds connecting and every admin request.
        """
        self._server = server_url(server)
        self._timeout = timeout
        self._nats_url = nats
        self._options = ConnectOptions(
            name=name,
            user=user,
            password=password,
            token=token,
            nkey=nkey,
            nkey_seed=nkey_seed,
            creds=creds,
            tls=tls is not None or tls_first,
            tls_first=tls_first,
        )
        self._tls = tls
        self._admin: Admin | None = None
        self._node: NodeInfo | None = None
        self._nats: NatsConnection | None = None
        self._publisher: Publisher | None = None
        self._opening = asyncio.Lock()
        self._readers: WeakSet[BatchReader] = WeakSet()

    async def open(self) -> Client:
        """Find the node. Raises: Broken where none answers."""
        admin = Admin(self._server, timeout=self._timeout)
        try:
            self._node = await admin.node()
        except BaseException:
            await admin.close()
            raise
        self._admin = admin
        return self

    async def close(self) -> None:
        """Send what was handed over, end reads under way, close every connection; idempotent."""
        for reader in list(self._readers):
            reader.close()
        if self._nats is not None:
            await self._nats.close()
        if self._admin is not None:
            await self._admin.close()
            self._admin = None

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Publishing

    async def publish(
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
        """Publish one message and return the ack of the stream that stored it.

        At least once: it is sent again while no ack comes, so a stream may hold it twice, but not
        with a `message_id`, which the stream remembers for its window. With
        `expected_last_sequence` it is stored only where the partition's last sequence (offset + 1)
        is that; a message sent again then is refused where the first one was stored, unless it has
        an id. Where several streams take the subject, the first ack counts, or that of `stream`.

        Raises: Indeterminate where no ack came within `timeout` seconds, PublishRejected,
        NoResponders, LimitExceeded, InvalidName, Broken (no NATS connection).
        """
        headers = with_publish_headers(headers, message_id, expected_last_sequence)
        publisher = await self._publishing()
        return await publisher.publish(
            subject, value, key=key, headers=headers, stream=stream, timeout=timeout
        )

    async def publish_many(
        self,
        messages: Iterable[MessageFields] | AsyncIterable[MessageFields],
        *,
        window: int = WINDOW,
        stream: str | None = None,
        timeout: float = RUN_TIMEOUT_S,
        on_progress: Callable[[int], None] | None = None,
    ) -> Acks:
        """Publish many messages in order and return their acks, in the same order.

        `messages` are `Outgoing`s or tuples (subject, value[, key[, headers]]), plain or
        asynchronously iterable. At most `window` are without ack at a time; `on_progress` is told
        the number acked so far. At least once, as `publish`: what is sent again, after a lost
        connection or a late ack, may also be stored out of order.

        Raises: as `publish`, `timeout` holding for each message; what was not acked by then may or
        may not be stored.
        """
        publisher = await self._publishing()
        return await publisher.publish_many(
            messages, window=window, stream=stream, timeout=timeout, on_progress=on_progress
        )

    async def publish_nowait(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Publish without ack: at most once. `flush` says when the NATS server has it.

        Waits only while the socket is full. Lost without word where the connection breaks.
        """
        publisher = self._publisher or await self._publishing()
        publisher.publish_nowait(subject, value, key=key, headers=headers)
        assert self._nats is not None
        await self._nats.drain()

    async def flush(self, timeout: float = PUBLISH_TIMEOUT_S) -> None:
        """Return once the NATS server has taken all that was published before. Raises: Broken."""
        await self._publishing()
        assert self._nats is not None
        await self._nats.flush(timeout)

    # Reading

    async def read_batches(
        self,
        stream: str,
        *,
        start: Start = "earliest",
        end: End = None,
        partition: int = 0,
        follow: bool = False,
        fetch_bytes: int = FETCH_BYTES,
        batch_bytes: int = BATCH_BYTES,
        timeout: float = READ_TIMEOUT_S,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read [start, end) as Arrow batches (`bascule.record.columns.SCHEMA`): the fastest way.

        `start` is earliest, latest, an offset, or a time for the first record at or after it.
        `end` None is what is committed now; with `follow` there is no end and the iteration waits
        for what comes. `fetch_bytes` are asked for at a time, and decoded `batch_bytes` at a
        time on a thread, one Arrow batch ahead.

        Raises: OffsetOutOfRange, UnknownStream, UnknownPartition, CorruptData, PartitionFailed,
        Broken where reconnecting brought nothing for `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        bootstrap = self._bootstrap()
        options = FetchOptions(fetch_bytes, batch_bytes, timeout)
        reader: BatchReader | None = None
        coming: asyncio.Future[pa.RecordBatch | None] | None = None
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"bascule-read-{stream}")
        try:
            reader = await loop.run_in_executor(
                executor,
                lambda: BatchReader(
                    bootstrap,
                    stream,
                    start=start,
                    end=end,
                    partition=partition,
                    follow=follow,
                    options=options,
                ),
            )
            self._readers.add(reader)
            coming = loop.run_in_executor(executor, next, reader, None)
            while (batch := await coming) is not None:
                coming = loop.run_in_executor(executor, next, reader, None)
                yield batch
        finally:
            if coming is not None:
                coming.cancel()
            if reader is not None:
                reader.close()
            executor.shutdown(wait=False)

    async def read(
        self,
        stream: str,
        *,
        start: Start = "earliest",
        end: End = None,
        partition: int = 0,
        follow: bool = False,
        timeout: float = READ_TIMEOUT_S,
    ) -> AsyncGenerator[Message, None]:
        """Read [start, end) message by message; the arguments are those of `read_batches`."""
        batches = self.read_batches(
            stream, start=start, end=end, partition=partition, follow=follow, timeout=timeout
        )
        try:
            async for batch in batches:
                for message in messages_of(batch):
                    yield message
        finally:
            await batches.aclose()

    def consume(
        self,
        stream: str,
        consumer: str,
        *,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        commit_interval: float = COMMIT_INTERVAL_S,
        timeout: float = READ_TIMEOUT_S,
    ) -> Consumer:
        """Read a stream under a name, from where it left off: `async with` it, iterate inside.

        `start` is where a partition begins in which this consumer never committed; `partitions`
        None is all there are now; without `follow` the iteration ends with what is committed to
        the stream at the start. See `Consumer` for when a message is done and committed. An offset
        that is no longer held raises OffsetOutOfRange: `reset_offsets` decides where to go on.
        """
        return Consumer(
            self,
            stream,
            consumer,
            start=start,
            partitions=partitions,
            follow=follow,
            commit_interval=commit_interval,
            timeout=timeout,
        )

    def open_reader(
        self,
        stream: str,
        *,
        start: Start = "earliest",
        end: End = None,
        partition: int = 0,
        follow: bool = False,
        options: FetchOptions | None = None,
    ) -> BatchReader:
        """A blocking reader of Arrow batches, usable on any thread; what `read_batches` uses."""
        reader = BatchReader(
            self._bootstrap(),
            stream,
            start=start,
            end=end,
            partition=partition,
            follow=follow,
            options=options or FetchOptions(),
        )
        self._readers.add(reader)
        return reader

    # Connections

    def _opened(self) -> Admin:
        if self._admin is None:
            raise Closed("the client is not open: use `async with bascule.connect() as client`")
        return self._admin

    def _bootstrap(self) -> str:
        self._opened()
        assert self._node is not None
        return self._node.client

    async def _publishing(self) -> Publisher:
        if self._publisher is not None:
            return self._publisher
        self._opened()
        async with self._opening:
            if self._publisher is None:
                assert self._node is not None
                text = self._nats_url or self._node.nats
                urls = [url.strip() for url in text.split(",") if url.strip()]
                if not urls:
                    raise ConfigError(f"no NATS server in {text!r}")
                nats = NatsConnection(
                    [parse_server_url(url) for url in urls], self._options, tls=self._tls
                )
                publisher = Publisher(nats)
                await nats.connect(self._timeout)
                self._nats, self._publisher = nats, publisher
        return self._publisher


def connect(
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
) -> Client:
    """A client for `async with`; the arguments are those of `Client`."""
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
