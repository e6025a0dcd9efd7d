"""`LeafLink`: a leafnode connection to a NATS server, to deliver messages.

A NATS server shows the subscriber of a push consumer the subject of the original message, and not
the one that it was delivered on: a leafnode names it behind the reply subject,
``$JS.ACK....@<subject>``. A client of the server cannot do that. A leafnode is also told who is
subscribed, so it knows when nobody listens any more. Source: nats-server, the leafnode protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

import msgspec

from bascule.errors import Broken
from bascule.version import __version__
from bascule.wire.nats import ServerAddress
from bascule.wire.subjects import subjects_overlap

log = logging.getLogger("bascule.keyvalue")

LINE_BYTES_MAX: Final = 64 << 10
BACKOFF_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
CONNECT_SECONDS_MAX: Final = 5.0
WRITE_BYTES_MAX: Final = 256 << 10
"""Collected writes beyond this size are sent at once."""
PAYLOAD_BYTES_MAX: Final = 1 << 20
"""`max_payload` of a server that does not say it: NATS's default."""


class _Info(msgspec.Struct):
    """What is read of the server's INFO."""

    max_payload: int = PAYLOAD_BYTES_MAX


class LeafLink:
    """A connection that outlives its sockets. What is sent while there is none is dropped."""

    def __init__(
        self,
        address: Callable[[], ServerAddress | None],
        *,
        name: str,
        on_interest: Callable[[str | None], None],
        on_lost: Callable[[], None],
        raised_to: Callable[[], int] = lambda: 0,
    ) -> None:
        """`address` is asked at each attempt; None: not known now. `on_interest` is called
        after the first subscription to a subject, or the end of the last one, with the subject, or
        with None if it has wildcards; `on_lost` when the connection is lost. `raised_to` returns
        the server's `max_payload` where that is known to be higher than it tells leafnodes."""
        self._address = address
        self._name = name
        self._on_interest = on_interest
        self._on_lost = on_lost
        self._raised_to = raised_to
        self._protocol: _LeafProtocol | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._protocol is not None

    @property
    def is_writable(self) -> bool:
        """Whether the socket takes more data."""
        return self._protocol is not None and self._protocol.writable.is_set()

    @property
    def payload_bytes_max(self) -> int:
        """What the server takes in one message: more ends the connection."""
        return PAYLOAD_BYTES_MAX if self._protocol is None else self._protocol.payload_bytes_max

    @property
    def may_take_more(self) -> bool:
        """Whether the server took more since `max_payload` was raised, on a new connection."""
        return self._protocol is not None and self.payload_bytes_max < self._raised_to()

    def renew(self) -> None:
        """Connect anew. Nothing more is sent until then, and clients begin again, as after a lost
        connection."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None and protocol.transport is not None:
            protocol.transport.abort()

    def has_interest(self, subject: str) -> bool:
        """Whether somebody is subscribed to a subject, as far as it is known."""
        protocol = self._protocol
        if protocol is None:
            return False
        if subject in protocol.literal:
            return True
        return any(subjects_overlap(pattern, subject) for pattern in protocol.patterns)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="leafnode connection")

    async def close(self) -> None:
        self._write()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def send(self, data: bytes) -> None:
        """Add `data` to the next write. Dropped while there is no connection."""
        if self._protocol is None:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes >= WRITE_BYTES_MAX:
            self._write()

    async def drain(self) -> None:
        """Wait until the socket accepts more data. Returns at once without a connection."""
        if self._protocol is not None:
            await self._protocol.writable.wait()

    def _write(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if data and self._protocol is not None and self._protocol.transport is not None:
            self._protocol.transport.write(data)

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    protocol = await self._connect()
            except (OSError, Broken, TimeoutError) as error:
                if failures == 0:
                    log.warning(
                        "leafnode connection refused", extra={"error": str(error) or "no answer"}
                    )
                await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                failures += 1
                continue
            failures = 0
            self._protocol = protocol
            try:
                await protocol.ended
            finally:
                self._protocol = None
                self._outgoing.clear()
                self._outgoing_bytes = 0
                if protocol.transport is not None:
                    protocol.transport.close()
            self._on_lost()
            await asyncio.sleep(BACKOFF_SECONDS[0])

    async def _connect(self) -> _LeafProtocol:
        """Raises: OSError, Broken."""
        address = self._address()
        if address is None:
            raise Broken("the NATS server takes no leafnodes now")
        # Before it connects: a connection keeps the limit that it began with.
        raised_to = self._raised_to()
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(
            lambda: _LeafProtocol(address, self._name, self._on_interest, raised_to),
            *address.endpoint,
        )
        await protocol.ready
        return protocol


class _LeafProtocol(asyncio.Protocol):
    """One connection: sends CONNECT after INFO, and is ready after the PONG."""

    def __init__(
        self,
        address: ServerAddress,
        name: str,
        on_interest: Callable[[str | None], None],
        raised_to: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self._address = address
        self._name = name
        self._raised_to = raised_to
        self.payload_bytes_max = max(PAYLOAD_BYTES_MAX, raised_to)
        self.literal: set[str] = set()
        """Subjects without wildcards that somebody is subscribed to."""
        self.patterns: set[str] = set()
        self._on_interest = on_interest
        self._rest = b""
        self._has_greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        for future in (self.ready, self.ended):
            if not future.done():
                if future is self.ready:
                    future.set_exception(exc or Broken("the NATS server closed the connection"))
                    future.exception()
                else:
                    future.set_result(None)

    def data_received(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\r\n")
        self._rest = lines.pop()
        if len(self._rest) > LINE_BYTES_MAX:
            self._fail("a line that is too long")
            return
        for line in lines:
            self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        assert self.transport is not None
        word = line[:4].upper()
        if word == b"INFO":
            if not self._has_greeted:
                # Once: the server keeps this limit for the connection.
                self._read_limit(line[5:])
                self._has_greeted = True
                self.transport.write(self._connect_line() + b"PING\r\n")
        elif word == b"PING":
            self.transport.write(b"PONG\r\n")
        elif word == b"PONG":
            if not self.ready.done():
                self.ready.set_result(None)
        elif word in (b"LS+ ", b"LS- "):
            subject, *queue = line[4:].decode(errors="replace").split(" ")
            if queue:
                return  # a member of a queue group is no watcher
            is_pattern = bool({"*", ">"} & {*subject.split(".")})
            subjects = self.patterns if is_pattern else self.literal
            (subjects.add if word == b"LS+ " else subjects.discard)(subject)
            self._on_interest(None if is_pattern else subject)
        elif word == b"-ERR":
            self._fail(line.decode(errors="replace"))
        elif word != b"+OK":
            self._fail(f"{line[:40]!r}, expected an operation for leafnodes")

    def _read_limit(self, info: bytes) -> None:
        try:
            found = msgspec.json.decode(info, type=_Info).max_payload
        except msgspec.MsgspecError:
            return  # who sends no INFO is told apart by what follows
        self.payload_bytes_max = max(found, self._raised_to)

    def _connect_line(self) -> bytes:
        fields: dict[str, object] = {
            "name": self._name,
            "server_id": self._name,
            "version": __version__,
            "headers": True,
        }
        if self._address.user is not None:
            fields |= {"user": self._address.user, "pass": self._address.password or ""}
        return b"CONNECT " + msgspec.json.encode(fields) + b"\r\n"

    def _fail(self, what: str) -> None:
        log.warning("leafnode connection ended", extra={"error": what})
        if not self.ready.done():
            self.ready.set_exception(Broken(f"the NATS server sent {what}"))
            self.ready.exception()
        if self.transport is not None:
            self.transport.abort()
