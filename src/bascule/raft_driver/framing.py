"""Length-prefixed frames out of a stream of bytes."""

from __future__ import annotations

from collections.abc import Iterator

from bascule.errors import RemoteProtocolError
from bascule.raft_driver.handshake import LENGTH_BYTES


class RaftFrameReader:
    """Splits a stream of bytes into the bodies of frames."""

    __slots__ = ("_rest", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` limits the body of a frame. It may be changed between two frames."""
        self.bytes_max = bytes_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete after `data`.

        Raises: RemoteProtocolError for an empty or too long frame; the stream is unusable then.
        """
        rest = self._rest
        rest += data
        position = 0
        end = len(rest)
        while end - position >= LENGTH_BYTES:
            length = int.from_bytes(rest[position : position + LENGTH_BYTES], "big")
            if not 0 < length <= self.bytes_max:
                raise RemoteProtocolError(
                    f"a frame of {length} bytes, expected 1 to {self.bytes_max}"
                )
            if end - position - LENGTH_BYTES < length:
                break
            start = position + LENGTH_BYTES
            position = start + length
            yield bytes(memoryview(rest)[start:position])
        del rest[:position]
