"""`PayloadHistory`: which payloads were sent, and which of them are acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import shake_128

from crc32c import crc32c

from bascule.sim.cluster.checkers.log_contents import Key


def content_of(id: str, size: int) -> bytes:
    """What a payload has."""
    return shake_128(id.encode()).digest(size)


@dataclass(slots=True, eq=False)
class SentPayload:
    """A payload that a client has begun to send."""

    id: str
    stream: str
    size: int
    key: bytes | None = None
    attempts: int = 0
    partition: int = -1
    offset: int = -1
    """As acknowledged; -1: it is not."""
    content: bytes = field(default=b"", repr=False)
    crc: int = 0

    def __post_init__(self) -> None:
        self.content = content_of(self.id, self.size)
        self.crc = crc32c(self.content)

    @property
    def log(self) -> Key:
        """Where its record is."""
        return self.stream, self.partition


class PayloadHistory:
    """Of all clients."""

    def __init__(self) -> None:
        self.sent: dict[str, SentPayload] = {}
        """All of them by id."""
        self.acked: dict[str, list[SentPayload]] = {}
        """By stream, in the order of their acks."""

    def on_begun(self, payload: SentPayload) -> None:
        """A client begins to send it."""
        self.sent[payload.id] = payload

    def on_acked(self, payload: SentPayload) -> None:
        """Its record is committed."""
        self.acked.setdefault(payload.stream, []).append(payload)
