"""A network that delays, loses, repeats and reorders messages, and whose links can be cut.

The sender does not learn of a loss. Messages in flight when a node crashes arrive after its
restart, like datagrams. A link may also keep the order, like a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bascule.sim.loop import MILLISECOND, SimLoop
from bascule.sim.prng import Prng, threshold

LINK_BITS: Final = 16
"""A link is `source << LINK_BITS | target`."""


class Addressed(Protocol):
    """A message that a network carries."""

    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...


@dataclass(slots=True, frozen=True, kw_only=True)
class NetworkConditions:
    """The behaviour of a network. Times in microseconds, probabilities in [0, 1]."""

    delay: int = 500
    """Minimum, in one direction."""
    jitter: int = 500
    """Maximum of a uniform addition."""
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    """Probability that a message takes up to `late_by` longer."""
    late_by: int = 100 * MILLISECOND
    ordered: bool = False
    """Whether links keep the order of messages."""


class Network:
    """Carries messages between numbered nodes."""

    def __init__(self, loop: SimLoop, prng: Prng, conditions: NetworkConditions) -> None:
        self._loop = loop
        self._word = prng.word
        self._receivers: dict[int, Callable[[Any, Any], None]] = {}
        self._cut: set[int] = set()
        self._slow: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self.carry: Callable[[Any], Any] | None = None
        """Transforms each message, if set."""
        self.sent = 0
        self.lost = 0
        self.set(conditions)

    def set(self, conditions: NetworkConditions) -> None:
        """Change the behaviour."""
        self._delay = conditions.delay
        self._jitter = conditions.jitter + 1
        self._loss = threshold(conditions.loss)
        self._repeat = threshold(conditions.repeat)
        self._late = threshold(conditions.late)
        self._late_by = conditions.late_by + 1
        self._ordered = conditions.ordered

    def connect(self, node: int, receive: Callable[[Any, Any], None]) -> None:
        """Messages to `node` go to `receive(message, None)`."""
        self._receivers[node] = receive

    def send(self, message: Addressed) -> None:
        """Deliver a message later, unless it is lost."""
        self.sent += 1
        word = self._word
        link = message.source << LINK_BITS | message.target
        receive = self._receivers.get(message.target)
        if receive is None or link in self._cut or word() < self._loss:
            self.lost += 1
            return
        if self.carry is not None:
            message = self.carry(message)
        loop = self._loop
        loop.at(self._arrival(link), receive, message)
        if word() < self._repeat:
            loop.at(self._arrival(link), receive, message)

    def _arrival(self, link: int) -> int:
        word = self._word
        when = self._loop.now + self._delay + word() % self._jitter
        if word() < self._late:
            when += word() % self._late_by
        if self._slow:
            when += self._slow.get(link, 0)
        if self._ordered:
            when = max(when, self._last.get(link, 0))
            self._last[link] = when
        return when

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        """Lose all messages over these links (source, target) from now on."""
        self._cut.update(source << LINK_BITS | target for source, target in links)

    def restore(self, links: Iterable[tuple[int, int]]) -> None:
        """End a cut of these links."""
        self._cut.difference_update(source << LINK_BITS | target for source, target in links)

    def slow(self, links: Iterable[tuple[int, int]], by: int) -> None:
        """Delay messages over these links by `by` microseconds; 0 ends the delay."""
        for source, target in links:
            link = source << LINK_BITS | target
            if by:
                self._slow[link] = by
            else:
                self._slow.pop(link, None)

    def restore_all(self) -> None:
        """End all cuts and delays."""
        self._cut.clear()
        self._slow.clear()
