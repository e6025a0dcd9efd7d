"""The asynchronous client."""

# These timeouts bound retries and report the attempts; they are not cancel scopes.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, overload
from weakref import WeakSet

from bascule.client.admin import Admin, AdminMixin, server_url
from bascule.client.batch_reader import End, Start, messages_of
from bascule.client.columnar.publisher import ColumnarMixin
from bascule.client.consumers import Consumer, GroupConsumer, GroupOptions
from bascule.client.consumers.named import COMMIT_INTERVAL_S
from bascule.client.fetcher import FetchOptions
from bascule.client.messages import Ack, Acks, Headers, Message, MessageFields, with_publish_headers
from bascule.client.payloads import PayloadMixin
from bascule.client.publish_window import OnOtherReply
from bascule.client.publisher import Publisher
from bascule.client.stream_reader import Order, StreamReader
from bascule.client.subject_inquiry import SubjectInquiry
from bascule.client.tables import TableClient
from bascule.client.tables.read_connection import TableReader
from bascule.client.tables.replica import Conflicts, LocalReplica, RefusedWrite, open_replica
from bascule.client.tables.table import Consistency
from bascule.errors import Closed, ConfigError
from bascule.model import NodeInfo
from bascule.nats_connection import NatsConnection
from bascule.wire.nats import ConnectOptions, parse_server_url

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISH_TIMEOUT_S: Final = 10.0
RUN_TIMEOUT_S: Final = 60.0
WINDOW: Final = 5_000
"""For the question whether a stream has a subject that nobody takes messages on."""
REPLY_WAIT_S: Final = 0.25
FETCH_BYTES: Final = FetchOptions().fetch_bytes
BATCH_BYTES: Final = FetchOptions().batch_bytes
READ_TIMEOUT_S: Final = FetchOptions().timeout


class Client(AdminMixin, ColumnarMixin, PayloadMixin):
    """A client of one node: `async with bascule.connect() as client: ...`

    Administration uses HTTP. Publishing uses a NATS connection that the first publish opens.
    Reading uses separate connections to the client listener. All methods belong to one event loop.
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
        """`server` is a node's HTTP address, or several, separated by commas, which are tried in
        turn; default: BASCULE_SERVER, then http://127.0.0.1:9080.

        `nats` names the NATS servers, separated by commas; default: the servers that the node
        reports. Credentials in a URL take precedence over `user` and `password`, `token`, `nkey` (a
        file with an NKey seed), `nkey_seed` (the seed) and `creds` (a credentials file). With `tls`
        nothing is sent unencrypted. `tls_first` starts TLS before the server's first message, as
        some servers require. `timeout` (seconds) bounds connecting and every admin request.
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
        self._reader = TableReader(self._client_listeners)
        self._readers: WeakSet[StreamReader] = WeakSet()
        self._members: WeakSet[GroupConsumer] = WeakSet()

    async def open(self) -> Client:
        """Connect to the node. Raises: Broken if it does not reply."""
        admin = Admin(self._server, timeout=self._timeout)
        try:
            self._node = await admin.node()
        except BaseException:
            await admin.close()
            raise
        self._admin = admin
        return self

    async def close(self) -> None:
        """Send pending messages, end active reads and close every connection. Idempotent.

        Close members of groups first: here they do not leave their group."""
        for member in list(self._members):
            member.abort()
        for reader in list(self._readers):
            reader.close()
        if self._nats is not None:
            await self._nats.close()
        self._reader.close()
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

        Delivery is at least once: the message is sent again until an ack comes, so a stream may
        store it twice. With a `message_id`, which the stream remembers for its dedupe window, it is
        stored once. With `expected_last_sequence` it is stored only if that is the partition's last
        sequence (offset + 1). Without an id, a repetition of a stored message is then refused, and
        the outcome indeterminate. If several streams use the subject, the first reply counts, an
        ack or an error, or that of `stream`; the others store the message nevertheless. With the
        header `Nats-Expected-Stream` only that stream stores it.

        Raises: AcksNothing, which is an Indeterminate, if no stream acks it: see the ack policy;
        Indeterminate if no ack came within `timeout` seconds, or if the message was sent
        again and is refused for a state of the stream, as for too few replicas, or without an id
        for another last sequence or id; PublishRejected, NoResponders, LimitExceeded, InvalidName,
        Broken (no NATS connection).
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
        on_other_reply: OnOtherReply | None = None,
        reply_wait: float = REPLY_WAIT_S,
    ) -> Acks:
        """Publish many messages in order and return their acks, in the same order.

        `messages` are `Outgoing`s or tuples (subject, value[, key[, headers]]), as an iterable or
        an asynchronous iterable. At most `window` messages are without ack at a time. `on_progress`
        receives the number of acks. Delivery is at least once, as in `publish`. Messages that are
        sent again, after a lost connection or a late ack, may be stored out of order.

        If several streams use a subject, the first reply to a message counts, be it an ack or an
        error, or that of `stream`. With `on_other_reply` the first ack counts: it is called with
        the number of a message and every other reply to it, an ack or an error. An error ends the
        run only if no ack comes within `reply_wait` seconds. The method returns so long after the
        last ack.

        Raises: as `publish`. `timeout` applies to each message. Messages without ack may or may not
        be stored.
        """
        publisher = await self._publishing()
        return await publisher.publish_many(
            messages, window=window, stream=stream, timeout=timeout, on_progress=on_progress,
            on_other_reply=on_other_reply, reply_wait=reply_wait,
        )  # fmt: skip

    async def publish_nowait(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Publish without ack: at most once. `flush` waits until the NATS server has the message.

        Waits only while the socket is full. The message is lost without notice if the connection
        breaks.
        """
        publisher = self._publisher or await self._publishing()
        publisher.publish_nowait(subject, value, key=key, headers=headers)
        assert self._nats is not None
        await self._nats.drain()

    async def flush(self, timeout: float = PUBLISH_TIMEOUT_S) -> None:
        """Wait until the NATS server has received everything published before. Raises: Broken."""
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
        partition: int | None = None,
        order: Order = "partition",
        follow: bool = False,
        fetch_bytes: int = FETCH_BYTES,
        batch_bytes: int = BATCH_BYTES,
        timeout: float = READ_TIMEOUT_S,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read [start, end) as Arrow batches (`bascule.record.columns.SCHEMA`): the fastest way to
        read.

        `partition` None means all partitions. `start` is earliest, latest, a time, which means the
        first record at or after it, or an offset. Each partition has its own offsets, so in a
        stream of several partitions an offset needs a `partition`. `end` None is the currently
        committed end of each partition. With `follow` there is no end, and the iteration waits for
        new records, also in partitions that are added.

        The records of a partition come in the order of their offsets. With `order` partition,
        batches of the partitions alternate. With timestamp, the records that are committed when the
        read begins come in the order of their timestamps, and later ones as they arrive.

        `fetch_bytes` is the size of a request. A thread decodes `batch_bytes` at a time, one Arrow
        batch ahead. Both are smaller in streams of many partitions.

        Raises: OffsetOutOfRange, UnknownStream, UnknownPartition, CorruptData, PartitionFailed,
        ConfigError for an offset that needs a partition, Broken if reconnecting made no progress
        for `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        bootstrap = self._bootstrap()
        options = FetchOptions(fetch_bytes, batch_bytes, timeout)
        reader: StreamReader | None = None
        coming: asyncio.Future[pa.RecordBatch | None] | None = None
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"bascule-read-{stream}")
        try:
            reader = await loop.run_in_executor(
                executor,
                lambda: StreamReader(
                    bootstrap,
                    stream,
                    start=start,
                    end=end,
                    partition=partition,
                    order=order,
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
        partition: int | None = None,
        order: Order = "partition",
        follow: bool = False,
        timeout: float = READ_TIMEOUT_S,
    ) -> AsyncGenerator[Message, None]:
        """Read [start, end) message by message. The arguments are those of `read_batches`."""
        batches = self.read_batches(
            stream,
            start=start,
            end=end,
            partition=partition,
            order=order,
            follow=follow,
            timeout=timeout,
        )
        new_message = self._new_message(stream)
        try:
            async for batch in batches:
                for message in messages_of(batch, new_message):
                    yield message
        finally:
            await batches.aclose()

    def table(
        self, name: str, *, consistency: Consistency = "session", at_least: int = 0
    ) -> TableClient:
        """A table: the latest value of each key of a stream, read at any replica and written at
        the leader.

        With "session" a read has what this object has written and read before; with "eventual" it
        has what the replica has that is asked; with "linearizable" it is one of the leader, and has
        every write that was acknowledged before. With `at_least` the session begins with everything
        below that position, such as the version + 1 of a write of another program.

        Raises: ConfigError.
        """
        return TableClient(
            name,
            self._opened,
            self.publish,
            lambda: self.table_reader,
            consistency=consistency,
            at_least=at_least,
        )

    def replica(
        self,
        table: str,
        directory: str | Path,
        *,
        follow: bool = True,
        conflicts: Conflicts = "reject",
        on_refused: Callable[[RefusedWrite], None] | None = None,
        anew: bool = False,
    ) -> LocalReplica:
        """A copy of a table in a directory of this machine, which is read and written offline, too:
        `async with client.replica("prices", "prices") as replica: ...`

        It has connections of its own. `bascule.open_replica` needs no client, and says what the
        options are. Raises: ConfigError.
        """
        return open_replica(
            table, directory, self._server, timeout=self._timeout,
            follow=follow, conflicts=conflicts, on_refused=on_refused, anew=anew,
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
    ) -> Consumer: ...
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
    ) -> GroupConsumer: ...
    def consume(
        self,
        stream: str,
        consumer: str | None = None,
        *,
        group: str | None = None,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        commit_interval: float = COMMIT_INTERVAL_S,
        timeout: float = READ_TIMEOUT_S,
        options: GroupOptions | None = None,
    ) -> Consumer | GroupConsumer:
        """Read a stream from a committed offset. Use it as `async with`, and iterate inside.

        With a `consumer`'s name it reads all partitions, those that are added included, or those of
        `partitions`. With a `group` it is one of the members that share the partitions; `options`
        are those of the member.

        `start` is the start of a partition without a committed offset. Without `follow` the
        iteration ends at the end committed when it starts. `Consumer` and `GroupConsumer` explain
        when a message counts as done and when it is committed. An offset that was removed raises
        OffsetOutOfRange; `reset_offsets` sets a new one.
        """
        if group is not None and consumer is None:
            if partitions is not None:
                raise ConfigError(
                    f"a member of group {group!r} is assigned its partitions: leave `partitions` "
                    "out, or read with a consumer's name"
                )
            member = GroupConsumer(
                self,
                self._bootstrap(),
                stream,
                group,
                start=start,
                follow=follow,
                commit_interval=commit_interval,
                timeout=timeout,
                options=options or GroupOptions(),
            )
            member.make_messages(self._new_message(stream))
            self._members.add(member)
            return member
        if consumer is None or group is not None or options is not None:
            raise ConfigError(
                "expected either a consumer's name, or `group` and its `options`, found "
                f"consumer {consumer!r} and group {group!r}"
            )
        found = Consumer(
            self,
            stream,
            consumer,
            start=start,
            partitions=partitions,
            follow=follow,
            commit_interval=commit_interval,
            timeout=timeout,
        )
        found.make_messages(self._new_message(stream))
        return found

    def open_reader(
        self,
        stream: str,
        *,
        start: Start = "earliest",
        end: End = None,
        partition: int | None = None,
        order: Order = "partition",
        follow: bool = False,
        options: FetchOptions | None = None,
    ) -> StreamReader:
        """Open a blocking reader of Arrow batches, usable on any thread; see `read_batches`."""
        reader = StreamReader(
            self._bootstrap(),
            stream,
            start=start,
            end=end,
            partition=partition,
            order=order,
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

    @property
    def table_reader(self) -> TableReader:
        """Reads of tables by key, over the client listener."""
        self._opened()
        return self._reader

    def _client_listeners(self) -> list[str]:
        """Of the node that has answered first, and of the others."""
        assert self._node is not None
        others = self._node.bootstrap.split(",") if self._node.bootstrap else []
        return list(dict.fromkeys((self._node.client, *others)))

    def _bootstrap(self) -> str:
        self._opened()
        assert self._node is not None
        return self._node.bootstrap or self._node.client

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
                inquiry = SubjectInquiry(self._opened())
                publisher = Publisher(
                    nats, has_stream=inquiry.has_stream, why_silent=inquiry.why_silent
                )
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
    """Return a client for `async with`. The arguments are those of `Client`."""
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
