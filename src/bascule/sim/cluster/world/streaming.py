"""What data streaming needs of the operating system: sockets that it makes and connects itself, a
selector for its thread, and `sendfile`.

`StreamSocketModule`, `SelectorsModule` and `OsModule` take the place of `socket`, `selectors` and
`os` in its modules.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from bascule.sim.cluster.world.disk import FileNumber
from bascule.sim.cluster.world.loop import process_now
from bascule.sim.cluster.world.sockets import (
    SimSocket,
    SocketDial,
    SocketEnd,
    SocketLayer,
    SocketModule,
)
from bascule.sim.cluster.world.threads import Waiter

IN_PROGRESS = 115


class _NoConnection:
    """What a socket has before it is connected."""

    peer_address = address = ("", 0)
    is_open = True
    unread = 0
    is_full = False

    def __init__(self) -> None:
        self.early = bytearray()
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.on_end = self.on_reset = self.on_room = lambda: None

    def send(self, data: bytes) -> None:
        raise AssertionError("nothing is sent before the socket is connected")

    def note_read(self, count: int) -> None:
        """Nothing was."""

    def close(self) -> None:
        """There is no connection."""


class DialedSocket(SimSocket):
    """A socket that a process makes, and connects without waiting."""

    def __init__(self, layer: SocketLayer) -> None:
        super().__init__(layer, _NoConnection())
        layer.register(self)
        self._dial: SocketDial | None = None
        self._is_connected = False

    def connect_ex(self, address: tuple[str, int]) -> int:
        """Begin to connect; it is writable once that has succeeded or failed."""
        network = self.layer.network
        self._dial = network.dial(process_now(), address, self._on_open, self._on_fail)
        return IN_PROGRESS

    async def connect(self, address: tuple[str, int]) -> None:
        """For a task. Raises: OSError."""
        self.connect_ex(address)
        while not self.is_writable:
            await self._change()
        if self.error is not None:
            raise self.error

    def _on_open(self, end: SocketEnd) -> None:
        if self.is_closed:
            end.close()
            return
        self._is_connected = True
        self._attach(end)
        self._changed()

    def _on_fail(self, error: BaseException) -> None:
        assert isinstance(error, OSError)
        self.error = error
        self._changed()

    @property
    def is_writable(self) -> bool:
        return self.error is not None or (self._is_connected and super().is_writable)

    def close(self) -> None:
        if self._dial is not None and not self.is_closed:
            self._dial.cancel()
        super().close()


class PairSocket:
    """One end of a pair of sockets in one process."""

    def __init__(self, layer: SocketLayer) -> None:
        self._number = layer.next_number()
        self._received = bytearray()
        self.other: PairSocket | None = None
        self.on_change: Callable[[], None] | None = None
        self.is_writable = True

    @property
    def is_readable(self) -> bool:
        return bool(self._received)

    def fileno(self) -> int:
        return self._number

    def setblocking(self, _: bool) -> None:
        pass

    def send(self, data: bytes) -> int:
        other = self.other
        if other is None:
            raise BrokenPipeError(32, "Broken pipe")
        other._received += data
        if other.on_change is not None:
            other.on_change()
        return len(data)

    def recv(self, count: int) -> bytes:
        if not self._received:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def close(self) -> None:
        other, self.other = self.other, None
        if other is not None:
            other.other = None


class StreamSocketModule(SocketModule):
    """What modules of data streaming find under the name `socket`."""

    @staticmethod
    def socket(*_: Any) -> DialedSocket:
        layer: SocketLayer = process_now().machine.world.network.layer
        return DialedSocket(layer)

    @staticmethod
    def socketpair() -> tuple[PairSocket, PairSocket]:
        layer: SocketLayer = process_now().machine.world.network.layer
        found = PairSocket(layer), PairSocket(layer)
        found[0].other, found[1].other = found[1], found[0]
        return found


class WatchedSocket(Protocol):
    """What a selector watches."""

    on_change: Callable[[], None] | None

    @property
    def is_readable(self) -> bool: ...
    @property
    def is_writable(self) -> bool: ...
    def fileno(self) -> int: ...


class _Watched(NamedTuple):
    sock: WatchedSocket
    events: int
    data: Any


class SimSelector:
    """As `selectors.DefaultSelector`: the thread waits for any of many sockets."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._waiter: Waiter | None = None

    def register(self, sock: WatchedSocket, events: int, data: Any) -> None:
        self._watched[sock.fileno()] = _Watched(sock, events, data)
        sock.on_change = self._wake

    modify = register

    def unregister(self, sock: WatchedSocket) -> None:
        del self._watched[sock.fileno()]
        sock.on_change = None

    def get_map(self) -> dict[int, _Watched]:
        return self._watched

    def select(self, timeout: float | None = None) -> list[tuple[_Watched, int]]:
        """The sockets that are ready, after at most `timeout` seconds if none is."""
        ready = self._ready()
        if not ready and timeout != 0:
            self._waiter = waiter = Waiter()
            waiter.wait(timeout, "sockets")
            self._waiter = None
            ready = self._ready()
        return ready

    def _ready(self) -> list[tuple[_Watched, int]]:
        found = []
        for each in self._watched.values():
            events = 0
            if each.events & selectors.EVENT_READ and each.sock.is_readable:
                events |= selectors.EVENT_READ
            if each.events & selectors.EVENT_WRITE and each.sock.is_writable:
                events |= selectors.EVENT_WRITE
            if events:
                found.append((each, events))
        return found

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()

    def close(self) -> None:
        for each in self._watched.values():
            each.sock.on_change = None
        self._watched.clear()


class SelectorsModule:
    """What the reactor finds under the name `selectors`."""

    DefaultSelector = SimSelector


class OsModule:
    """What `datastream.transport.connection` finds under the name `os`."""

    strerror = staticmethod(os.strerror)

    @staticmethod
    def sendfile(target: int, source: FileNumber, position: int, count: int) -> int:
        """Raises: BlockingIOError if the socket takes nothing now; OSError."""
        layer: SocketLayer = process_now().machine.world.network.layer
        sock: SimSocket = layer.socket_at(target)
        data = source.file.read_at(position, min(count, sock.take_room()))
        return sock.send(data) if data else 0


__all__ = ["OsModule", "SelectorsModule", "StreamSocketModule"]
