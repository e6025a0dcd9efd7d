"""Payloads for blocking clients: the writer and the reader on the client's loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from bascule.client.loop_thread import iterate
from bascule.client.messages import Headers, Message, NewMessage, opening_messages
from bascule.client.payloads.mixin import PAYLOAD_TIMEOUT_S, PayloadMixin
from bascule.payload_connection.ack import PayloadAck
from bascule.payload_connection.packet import Content
from bascule.payload_connection.reader import PayloadReader
from bascule.payload_connection.writer import PayloadWriter

T = TypeVar("T")


class SyncPayloadWriter:
    """See `PayloadWriter`. Use it as `with`."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], out: PayloadWriter) -> None:
        self._run = run
        self._out = out

    def __enter__(self) -> SyncPayloadWriter:
        self._run(self._out.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._out.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        return self._out.id

    @property
    def ack(self) -> PayloadAck | None:
        """Once it is closed."""
        return self._out.ack

    @property
    def why(self) -> str:
        """Why this route was chosen."""
        return self._out.why

    @property
    def position(self) -> int:
        """See `PayloadWriter.position`."""
        return self._out.position

    @property
    def acknowledged(self) -> int:
        """See `PayloadWriter.acknowledged`."""
        return self._out.acknowledged

    @property
    def resume_position(self) -> int:
        """See `PayloadWriter.resume_position`."""
        return self._out.resume_position

    def write(self, data: Content) -> None:
        """See `PayloadWriter.write`."""
        self._run(self._out.write(data))

    def write_from(self, source: str | Path | Iterable[Content]) -> None:
        """See `PayloadWriter.write_from`. An iterator runs on the caller's thread."""
        if isinstance(source, str | Path):
            self._run(self._out.write_from(source))
            return
        for piece in source:
            self.write(piece)

    def sync(self) -> None:
        """See `PayloadWriter.sync`."""
        self._run(self._out.sync())

    def close(self) -> PayloadAck:
        """See `PayloadWriter.close`."""
        ack: PayloadAck = self._run(self._out.close())
        return ack


class SyncPayloadReader:
    """See `PayloadReader`. Use it as `with`, and iterate over it, or `read` all."""

    def __init__(
        self, run: Callable[[Coroutine[Any, Any, Any]], Any], found: PayloadReader
    ) -> None:
        self._run = run
        self._found = found

    def __enter__(self) -> SyncPayloadReader:
        self._run(self._found.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._found.__aexit__(kind, error, trace))

    @property
    def size(self) -> int:
        """In bytes, of the whole payload."""
        return self._found.size

    @property
    def crc32c(self) -> int:
        """Of the whole payload."""
        return self._found.crc32c

    def __iter__(self) -> Iterator[bytes]:
        return iterate(self._run, self._found.chunks())

    def read(self) -> bytes:
        """See `PayloadReader.read`."""
        content: bytes = self._run(self._found.read())
        return content


class SyncPayloadMixin:
    """A part of `SyncClient`."""

    _async_payloads: PayloadMixin

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def open_payload(
        self,
        stream: str,
        *,
        subject: str | None = None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        size: int | None = None,
        topology: str = "auto",
        route: Mapping[int, Sequence[int]] | None = None,
        quorum: bool = False,
        payload_id: str | None = None,
        begin_anew: bool = False,
        on_progress: Callable[[int], None] | None = None,
        timeout: float = PAYLOAD_TIMEOUT_S,
    ) -> SyncPayloadWriter:
        """See `Client.open_payload`: `with client.open_payload("models") as out: out.write(chunk)`

        `on_progress` is called on the thread of the client's loop.
        """
        out = self._async_payloads.open_payload(
            stream, subject=subject, key=key, headers=headers, partition=partition, size=size,
            topology=topology, route=route, quorum=quorum, payload_id=payload_id,
            begin_anew=begin_anew, on_progress=on_progress, timeout=timeout,
        )  # fmt: skip
        return SyncPayloadWriter(self._run, out)

    def read_payload(
        self,
        stream: str,
        record: int | Message,
        *,
        partition: int = 0,
        start: int = 0,
        end: int | None = None,
        timeout: float = PAYLOAD_TIMEOUT_S,
    ) -> SyncPayloadReader:
        """See `Client.read_payload`."""
        found = self._async_payloads.read_payload(
            stream, record, partition=partition, start=start, end=end, timeout=timeout
        )
        return SyncPayloadReader(self._run, found)

    def _new_message(self, stream: str) -> NewMessage:
        """Makes messages of a stream that open their payloads."""

        def opened(message: Message, start: int, end: int | None) -> SyncPayloadReader:
            return self.read_payload(stream, message, start=start, end=end)

        return opening_messages(opened)
