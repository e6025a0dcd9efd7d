"""Simulated clients: each has one operation at a time, and records the results.

A client sends to the node that it considers the leader and follows hints. It retries only if the
answer says that the operation had no effect. Without such an answer the result is unknown, and the
client continues under another process number, like a restarted process.
"""

from __future__ import annotations

from typing import Final

from bascule.errors import CannotReplicate, LimitExceeded, NotLeader
from bascule.raft.effects import Answer, ReadPolicy, RequestOutcome
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.checkers.history import (
    ClientOperation,
    OperationKind,
    OperationResult,
    OperationStatus,
)
from bascule.sim.raft.cluster import Cluster
from bascule.sim.raft.member import SimMember
from bascule.sim.raft.state import VERBS, CommandResult, KeyValueCommand, encode_command

ACTIONS: Final = (
    *[OperationKind.GET] * 3, *[OperationKind.PUT] * 2, *[OperationKind.CAS] * 2,
    OperationKind.APPEND,
)  # fmt: skip
"""A client draws each operation from these."""
OPERATION_ELECTIONS_MAX: Final = 8
"""Election timeouts after which a client gives up an operation."""
VALUE_BYTES_MAX: Final = 120
"""After it reads a value longer than this, a client puts a short one."""


class SimClient:
    """One client."""

    __slots__ = (
        "_attempt",
        "_clients",
        "_cluster",
        "_known",
        "_operation",
        "_prng",
        "_seen_index",
        "_target",
        "acknowledged",
        "process",
    )  # fmt: skip

    def __init__(self, clients: SimClients, process: int) -> None:
        self._clients = clients
        self._cluster = clients.cluster
        self._prng = clients.cluster.prng
        self.process = process
        self.acknowledged = 0
        """Writes known to be committed."""
        self._operation: ClientOperation | None = None
        self._attempt = 0
        """Number of the last request; answers to earlier ones are ignored."""
        self._target = 0
        self._known: dict[str, bytes | None] = {}
        """The last known value of each key."""
        self._seen_index = 0
        """The index of the last entry known to be committed."""
        self._think()

    @property
    def is_busy(self) -> bool:
        return self._operation is not None

    def _think(self) -> None:
        clients = self._clients
        if clients.active:
            loop, wait = self._cluster.loop, self._prng.wait
            loop.after(wait(clients.think), self._invoke)

    def _invoke(self, _: None, __: None) -> None:
        clients = self._clients
        if not clients.active:
            return
        operation = self._draw(clients.next_operation())
        self._operation = operation
        self._cluster.checkers.on_invoke(operation)
        loop = self._cluster.loop
        loop.after(OPERATION_ELECTIONS_MAX * self._cluster.plan.election, self._give_up, operation)
        self._send(0)

    def _draw(self, number: int) -> ClientOperation:
        prng, known = self._prng, self._known
        key = f"k{prng.below(self._cluster.plan.keys)}"
        action = prng.pick(ACTIONS)
        value = b"%d." % number
        if action is OperationKind.GET:
            return ClientOperation(number, self.process, key, action)
        if len(known.get(key) or b"") > VALUE_BYTES_MAX:
            action = OperationKind.PUT
        if action is OperationKind.CAS:
            return ClientOperation(number, self.process, key, action, value, known.get(key))
        return ClientOperation(number, self.process, key, action, value)

    # -- requests -----------------------------------------------------------------------------

    def _send(self, after: int) -> None:
        """Send the request. It is delayed and may be lost."""
        plan, prng = self._cluster.plan, self._prng
        self._attempt = self._clients.next_number()
        if not prng.happens(self._clients.loss):
            delay = after + prng.below(plan.request_delay_max + 1)
            self._cluster.loop.after(delay, self._arrive, self._operation, self._attempt)

    def _retry(self, leader: int | None) -> None:
        """The request had no effect: send it to `leader` now, or to any node later."""
        prng = self._prng
        if leader and prng.happens(0.9):
            self._target = leader
            self._send(0)
        else:
            self._target = 0
            self._send(prng.wait(self._cluster.plan.beat))

    def _arrive(self, operation: ClientOperation, attempt: int) -> None:
        if self._operation is not operation or self._attempt != attempt:
            return
        cluster = self._cluster
        member = cluster.members.get(self._target)
        if member is None or not member.is_up:
            up = cluster.up()
            if not up:
                self._send(cluster.plan.election)
                return
            member = self._prng.pick(up)
            self._target = member.id
        try:
            if operation.action is OperationKind.GET:
                self._read(member, operation)
            else:
                self._propose(member, operation)
        except NotLeader as error:
            self._retry(error.leader)
        except (CannotReplicate, LimitExceeded):
            self._send(self._prng.wait(cluster.plan.beat))

    def _deadline(self) -> int | None:
        ticks = self._cluster.plan.config.election_ticks
        return self._prng.between(1, 3 * ticks) if self._prng.happens(0.5) else None

    def _propose(self, member: SimMember, operation: ClientOperation) -> None:
        payload = encode_command(
            KeyValueCommand(
                self._attempt, VERBS[operation.action], operation.key, operation.value,
                operation.expected,
            )
        )  # fmt: skip
        member.propose(payload, self._deadline(), self._on_proposed, (operation, self._attempt))

    def _read(self, member: SimMember, operation: ClientOperation) -> None:
        leases = self._cluster.plan.config.lease_reads
        policy = ReadPolicy.LINEARIZABLE
        if leases and self._prng.happens(0.7):
            policy = ReadPolicy.LEASE
        member.read(policy, 0, self._deadline(), self._on_read, (operation, self._attempt))

    # -- answers ------------------------------------------------------------------------------

    def _on_proposed(
        self, member: SimMember, answer: Answer, effect: CommandResult | None,
        asked: tuple[ClientOperation, int],
    ) -> None:  # fmt: skip
        operation, attempt = asked
        if effect is not None and effect.number != attempt:
            raise InvariantBroken(
                "answers",
                f"node {member.id} answered that proposal {attempt} is at index {answer.index}, "
                f"where proposal {effect.number} is",
            )
        if self._operation is not operation or self._attempt != attempt:
            return  # a late answer
        outcome = answer.outcome
        if outcome is RequestOutcome.COMMITTED:
            self._seen_index = max(self._seen_index, answer.index)
            self.acknowledged += 1
            if effect is None:
                self._end(OperationResult(OperationStatus.UNKNOWN))
            elif self._prng.happens(self._clients.loss):
                pass  # the answer is lost
            else:
                if effect.done and operation.action is not OperationKind.APPEND:
                    self._known[operation.key] = operation.value
                self._end(OperationResult(OperationStatus.OK, swapped=effect.done))
        elif outcome is RequestOutcome.NOT_LEADER:
            self._retry(answer.leader)
        else:
            self._end(OperationResult(OperationStatus.UNKNOWN))

    def _on_read(
        self, member: SimMember, answer: Answer, effect: CommandResult | None,
        asked: tuple[ClientOperation, int],
    ) -> None:  # fmt: skip
        del effect
        operation, attempt = asked
        if self._operation is not operation or self._attempt != attempt:
            return
        if answer.outcome is RequestOutcome.READABLE:
            value = member.state.values.get(operation.key)
            self._known[operation.key] = value
            self._end(OperationResult(OperationStatus.OK, value=value))
        elif answer.outcome is RequestOutcome.NOT_LEADER:
            self._retry(answer.leader)
        else:
            self._retry(None)

    def _give_up(self, operation: ClientOperation, _: None) -> None:
        if self._operation is operation:
            self._end(OperationResult(OperationStatus.UNKNOWN))

    def _end(self, result: OperationResult) -> None:
        operation = self._operation
        assert operation is not None
        self._operation = None
        if operation.action is OperationKind.GET and result.status is OperationStatus.UNKNOWN:
            result = OperationResult(
                OperationStatus.FAILED
            )  # a read that was not answered changed nothing
        self._cluster.checkers.on_return(operation, result)
        if result.status is OperationStatus.UNKNOWN:
            self.process = self._clients.next_process()
        if self._seen_index and self._prng.happens(0.2):
            self._read_locally()
        self._think()

    # -- local reads --------------------------------------------------------------------------

    def _read_locally(self) -> None:
        """Read at any node what this client has written."""
        up = self._cluster.up()
        if up:
            member = self._prng.pick(up)
            self._cluster.loop.after(0, self._on_local, member, self._seen_index)

    def _on_local(self, member: SimMember, index: int) -> None:
        if not member.is_up:
            return
        ticks = 2 * self._cluster.plan.config.election_ticks
        try:
            member.read(ReadPolicy.LOCAL, index, ticks, self._on_local_read, index)
        except CannotReplicate:
            pass  # too many reads wait

    def _on_local_read(
        self, member: SimMember, answer: Answer, effect: CommandResult | None, index: int
    ) -> None:
        del effect
        if answer.outcome is RequestOutcome.READABLE and member.state.applied < index:
            raise InvariantBroken(
                "local reads",
                f"node {member.id} allowed a read at index {index} and has applied "
                f"{member.state.applied}",
            )


class SimClients:
    """All clients of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.active = True
        self.think = cluster.plan.think
        self.loss = cluster.plan.request_loss
        self.operations = 0
        self._number = 0
        self._process = cluster.plan.clients
        self.all = [SimClient(self, number) for number in range(1, cluster.plan.clients + 1)]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def next_process(self) -> int:
        self._process += 1
        return self._process

    def next_operation(self) -> int:
        self.operations += 1
        return self.next_number()

    def end_faults(self) -> None:
        """Lose no request from now on, and send more often."""
        self.loss = 0.0
        self.think = self.cluster.plan.beat

    @property
    def acknowledged(self) -> int:
        """Writes known to be committed, of all clients."""
        return sum(client.acknowledged for client in self.all)
