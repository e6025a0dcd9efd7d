"""`PayloadHistory`: which payloads were sent, and which of them are acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import shake_128
from itertools import islice
from typing import Final

from crc32c import crc32c

from bascule.record.payload_links import Payload
from bascule.sim.cluster.checkers.log_contents import Key

LATEST: Final = 3


def content_of(id: str, size: int, edition: int = 0) -> bytes:
    """What a payload has; `edition` counts the contents that were sent under its id."""
    return shake_128(f"{id}{edition or ''}".encode()).digest(size)


@dataclass(slots=True, eq=False)
class SentPayload:
    """A payload that a client has begun to send."""

    id: str
    stream: str
    size: int
    key: bytes | None = None
    edition: int = 0
    """Others with its id have other content."""
    attempts: int = 0
    partition: int = -1
    offset: int = -1
    """As acknowledged; -1: it is not."""
    content: bytes = field(default=b"", repr=False)
    crc: int = 0

    def __post_init__(self) -> None:
        self.content = content_of(self.id, self.size, self.edition)
        self.crc = crc32c(self.content)

    @property
    def described(self) -> Payload:
        """As records say it."""
        return Payload(self.id, self.size, self.crc)

    @property
    def log(self) -> Key:
        """Where its record is."""
        return self.stream, self.partition


class PayloadHistory:
    """Of all clients."""

    def __init__(self) -> None:
        self.editions: dict[str, list[SentPayload]] = {}
        """All of them by id: those with other content, as a rule one."""
        self.acked: dict[str, list[SentPayload]] = {}
        """By stream, in the order of their acks."""
        self._begun: dict[str, list[SentPayload]] = {}
        """By stream, all of them."""

    def begin(self, id: str, stream: str, size: int, key: bytes | None) -> SentPayload:
        """A payload that a client begins to send: with other content than those before it that
        have its id."""
        editions = self.editions.setdefault(id, [])
        payload = SentPayload(id, stream, size, key, len(editions))
        editions.append(payload)
        self._begun.setdefault(stream, []).append(payload)
        return payload

    def latest(self, stream: str) -> list[SentPayload]:
        """The payloads that were begun last, and are not acknowledged: clients may send them."""
        unacked = (each for each in reversed(self._begun.get(stream, ())) if each.offset < 0)
        return list(islice(unacked, LATEST))

    def sent(self, payload: Payload) -> SentPayload | None:
        """What was sent under this id, with this size and checksum."""
        editions = self.editions.get(payload.id, ())
        return next((each for each in editions if each.described == payload), None)

    def others(self, payload: SentPayload) -> list[SentPayload]:
        """What was sent under its id with other content."""
        return [each for each in self.editions[payload.id] if each is not payload]

    def on_acked(self, payload: SentPayload) -> None:
        """Its record is committed."""
        self.acked.setdefault(payload.stream, []).append(payload)
