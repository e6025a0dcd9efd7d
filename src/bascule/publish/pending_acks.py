"""The batches of one partition whose publishers wait for their acks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bascule.publish.acks import ALL, ANY, LEADER, AckError, AckFormat, OnCommitted, Outcome
from bascule.publish.unconfirmed import RefusedMessages


@dataclass(slots=True)
class _Waiting:
    end_offset: int
    base_offset: int
    ack_entries: bytes
    """Those of one policy are answered; see `_Queue`."""
    count: int
    received_ms: int = 0
    on_committed: OnCommitted | None = None
    is_duplicate: bool = False
    counts: bool = True
    """Whether its records are counted here; those of two policies wait in both queues."""
    replies: bytes = b""
    """NATS operations to send instead of acks: they refuse the messages of `ack_entries`."""
    error: AckError | None = None
    """For `on_committed`, of a message that was refused."""


@dataclass(slots=True)
class _Queue:
    """What waits for one offset: the high watermark, or the end of the leader's log."""

    policy: int
    batches: deque[_Waiting] = field(default_factory=deque)


class PendingAcks:
    """The acks of one partition, which wait for what the policy of their message demands.

    Those of `ALL` wait for the high watermark. Those of `LEADER` wait for the leader's own log: up
    to its synced end, or to its end where the stream's `sync` setting does not wait for syncs.

    The log writer thread calls the methods that add, in offset order. `release` and `fail`
    are called by the thread that moves one of the two offsets.
    """

    def __init__(self, ack_format: AckFormat) -> None:
        self._ack_format = ack_format
        self._committed = _Queue(ALL)
        self._stored = _Queue(LEADER)

    def __len__(self) -> int:
        """The number of batches that wait."""
        return len(self._committed.batches) + len(self._stored.batches)

    @property
    def waits_for_leader(self) -> bool:
        """Whether acks wait for the leader's own log."""
        return bool(self._stored.batches)

    @property
    def record_count(self) -> int:
        """Records of the batches that wait, without duplicates of records stored before."""
        return sum(_records(batch) for queue in self._queues for batch in queue.batches)

    @property
    def _queues(self) -> tuple[_Queue, _Queue]:
        return self._committed, self._stored

    def add(
        self,
        *,
        base_offset: int,
        count: int,
        ack_entries: bytes,
        received_ms: int,
        policies: int = ALL,
        on_committed: OnCommitted | None = None,
    ) -> None:
        """Add a batch; `policies` are those among its entries. `on_committed` waits as `ALL`."""
        end_offset = base_offset + count
        is_committed = bool(ack_entries and policies & ALL) or on_committed is not None
        if is_committed:
            self._committed.batches.append(
                _Waiting(end_offset, base_offset, ack_entries, count, received_ms, on_committed)
            )
        if ack_entries and policies & LEADER:
            self._stored.batches.append(
                _Waiting(
                    end_offset,
                    base_offset,
                    ack_entries,
                    count,
                    received_ms,
                    counts=not is_committed,
                )
            )

    def add_refusals(
        self, replies: bytes, ack_entries: bytes, *, count: int, end_offset: int, policy: int = ALL
    ) -> None:
        """Add NATS operations to send once everything below `end_offset` is committed, or with
        the policy `LEADER` is stored by the leader.

        They answer those of `ack_entries`, of `count` messages, that have this policy; with `ALL`,
        those that do not have `LEADER`. If what they rest on fails, these get the error instead.
        """
        if replies:
            queue = self._stored if policy == LEADER else self._committed
            queue.batches.append(
                _Waiting(
                    end_offset, end_offset, ack_entries, count, is_duplicate=True, replies=replies
                )
            )

    def add_outcome(self, on_committed: OnCommitted, outcome: Outcome, *, end_offset: int) -> None:
        """Tell `on_committed` once everything below `end_offset` is committed."""
        self._committed.batches.append(
            _Waiting(
                end_offset,
                outcome.offset,
                b"",
                0,
                on_committed=on_committed,
                is_duplicate=True,
                error=outcome.error,
            )
        )

    def add_duplicates(
        self, ack_entries: bytes, *, base: int, count: int, end_offset: int, policies: int = ALL
    ) -> None:
        """Add entries of messages stored before, entry i at offset base + i below `end_offset`."""
        for queue in self._queues:
            if ack_entries and policies & queue.policy:
                queue.batches.append(
                    _Waiting(end_offset, base, ack_entries, count, is_duplicate=True)
                )

    def drop(self, error: AckError, *, keeps_committed: bool = False) -> int:
        """Forget every batch that waits without an answer to its publishers; return the records.

        Callers within this process are told `error`. `keeps_committed`: publishers that wait for
        the high watermark go on waiting.
        """
        dropped = 0
        for queue in self._queues:
            kept = keeps_committed and queue is self._committed
            waiting, queue.batches = queue.batches, deque()
            for batch in waiting:
                if batch.on_committed is not None:
                    batch.on_committed(batch.base_offset, error)
                elif kept:
                    queue.batches.append(batch)
                    continue
                dropped += _records(batch)
        return dropped

    def take_refusals(self) -> list[RefusedMessages]:
        """Forget the refusals that wait for the high watermark; return them, in order."""
        queue = self._committed
        taken = [_refusal(each, queue.policy) for each in queue.batches if each.replies]
        if taken:
            queue.batches = deque(each for each in queue.batches if not each.replies)
        return taken

    def drop_from(self, offset: int) -> int:
        """Forget, unanswered, who waits for more than the records below `offset`; return the
        records. Those within this process are told nothing: they do not wait here."""
        dropped = 0
        for queue in self._queues:
            while queue.batches and queue.batches[-1].end_offset > offset:
                dropped += _records(queue.batches.pop())
        return dropped

    def rollback(self, base_offset: int, error: AckError) -> bytes:
        """Remove the batch added last, at `base_offset`, after its append failed.

        Returns NATS operations with `error` for the duplicates and the refused messages that waited
        with it.
        """
        replies = b""
        for queue in self._queues:
            while queue.batches and queue.batches[-1].end_offset > base_offset:
                batch = queue.batches.pop()
                if batch.is_duplicate:
                    replies += self._errors(batch, error, queue.policy)
        return replies

    def release(
        self,
        high_watermark: int,
        stored_end: int,
        *,
        now_ms: int,
        refuse: Callable[[RefusedMessages], bytes] | None = None,
    ) -> bytes:
        """NATS operations with the acks of what is committed, and of what the leader has stored.

        `stored_end` is the offset below which the leader has stored its log. `refuse` gets the
        refusals that are due, and returns what to send now; without, they are sent.
        """
        ready: list[bytes] = []
        for queue, end in ((self._committed, high_watermark), (self._stored, stored_end)):
            while queue.batches and queue.batches[0].end_offset <= end:
                batch = queue.batches.popleft()
                if refuse is not None and (batch.replies or batch.error is not None):
                    ready.append(refuse(_refusal(batch, queue.policy)))
                    continue
                if batch.on_committed is not None:
                    batch.on_committed(batch.base_offset, batch.error)
                if acks := batch.replies or self._acks(batch, queue.policy, now_ms):
                    ready.append(acks)
        return ready[0] if len(ready) == 1 else b"".join(ready)

    def fail(self, error: AckError) -> bytes:
        """NATS operations with `error` for every batch that waits."""
        failed: list[bytes] = []
        for queue in self._queues:
            while queue.batches:
                batch = queue.batches.popleft()
                if batch.on_committed is not None:
                    batch.on_committed(batch.base_offset, error)
                failed.append(self._errors(batch, error, queue.policy))
        return b"".join(failed)

    def _acks(self, batch: _Waiting, policy: int, now_ms: int) -> bytes:
        if not batch.ack_entries:
            return b""
        if batch.is_duplicate:
            return self._ack_format.duplicates(
                batch.ack_entries, base=batch.base_offset, count=batch.count, policy=policy
            )
        return self._ack_format.acks(
            batch.ack_entries,
            count=batch.count,
            base_offset=batch.base_offset,
            received_ms=batch.received_ms,
            acked_ms=now_ms,
            policy=policy,
        )

    def _errors(self, batch: _Waiting, error: AckError, policy: int) -> bytes:
        return self._ack_format.errors(
            batch.ack_entries, error, count=batch.count, policies=_policies(batch, policy)
        )


def _policies(batch: _Waiting, policy: int) -> int:
    """The policies of the messages that a batch of the queue of `policy` answers."""
    return ANY & ~LEADER if batch.replies and policy == ALL else policy


def _refusal(batch: _Waiting, policy: int) -> RefusedMessages:
    return RefusedMessages(
        batch.replies, batch.ack_entries, batch.count, _policies(batch, policy),
        batch.on_committed, batch.error,
    )  # fmt: skip


def _records(batch: _Waiting) -> int:
    return batch.count if batch.counts and not batch.is_duplicate else 0
