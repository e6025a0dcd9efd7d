"""Checkers of answers: each ticket is answered once, and truthfully."""

from __future__ import annotations

from bascule.raft.effects import Answer, ReadPolicy, RequestOutcome
from bascule.raft.membership import MemberChange, decode_members
from bascule.raft.messages import EntryKind
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView
from bascule.sim.checkers.committed_log import CommittedLog, describe_entry


class AnsweredOnce(Checker):
    """Between two starts of a node, each ticket is answered at most once."""

    name = "one answer to a ticket"

    def __init__(self) -> None:
        self._answered: dict[int, set[int]] = {}

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._answered[node.id] = set()

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        answered = self._answered.setdefault(node.id, set())
        if answer.ticket in answered:
            raise InvariantBroken(
                self.name,
                f"node {node.id} answers ticket {answer.ticket} again, with {answer.outcome.value}",
            )
        answered.add(answer.ticket)


class TruthfulAnswers(Checker):
    """COMMITTED: the entry is committed at that index. NOT_LEADER: it is never committed."""

    name = "no answer that history contradicts"

    def __init__(self, committed_log: CommittedLog) -> None:
        self._committed_log = committed_log
        self._proposed: dict[tuple[int, int], bytes] = {}
        self._changes: dict[tuple[int, int], tuple[MemberChange, int]] = {}
        self._not_leader: dict[bytes, int] = {}
        """Payload answered with NOT_LEADER -> the node that answered."""
        self._places: dict[bytes, int] = {}
        """Payload -> the index at which it is committed."""
        self._checked_until = 0

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        for tickets in (self._proposed, self._changes):
            for gone in [ticket for ticket in tickets if ticket[0] == node.id]:
                del tickets[gone]

    def on_propose(self, node: NodeView, ticket: int, payload: bytes) -> None:
        self._proposed[node.id, ticket] = payload

    def on_change(self, node: NodeView, ticket: int, change: MemberChange, target: int) -> None:
        self._changes[node.id, ticket] = (change, target)

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        committed_log = self._committed_log
        while self._checked_until < committed_log.last:
            self._checked_until += 1
            entry = committed_log.committed.get(self._checked_until)
            if entry is None or entry.kind != EntryKind.NORMAL:
                continue
            if (answered_by := self._not_leader.get(entry.payload)) is not None:
                raise InvariantBroken(
                    self.name,
                    f"{describe_entry(entry)} is committed, after node {answered_by} "
                    f"answered not leader",
                )
            place = self._places.setdefault(entry.payload, entry.index)
            if place != entry.index:
                raise InvariantBroken(
                    self.name, f"{describe_entry(entry)} is committed, and was before at {place}"
                )

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        ticket = (node.id, answer.ticket)
        if (payload := self._proposed.pop(ticket, None)) is not None:
            self._on_proposal(node, answer, payload)
        elif (changed := self._changes.pop(ticket, None)) is not None:
            self._on_change(node, answer, *changed)

    def _on_proposal(self, node: NodeView, answer: Answer, payload: bytes) -> None:
        if answer.outcome is RequestOutcome.COMMITTED:
            entry = self._committed_log.committed.get(answer.index)
            if entry is None or entry.payload != payload or entry.kind != EntryKind.NORMAL:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} answers that {payload[:32]!r} is committed at {answer.index}; "
                    f"there is {describe_entry(entry) if entry else 'nothing committed'}",
                )
        elif answer.outcome is RequestOutcome.NOT_LEADER:
            if (place := self._places.get(payload)) is not None:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} answers not leader for {payload[:32]!r}, which is committed "
                    f"at {place}",
                )
            self._not_leader[payload] = node.id

    def _on_change(self, node: NodeView, answer: Answer, change: MemberChange, target: int) -> None:
        if answer.outcome is not RequestOutcome.COMMITTED:
            return
        entry = self._committed_log.committed.get(answer.index)
        found = decode_members(entry.payload) if entry and entry.kind == EntryKind.MEMBERS else None
        done = (
            found is not None
            and {
                MemberChange.ADD_LEARNER: target in found,
                MemberChange.ADD_VOTER: target in found.voters,
                MemberChange.REMOVE: target not in found,
                MemberChange.DEMOTE: target in found.learners,
            }[change]
        )
        if not done:
            raise InvariantBroken(
                self.name,
                f"node {node.id} answers that {change.name} {target} is committed at "
                f"{answer.index}; there is "
                + (describe_entry(entry) if entry else "nothing committed"),
            )


class FreshReads(Checker):
    """A read is answered only when the node has applied everything that any node had committed
    before the request. A local read is answered only when its `min_index` is applied."""

    name = "reads see what was committed"

    def __init__(self, committed_log: CommittedLog) -> None:
        self._committed_log = committed_log
        self._required: dict[tuple[int, int], int] = {}
        """(node, ticket) -> the index that the node must have applied."""

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        for gone in [ticket for ticket in self._required if ticket[0] == node.id]:
            del self._required[gone]

    def on_read(self, node: NodeView, ticket: int, policy: ReadPolicy, min_index: int) -> None:
        required = (
            min_index if policy is ReadPolicy.LOCAL else max(min_index, self._committed_log.last)
        )
        self._required[node.id, ticket] = required

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        required = self._required.pop((node.id, answer.ticket), None)
        if required is None or answer.outcome is not RequestOutcome.READABLE:
            return
        if node.applied < required or answer.index > node.applied:
            raise InvariantBroken(
                self.name,
                f"node {node.id} allows read {answer.ticket} at index {answer.index} with the "
                f"state at {node.applied}; it must see {required}",
            )
