"""The part of the client that sends and reads payloads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bascule.client.messages import Headers, Message, NewMessage, opening_messages
from bascule.payload_connection.reader import PayloadReader
from bascule.payload_connection.writer import PayloadWriter
from bascule.record.payload_links import ID_BYTES
from bascule.wire.datastream.messages import FetchPayload, OpenPayload

PAYLOAD_TIMEOUT_S: Final = 30.0


class PayloadMixin:
    """A part of `Client`."""

    def _bootstrap(self) -> str:
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
    ) -> PayloadWriter:
        """Send content of any size, which the nodes keep in a file beside the log of `stream`:
        `async with client.open_payload("models", key="resnet") as out: await out.write(chunk)`

        The end of the block closes it; `ack` is the ack of its record then. `topology` is auto,
        star, chain or tree; a `route` says which node forwards to which instead. With `quorum` a
        packet is acknowledged once a majority has it. `size` is a promise in bytes, if it is known.
        With the `payload_id` of a payload that was not closed, 32 hexadecimal digits, its nodes go
        on with what they have; with `begin_anew` they drop it, for other content. `on_progress`
        gets the bytes that all nodes have written. `timeout` is how long no progress is made before
        it fails, in seconds.

        Entering raises: UnknownStream, ConfigError for a wrong subject, InvalidRoute, Broken.
        """
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        opening = OpenPayload(
            payload_id or os.urandom(ID_BYTES).hex(),
            stream,
            -1 if partition is None else partition,
            subject,
            key.encode() if isinstance(key, str) else key,
            [(name, text.encode() if isinstance(text, str) else text) for name, text in pairs],
            -1 if size is None else size,
            topology,
            quorum,
            [(node, list(after)) for node, after in (route or {}).items()],
            begins_anew=begin_anew,
        )
        return PayloadWriter(self._bootstrap, opening, timeout=timeout, on_progress=on_progress)

    def read_payload(
        self,
        stream: str,
        record: int | Message,
        *,
        partition: int = 0,
        start: int = 0,
        end: int | None = None,
        timeout: float = PAYLOAD_TIMEOUT_S,
    ) -> PayloadReader:
        """The payload of a record, which is an offset or a message that was read, or its bytes
        [start, end):
        `async with client.read_payload("models", message) as payload: await payload.read()`

        A message has its partition.

        Entering raises: UnknownStream, UnknownPartition, UnknownPayload, Broken.
        """
        offset = record
        if isinstance(record, Message):
            offset, partition = record.offset, record.partition
        assert isinstance(offset, int)
        fetch = FetchPayload(stream, partition, "", offset, start, -1 if end is None else end)
        return PayloadReader(self._bootstrap, fetch, timeout=timeout)

    def _new_message(self, stream: str) -> NewMessage:
        """Makes messages of a stream that open their payloads."""

        def opened(message: Message, start: int, end: int | None) -> PayloadReader:
            return self.read_payload(stream, message, start=start, end=end)

        return opening_messages(opened)
