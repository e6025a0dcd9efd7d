"""Sockets in memory: what asyncio, a listener and a blocking thread need of them.

`SimSocket` is one end of a connection over the simulated network. `SocketLayer` serves the methods
of the event loop, and `SocketModule` and `SelectModule` take the place of these modules where the
production code blocks on a socket.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Protocol

from bascule.sim.cluster.world.loop import NS, ClusterLoop, LoopProcess, process_now
from bascule.sim.cluster.world.threads import Waiter


class SocketEnd(Protocol):
    """One end of a connection; see `network`."""

    peer_address: tuple[str, int]

    @property
    def address(self) -> tuple[str, int]: ...

    is_open: bool
    early: bytearray
    on_data: Callable[[bytes], None]
    on_end: Callable[[], None]
    on_reset: Callable[[], None]
    on_room: Callable[[], None]
    unread: int
    is_full: bool

    def send(self, data: bytes) -> None: ...
    def note_read(self, count: int) -> None: ...
    def close(self) -> None: ...


class SocketNetwork(Protocol):
    """The network, as far as sockets use it."""

    def listen(self, listener: ListeningSocket) -> None: ...
    def stop_listening(self, listener: ListeningSocket) -> None: ...
    def dial(
        self,
        process: LoopProcess,
        address: tuple[str, int],
        on_open: Callable[[Any], object],
        on_fail: Callable[[BaseException], object],
    ) -> SocketDial: ...


class SocketDial(Protocol):
    """An attempt to connect."""

    def cancel(self) -> None: ...


_TIMEVAL: Final = Struct("@ll")
SEND_BYTES: Final = 16 << 10
"""What a socket takes that the other side has not read, once the size of its buffer was set. Other
sockets take everything at once."""
_PEEK: Final = int(socket.MSG_PEEK)
_WAIT_ALL: Final = int(socket.MSG_WAITALL)
"""As plain integers: operators of flags are slow."""


class SimSocket:
    """A connected socket."""

    def __init__(self, layer: SocketLayer, end: SocketEnd) -> None:
        self.layer = layer
        self.number = layer.next_number()
        self.error: OSError | None = None
        self.is_closed = False
        self.is_bounded = False
        """Whether it takes `SEND_BYTES` at most."""
        self._has_another = False
        """Whether another socket has the same connection."""
        self._was_refused = False
        self._is_shut = False
        self.timeout: float | None = None
        self.on_change: Callable[[], None] | None = None
        """Called when bytes have come, or the connection has ended."""
        self.futures: list[asyncio.Future[None]] = []
        """Of tasks that wait for a change."""
        self._waiter: Waiter | None = None
        self._attach(end)

    def _attach(self, end: SocketEnd) -> None:
        self.end = end
        self.received = end.early
        self.has_ended = not end.is_open
        """Whether the peer has closed."""
        end.on_data, end.on_end, end.on_reset = self._on_data, self._on_end, self._on_reset
        end.on_room = self._changed

    # -- from the network ---------------------------------------------------------------------

    def _on_data(self, data: bytes) -> None:
        if not self.is_closed:
            self.received += data
            self._changed()

    def _on_end(self) -> None:
        self.has_ended = True
        self._changed()

    def _on_reset(self) -> None:
        self.error = ConnectionResetError(104, "Connection reset by peer")
        self._changed()

    def _changed(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()
        if self.on_change is not None:
            self.on_change()
        if self.futures:
            futures, self.futures = self.futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)
        if self.number in self.layer.readers:
            self.layer.on_readable(self)

    @property
    def is_readable(self) -> bool:
        return bool(self.received) or self.has_ended or self.error is not None

    @property
    def room(self) -> int:
        """How many bytes it takes now."""
        return SEND_BYTES - self.end.unread if self.is_bounded and self.end.is_open else 1 << 40

    @property
    def is_writable(self) -> bool:
        return self.error is not None or self._is_shut or self.room > 0

    # -- the interface of a socket ------------------------------------------------------------

    def fileno(self) -> int:
        return self.number

    def setblocking(self, _: bool) -> None:
        pass

    def settimeout(self, _: float | None) -> None:
        pass

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_RCVTIMEO):
            seconds, micros = _TIMEVAL.unpack(value)
            self.timeout = seconds + micros / 1e6
        elif (level, option) == (socket.SOL_SOCKET, socket.SO_SNDBUF):
            self.is_bounded = True

    def getsockopt(self, level: int, option: int) -> int:
        """Of SO_ERROR."""
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return 0 if self.error is None else self.error.errno or 0

    def send(self, data: Any, flags: int = 0) -> int:
        if self.error is not None:
            raise self.error
        if self.is_bounded:
            data = memoryview(data)[: self.take_room()]
            self.end.unread += len(data)
        self.end.send(bytes(data))
        return len(data)

    def take_room(self) -> int:
        """How many bytes it takes now. Raises: OSError."""
        if self._is_shut or not self.end.is_open:
            if self._is_shut or self._was_refused:
                raise BrokenPipeError(32, "Broken pipe")
            self._was_refused = True  # the answer to what is sent now says so
        elif self.room <= 0:
            self.end.is_full = True
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return self.room

    def sendall(self, data: Any) -> None:
        self.send(data)

    def recv(self, count: int, flags: int = 0) -> bytes:
        self._check(count)
        data = bytes(self.received[:count])
        if not flags & _PEEK:
            del self.received[:count]
            self.end.note_read(len(data))
        return data

    def recv_into(self, view: Any, count: int = 0, flags: int = 0) -> int:
        count = count or len(view)
        if flags & _WAIT_ALL:
            while len(self.received) < count and not self.has_ended and self.error is None:
                if not self._wait(self.timeout):
                    raise BlockingIOError(11, "Resource temporarily unavailable")
            if self.error is not None and len(self.received) < count:
                raise self.error
        else:
            self._check(count)
        received = self.received
        length = min(count, len(received))
        view[:length] = received[:length]
        del received[:length]
        self.end.note_read(length)
        return length

    def _check(self, count: int) -> None:
        if not self.received:
            if self.error is not None:
                raise self.error
            if not self.has_ended:
                raise BlockingIOError(11, "Resource temporarily unavailable")

    def _wait(self, timeout: float | None) -> bool:
        self._waiter = Waiter()
        try:
            return self._waiter.wait(timeout, "a socket")
        finally:
            self._waiter = None

    async def send_all(self, data: Any) -> None:
        """For a task: send everything, as the other side reads. Raises: OSError."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.send(view) :]
            except BlockingIOError:
                await self._change()

    async def receive_into(self, room: Any) -> int:
        """For a task: as `recv_into`, once there is something. Raises: OSError."""
        while not self.is_readable:
            await self._change()
        return self.recv_into(room)

    async def _change(self) -> None:
        future: asyncio.Future[None] = self.layer.loop.create_future()
        self.futures.append(future)
        await future

    def wait_readable(self, seconds: float) -> bool:
        """Have the thread wait until bytes have come or the connection has ended."""
        loop = self.layer.loop
        deadline = loop.now_ns + int(seconds * NS)
        while not self.is_readable and loop.now_ns < deadline:
            self._wait((deadline - loop.now_ns) / NS)
        return self.is_readable

    def shutdown(self, _: int) -> None:
        self.has_ended = self._is_shut = True
        self.end.close()
        self._changed()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.layer.remove_reader(self.number)
            self.layer.forget(self.number)
            if not self._has_another:
                self.end.close()

    def dup(self) -> SimSocket:
        """Another socket of the same connection. This one is only closed after that."""
        found = SimSocket(self.layer, self.end)
        found.error = self.error
        self._has_another, self.received = True, bytearray()
        self.layer.register(found)
        return found

    def getsockname(self) -> tuple[str, int]:
        return self.end.address

    def getpeername(self) -> tuple[str, int]:
        return self.end.peer_address


class ListeningSocket:
    """Accepts the connections to an address of a node."""

    def __init__(self, layer: SocketLayer, address: tuple[str, int]) -> None:
        self.layer = layer
        self.address = address
        self.number = layer.next_number()
        self.process = process_now()
        self.waiting: list[SimSocket] = []

    def fileno(self) -> int:
        return self.number

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def listen(self, _: int) -> None:
        self.layer.network.listen(self)

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        found = self.waiting.pop(0)
        return found, found.getpeername()

    def admit(self, found: SimSocket) -> None:
        """A connection has come."""
        self.waiting.append(found)
        self.layer.on_readable(self)

    @property
    def is_readable(self) -> bool:
        return bool(self.waiting)

    def close(self) -> None:
        self.layer.network.stop_listening(self)
        self.layer.remove_reader(self.number)


class _Reader:
    __slots__ = ("args", "callback", "context", "is_scheduled", "source")

    def __init__(self, source: Any, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.source, self.callback, self.args = source, callback, args
        self.context = process_now().context
        self.is_scheduled = False


class SocketLayer:
    """All sockets of a simulation, for the event loop."""

    def __init__(self, loop: ClusterLoop, network: SocketNetwork) -> None:
        self.loop = loop
        self.network = network
        self._number = 1_000
        self._sources: dict[int, Any] = {}
        self.readers: dict[int, _Reader] = {}
        """By the numbers of their sockets."""
        loop.sockets = self

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def register(self, source: SimSocket | ListeningSocket) -> None:
        """Have the loop find it by its number."""
        self._sources[source.number] = source

    def forget(self, number: int) -> None:
        """The socket with this number is closed."""
        self._sources.pop(number, None)

    def socket_at(self, number: int) -> Any:
        """The socket with this number."""
        return self._sources[number]

    def add_reader(self, fd: Any, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        source = self._sources[number]
        self.readers[number] = _Reader(source, callback, args)
        self.on_readable(source)

    def remove_reader(self, fd: Any) -> bool:
        number = fd if isinstance(fd, int) else fd.fileno()
        return self.readers.pop(number, None) is not None

    def on_readable(self, source: Any) -> None:
        """Call the reader, as long as there is something to read."""
        reader = self.readers.get(source.number)
        if reader is not None and source.is_readable and not reader.is_scheduled:
            reader.is_scheduled = True
            self.loop.call_soon(self._read, reader, context=reader.context)

    def _read(self, reader: _Reader) -> None:
        reader.is_scheduled = False
        number = reader.source.number
        if self.readers.get(number) is not reader:
            return
        reader.callback(*reader.args)
        if self.readers.get(number) is reader:
            self.on_readable(reader.source)

    async def create_connection(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[SimTransport, Any]:
        """See `asyncio.loop.create_connection`."""
        process = process_now()
        opened: asyncio.Future[SocketEnd] = self.loop.create_future()
        ends: list[SocketEnd] = []

        def on_open(end: SocketEnd) -> None:
            ends.append(end)
            if not opened.done():
                opened.set_result(end)

        def on_fail(error: BaseException) -> None:
            if not opened.done():
                opened.set_exception(error)

        dial = self.network.dial(process, (host, port), on_open, on_fail)
        try:
            end = await opened
        except BaseException:
            dial.cancel()
            for each in ends:
                each.close()
            raise
        protocol = factory()
        return SimTransport(self.loop, SimSocket(self, end), protocol), protocol

    def connect_accepted(self, factory: Callable[[], Any], sock: SimSocket) -> tuple[Any, Any]:
        """See `asyncio.loop.connect_accepted_socket`."""
        protocol = factory()
        return SimTransport(self.loop, sock, protocol), protocol

    def connect_blocking(self, address: tuple[str, int], timeout: float | None) -> SimSocket:
        """Connect, and have the thread wait for it. Raises: OSError."""
        waiter = Waiter()
        found: list[SocketEnd | BaseException] = []

        def done(each: SocketEnd | BaseException) -> None:
            found.append(each)
            waiter.wake()

        dial = self.network.dial(process_now(), address, done, done)
        try:
            if not waiter.wait(timeout, "a connection") or not found:
                raise TimeoutError("timed out")
        finally:
            dial.cancel()
        if isinstance(found[0], BaseException):
            raise found[0]
        return SimSocket(self, found[0])


class SimTransport(asyncio.Transport):
    """A transport of asyncio over a `SimSocket`."""

    def __init__(self, loop: ClusterLoop, sock: SimSocket, protocol: Any) -> None:
        super().__init__()
        self._loop = loop
        self._socket = sock
        self._protocol = protocol
        self._is_closing = self._is_scheduled = False
        loop.remove_reader(sock.number)
        protocol.connection_made(self)
        sock.on_change = self._schedule
        if sock.is_readable:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        sock = self._socket
        if self._is_closing:
            return
        if sock.received:
            data = bytes(sock.received)
            sock.received.clear()
            self._protocol.data_received(data)
        if sock.error is not None:
            self._end(sock.error)
        elif sock.has_ended:
            self._protocol.eof_received()
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._socket.close()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        try:
            self._socket.send(data)
        except OSError:
            self._schedule()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.getpeername() if name == "peername" else default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class SocketModule:
    """What `log_connection` finds under the name `socket`."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(socket, name)
        if isinstance(found, int):
            found = int(found)
        self.__dict__[name] = found
        return found

    @staticmethod
    def create_connection(address: tuple[str, int], timeout: float | None = None) -> SimSocket:
        found: SimSocket = process_now().loop.sockets.connect_blocking(address, timeout)
        return found


class _Poll:
    def __init__(self) -> None:
        self._socket: SimSocket | None = None

    def register(self, sock: SimSocket, _: int) -> None:
        self._socket = sock

    def poll(self, ms: float) -> bool:
        assert self._socket is not None
        return self._socket.wait_readable(ms / 1000)


class SelectModule:
    """What `log_connection` finds under the name `select`."""

    POLLIN = 1
    poll = _Poll


def bind(_: int, address: tuple[str, int]) -> ListeningSocket:
    """A socket that is bound to an address of the process, and does not listen yet."""
    layer: SocketLayer = process_now().machine.world.network.layer
    found = ListeningSocket(layer, address)
    layer.register(found)
    return found
