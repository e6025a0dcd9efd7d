"""Whether clients saw one copy of the data: a linearizability check of what they did.

The search is Wing and Gong's, with Lowe's memory of the configurations that led nowhere, for each
key by itself (linearizability is local), as in Porcupine. A *configuration* is the set of the
operations that took effect, as a bitmask, and the value they left. From one configuration the next
is reached by an operation whose invocation precedes the return of every operation that has not
taken effect yet.

Three facts keep the search small, and change no verdict:

- An operation that leaves the value as it is and saw what it answered (a get, a cas that failed)
  takes effect as soon as it can: if any order is right, the one with it moved to the front is.
- A get, or a cas that would find another value, has no effect where its fate is unknown: leave it
  out.
- An operation of unknown fate need not take effect, and may do so at any time after its invocation.
  So it is tried only for somebody to see: what follows it is never a put, which would hide it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import ClassVar, Final, TypeAlias

from bascule.sim.checkers.base import Checker, InvariantBroken
from bascule.sim.checkers.history import NEVER, Action, Call, History, Operation, Result

CONFIGURATIONS_MAX: Final = 500_000
"""A check that looked at so many gives up; a second or two of searching."""

Value: TypeAlias = bytes | None


class Verdict(Enum):
    """What a check found."""

    LINEARIZABLE = "linearizable"
    VIOLATED = "not linearizable"
    UNDECIDED = "undecided"
    """It would take longer than `configurations_max` allows."""


class Register:
    """The calls on one key, prepared for the search: bit i of a mask is call i, those whose fate is
    known first, each part in the order of invocation."""

    __slots__ = ("_by_return", "calls", "known", "known_mask", "starts", "unknown_starts")

    def __init__(self, calls: Sequence[Call]) -> None:
        known = [call for call in calls if call.result is not None]
        unknown = [
            call
            for call in calls
            if call.result is None and call.operation.action is not Action.GET
        ]
        known.sort(key=lambda call: call.invoked)
        unknown.sort(key=lambda call: call.invoked)
        self.calls = known + unknown
        self.known = len(known)
        self.known_mask = (1 << len(known)) - 1
        self.starts = [call.invoked for call in known]
        self.unknown_starts = [call.invoked for call in unknown]
        self._by_return = [
            (call.returned, 1 << bit)
            for bit, call in sorted(enumerate(known), key=lambda pair: pair[1].returned)
        ]

    def open_at(self, done: int, first: int) -> tuple[int, int]:
        """The calls that may take effect next, as a mask, and where to look for the next return.

        `first` is the position in the order of returns before which all is done.
        """
        order = self._by_return
        while first < len(order) and done & order[first][1]:
            first += 1
        limit = order[first][0] if first < len(order) else NEVER
        open_known = (1 << bisect_left(self.starts, limit)) - 1
        open_unknown = (1 << bisect_left(self.unknown_starts, limit)) - 1
        return (open_known | open_unknown << self.known) & ~done, first


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def sees(call: Call, value: Value) -> bool:
    """Whether `call` leaves `value` as it is and answered what it answered."""
    operation, result = call.operation, call.result
    if result is None:
        return False
    if operation.action is Action.GET:
        return result.value == value
    return operation.action is Action.CAS and not result.swapped and operation.expected != value


def changed(call: Call, value: Value) -> tuple[bool, Value]:
    """Whether `call` may change `value` as it answered, and to what."""
    operation, result = call.operation, call.result
    if operation.action is Action.PUT:
        return True, operation.value
    if operation.action is Action.APPEND:
        return True, (value or b"") + operation.value
    if operation.action is Action.CAS:
        agrees = operation.expected == value
        return agrees and (result is None or result.swapped), operation.value
    return False, value


class Place:
    """A configuration on the way of the search, and what is still to be tried from it."""

    __slots__ = ("done", "first", "hides", "rest", "value")

    def __init__(self, done: int, value: Value, first: int, rest: int, hides: bool) -> None:
        self.done = done
        self.value = value
        self.first = first
        self.rest = rest
        self.hides = hides
        """An operation of unknown fate was the last, and nobody saw it yet."""


def check_key(calls: Sequence[Call], *, configurations_max: int = CONFIGURATIONS_MAX) -> Verdict:
    """Whether the calls on one key, which has no value at first, are linearizable."""
    register = Register(calls)
    every, known = register.calls, register.known
    seen: set[tuple[int, Value, bool]] = set()

    def place(done: int, value: Value, first: int, hides: bool) -> Place | None:
        """The configuration after all that only look did so; None where it was met before."""
        rest = 0
        looking = True
        while looking:
            looking = False
            rest, first = register.open_at(done, first)
            for bit in bits(rest & register.known_mask):
                if sees(every[bit], value):
                    done |= 1 << bit
                    looking, hides = True, False
        mark = (done, value, hides)
        if mark in seen:
            return None
        seen.add(mark)
        return Place(done, value, first, rest, hides)

    path = [place(0, None, 0, False)]
    while path:
        here = path[-1]
        assert here is not None
        if here.done & register.known_mask == register.known_mask:
            return Verdict.LINEARIZABLE
        if len(seen) > configurations_max:
            return Verdict.UNDECIDED
        if not here.rest:
            path.pop()
            continue
        low = here.rest & -here.rest
        here.rest ^= low
        call = every[bit := low.bit_length() - 1]
        if here.hides and call.operation.action is Action.PUT:
            continue
        may, value = changed(call, here.value)
        if may and (found := place(here.done | low, value, here.first, bit >= known)):
            path.append(found)
    return Verdict.VIOLATED


class Linearizability(Checker):
    """Reads and writes of all clients are as if each happened at one moment of its duration."""

    name: ClassVar[str] = "linearizable reads and writes"

    def __init__(self, *, configurations_max: int = CONFIGURATIONS_MAX) -> None:
        self._history = History()
        self._configurations_max = configurations_max
        self.undecided: list[str] = []
        """Keys whose check was given up."""

    def on_invoke(self, operation: Operation) -> None:
        self._history.invoke(operation)

    def on_return(self, operation: Operation, result: Result) -> None:
        self._history.give_back(operation, result)

    def at_end(self, nodes: object) -> None:
        for key, calls in self._history.calls().items():
            verdict = check_key(calls, configurations_max=self._configurations_max)
            if verdict is Verdict.UNDECIDED:
                self.undecided.append(key)
            elif verdict is Verdict.VIOLATED:
                raise InvariantBroken(self.name, f"key {key!r}:\n{shortest(calls)}")


def shortest(calls: Sequence[Call]) -> str:
    """The calls up to the return that made the history wrong, one a line."""
    order = sorted((call for call in calls if call.result is not None), key=lambda c: c.returned)
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if check_key(before(calls, order[middle].returned)) is Verdict.VIOLATED:
            high = middle
        else:
            low = middle + 1
    moment = order[low].returned if low < len(order) else NEVER
    return "\n".join(described(call) for call in before(calls, moment)[-30:])


def before(calls: Sequence[Call], moment: int) -> list[Call]:
    """The history as it was at `moment`: what had not returned is of unknown fate."""
    return [
        call if call.returned <= moment else Call(call.operation, call.invoked, NEVER, None)
        for call in calls
        if call.invoked <= moment
    ]


def described(call: Call) -> str:
    """A call on one line."""
    operation, result = call.operation, call.result
    ended = "unknown" if result is None else f"until {call.returned}"
    saw = ""
    if result is not None and operation.action is Action.GET:
        saw = f" -> {result.value!r}"
    elif result is not None and operation.action is Action.CAS:
        saw = f" -> {result.swapped}"
    wanted = f" from {operation.expected!r}" if operation.action is Action.CAS else ""
    written = "" if operation.action is Action.GET else f" {operation.value!r}"
    return (
        f"  {call.invoked} {ended}: client {operation.client} {operation.action.value}"
        f"{written}{wanted}{saw}"
    )
