"""Frames: an int32 size, then that many bytes.

    +--------------+----------------------+
    | int32 size   | size bytes of frame  |   repeated, back to back
    +--------------+----------------------+

There is no input or output here. The owner receives into `get_buffer()` and reports the number of
bytes. Frames that were returned stay valid: received bytes are never moved or overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from bascule.errors import LocalProtocolError, RemoteProtocolError
from bascule.wire.primitives import INT32_MAX, Piece, size_of

SIZE_BYTES: Final = 4
CHUNK_BYTES: Final = 16 << 10
"""Buffer size while no frame size is known. Holds some hundred usual requests, and costs little
memory for an idle connection."""
_SIZE = Struct(">i")


class FrameReader:
    """Splits a stream of bytes into frames.

    `frame_bytes_max` bounds a frame. It is checked as soon as the size has arrived. A frame of up
    to `eager_bytes` gets its whole buffer at once. The buffer of a larger frame grows with the
    bytes received, so a claimed size alone takes no memory.
    """

    __slots__ = ("_buffer", "_eager_bytes", "_frame_bytes_max", "_size", "_start", "_stop",
                 "allocated_bytes")  # fmt: skip

    def __init__(self, *, frame_bytes_max: int, eager_bytes: int = 64 << 10) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._eager_bytes = eager_bytes
        self._buffer = bytearray()
        self.allocated_bytes = 0
        """Memory of the buffer."""
        self._start = 0
        """Start of the first frame that is not yet returned."""
        self._stop = 0
        """End of the received bytes."""
        self._size = -1
        """Size of the frame at `_start`, -1 if it is not yet known."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes received and not yet returned as frames."""
        return self._stop - self._start

    def get_buffer(self) -> memoryview:
        """A buffer of at least one byte to receive into. Then call `received`."""
        if self._stop == self.allocated_bytes:
            self._make_room()
        return memoryview(self._buffer)[self._stop :]

    def received(self, count: int) -> None:
        """The first `count` bytes of `get_buffer()` were received."""
        assert 0 <= count <= self.allocated_bytes - self._stop
        self._stop += count

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes that were received into another buffer; copies them."""
        view = memoryview(data)
        while len(view):
            room = self.get_buffer()
            taken = min(len(room), len(view))
            room[:taken] = view[:taken]
            self.received(taken)
            view = view[taken:]

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None if more bytes are needed.

        Raises: RemoteProtocolError if the size is negative or above the bound.
        """
        if self._size < 0:
            if self._stop - self._start < SIZE_BYTES:
                return None
            self._size = self._read_size()
        start = self._start + SIZE_BYTES
        stop = start + self._size
        if stop > self._stop:
            return None
        self._start = stop
        self._size = -1
        return memoryview(self._buffer)[start:stop]

    def _read_size(self) -> int:
        size: int = _SIZE.unpack_from(self._buffer, self._start)[0]
        if 0 <= size <= self._frame_bytes_max:
            return size
        head = bytes(self._buffer[self._start : self._start + SIZE_BYTES])
        raise RemoteProtocolError(
            f"frame size is {size} bytes (first bytes {head!r}), "
            f"expected 0 to {self._frame_bytes_max}"
        )

    def _make_room(self) -> None:
        have = self._stop - self._start
        want = CHUNK_BYTES
        if self._size >= 0:
            whole = SIZE_BYTES + self._size
            want = max(want, min(whole, max(self._eager_bytes, 2 * have)))
        fresh = bytearray(max(want, 2 * have) if have >= want else want)
        fresh[:have] = memoryview(self._buffer)[self._start : self._stop]
        self._buffer, self._start, self._stop = fresh, 0, have
        self.allocated_bytes = len(fresh)


def frame_pieces(parts: Sequence[Piece]) -> list[Piece]:
    """One frame of `parts`: adjacent bytes are joined, each `SizedPiece` is kept."""
    total, is_plain = 0, True
    for part in parts:
        if type(part) is bytes:  # most are
            total += len(part)
        else:
            total += size_of(part)
            is_plain = is_plain and isinstance(part, (bytes, bytearray, memoryview))
    if total > INT32_MAX:
        raise LocalProtocolError(f"frame has {total} bytes, at most {INT32_MAX} are allowed")
    if is_plain:
        return [b"".join((_SIZE.pack(total), *parts))]  # type: ignore[arg-type]
    pieces: list[Piece] = []
    run: list[bytes | bytearray | memoryview] = [_SIZE.pack(total)]
    for part in parts:
        if isinstance(part, (bytes, bytearray, memoryview)):
            run.append(part)
        else:
            pieces.append(b"".join(run))
            pieces.append(part)
            run = []
    if run:
        pieces.append(b"".join(run))
    return pieces


def frame_bytes(parts: Sequence[Piece]) -> bytes:
    """One frame of `parts`, none of which may be a `SizedPiece`."""
    (piece,) = frame_pieces(parts)
    assert isinstance(piece, bytes)
    return piece
