"""Publishers over NATS.

Most give their messages ids, wait for acks and send again; others send each message once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.plan import MS
from bascule.sim.cluster.world.loop import NS
from bascule.sim.cluster.world.nats import NatsMessage

GIVE_UP_NS: Final = 10 * NS
"""After this time without an ack a message without id is given up."""
REFUSED_NS: Final = 200 * MS
"""After an error ack the message is sent again."""


@dataclass(slots=True, eq=False)
class Publication:
    """One message, until it is acknowledged."""

    id: str
    stream: str
    number: int
    body: bytes
    sends: int = 0
    offset: int = -1
    """As acknowledged; -1: it is not."""
    partition: int = -1
    is_duplicate: bool = False
    errors: list[str] = field(default_factory=list)


class SimPublisher:
    """Publishes to one stream."""

    def __init__(
        self,
        world: ClusterEnvironment,
        number: int,
        stream: str,
        on_ack: Callable[[Publication, dict[str, Any]], None],
        *,
        has_ids: bool,
    ) -> None:
        """`on_ack` gets each ack. Without `has_ids` every message is sent once."""
        self.world = world
        self.has_ids = has_ids
        self._on_ack = on_ack
        self.number = number
        self.stream = stream
        self.sent: list[Publication] = []
        """All messages in order."""
        self.acked = 0
        self.given_up: list[Publication] = []
        """Messages that were sent once, and got no ack or an error."""
        self.is_active = True
        self._waiting: dict[str, Publication] = {}
        self._last_ns = 0

    @property
    def is_busy(self) -> bool:
        """Whether a message waits for its ack."""
        return bool(self._waiting)

    def start(self) -> None:
        self.world.after(self.world.prng.wait(self.world.plan.think_ns), self._tick)

    def _tick(self) -> None:
        world = self.world
        if not self.is_active:
            return
        if len(self._waiting) < world.plan.window:
            number = len(self.sent)
            id = f"p{self.number}-{number}"
            padding = world.prng.below(world.plan.payload_bytes_max)
            body = b"%b %b" % (id.encode(), b"x" * padding)
            publication = Publication(id, self.stream, number, body)
            self.sent.append(publication)
            self._waiting[id] = publication
            world.nats.open_inbox(f"_INBOX.{id}", lambda body: self._on_answer(publication, body))
            self._send(publication)
        world.after(world.prng.wait(world.plan.think_ns), self._tick)

    def _send(self, publication: Publication) -> None:
        if publication.id not in self._waiting:
            return
        if publication.sends and not self.has_ids:
            del self._waiting[publication.id]
            self.given_up.append(publication)
            return
        publication.sends += 1
        head = f"NATS/1.0\r\nNats-Msg-Id: {publication.id}\r\n\r\n".encode()
        head = head if self.has_ids else b""
        message = NatsMessage(self.stream, f"_INBOX.{publication.id}", head, publication.body)
        # One connection: messages arrive in order.
        self._last_ns = max(self._last_ns + 1, self.world.nats.arrival_ns())
        self.world.at(self._last_ns, self.world.nats.publish, message)
        timeout_ns = self.world.plan.ack_timeout_ns if self.has_ids else GIVE_UP_NS
        self.world.after(timeout_ns, self._on_time_out, publication, publication.sends)

    def _on_time_out(self, publication: Publication, sends: int) -> None:
        if publication.sends == sends:
            self._send(publication)

    def _on_answer(self, publication: Publication, body: bytes) -> None:
        answer = json.loads(body)
        if "error" in answer:
            publication.errors.append(answer["error"]["description"])
            self.world.after(REFUSED_NS, self._on_time_out, publication, publication.sends)
            return
        is_first = self._waiting.pop(publication.id, None) is not None
        self._on_ack(publication, answer)
        if is_first:
            publication.offset, publication.partition = answer["offset"], answer["partition"]
            publication.is_duplicate = answer.get("duplicate", False)
            self.acked += 1
