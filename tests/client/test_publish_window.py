"""What a window of publishes sends again while its source has nothing more to publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa
import pytest

from bascule.client.columnar.columns import PublishRoute
from bascule.client.columnar.publish_window import ColumnarWindow
from bascule.client.messages import Ack, MessageEncoder
from bascule.client.publish_window import ACK_WAIT_S, REFUSED_WAIT_S, MessageWindow, PublishWindow
from bascule.errors import BasculeError, Indeterminate, NoResponders, PublishRejected
from bascule.nats_connection import NatsConnection
from bascule.wire import ack_codes
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

    async def drain(self) -> None:
        """Nothing is held back."""


async def no_stream(subject: str, stream: str | None) -> bool:
    return False


def ignore(index: int, reply: Ack | BasculeError) -> None:
    pass


def make_window(
    nats: NatsConnection, *, timeout: float = 60.0, reply_wait: float = 0.0
) -> MessageWindow:
    return MessageWindow(
        nats, MessageEncoder(), id=1, has_stream=no_stream, window=100, stream=None,
        timeout=timeout, on_progress=None, on_other_reply=ignore if reply_wait else None,
        reply_wait=reply_wait,
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


REFUSED = ack_codes.PAUSED, "the stream is paused"
WRONG_SEQUENCE = ack_codes.WRONG_LAST_SEQUENCE, "wrong last sequence: 1"
Begin = Callable[[RecordedConnection], tuple[PublishWindow, "asyncio.Task[object]"]]


def of_messages(nats: RecordedConnection) -> tuple[PublishWindow, asyncio.Task[object]]:
    window = make_window(nats)
    return window, asyncio.create_task(window.publish_all([("s", b"0"), ("s", b"1")]))


def of_messages_for_several_streams(
    nats: RecordedConnection,
) -> tuple[PublishWindow, asyncio.Task[object]]:
    window = make_window(nats, reply_wait=0.25)
    return window, asyncio.create_task(window.publish_all([("s", b"0"), ("s", b"1")]))


def of_rows(nats: RecordedConnection) -> tuple[PublishWindow, asyncio.Task[object]]:
    window = ColumnarWindow(
        nats, PublishRoute("s", "", ""), id=1, has_stream=no_stream, window=100, stream=None,
        timeout=60.0, on_progress=None,
    )  # fmt: skip

    async def publish() -> object:
        await window.send(pa.RecordBatch.from_pydict({"value": [b"0", b"1"]}))
        return await window.finish()

    return window, asyncio.create_task(publish())


async def nothing(window: PublishWindow) -> None:
    pass


async def reconnect(window: PublishWindow) -> None:
    window.resend_all()


async def wait_for_ack(window: PublishWindow) -> None:
    await elapse(ACK_WAIT_S + 1)


async def find_nobody(window: PublishWindow) -> None:
    window.on_reply(1, NoResponders("s"))
    await elapse(REFUSED_WAIT_S + 0.1)


@pytest.mark.parametrize("begin", [of_messages, of_messages_for_several_streams, of_rows])
@pytest.mark.parametrize(
    ("before", "sent", "reply", "expected"),
    [
        (nothing, 1, REFUSED, PublishRejected),
        (nothing, 1, WRONG_SEQUENCE, PublishRejected),
        (find_nobody, 2, REFUSED, PublishRejected),
        (reconnect, 2, REFUSED, Indeterminate),
        (reconnect, 2, WRONG_SEQUENCE, Indeterminate),
        (wait_for_ack, 2, REFUSED, Indeterminate),
    ],
)
def test_a_refusal_of_a_repetition_says_nothing_of_the_first_attempt(
    begin: Begin,
    before: Callable[[PublishWindow], Awaitable[None]],
    sent: int,
    reply: tuple[int, str],
    expected: type[BasculeError],
) -> None:
    """As of a single message: the first attempt may be stored, and its ack be lost."""

    async def test() -> None:
        nats = RecordedConnection()
        window, run = begin(nats)
        await elapse(0.01)
        await before(window)
        assert b"".join(nats.sent).count(b"_INBOX.test.1.1 ") == sent
        window.on_reply(1, PublishRejected(400, *reply))
        await elapse(1)
        (error,) = await asyncio.gather(run, return_exceptions=True)
        assert type(error) is expected
        assert "it was message 1 on 's'" in error.__notes__
        window.close()

    run_virtually(test())


def test_a_message_that_a_lost_connection_did_not_take_is_sent_once() -> None:
    async def test() -> None:
        nats, more = RecordedConnection(), asyncio.Event()
        window = make_window(nats)

        async def source() -> AsyncIterator[tuple[str, bytes]]:
            yield "s", b"0"
            await more.wait()
            yield "s", b"1"
            window.resend_all()
            await asyncio.Event().wait()

        run = asyncio.create_task(window.publish_all(source()))
        await elapse(0.01)
        more.set()
        await elapse(0.01)
        assert [each.count(b"PUB") for each in nats.sent] == [1, 2]
        window.on_reply(1, PublishRejected(503, *REFUSED))
        assert isinstance(window._failure, PublishRejected)
        run.cancel()
        window.close()

    run_virtually(test())
