"""A packet that a writer keeps until it is acknowledged."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from bascule.wire.datastream.frames import encode_data_head

Content: TypeAlias = bytes | bytearray | memoryview


class Packet(NamedTuple):
    """Some bytes of a payload, up to 1 MiB."""

    position: int
    data: Content
    crc: int
    crc_before: int
    """CRC-32C of the payload below `position`."""

    @property
    def end(self) -> int:
        """The position behind its bytes."""
        return self.position + len(self.data)

    def encode_head(self) -> bytes:
        """The head of its DATA frame; `data` follows it."""
        return encode_data_head(self.position, len(self.data), self.crc)
