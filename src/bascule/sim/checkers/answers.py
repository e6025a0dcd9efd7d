"""What a node answers: each ticket once, and nothing that history contradicts."""

from __future__ import annotations

from bascule.raft.effects import Answer, Outcome, ReadPolicy
from bascule.raft.membership import Change, decode_members
from bascule.raft.messages import Kind
from bascule.raft.store import Restored
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView
from bascule.sim.checkers.committed_log import Ledger, said


class AnsweredOnce(Checker):
    """In one life of a node each ticket is answered at most once."""

    name = "one answer to a ticket"

    def __init__(self) -> None:
        self._answered: dict[int, set[int]] = {}

    def on_start(self, node: NodeView, restored: Restored) -> None:
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
    """COMMITTED: that entry is committed at that index. NOT_LEADER: it never is."""

    name = "no answer that history contradicts"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._proposed: dict[tuple[int, int], bytes] = {}
        self._changes: dict[tuple[int, int], tuple[Change, int]] = {}
        self._dead: dict[bytes, int] = {}
        """Payloads that never are committed -> the node that said so."""
        self._places: dict[bytes, int] = {}
        """Payload -> where it is committed."""
        self._looked_at = 0

    def on_start(self, node: NodeView, restored: Restored) -> None:
        for tickets in (self._proposed, self._changes):
            for gone in [ticket for ticket in tickets if ticket[0] == node.id]:
                del tickets[gone]

    def on_propose(self, node: NodeView, ticket: int, payload: bytes) -> None:
        self._proposed[node.id, ticket] = payload

    def on_change(self, node: NodeView, ticket: int, change: Change, target: int) -> None:
        self._changes[node.id, ticket] = (change, target)

    def on_commit(self, node: NodeView, before: int, as_leader: bool) -> None:
        ledger = self._ledger
        while self._looked_at < ledger.last:
            self._looked_at += 1
            entry = ledger.committed.get(self._looked_at)
            if entry is None or entry.kind != Kind.NORMAL:
                continue
            if (teller := self._dead.get(entry.payload)) is not None:
                raise InvariantBroken(
                    self.name,
                    f"{said(entry)} is committed, after node {teller} answered not leader",
                )
            place = self._places.setdefault(entry.payload, entry.index)
            if place != entry.index:
                raise InvariantBroken(
                    self.name, f"{said(entry)} is committed, and was before at {place}"
                )

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        ticket = (node.id, answer.ticket)
        if (payload := self._proposed.pop(ticket, None)) is not None:
            self._on_proposal(node, answer, payload)
        elif (changed := self._changes.pop(ticket, None)) is not None:
            self._on_change(node, answer, *changed)

    def _on_proposal(self, node: NodeView, answer: Answer, payload: bytes) -> None:
        if answer.outcome is Outcome.COMMITTED:
            entry = self._ledger.committed.get(answer.index)
            if entry is None or entry.payload != payload or entry.kind != Kind.NORMAL:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} answers that {payload[:32]!r} is committed at {answer.index}; "
                    f"there is {said(entry) if entry else 'nothing committed'}",
                )
        elif answer.outcome is Outcome.NOT_LEADER:
            if (place := self._places.get(payload)) is not None:
                raise InvariantBroken(
                    self.name,
                    f"node {node.id} answers not leader for {payload[:32]!r}, which is committed "
                    f"at {place}",
                )
            self._dead[payload] = node.id

    def _on_change(self, node: NodeView, answer: Answer, change: Change, target: int) -> None:
        if answer.outcome is not Outcome.COMMITTED:
            return
        entry = self._ledger.committed.get(answer.index)
        found = decode_members(entry.payload) if entry and entry.kind == Kind.MEMBERS else None
        done = (
            found is not None
            and {
                Change.ADD_LEARNER: target in found,
                Change.ADD_VOTER: target in found.voters,
                Change.REMOVE: target not in found,
            }[change]
        )
        if not done:
            raise InvariantBroken(
                self.name,
                f"node {node.id} answers that {change.name} {target} is committed at "
                f"{answer.index}; there is {said(entry) if entry else 'nothing committed'}",
            )


class FreshReads(Checker):
    """A read is let through only when all that anyone had committed before it was asked is applied;
    a local one when its `min_index` is."""

    name = "reads see what was committed"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._owed: dict[tuple[int, int], int] = {}
        """(node, ticket) -> the index it must have applied."""

    def on_start(self, node: NodeView, restored: Restored) -> None:
        for gone in [ticket for ticket in self._owed if ticket[0] == node.id]:
            del self._owed[gone]

    def on_read(self, node: NodeView, ticket: int, policy: ReadPolicy, min_index: int) -> None:
        owed = min_index if policy is ReadPolicy.LOCAL else max(min_index, self._ledger.last)
        self._owed[node.id, ticket] = owed

    def on_answer(self, node: NodeView, answer: Answer) -> None:
        owed = self._owed.pop((node.id, answer.ticket), None)
        if owed is None or answer.outcome is not Outcome.READABLE:
            return
        if node.applied < owed or answer.index > node.applied:
            raise InvariantBroken(
                self.name,
                f"node {node.id} lets read {answer.ticket} see the state at {node.applied}, as "
                f"index {answer.index}; it must see {owed}",
            )
