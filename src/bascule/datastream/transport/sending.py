"""Sends a whole payload, or a range of it, to who has asked for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from bascule.datastream.transport.connection import StreamConnection
from bascule.datastream.transport.reactor import Reactor, ReactorTimer
from bascule.errors import BasculeError
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream.frames import encode_data_head

KEEPALIVE_SECONDS: Final = 1.0
"""While a payload is received, what is there of it is read, or its packets have to wait, the other
side hears so often that this node is there. A slow disk is no reason to take it for lost."""


class PayloadSender:
    """One packet at a time: a thread reads it, compares its block, then the kernel sends it."""

    def __init__(
        self,
        connection: StreamConnection,
        reactor: Reactor,
        pool: Executor,
        source: VerifiedFile,
        start: int,
        end: int,
        *,
        on_sent: Callable[[], None],
        on_failed: Callable[[Exception], None],
        wait_seconds: Callable[[int], float] = lambda _: 0.0,
        keep_alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`wait_seconds` says how long a packet of so many bytes has to wait before it asks again;
        0: it counts as sent."""
        self._connection = connection
        self._reactor = reactor
        self._pool = pool
        self._source = source
        self._position = start
        self._end = end
        self._on_sent = on_sent
        self._on_failed = on_failed
        self._wait_seconds = wait_seconds
        self._keep_alive = keep_alive
        self._waiting: ReactorTimer | None = None
        self._silent_seconds = 0.0
        """For how long packets have waited since anything was sent."""
        self._is_reading = False
        self._has_ended = False

    def close(self) -> None:
        """Send nothing more."""
        self._has_ended = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def on_drained(self) -> None:
        """Read and send the next packet, once it may be sent."""
        if self._is_reading or self._has_ended or self._waiting is not None:
            return
        position, source = self._position, self._source
        length = source.piece_length(position, self._end) if position < self._end else 0
        if length and (seconds := self._wait_seconds(length)):
            self._silent_seconds += seconds
            self._waiting = self._reactor.call_later(seconds, self._on_waited)
            return
        self._silent_seconds = 0.0
        self._is_reading = True

        def read() -> None:
            if self._has_ended:
                return
            crc, error = 0, None
            try:
                if length:
                    crc = source.check(position, length)
                else:
                    source.end()
            except (OSError, BasculeError) as caught:
                error = caught
            self._reactor.call(lambda: self._send(position, length, crc, error))

        self._pool.submit(read)

    def _on_waited(self) -> None:
        self._waiting = None
        if self._silent_seconds >= KEEPALIVE_SECONDS:
            self._silent_seconds = 0.0
            self._keep_alive()
        if self._connection.is_drained:
            self.on_drained()

    def _send(self, position: int, length: int, crc: int, error: Exception | None) -> None:
        self._is_reading = False
        if self._has_ended:
            return
        if error is not None:
            self._has_ended = True
            self._on_failed(error)
            return
        if not length:
            self._has_ended = True
            self._on_sent()
            return
        self._position = position + length
        head = encode_data_head(position, length, crc)
        self._connection.send_packet(head, self._source.file, position, length)
