"""What has to be stored, and the answers that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bascule.groups.classic.messages import JoinAnswer, SyncAnswer
from bascule.groups.consumer.messages import (
    ConsumerEffect,
    MemberAnswer,
    ReadyAnswer,
    StoreRecords,
)
from bascule.wire.error_codes import ErrorCode


class Journal:
    """One batch is stored at a time; what changes meanwhile is in the next one.

    An answer is given when everything that it may tell is stored.
    """

    def __init__(self, encode: Callable[[str | None], bytes | None]) -> None:
        """`encode` is the record of a member, or of the group (None), as it is now."""
        self._encode = encode
        self._changed: set[str | None] = set()
        self.touched: set[str] = set()
        """Members whose records are others since the set was emptied: for sums over members."""
        self._storing: frozenset[str | None] = frozenset()
        self._number = 0
        """Of the last batch."""
        self._has_failed = False
        """Whether the last batch may not be stored. Nothing tries again before the next request or
        `try_again`: what failed at once would fail at once again."""
        self._waiting: list[tuple[int, int, MemberAnswer | JoinAnswer | SyncAnswer]] = []
        """Number of the batch that an answer waits for, ticket, answer."""
        self._effects: list[ConsumerEffect] = []

    @property
    def is_settled(self) -> bool:
        """Whether everything is stored."""
        return not self._changed and not self._storing

    @property
    def unsettled(self) -> frozenset[str | None]:
        """Whose records may not be stored as they are now: members, and the group (None)."""
        return self._storing | self._changed

    def touch(self, member_id: str | None) -> None:
        """The record of a member, or of the group (None), is another one from now on."""
        self._changed.add(member_id)
        if member_id is not None:
            self.touched.add(member_id)

    def answer(self, ticket: int, answer: MemberAnswer | JoinAnswer | SyncAnswer) -> bool:
        """False if nothing has to be stored first; else the answer will be an effect."""
        if self.is_settled:
            return False
        self.try_again()
        self.begin()
        self._waiting.append((self._number + bool(self._changed), ticket, answer))
        return True

    def begin(self) -> None:
        """Store what has changed, unless a batch is being stored, or has failed."""
        if self._storing or not self._changed or self._has_failed:
            return
        self._storing, self._changed = frozenset(self._changed), set()
        self._number += 1
        # The group first, then its members by id: the order has no meaning, but is always the same.
        keys = sorted(self._storing, key=lambda each: each or "")
        records = tuple((key, self._encode(key)) for key in keys)
        self._effects.append(StoreRecords(self._number, records))

    def try_again(self) -> None:
        """Store what has failed with the next batch."""
        self._has_failed = False

    def on_stored(self, number: int, error: ErrorCode) -> None:
        """A batch is stored, or may not be. After an error the next request tries again."""
        if number != self._number or not self._storing:
            return
        waiting, self._waiting = self._waiting, []
        self._has_failed = bool(error)
        if error:
            self._changed |= self._storing
        self._storing = frozenset()
        for covered_by, ticket, answer in waiting:
            if error:
                self._effects.append(ReadyAnswer(ticket, refusal(answer, error)))
            elif covered_by <= number:
                self._effects.append(ReadyAnswer(ticket, answer))
            else:
                self._waiting.append((covered_by, ticket, answer))
        if not error:
            self.begin()

    def forget(self, ticket: int) -> None:
        """Nobody can be told this answer any more."""
        self._waiting = [each for each in self._waiting if each[1] != ticket]

    def end(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Nothing will be stored any more. All that wait get `error`, or their answers if none."""
        for _, ticket, answer in self._waiting:
            told = refusal(answer, error) if error else answer
            self._effects.append(ReadyAnswer(ticket, told))
        self._waiting.clear()
        self._changed.clear()
        self._storing = frozenset()

    def tell(self, ticket: int, answer: MemberAnswer | JoinAnswer | SyncAnswer) -> None:
        """Answer at once: the answer tells nothing that has to be stored."""
        self._effects.append(ReadyAnswer(ticket, answer))

    def take_effects(self) -> list[ConsumerEffect]:
        effects, self._effects = self._effects, []
        return effects


def refusal(
    answer: MemberAnswer | JoinAnswer | SyncAnswer, error: ErrorCode
) -> MemberAnswer | JoinAnswer | SyncAnswer:
    """What is said instead of `answer`."""
    match answer:
        case MemberAnswer():
            return MemberAnswer(error)
        case JoinAnswer():
            return JoinAnswer(error, member_id=answer.member_id)
        case _:
            return replace(SyncAnswer(), error=error)
