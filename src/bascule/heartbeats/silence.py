"""How long each peer has not answered, in time in which this process ran. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

TURN_NS_MAX: Final = 150_000_000
"""The thread looks at its connections at least every 100 ms. What a turn takes beyond this is time
in which this process did not run: answers may have come, or peers may have waited for it."""


class PeerSilence(NamedTuple):
    """What is known of a peer's process."""

    incarnation: int
    """Of the process that has answered."""
    silent_ns: int
    """Since its last answer."""
    is_connected: bool
    """Whether the connection that it answered on lasts: silence says nothing without."""


class SilenceMeter:
    """Belongs to one thread. Others may read `of`. Times are nanoseconds of a monotonic clock."""

    def __init__(self, now_ns: int) -> None:
        self._turn_ns = now_ns
        self._silences: dict[int, PeerSilence] = {}
        self.longest_ns: dict[int, int] = {}
        """Peer -> the longest silence of its present process that ended with an answer."""

    def of(self, peer: int) -> PeerSilence | None:
        """As of the last turn; None if no process of the peer has answered yet."""
        return self._silences.get(peer)

    def on_turn(self, now_ns: int) -> None:
        """The thread runs. To be called before the answers that it finds are counted."""
        ran_ns = min(now_ns - self._turn_ns, TURN_NS_MAX)
        self._turn_ns = now_ns
        for peer, silence in self._silences.items():
            if silence.is_connected:
                self._silences[peer] = silence._replace(silent_ns=silence.silent_ns + ran_ns)

    def on_answer(self, peer: int, incarnation: int) -> None:
        """A process of the peer has answered."""
        before = self._silences.get(peer)
        longest = 0
        if before is not None and before.incarnation == incarnation:
            longest = max(before.silent_ns, self.longest_ns.get(peer, 0))
        self.longest_ns[peer] = longest
        self._silences[peer] = PeerSilence(incarnation, 0, is_connected=True)

    def on_ended(self, peer: int) -> None:
        """The connection with the peer has ended."""
        before = self._silences.get(peer)
        if before is not None:
            self._silences[peer] = before._replace(silent_ns=0, is_connected=False)

    def forget(self, peer: int) -> None:
        """The peer is not watched any more."""
        self._silences.pop(peer, None)
        self.longest_ns.pop(peer, None)
