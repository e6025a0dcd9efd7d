"""How long a ping and its answer take, for each peer. Pure."""

from __future__ import annotations

from typing import Final

RISE: Final = 1.002
"""What the kept time may rise by at each answer, ten times a second: it doubles in 35 s."""
RISE_NS: Final = 1_000


class RoundTrips:
    """The shortest times of the last minute: longer ones are those of busy processes.

    Belongs to one thread. Others may read `of`.
    """

    def __init__(self) -> None:
        self._times_ns: dict[int, int] = {}

    def on_answer(self, peer: int, time_ns: int) -> None:
        """A peer has answered a ping after so long."""
        kept = self._times_ns.get(peer)
        if kept is not None:
            time_ns = min(time_ns, int(kept * RISE) + RISE_NS)
        self._times_ns[peer] = time_ns

    def forget(self, peer: int) -> None:
        """The peer is not watched any more."""
        self._times_ns.pop(peer, None)

    def of(self) -> dict[int, int]:
        """Peer -> ns."""
        return self._times_ns.copy()
