"""How long each peer has not answered, in time in which this process ran. Pure.

A peer is silent when that is longer than its limit, which is 0.6 s, or twice its longest silence of
the last minutes, up to 1.5 s: on a machine that has no time left answers come late, and the limit
is longer before one comes too late.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TURN_NS_MAX: Final = 150_000_000
"""The thread looks at its connections at least every 100 ms. What a turn takes beyond this is time
in which this process did not run: answers may have come, or peers may have waited for it."""


LIMIT_NS_MIN: Final = 600_000_000
"""On a quiet machine answers take a millisecond, and the silence is the 0.1 s between two pings.
With ten times the load that the machine can carry it is 0.4 s in most minutes (decision 58)."""
LIMIT_NS_MAX: Final = 1_500_000_000
LIMIT_FACTOR: Final = 2
KEPT_OF_LONGEST: Final = 0.998
"""What is kept of the longest silence at each answer, ten times a second: half of it after 35 s."""


class PeerSilence(NamedTuple):
    """What is known of a peer's process."""

    incarnation: int
    """Of the process that has answered."""
    silent_ns: int
    """Since its last answer."""
    is_connected: bool
    """Whether the connection that it answered on lasts: silence says nothing without."""
    recent_ns: float = 0.0
    """The longest silence of the last minutes that ended with an answer."""

    @property
    def limit_ns(self) -> float:
        """How long it may be silent."""
        return min(max(LIMIT_FACTOR * self.recent_ns, LIMIT_NS_MIN), LIMIT_NS_MAX)

    @property
    def is_silent(self) -> bool:
        """Whether its process does not run, or cannot be reached."""
        return self.is_connected and self.silent_ns >= self.limit_ns


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
        longest, recent = 0, 0.0
        if before is not None and before.incarnation == incarnation:
            longest = max(before.silent_ns, self.longest_ns.get(peer, 0))
            recent = before.recent_ns * KEPT_OF_LONGEST
            if before.silent_ns < LIMIT_NS_MAX:  # otherwise it was paused: that is no delay
                recent = max(recent, before.silent_ns)
        self.longest_ns[peer] = longest
        self._silences[peer] = PeerSilence(incarnation, 0, is_connected=True, recent_ns=recent)

    def on_ended(self, peer: int) -> None:
        """The connection with the peer has ended."""
        before = self._silences.get(peer)
        if before is not None:
            self._silences[peer] = before._replace(silent_ns=0, is_connected=False)

    def forget(self, peer: int) -> None:
        """The peer is not watched any more."""
        self._silences.pop(peer, None)
        self.longest_ns.pop(peer, None)
