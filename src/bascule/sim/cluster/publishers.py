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
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.world.loop import NS
from bascule.sim.cluster.world.nats import NatsMessage

GIVE_UP_NS: Final = 10 * NS
"""After this time without an ack a message without id is given up."""
KEY_MESSAGES: Final = 6
"""Messages with one key, in a row with some others: then it is used no more, so that what is
removed by mistake, or comes back, stays so."""
REMOVES: Final = 0.25
"""The share of the messages of a compacted stream that remove their key."""
REFUSED_NS: Final = 200 * MS
"""After an error ack the message is sent again."""


@dataclass(slots=True, eq=False)
class Publication:
    """One message, until it is acknowledged."""

    id: str
    stream: str
    number: int
    body: bytes | None
    """None: the message removes its key."""
    key: bytes | None = None
    sent_ns: int = 0
    """When it was sent first."""
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
        plan: StreamPlan,
        on_ack: Callable[[Publication, dict[str, Any]], None],
        *,
        has_ids: bool,
    ) -> None:
        """`on_ack` gets each ack. Without `has_ids` every message is sent once."""
        self.world = world
        self.has_ids = has_ids
        self._on_ack = on_ack
        self.number = number
        self.plan = plan
        self.stream = plan.name
        self.sent: list[Publication] = []
        """All messages in order."""
        self.acked = 0
        self.given_up: list[Publication] = []
        """Messages that were sent once, and got no ack or an error."""
        self.is_active = True
        self.think_ns = world.plan.think_ns
        self._waiting: dict[str, Publication] = {}
        self._last_ns = 0

    @property
    def is_busy(self) -> bool:
        """Whether a message waits for its ack."""
        return bool(self._waiting)

    def start(self) -> None:
        self.world.after(self.world.prng.wait(self.think_ns), self._tick)

    def _tick(self) -> None:
        world = self.world
        if not self.is_active:
            return
        if len(self._waiting) < world.plan.window:
            publication = self._make()
            id = publication.id
            self.sent.append(publication)
            self._waiting[id] = publication
            world.nats.open_inbox(f"_INBOX.{id}", lambda body: self._on_answer(publication, body))
            self._send(publication)
        world.after(world.prng.wait(self.think_ns), self._tick)

    def _make(self) -> Publication:
        """The next message."""
        prng, number = self.world.prng, len(self.sent)
        id = f"p{self.number}-{number}"
        body: bytes | None
        body = b"%b %b" % (id.encode(), b"x" * prng.below(self.world.plan.payload_bytes_max))
        key: bytes | None = None
        if self.plan.compacts or self.plan.partitions > 1:
            near = prng.below(2 * KEY_MESSAGES)
            key = b"k%d-%d" % (self.number, max(number - near, 0) // KEY_MESSAGES)
        if self.plan.compacts and prng.happens(REMOVES):
            body = None
        return Publication(id, self.stream, number, body, key, self.world.loop.now_ns)

    def _head(self, publication: Publication) -> bytes:
        """The header block of a message; empty: none."""
        lines = []
        if self.has_ids:
            lines.append(b"Nats-Msg-Id: %b" % publication.id.encode())
        if publication.key is not None:
            lines.append(b"Bascule-Key: %b" % publication.key)
        if publication.body is None:
            # Equal messages without ids are taken for one in a handover.
            lines += [b"KV-Operation: DEL", b"Number: %b" % publication.id.encode()]
        return b"\r\n".join((b"NATS/1.0", *lines, b"", b"")) if lines else b""

    def _send(self, publication: Publication) -> None:
        if publication.id not in self._waiting:
            return
        if publication.sends and not self.has_ids:
            del self._waiting[publication.id]
            self.given_up.append(publication)
            return
        publication.sends += 1
        message = NatsMessage(
            self.stream,
            f"_INBOX.{publication.id}",
            self._head(publication),
            publication.body or b"",
        )
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
