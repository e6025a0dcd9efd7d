"""How a connection answers: at once, with a `Deferred`, or by its task; always in order."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import pytest

from bascule.listening.connection import Answer, ServedConnection, Shortcut
from bascule.listening.deferred import Deferred
from bascule.listening.limits import ListenerLimits, ListenerStatistics
from bascule.listening.refusals import RefusalLog
from bascule.wire.connection import ClientConnection, ReceivedRequest, ServerConnection
from bascule.wire.datastream.frames import HELLO, encode_message
from bascule.wire.datastream.messages import StreamHello
from bascule.wire.messages.group.heartbeat import HeartbeatRequest, HeartbeatResponse
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.schema import Message, Versions

VERSION: Final = 0


class Served:
    """A connection of a client that sends heartbeats; their generation is the error they get."""

    def __init__(
        self,
        limits: ListenerLimits | None = None,
        *,
        shortcut: Shortcut | None = None,
        take_over: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self.client, server = socket.socketpair()
        self._server = server
        self.client.setblocking(False)
        server.setblocking(False)
        self._protocol = ClientConnection(client_id="test", frame_bytes_max=1 << 20)
        self.handled: list[int] = []
        self.answer: Callable[[int], Message | Awaitable[Message]] = response_of
        self.statistics = ListenerStatistics()
        self.connection = ServedConnection(
            server,
            ServerConnection(
                served={12: Versions("0")}, requests=REQUESTS, frame_bytes_max=1 << 20
            ),
            self._handle,
            peer="test:1",
            limits=limits or ListenerLimits(),
            statistics=self.statistics,
            refusals=RefusalLog(lambda: 0.0),
            run_on_thread=lambda _: pytest.fail("no large response here"),
            shortcut=shortcut,
            take_over=take_over,
        )
        self.task = self.connection.start()

    def _handle(self, request: ReceivedRequest) -> Message | Awaitable[Message]:
        assert isinstance(request.message, HeartbeatRequest)
        self.handled.append(request.message.generation_id)
        return self.answer(request.message.generation_id)

    def encode(self, number: int) -> bytes:
        """A request."""
        return self._protocol.send(HeartbeatRequest(generation_id=number), version=VERSION)

    async def send(self, *numbers: int) -> None:
        """Send requests in one piece."""
        frames = [self.encode(number) for number in numbers]
        await asyncio.get_running_loop().sock_sendall(self.client, b"".join(frames))

    async def received(self, count: int) -> list[int]:
        """The errors of the next `count` responses."""
        found = []
        while len(found) < count:
            event = self._protocol.next_event()
            if isinstance(getattr(event, "message", None), HeartbeatResponse):
                found.append(event.message.error_code)  # type: ignore[union-attr]
                continue
            data = await asyncio.get_running_loop().sock_recv(self.client, 1 << 16)
            assert data, "the connection is closed"
            self._protocol.feed(data)
        return found

    def fill(self) -> int:
        """Fill the server's socket buffer; how many bytes there are to `drain`."""
        sent = 0
        while True:
            try:
                sent += self._server.send(bytes(1 << 16))
            except BlockingIOError:
                return sent

    async def drain(self, count: int) -> None:
        while count:
            count -= len(await asyncio.get_running_loop().sock_recv(self.client, count))

    async def ends(self) -> bool:
        """Wait until the server has closed; whether the client sees that."""
        await asyncio.wait([self.task])
        assert self.task.exception() is None
        with self.client:
            return await asyncio.get_running_loop().sock_recv(self.client, 1) == b""


def response_of(number: int) -> Message:
    return HeartbeatResponse(error_code=number)


async def turns(count: int = 20) -> None:
    """Let the loop turn so often."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        reached = loop.create_future()
        loop.call_soon(reached.set_result, None)
        await reached


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(bounded())


class Gate:
    """Answers with a `Deferred` that the test ends."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[int]] = {}

    def __call__(self, number: int) -> Deferred:
        done = self.waiting[number] = asyncio.get_running_loop().create_future()
        return Deferred(done, lambda: response_of(done.result()))


@pytest.mark.parametrize("together", [True, False])
def test_responses_of_all_kinds_leave_in_order(together: bool) -> None:
    async def scene() -> None:
        served, loop = Served(), asyncio.get_running_loop()

        async def wait(number: int) -> Message:
            await turns(1)
            return response_of(number)

        def later(number: int) -> Deferred:
            done = loop.create_future()
            loop.call_soon(done.set_result, None)
            return Deferred(done, lambda: response_of(number))

        def deferred_twice(number: int) -> Deferred:
            done = loop.create_future()
            loop.call_soon(done.set_result, None)
            return Deferred(done, lambda: wait(number))

        kinds = [response_of, wait, later, deferred_twice]
        served.answer = lambda number: kinds[number % 4](number)
        numbers = [*range(12), 8, 8, 10, 10, 11, 11, 9, 9]
        if together:
            await served.send(*numbers)
            assert await served.received(len(numbers)) == numbers
        else:
            for number in numbers:
                await served.send(number)
                assert await served.received(1) == [number]
        assert served.handled == numbers
        assert served.statistics.requests == {"Heartbeat": len(numbers)}
        assert served.statistics.request_ns["Heartbeat"].count == len(numbers)
        served.client.close()
        await asyncio.wait([served.task])

    run(scene)


def test_a_request_behind_a_deferred_one_waits() -> None:
    async def scene() -> None:
        served, gate = Served(), Gate()
        served.answer = gate
        await served.send(1)
        await turns()
        await served.send(2, 3)
        await turns()
        assert served.handled == [1]
        gate.waiting[1].set_result(1)
        assert await served.received(1) == [1]
        await turns()
        assert served.handled == [1, 2]
        gate.waiting[2].set_result(2)
        await turns()
        gate.waiting[3].set_result(3)
        assert await served.received(2) == [2, 3]
        served.client.close()
        await asyncio.wait([served.task])

    run(scene)


def test_a_client_that_leaves_ends_what_its_response_waits_for() -> None:
    async def scene() -> None:
        served, gate = Served(), Gate()
        served.answer = gate
        await served.send(1)
        await turns()
        served.client.close()
        await asyncio.wait([served.task])
        assert gate.waiting[1].cancelled()

    run(scene)


@pytest.mark.parametrize("is_deferred", [False, True])
def test_a_connection_that_ends_before_its_task_waits_leaves_nothing_open(
    is_deferred: bool,
) -> None:
    async def scene() -> None:
        served, gate = Served(), Gate()
        made = []

        async def wait() -> Message:
            pytest.fail("nobody waits for it")

        def answer(_: int = 0) -> Coroutine[Any, Any, Message]:
            asyncio.get_running_loop().call_soon(served.connection.abort)
            made.append(wait())
            return made[0]

        def deferred(number: int) -> Deferred:
            return Deferred(gate(number).done, answer)

        served.answer = deferred if is_deferred else answer
        await turns()
        await served.send(1)
        await turns()
        if is_deferred:
            gate.waiting[1].set_result(1)
        await asyncio.wait([served.task])
        assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
        served.client.close()

    run(scene)


def test_a_connection_whose_response_was_cancelled_is_closed() -> None:
    async def scene() -> None:
        served, gate = Served(), Gate()
        served.answer = gate
        await served.send(1)
        await turns()
        gate.waiting[1].cancel()
        assert await served.ends()

    run(scene)


@pytest.mark.parametrize("is_deferred", [True, False])
def test_an_error_of_the_handler_ends_the_connection(is_deferred: bool) -> None:
    async def scene() -> None:
        served, gate = Served(), Gate()

        def fail(_: int) -> Message:
            raise ZeroDivisionError

        served.answer = gate if is_deferred else fail
        await served.send(1)
        await turns()
        if is_deferred:
            gate.waiting[1].set_exception(ZeroDivisionError())
        assert await served.ends()
        assert served.statistics.handler_errors == 1

    run(scene)


def test_a_connection_that_closes_when_answered_answers_a_deferred_request() -> None:
    async def scene() -> None:
        served, gate = Served(), Gate()
        served.answer = gate
        await served.send(1)
        await turns()
        served.connection.close_when_answered()
        await turns()
        assert not served.task.done()
        gate.waiting[1].set_result(1)
        assert await served.received(1) == [1]
        assert await served.ends()

    run(scene)


def test_a_deferred_response_has_no_idle_deadline_and_the_next_request_has() -> None:
    async def scene() -> None:
        limits = ListenerLimits(idle_ms_max=1_000)
        served, gate = Served(limits), Gate()
        loop = asyncio.get_running_loop()
        served.answer = gate
        await served.send(1)
        await turns()
        served.connection.expire(loop.time() + 10)
        await turns()
        gate.waiting[1].set_result(1)
        assert await served.received(1) == [1]
        await turns()
        served.connection.expire(loop.time() + 0.5)
        await turns()
        assert not served.task.done()
        served.connection.expire(loop.time() + 10)
        assert await served.ends()
        assert served.statistics.connections_expired == 1

    run(scene)


def test_a_client_that_does_not_read_its_responses_is_waited_for() -> None:
    async def scene() -> None:
        served = Served()
        served.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        numbers = [number % 1_000 for number in range(5_000)]
        sending = asyncio.ensure_future(served.send(*numbers))
        await turns(200)
        assert await served.received(len(numbers)) == numbers
        await sending
        served.client.close()
        await asyncio.wait([served.task])

    run(scene)


def test_bytes_that_come_one_at_a_time_are_one_request() -> None:
    async def scene() -> None:
        served = Served()
        protocol = ClientConnection(client_id="test", frame_bytes_max=1 << 20)
        frame = protocol.send(HeartbeatRequest(generation_id=7), version=VERSION)
        for byte in frame:
            await asyncio.get_running_loop().sock_sendall(served.client, bytes([byte]))
            await turns(3)
        size = int.from_bytes(await asyncio.get_running_loop().sock_recv(served.client, 4))
        assert size == 6
        assert served.handled == [7]
        served.client.close()
        await asyncio.wait([served.task])

    run(scene)


class EvenNumbers:
    """A shortcut that answers heartbeats of even generations: those of hundreds at once, others
    when the test says so."""

    name = "Even"

    def __init__(self) -> None:
        self.begun: dict[int, tuple[bytes, Callable[[Answer], None]]] = {}
        self.decoded: list[int] = []

    def begin(self, frame: memoryview, on_answer: Callable[[Answer], None]) -> bool | bytes:
        head = len(b"\0\x0c\0\0\0\0\0\0") + 2 + len("test")
        generation = int.from_bytes(frame[head + 2 : head + 6], "big")
        if generation % 2:
            return False
        if generation % 100 == 0:
            return frame_of(frame[4:8], generation)
        self.begun[generation] = bytes(frame[4:8]), on_answer
        return True

    def on_decoded(self, request: ReceivedRequest) -> None:
        assert isinstance(request.message, HeartbeatRequest)
        self.decoded.append(request.message.generation_id)

    def answer(self, number: int) -> None:
        correlation_id, on_answer = self.begun[number]
        on_answer(frame_of(correlation_id, number))


def frame_of(correlation_id: bytes | memoryview, number: int) -> bytes:
    return b"\0\0\0\x06" + correlation_id + number.to_bytes(2, "big")


async def begun(shortcut: EvenNumbers, number: int) -> None:
    while number not in shortcut.begun:
        await turns(1)


def test_a_shortcut_answers_without_decoding() -> None:
    async def scene() -> None:
        shortcut = EvenNumbers()
        served = Served(shortcut=shortcut)
        for number in range(1, 5):
            await served.send(number)
            if number % 2 == 0:
                await begun(shortcut, number)
                shortcut.answer(number)
            assert await served.received(1) == [number]
        assert shortcut.decoded == served.handled == [1, 3]
        assert served.statistics.requests == {"Heartbeat": 2, "Even": 2}
        assert served.statistics.request_ns["Even"].count == 2
        served.connection.close_when_answered()
        assert await served.ends()

    run(scene)


def test_a_shortcut_answers_at_once() -> None:
    async def scene() -> None:
        shortcut = EvenNumbers()
        served = Served(shortcut=shortcut)
        for number in (1, 100, 200, 3):
            await served.send(number)
            assert await served.received(1) == [number]
        assert shortcut.decoded == served.handled == [1, 3]
        assert served.statistics.requests == {"Heartbeat": 2, "Even": 2}
        assert served.statistics.request_ns["Even"].count == 2
        await served.send(100, 5)
        assert await served.received(2) == [100, 5]
        served.connection.close_when_answered()
        assert await served.ends()

    run(scene)


def test_what_the_socket_does_not_take_of_an_answer_at_once_is_sent_later() -> None:
    async def scene() -> None:
        served = Served(shortcut=EvenNumbers())
        await served.send(3)
        assert await served.received(1) == [3]
        sent = served.fill()
        await served.send(100)
        await turns()
        assert served.statistics.requests["Even"] == 1
        assert served.statistics.request_ns.get("Even") is None
        await served.drain(sent)
        assert await served.received(1) == [100]
        served.connection.close_when_answered()
        assert await served.ends()

    run(scene)


def test_requests_behind_a_shortcut_keep_their_order() -> None:
    async def scene() -> None:
        shortcut = EvenNumbers()
        served = Served(shortcut=shortcut)
        await served.send(2, 3, 4)
        await begun(shortcut, 2)
        await turns()
        assert served.handled == []
        shortcut.answer(2)
        assert await served.received(3) == [2, 3, 4]
        assert list(shortcut.begun) == [2], "what is not alone is decoded"
        served.connection.close_when_answered()
        assert await served.ends()

    run(scene)


def test_a_shortcut_may_leave_the_response_to_be_encoded() -> None:
    async def scene() -> None:
        shortcut = EvenNumbers()
        served = Served(shortcut=shortcut)

        async def wait(number: int) -> Message:
            await turns(1)
            return response_of(number)

        for number, answer in ((2, response_of(2)), (4, wait(4))):
            await served.send(number)
            await begun(shortcut, number)
            shortcut.begun[number][1](answer)
            assert await served.received(1) == [number]
        served.connection.close_when_answered()
        assert await served.ends()

    run(scene)


def test_a_shortcut_without_an_answer_closes() -> None:
    async def scene() -> None:
        shortcut = EvenNumbers()
        served = Served(shortcut=shortcut)
        await served.send(2)
        await begun(shortcut, 2)
        shortcut.begun[2][1](None)
        assert await served.ends()

    run(scene)


def test_a_shortcut_may_answer_a_connection_that_is_closed() -> None:
    async def scene() -> None:
        shortcut = EvenNumbers()
        served = Served(shortcut=shortcut)
        await served.send(2)
        await begun(shortcut, 2)
        served.connection.abort()
        assert await served.ends()
        shortcut.answer(2)

    run(scene)


def test_closing_waits_for_a_shortcut() -> None:
    async def scene() -> None:
        shortcut = EvenNumbers()
        served = Served(shortcut=shortcut)
        await served.send(2)
        await begun(shortcut, 2)
        served.connection.close_when_answered()
        await turns()
        assert not served.task.done()
        shortcut.answer(2)
        assert await served.received(1) == [2]
        assert await served.ends()

    run(scene)


@pytest.mark.parametrize("first", range(1, 5))
def test_first_bytes_that_come_in_parts_are_awaited(first: int) -> None:
    """The fifth byte says which protocol it is."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[socket.socket] = loop.create_future()
        served = Served(take_over=taken.set_result)
        hello = encode_message(HELLO, StreamHello())
        await loop.sock_sendall(served.client, hello[:first])
        await turns()
        assert not taken.done()
        await loop.sock_sendall(served.client, hello[first:])
        with await taken as sock:
            assert await loop.sock_recv(sock, 1 << 10) == hello, "nothing was read"
        served.client.close()

        other = Served(take_over=lambda _: pytest.fail("these are requests"))
        frame = other.encode(7)
        await loop.sock_sendall(other.client, frame[:first])
        await turns()
        await loop.sock_sendall(other.client, frame[first:])
        assert await other.received(1) == [7]
        other.client.close()
        await asyncio.wait([served.task, other.task])

    run(scene)


def test_first_bytes_that_never_come_end_the_connection() -> None:
    async def scene() -> None:
        taken: list[socket.socket] = []
        served = Served(ListenerLimits(request_ms_max=1_000), take_over=taken.append)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(served.client, b"\0\0")
        await turns()
        served.connection.expire(loop.time() + 0.5)
        await turns()
        assert not served.task.done()
        served.connection.expire(loop.time() + 2)
        await asyncio.wait([served.task])
        served.client.close()
        assert served.statistics.connections_expired == 1
        assert not taken

    run(scene)


def test_a_size_that_no_first_frame_has_is_refused_at_once() -> None:
    async def scene() -> None:
        served = Served(take_over=lambda _: pytest.fail("no frame of data streaming"))
        await asyncio.get_running_loop().sock_sendall(served.client, b"\x40\0\0\0")
        assert await served.ends()
        assert served.statistics.protocol_errors == 1

    run(scene)
