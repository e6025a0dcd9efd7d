"""What a window of publishes sends again while its source has nothing more to publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from bascule.client.messages import Ack, MessageEncoder
from bascule.client.publish_window import ACK_WAIT_S, MessageWindow
from bascule.nats_connection import NatsConnection
from bascule.wire.nats import ConnectOptions, ServerAddress
from support.virtual_time import elapse, run_virtually


class RecordedConnection(NatsConnection):
    """Without a server: what would be sent is kept."""

    def __init__(self) -> None:
        super().__init__([ServerAddress("127.0.0.1", 4222)], ConnectOptions("test"))
        self.inbox = "_INBOX.test"
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)


async def no_stream(subject: str, stream: str | None) -> bool:
    return False


def make_window(nats: NatsConnection, *, timeout: float = 60.0) -> MessageWindow:
    return MessageWindow(
        nats, MessageEncoder(), id=1, has_stream=no_stream, window=100, stream=None,
        timeout=timeout, on_progress=None,
    )  # fmt: skip


def test_a_late_ack_is_noticed_while_the_source_waits() -> None:
    """A leader that is lost takes the message with it, and the connection to NATS stays."""

    async def test() -> None:
        nats, more = RecordedConnection(), asyncio.Event()
        window = make_window(nats)

        async def source() -> AsyncIterator[tuple[str, bytes]]:
            yield "s", b"one"
            await more.wait()
            yield "s", b"two"

        run = asyncio.create_task(window.publish_all(source()))
        await elapse(ACK_WAIT_S + 1)
        one = b"PUB s _INBOX.test.1.0 3\r\none\r\n"
        assert nats.sent == [one, one]
        window.on_reply(0, Ack("s", 1, 0, 0, 1, True))
        window.moved()
        await elapse(600)
        assert nats.sent == [one, one]
        more.set()
        await elapse(1)
        window.on_reply(1, Ack("s", 2, 1, 0, 1, True))
        window.moved()
        assert [ack.offset for ack in await run] == [0, 1]

    run_virtually(test())


def test_a_closed_window_sends_nothing_again() -> None:
    async def test() -> None:
        nats = RecordedConnection()
        window = make_window(nats)

        async def source() -> AsyncIterator[tuple[str, bytes]]:
            yield "s", b"one"
            await asyncio.Event().wait()

        run = asyncio.create_task(window.publish_all(source()))
        await elapse(1)
        run.cancel()
        window.close()
        await elapse(600)
        assert len(nats.sent) == 1

    run_virtually(test())
