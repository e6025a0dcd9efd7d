"""A blocking Kafka client with our codec, for tests that control every byte."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, TypeVar

from bascule.wire.connection import NEED_DATA, ClientConnection
from bascule.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from bascule.wire.schema import Message, Request

ResponseT = TypeVar("ResponseT", bound=Message)


class ServerClosed(Exception):
    """The server closed the connection."""


class RawClient:
    """One connection; `request` sends a request and waits for its response."""

    def __init__(self, host: str, port: int, *, receive_buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(30)
        self.socket.connect((host, port))
        self.connection = ClientConnection(client_id="raw", frame_bytes_max=1 << 28)

    def send(self, request: Request[Any], version: int) -> None:
        self.socket.sendall(self.connection.send(request, version=version))

    def receive(self) -> Any:
        while (event := self.connection.next_event()) is NEED_DATA:
            count = self.socket.recv_into(self.connection.get_buffer())
            if count == 0:
                raise ServerClosed
            self.connection.received(count)
        return event.message

    def request(self, request: Request[ResponseT], version: int) -> ResponseT:
        self.send(request, version)
        response: ResponseT = self.receive()
        return response

    def wait_closed_by_server(self) -> bool:
        """Wait until the server closes and discard what it still sends; False after a timeout."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def fetch(
    offset: int, *, bytes_max: int = 1 << 20, wait_ms: int = 0, name: str = "flights"
) -> FetchRequest:
    partition = FetchPartition(fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(name, partitions=[partition])]
    )


def read_all(
    client: RawClient, end: int, *, bytes_max: int = 1 << 20, name: str = "flights", start: int = 0
) -> bytes:
    """The whole batches of the log from offset `start` up to `end`."""
    offset, out = start, bytearray()
    while offset < end:
        (partition,) = client.request(
            fetch(offset, bytes_max=bytes_max, name=name), 11
        ).responses[0].partitions  # fmt: skip
        assert partition.error_code == 0
        assert partition.records is not None
        data = memoryview(partition.records)  # type: ignore[arg-type]
        while len(data) >= 12 and len(data) >= (size := 12 + int.from_bytes(data[8:12], "big")):
            last_delta = int.from_bytes(data[23:27], "big")
            offset = int.from_bytes(data[:8], "big") + last_delta + 1
            out += data[:size]
            data = data[size:]
    return bytes(out)
