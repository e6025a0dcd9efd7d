"""A connection to NATS without a server: what is sent is kept, and replies are made up."""

from __future__ import annotations

from array import array

from bascule.nats_connection import NatsConnection
from bascule.wire import _hot
from bascule.wire.nats import ConnectOptions, ServerAddress


class RecordedConnection(NatsConnection):
    """Connected to nothing: what would be sent is kept."""

    def __init__(self) -> None:
        super().__init__([ServerAddress("127.0.0.1", 4222)], ConnectOptions("test"))
        self.inbox = "_INBOX.test"
        self.sent: list[bytes] = []

    @property
    def is_connected(self) -> bool:
        return True

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def deliver(self, body: bytes, *, publish: int = 0) -> None:
        """A reply to a publish, by its number."""
        data = b"MSG _INBOX.test.0.%d 1 %d\r\n%b\r\n" % (publish, len(body), body)
        positions, state = array("i", bytes(4 * _hot.MESSAGE_FIELDS)), array("q", bytes(32))
        count = _hot.parse_messages(data, 0, len(data), 1 << 20, 4096, positions, state)
        self.on_chunk(data, positions, count)


async def has_stream(subject: str, stream: str | None) -> bool:
    return True
