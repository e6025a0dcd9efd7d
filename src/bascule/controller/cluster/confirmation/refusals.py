"""A leader refuses a message over NATS only once it knows that it was the leader then.

NATS brings a message to every node that subscribes. A leader that was paused or cut off may read it
when there is a next one, which stores it. If the old leader answered from its log, it would say
that a compare-and-set has failed which has succeeded. The same holds for a message that it finds
beyond a limit, and for one that it cannot store now.

So refusals wait (`publish.unconfirmed`) until this node has asked the controller, after they were
made, for all that is committed; see `leader_confirmation`. Then there are three cases:

* This node still leads the partition in the epoch in which it has refused. No later leader had
  begun, so none subscribed, when the refusal was made: it is right, and sent.
* It does not, since it was lost or not in sync. The message is left to the next leader,
  unanswered, as everything that comes while this node does not lead.
* The controller does not confirm it in time, or the stream is deleted, or this node hands the
  partition over. The next leader then may hold the message, or have subscribed after it. The
  publisher is told that the message may or may not be stored (20007). A next leader subscribes
  after the handover was decided, so this node knows of it if that one holds the message.

All refusals that wait when the controller is asked share one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bascule.controller.cluster.confirmation.leader_confirmation import LeaderConfirmation
from bascule.publish.acks import NOT_LEADING, AckError, indeterminate
from bascule.publish.unconfirmed import RefusedMessages
from bascule.replica.partition import Partition

REFUSAL_SECONDS_MAX: Final = 3.0
"""For the confirmation of a round of refusals, with all tries."""
UNCONFIRMED: Final = indeterminate("the controller does not confirm that this node still leads")
DELETED: Final = indeterminate("the stream is deleted")
HANDING_OVER: Final = indeterminate("the partition is being handed over to another node")


@dataclass(slots=True)
class RefusalCounts:
    """Refused messages, as batches that these were received in. Counts only grow."""

    confirmed: int = 0
    """Refused, since this node led."""
    deposed: int = 0
    """Left to the next leader: unanswered, or by a caller of this node."""
    unconfirmed: int = 0
    """Answered as messages that may or may not be stored."""


class Refusals:
    """`on_refused` may be called by any thread. The rest belongs to the event loop."""

    def __init__(self, confirmation: LeaderConfirmation, send: Callable[[bytes], None]) -> None:
        """`send` takes NATS operations."""
        self._confirmation = confirmation
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: set[Partition] = set()
        self._task: asyncio.Task[None] | None = None
        self._round_ended = asyncio.Event()
        """Set once those are answered for whom the controller is being asked."""
        self.counts = RefusalCounts()

    def on_refused(self, partition: Partition) -> None:
        """See `Commitment.on_refused`."""
        self._loop.call_soon_threadsafe(self._add, partition)

    async def settle(self) -> None:
        """Return once everybody is answered who has been refused before."""
        await asyncio.sleep(0)  # for what other threads have told the loop
        for _ in range(2):  # the question under way, and the one after it
            if self._task is None:
                return
            await self._round_ended.wait()

    def _add(self, partition: Partition) -> None:
        self._waiting.add(partition)
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                partitions, self._waiting = self._waiting, set()
                taken = [(each, each.commitment.take_refusals()) for each in partitions]
                is_confirmed = await self._confirmation.is_confirmed(seconds=REFUSAL_SECONDS_MAX)
                for partition, refusals in taken:
                    replies = [
                        self._answer(partition, epoch, each, is_confirmed=is_confirmed)
                        for epoch, each in refusals
                    ]
                    if operations := b"".join(replies):
                        self._send(operations)
                self._end_round()
        finally:
            self._task = None
            self._end_round()

    def _end_round(self) -> None:
        self._round_ended.set()
        self._round_ended = asyncio.Event()

    def _answer(
        self, partition: Partition, epoch: int, refusal: RefusedMessages, *, is_confirmed: bool
    ) -> bytes:
        """The replies to send."""
        error: AckError | None = None
        known = self._confirmation
        if not is_confirmed:
            error = UNCONFIRMED
        elif known.leads(partition, epoch):
            error = HANDING_OVER if partition.has_handed_over else None
        elif refusal.on_committed is not None:
            error = NOT_LEADING
        elif not known.knows(partition):
            error = DELETED
        elif known.hands_over(partition, epoch):
            error = HANDING_OVER
        else:
            self.counts.deposed += 1
            return b""
        if error is None:
            self.counts.confirmed += 1
        elif error is NOT_LEADING:
            self.counts.deposed += 1
        else:
            self.counts.unconfirmed += 1
        return partition.commitment.answer_refusal(refusal, error)
