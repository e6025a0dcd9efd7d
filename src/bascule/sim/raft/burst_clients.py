"""Many users at once: bursts of writes and reads to whoever leads, or thinks so.

Clients ask one thing at a time, so a leader seldom has more than a few entries that are not
committed, and what becomes of many when it loses its office would be seen seldom too. A crowd asks
any leader there is, also one that was replaced and does not know it, and does not come again: what
it is told is held to the truth of answers and reads, not to an order of operations, so its key is
no client's.
"""

from __future__ import annotations

from typing import Final

from bascule.errors import BasculeError
from bascule.raft.effects import Answer, ReadPolicy, Role
from bascule.sim.raft.clients import SimClients
from bascule.sim.raft.member import SimMember
from bascule.sim.raft.state import PUT, CommandResult, KeyValueCommand, encode_command

KEY: Final = "crowd"
BURST_MAX: Final = 30


class BurstClients:
    """Asks much at once."""

    def __init__(self, clients: SimClients) -> None:
        self._clients = clients
        self._cluster = clients.cluster
        self._prng = clients.cluster.prng

    def burst(self) -> None:
        """Writes, reads or both of them to one leader, new or old."""
        leaders = [member for member in self._cluster.up() if leads(member)]
        if leaders:
            self.ask(self._prng.pick(leaders), reads=self._prng.pick((0.0, 0.2, 1.0)))

    def ask(self, leader: SimMember, *, reads: float) -> None:
        """A burst to this one, of which so many are reads, if it is up and leads."""
        if not leads(leader):
            return
        try:
            for _ in range(self._prng.between(1, BURST_MAX)):
                if not leader.is_up:
                    return  # its disk failed by what it was asked
                self._ask_one(leader, reads)
        except BasculeError:
            return  # it leads no more, or has no room

    def _ask_one(self, leader: SimMember, reads: float) -> None:
        prng = self._prng
        ticks = self._cluster.plan.config.election_ticks
        deadline = prng.between(1, 3 * ticks) if prng.happens(0.2) else None
        if prng.happens(reads):
            leader.read(ReadPolicy.LINEARIZABLE, 0, deadline, self._on_answer, None)
            return
        number = self._clients.next_number()
        command = KeyValueCommand(number, PUT, KEY, b"%d" % number)
        leader.propose(encode_command(command), deadline, self._on_answer, None)

    def _on_answer(
        self, member: SimMember, answer: Answer, effect: CommandResult | None, asked: None
    ) -> None:
        """Nobody waits for it: checkers look at every answer."""


def leads(member: SimMember) -> bool:
    """Whether a machine is up and takes itself for the leader."""
    return member.is_up and member.node is not None and member.node.role is Role.LEADER
