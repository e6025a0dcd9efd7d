"""Refusals of a leader that may have a successor already.

NATS brings a message to every node that subscribes. A leader that was paused or cut off reads it
late, and answers from a log that is not the partition's any more, while the next leader stores the
message. So what a leader with followers refuses waits here, until the node knows that it was still
the leader after the refusal; see `controller.cluster.confirmation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bascule.publish.acks import ANY, AckError, AckFormat, OnCommitted, indeterminate

UNCONFIRMED_BYTES_MAX: Final = 4 << 20
"""Of one partition: some 80,000 messages that are refused by whole batches, or 12,000 of which each
has its own reply. A confirmation takes milliseconds."""
FULL: Final = indeterminate("too many refusals wait for a confirmation that this node still leads")


@dataclass(frozen=True, slots=True)
class RefusedMessages:
    """Messages of one batch that were refused, or the caller within this process of one."""

    replies: bytes = b""
    """NATS operations to send once the refusal is confirmed; none: those with `error`."""
    ack_entries: bytes = b""
    """Those with `policies` are answered."""
    count: int = 0
    policies: int = ANY
    on_committed: OnCommitted | None = None
    error: AckError | None = None
    """For `on_committed`, and for entries without `replies`."""

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.replies) + len(self.ack_entries)


@dataclass(slots=True)
class UnconfirmedRefusals:
    """Those of one partition. The lock of its `Commitment` is held for each call."""

    refusals: list[tuple[int, RefusedMessages]] = field(default_factory=list)
    """With the leader epoch in which each was made, in order."""
    size: int = 0
    """In bytes."""

    def add(self, leader_epoch: int, refusal: RefusedMessages, ack_format: AckFormat) -> bytes:
        """Keep a refusal. Returns what to send now, if there is no room for it."""
        if self.size + refusal.size > UNCONFIRMED_BYTES_MAX:
            return answer(refusal, ack_format, FULL)
        self.refusals.append((leader_epoch, refusal))
        self.size += refusal.size
        return b""

    def take(self) -> list[tuple[int, RefusedMessages]]:
        """All of them; nothing waits then."""
        taken, self.refusals, self.size = self.refusals, [], 0
        return taken


def answer(refusal: RefusedMessages, ack_format: AckFormat, error: AckError | None = None) -> bytes:
    """Answer who was refused, with `error` if the refusal was not confirmed; what to send now."""
    if refusal.on_committed is not None:
        refusal.on_committed(-1, error or refusal.error)
    if error is None and not refusal.replies:
        error = refusal.error
    if error is None or not refusal.ack_entries:
        return refusal.replies
    return ack_format.errors(
        refusal.ack_entries, error, count=refusal.count, policies=refusal.policies
    )
