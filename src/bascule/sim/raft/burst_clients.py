"""`BurstClients`: bursts of proposals and reads to one leader.

The other clients have one operation at a time, so a leader seldom has more than a few uncommitted
entries. Bursts show what happens to many of them when it loses leadership. They go to any leader,
including one that was replaced and does not know it. Their key belongs to no other client, since
checkers compare their answers with the committed log, not with an order of operations.
"""

from __future__ import annotations

from typing import Final

from bascule.errors import BasculeError
from bascule.raft.effects import Answer, ReadPolicy, Role
from bascule.sim.raft.clients import SimClients
from bascule.sim.raft.member import SimMember
from bascule.sim.raft.state import PUT, CommandResult, KeyValueCommand, encode_command

KEY: Final = "burst"
BURST_MAX: Final = 30


class BurstClients:
    """Sends bursts of requests to a leader."""

    def __init__(self, clients: SimClients) -> None:
        self._clients = clients
        self._cluster = clients.cluster
        self._prng = clients.cluster.prng

    def burst(self) -> None:
        """Send proposals, reads or both to one leader, current or replaced."""
        leaders = [member for member in self._cluster.up() if leads(member)]
        if leaders:
            self.send(self._prng.pick(leaders), reads=self._prng.pick((0.0, 0.2, 1.0)))

    def send(self, leader: SimMember, *, reads: float) -> None:
        """Send a burst to `leader` if it is up and considers itself the leader; `reads` is the
        share of reads."""
        if not leads(leader):
            return
        try:
            for _ in range(self._prng.between(1, BURST_MAX)):
                if not leader.is_up:
                    return  # a request triggered a disk failure
                self._send_one(leader, reads)
        except BasculeError:
            return  # it no longer leads, or has no room

    def _send_one(self, leader: SimMember, reads: float) -> None:
        prng = self._prng
        ticks = self._cluster.plan.config.election_ticks
        deadline = prng.between(1, 3 * ticks) if prng.happens(0.2) else None
        if prng.happens(reads):
            leases = self._cluster.plan.config.lease_reads
            policy = ReadPolicy.LINEARIZABLE
            if leases and prng.happens(0.7):
                policy = ReadPolicy.LEASE
            leader.read(policy, 0, deadline, self._on_answer, None)
            return
        number = self._clients.next_number()
        command = KeyValueCommand(number, PUT, KEY, b"%d" % number)
        leader.propose(encode_command(command), deadline, self._on_answer, None)

    def _on_answer(
        self, member: SimMember, answer: Answer, effect: CommandResult | None, asked: None
    ) -> None:
        """Nothing to do: checkers examine every answer."""


def leads(member: SimMember) -> bool:
    """Whether a machine is up and considers itself the leader."""
    return member.is_up and member.node is not None and member.node.role is Role.LEADER
