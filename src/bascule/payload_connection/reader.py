"""Reads a payload, or a range of it, from any replica that has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from crc32c import crc32c

from bascule.errors import (
    BasculeError,
    Broken,
    PayloadDamaged,
    PayloadGap,
    PayloadMissing,
    RemoteProtocolError,
    UnknownPayload,
    UnknownStream,
)
from bascule.payload_connection.connection import PayloadConnection
from bascule.payload_connection.places import Places
from bascule.record.payload_links import Payload
from bascule.wire.datastream import frames
from bascule.wire.datastream.checksums import combine
from bascule.wire.datastream.frames import decode_message, encode_ack, encode_message
from bascule.wire.datastream.messages import (
    ClosePayload,
    FetchPayload,
    PayloadFetched,
    ReplicasElsewhere,
)

CONNECT_SECONDS_MAX: Final = 3.0
RETRY_SECONDS: Final = 0.05
SILENCE_SECONDS_MAX: Final = 5.0
"""Between two chunks of one node, before another one is asked."""
ANSWER_PART: Final = 3
"""A node has a third of the time-out for its first answer: it may have to read a whole payload for
a range of it."""


class _WholeDamaged(PayloadDamaged):
    """All bytes have come, and are not those that were sent."""


class PayloadReader:
    """Use it as `async with`, and iterate over it, or `read` all. Where a node goes away, another
    one goes on."""

    def __init__(
        self,
        bootstrap: Callable[[], str],
        fetch: FetchPayload,
        *,
        timeout: float,
        places: Places | None = None,
        expected: Payload | None = None,
    ) -> None:
        """`places` are those of an earlier reader of the partition, instead of `bootstrap`.
        `expected` is what the record says of the payload, where that is known: nodes with other
        content under its id count as damaged."""
        self.id = fetch.id
        self.size = -1
        """In bytes, of the whole payload; known once it is open."""
        self.crc32c = 0
        """Of the whole payload."""
        self._bootstrap = bootstrap
        self._fetch = fetch
        self._timeout = timeout
        self._places = places
        self._expected = expected
        self._connection: PayloadConnection | None = None
        self._connection_count = 0
        self._start = fetch.start
        self._position = fetch.start
        self._end = fetch.end
        self._crc = 0

    async def __aenter__(self) -> PayloadReader:
        await self._connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self.chunks()

    async def read(self) -> bytes:
        """Everything that is left. Where the whole is not right another replica is asked for it.

        Raises: as `chunks`.
        """
        position, crc, tried = self._position, self._crc, 0
        while True:
            try:
                return b"".join([chunk async for chunk in self.chunks()])
            except _WholeDamaged:
                tried += 1
                if self._places is None or tried >= len(self._places.order):
                    raise
                self._position, self._crc = position, crc

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes, about 1 MiB at a time, each compared with its checksum; at the end of a whole
        payload its own is compared, too. Where a block of a replica is damaged, another one goes
        on.

        Raises: Broken if no replica answers within the timeout; PayloadDamaged if none has the
        bytes as they were sent, or once all bytes were given and the whole is not right: a node
        that knows no checksums of blocks had sent them; UnknownPayload.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while self._end < 0 or self._position < self._end:
            try:
                if self._connection is None:
                    await self._connect()
                chunk = await self._next()
            except (Broken, PayloadDamaged) as error:
                self._fail()
                if loop.time() > deadline:
                    raise
                if isinstance(error, PayloadDamaged):
                    await asyncio.sleep(RETRY_SECONDS)
                continue
            if chunk is None:
                break
            deadline = loop.time() + self._timeout
            yield chunk
        is_whole = self._start == 0 and self._position == self.size
        if is_whole and self._crc != self.crc32c:
            self._fail()
            raise _WholeDamaged(self.id, "checksum", f"{self._crc:08x}", f"{self.crc32c:08x}")

    async def _next(self) -> bytes | None:
        """Raises: Broken, PayloadDamaged."""
        connection = self._connection
        assert connection is not None
        try:
            async with asyncio.timeout(min(self._timeout, SILENCE_SECONDS_MAX)):
                kind, frame = await connection.next_frame()
                if kind == frames.CLOSE:
                    decode_message(frame, ClosePayload)
                    return None
                if kind != frames.DATA:
                    raise RemoteProtocolError(f"a frame of kind {kind:#04x}")
                head, packet = await connection.receive_packet(frame)
        except TimeoutError:
            raise Broken(f"{connection.address} is silent") from None
        if head.position != self._position:
            raise PayloadGap(self.id, head.position, self._position)
        crc = crc32c(packet)
        if crc != head.crc:
            where = f"checksum of {head.length} bytes at {head.position}"
            raise PayloadDamaged(self.id, where, f"{crc:08x}", f"{head.crc:08x}")
        self._crc = combine(self._crc, crc, head.length)
        self._position += head.length
        with suppress(Broken):  # the next packet may be here although its node is gone
            await connection.send(encode_ack(self._position, 0))
        return bytes(packet)

    def _fail(self) -> None:
        if self._connection is not None:
            assert self._places is not None
            self._places.on_failed(self._connection.address)
        self.close()

    async def _connect(self) -> None:
        """Raises: Broken; what a node says."""
        if self._places is None:
            self._places = Places(self._bootstrap())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while True:
            error: BasculeError = Broken("no node is known")
            order, behind = self._places.order, 0
            for address in order:
                try:
                    if await self._ask(address):
                        return
                    break
                except (Broken, PayloadMissing, PayloadDamaged, UnknownStream) as caught:
                    error = caught
                    behind += isinstance(caught, UnknownStream)
                    self._places.on_failed(address)
                except UnknownPayload:
                    # It may have appended the record when no replica had the payload.
                    self._places.on_failed(address)
                    raise
            is_unknown = behind == len(order) and self._connection_count == 0
            if is_unknown or loop.time() > deadline:
                raise error
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self, address: str) -> bool:
        assert self._places is not None
        connection = await PayloadConnection.connect(address, timeout=CONNECT_SECONDS_MAX)
        try:
            self._fetch.start = self._position
            await connection.send(encode_message(frames.FETCH, self._fetch))
            async with asyncio.timeout(
                max(self._timeout / ANSWER_PART, min(self._timeout, SILENCE_SECONDS_MAX))
            ):
                fetched = await connection.expect(frames.FETCHED, PayloadFetched)
        except TimeoutError:
            connection.close()
            raise Broken(f"{address} does not answer") from None
        except BaseException:
            connection.close()
            raise
        if isinstance(fetched, ReplicasElsewhere):
            self._places.learn(fetched.replicas)
            connection.close()
            return False
        try:
            self._check_content(address, fetched)
        except PayloadDamaged:
            connection.close()
            raise
        self.id, self.size, self.crc32c = fetched.id, fetched.size, fetched.crc
        self._fetch.id = fetched.id  # the rest is of the same payload
        self._end = fetched.end
        self._connection = connection
        self._connection_count += 1
        return True

    def _check_content(self, address: str, fetched: PayloadFetched) -> None:
        """Raises: PayloadDamaged for other content under the id than that which is read.

        The first node that answers says which content that is, where it is not known before, also
        if it sends nothing then: the caller may have seen it. Its size does not count: that is the
        size of its file, which may have been cut.
        """
        expected = self._expected
        if expected is not None and fetched.size != expected.size:
            found = str(fetched.size)
            raise PayloadDamaged(self.id, f"size at {address}", found, str(expected.size))
        if expected is None and not self._connection_count:
            return
        crc = self.crc32c if expected is None else expected.crc
        if fetched.crc != crc:
            found = f"{fetched.crc:08x}"
            raise PayloadDamaged(self.id, f"checksum at {address}", found, f"{crc:08x}")
