"""Chunks of payloads that NATS clients send: messages that go to data streaming, not to the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from bascule.publish.unstamped_batch import Replica


class PayloadChunk(NamedTuple):
    """A message with the header `Bascule-Payload-Session`."""

    subject: bytes
    reply: bytes
    """Empty where the publisher waits for no answer, or the stream answers none."""
    block: bytes
    """Its header block, which is well-formed."""
    body: bytes


TakeChunks: TypeAlias = Callable[[Replica, Sequence[PayloadChunk]], None]
"""Gets the chunks of one partition, in order, in the reading thread. It may not wait or raise."""
OnChunks: TypeAlias = Callable[[Replica, Sequence[PayloadChunk], Callable[[bytes], None]], None]
"""The same; the last argument sends NATS operations, from any thread."""
