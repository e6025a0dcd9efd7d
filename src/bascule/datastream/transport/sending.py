"""Sends a whole payload, or a range of it, to who has asked for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from bascule.datastream.transport.connection import StreamConnection
from bascule.datastream.transport.reactor import Reactor
from bascule.errors import BasculeError
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream.frames import encode_data_head


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
    ) -> None:
        self._connection = connection
        self._reactor = reactor
        self._pool = pool
        self._source = source
        self._position = start
        self._end = end
        self._on_sent = on_sent
        self._on_failed = on_failed
        self._is_reading = False
        self._has_ended = False

    def close(self) -> None:
        """Send nothing more."""
        self._has_ended = True

    def on_drained(self) -> None:
        """Read and send the next packet."""
        if self._is_reading or self._has_ended:
            return
        self._is_reading = True
        position, source = self._position, self._source
        length = source.piece_length(position, self._end) if position < self._end else 0

        def read() -> None:
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
