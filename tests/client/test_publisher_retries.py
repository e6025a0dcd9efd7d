"""What a publish raises whose message was sent more than once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bascule.client.messages import Ack, Headers
from bascule.client.publisher import ACK_WAIT_S, Publisher
from bascule.errors import AcksNothing, BasculeError, Indeterminate, PublishRejected
from bascule.wire import ack_codes
from support.recorded_connection import RecordedConnection, has_stream
from support.virtual_time import elapse, run_virtually

SHORT = b'{"error":{"code":503,"err_code":%d,"description":"%b"},"stream":"s","seq":0}'
NOBODY = b"NATS/1.0 503\r\n\r\n"


def outcome(
    replies: Sequence[bytes | None], *, reconnects: bool = False, headers: Headers | None = None
) -> BasculeError:
    """What the publish raises that gets one of these replies at each attempt; None: no reply."""

    async def test() -> BasculeError:
        nats = RecordedConnection()
        publisher = Publisher(nats, has_stream=has_stream)
        run = asyncio.create_task(
            publisher.publish("s", b"v", key=None, headers=headers, stream=None, timeout=60)
        )
        for number, reply in enumerate(replies):
            await elapse(0.001)
            if reconnects:
                nats.on_reconnect()
            assert len(nats.sent) == number + 1 + reconnects
            if reply is None:
                await elapse(ACK_WAIT_S * 2**number)
            else:
                nats.deliver(reply)
                await elapse(1)
        (error,) = await asyncio.gather(run, return_exceptions=True)
        assert isinstance(error, BasculeError)
        return error

    return run_virtually(test())


def refused(code: int, text: bytes = b"no") -> bytes:
    return SHORT % (code, text)


def test_a_refusal_of_the_only_attempt_is_final() -> None:
    error = outcome([refused(ack_codes.NOT_ENOUGH_REPLICAS)])
    assert isinstance(error, PublishRejected)


@pytest.mark.parametrize("code", [ack_codes.NOT_STORED, ack_codes.NOT_ENOUGH_REPLICAS])
def test_a_refusal_of_a_repetition_says_nothing_of_the_first_attempt(code: int) -> None:
    """It was appended, and the replicas were lost that it waits for."""
    assert isinstance(outcome([None, refused(code)]), Indeterminate)
    assert isinstance(outcome([refused(code)], reconnects=True), Indeterminate)


def test_what_nobody_has_taken_is_not_stored() -> None:
    error = outcome([NOBODY, refused(ack_codes.NOT_ENOUGH_REPLICAS)])
    assert isinstance(error, PublishRejected)
    assert not error.is_repeated


@pytest.mark.parametrize(
    "reply",
    [
        refused(ack_codes.TOO_LARGE),
        refused(ack_codes.WRONG_STREAM),
        refused(ack_codes.NOT_STORED, ack_codes.NOT_CAUGHT_UP_TEXT.encode()),
    ],
)
def test_refusals_for_the_message_itself_stay(reply: bytes) -> None:
    assert isinstance(outcome([None, reply]), PublishRejected)


@pytest.mark.parametrize("code", [ack_codes.WRONG_LAST_SEQUENCE, ack_codes.WRONG_LAST_ID])
def test_a_condition_that_the_first_attempt_may_have_broken_says_nothing_of_it(code: int) -> None:
    """With an id the repetition of a stored message is acked, and not compared."""
    assert isinstance(outcome([refused(code)]), PublishRejected)
    assert isinstance(outcome([None, refused(code)]), Indeterminate)
    for name in ("Nats-Msg-Id", "nats-msg-id"):
        error = outcome([None, refused(code)], headers={"A": "b", name: "id"})
        assert isinstance(error, PublishRejected)
        assert error.is_repeated, "which the stream may not remember for so long"
    for headers in ({"Nats-Msg-Id": ""}, {"A": "Nats-Msg-Id: id"}):
        assert isinstance(outcome([None, refused(code)], headers=headers), Indeterminate)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_nobody_acks_is_not_sent_again(is_late: bool) -> None:
    """A node is asked first. An ack that comes meanwhile counts."""

    async def test() -> None:
        nats = RecordedConnection()

        async def why_silent(frame: bytes, stream: str | None) -> AcksNothing:
            assert frame.startswith(b"PUB s ")
            if is_late:
                nats.deliver(b'{"stream":"s","seq":1,"offset":0}')
            return AcksNothing("s", "add a header")

        publisher = Publisher(nats, has_stream=has_stream, why_silent=why_silent)
        run = publisher.publish("s", b"v", key=None, headers=None, stream=None, timeout=60)
        (result,) = await asyncio.gather(run, return_exceptions=True)
        assert isinstance(result, Ack if is_late else AcksNothing)
        assert len(nats.sent) == 1

    run_virtually(test())
