"""Checks whether a history is linearizable: whether clients saw the behaviour of a single copy.

The algorithm is that of Wing and Gong with Lowe's cache of visited configurations, as in Porcupine.
Each key is checked separately, since linearizability is local. A *configuration* is the set of
operations that took effect, as a bitmask, and the resulting value. The next operation may be any
one that was invoked before the return of every operation that has not taken effect yet.

These rules keep the search small and do not change its verdict:

- An operation that does not change the value (a get, a failed cas) takes effect as early as
possible: if an order is valid, the order with that operation moved to the front is valid too.
- Values that are not a prefix of a value that was returned or expected are equivalent: appends only
extend them, so no later operation can distinguish them. Where values are incremented they are not.
- Of several operations with unknown status and the same effect, only the first one is tried.
- An operation with unknown status need not take effect, so it is tried only if another operation
sees its effect. Until a result depends on it, it is *hidden*: meanwhile no operation may overwrite
its value, or produce the value that there would be without it. Gets with unknown status are
ignored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import ClassVar, Final, TypeAlias

from bascule.sim.checkers.base import Checker, InvariantBroken
from bascule.sim.checkers.history import (
    NEVER,
    ClientOperation,
    OperationCall,
    OperationHistory,
    OperationKind,
    OperationResult,
)

CONFIGURATIONS_MAX: Final = 100_000
"""A check stops after this many configurations, which takes one to two seconds."""

RegisterValue: TypeAlias = bytes | None


class Verdict(Enum):
    """The result of a check."""

    LINEARIZABLE = "linearizable"
    VIOLATED = "not linearizable"
    UNDECIDED = "undecided"
    """The check exceeded `configurations_max`."""


class Register:
    """The calls on one key, prepared for the search. Bit i of a mask is call i: first the calls
    with known status, then the others, each in the order of invocation."""

    __slots__ = (
        "_by_return",
        "_has_sums",
        "_prefixes",
        "_seen",
        "_starts",
        "_unknown_starts",
        "_unseen",
        "alike",
        "calls",
        "known",
        "known_mask",
    )  # fmt: skip

    def __init__(self, calls: Sequence[OperationCall]) -> None:
        calls = sorted(calls, key=lambda call: call.invoked)
        known = [call for call in calls if call.result is not None]
        unknown = [
            call
            for call in calls
            if call.result is None and call.operation.action is not OperationKind.GET
        ]
        self.calls = known + unknown
        self.known = len(known)
        self.known_mask = (1 << len(known)) - 1
        self._starts = [call.invoked for call in known]
        self._unknown_starts = [call.invoked for call in unknown]
        self._by_return = [
            (call.returned, 1 << bit)
            for bit, call in sorted(enumerate(known), key=lambda pair: pair[1].returned)
        ]
        seen = {call.result.value for call in known if call.result is not None}
        seen |= {call.operation.expected for call in self.calls}
        self._seen = sorted(value for value in seen if value is not None)
        self._unseen = max(self._seen, key=len, default=b"") + b"."
        """Represents all values that are not a prefix of a returned or expected value."""
        self._prefixes: dict[bytes, bytes] = {}
        self._has_sums = any(call.operation.action is OperationKind.INCREMENT for call in calls)
        self.alike = self._find_alike(unknown)

    def _find_alike(self, unknown: Sequence[OperationCall]) -> dict[int, int]:
        """Bit of a call with unknown status -> mask of all such calls with the same effect."""
        masks: dict[object, int] = {}
        effects = [self._effect(call.operation) for call in unknown]
        for bit, effect in enumerate(effects, self.known):
            masks[effect] = masks.get(effect, 0) | 1 << bit
        return {bit: masks[effect] for bit, effect in enumerate(effects, self.known)}

    def _effect(self, operation: ClientOperation) -> object:
        value = operation.value
        if operation.action is OperationKind.REMOVE:
            return operation.action
        if operation.action is OperationKind.INCREMENT:
            return operation.action, operation.by
        if operation.action is OperationKind.CAS:
            return operation.action, operation.expected, self.canonical(value)
        is_seen = self._has_sums or any(value in seen for seen in self._seen)
        if operation.action is OperationKind.APPEND and is_seen:
            return operation.action, value
        return OperationKind.PUT, self.canonical(value)

    def canonical(self, value: RegisterValue) -> RegisterValue:
        """`value` if it is a prefix of a returned or expected value, else the value that stands for
        all others. With increments each value stands for itself: a sum of it may be returned."""
        if value is None or self._has_sums:
            return value
        found = self._prefixes.get(value)
        if found is None:
            at = bisect_left(self._seen, value)
            begins = at < len(self._seen) and self._seen[at].startswith(value)
            found = self._prefixes[value] = value if begins else self._unseen
        return found

    def open_at(self, done: int, first: int) -> tuple[int, int]:
        """(mask of the calls that may take effect next, position of the next return).

        All calls before position `first` in the order of returns have taken effect.
        """
        order = self._by_return
        while first < len(order) and done & order[first][1]:
            first += 1
        limit = order[first][0] if first < len(order) else NEVER
        open_known = (1 << bisect_left(self._starts, limit)) - 1
        open_unknown = (1 << bisect_left(self._unknown_starts, limit)) - 1
        return (open_known | open_unknown << self.known) & ~done, first

    def after(self, call: OperationCall, value: RegisterValue) -> tuple[bool, RegisterValue]:
        """(whether `call` may change `value`, given its result; the new value)."""
        operation, result = call.operation, call.result
        if operation.action is OperationKind.PUT:
            return True, self.canonical(operation.value)
        if operation.action is OperationKind.APPEND:
            return True, self.canonical((value or b"") + operation.value)
        if operation.action is OperationKind.REMOVE:
            return True, None
        if operation.action is OperationKind.INCREMENT:
            total = incremented(value, operation.by)
            return total is not None and (result is None or result.value == total), total
        if operation.action is OperationKind.CAS and operation.expected == value:
            return result is None or result.swapped, self.canonical(operation.value)
        return False, value


def incremented(value: RegisterValue, by: int) -> RegisterValue:
    """The sum; None if the value is no number."""
    if value is not None and not value.removeprefix(b"-").isdigit():
        return None
    return b"%d" % (int(value or 0) + by)


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def sees(call: OperationCall, value: RegisterValue) -> bool:
    """Whether `call` does not change `value`, and its result agrees with `value`."""
    operation, result = call.operation, call.result
    if result is None:
        return False
    if operation.action is OperationKind.GET:
        return result.value == value
    return (
        operation.action is OperationKind.CAS and not result.swapped and operation.expected != value
    )


class SearchNode:
    """A configuration on the path of the search, and the calls to be tried from it."""

    __slots__ = ("done", "first", "hidden", "rest", "value", "without")

    def __init__(self, done: int, value: RegisterValue, first: int) -> None:
        self.done = done
        self.value = value
        self.first = first
        self.rest = 0
        self.hidden = False
        """Calls with unknown status took effect, and no result depends on them yet."""
        self.without: RegisterValue = None
        """If hidden: the value without those calls."""


class Search:
    """A depth-first search for an order of the calls on one key."""

    __slots__ = ("_register", "_seen")

    def __init__(self, register: Register) -> None:
        self._register = register
        self._seen: set[tuple[int, RegisterValue, bool, RegisterValue]] = set()

    def run(self, configurations_max: int) -> Verdict:
        """The verdict for a key without an initial value."""
        register = self._register
        path = [self._apply_reads(SearchNode(0, None, 0))]
        while path:
            here = path[-1]
            if here.done & register.known_mask == register.known_mask:
                return Verdict.LINEARIZABLE
            if len(self._seen) > configurations_max:
                return Verdict.UNDECIDED
            if not here.rest:
                path.pop()
                continue
            bit = (here.rest & -here.rest).bit_length() - 1
            here.rest &= ~register.alike.get(bit, 1 << bit)
            found = self._next(here, bit)
            if found is not None and self._is_new(self._apply_reads(found)):
                path.append(found)
        return Verdict.VIOLATED

    def _next(self, here: SearchNode, bit: int) -> SearchNode | None:
        """The configuration after the call; None if it cannot take effect there or need not be
        tried."""
        register = self._register
        call = register.calls[bit]
        may, value = register.after(call, here.value)
        overwrites = call.operation.action in (OperationKind.PUT, OperationKind.REMOVE)
        if not may or (here.hidden and overwrites):
            return None
        found = SearchNode(here.done | 1 << bit, value, here.first)
        if bit >= register.known:
            found.hidden = True
            found.without = here.without if here.hidden else here.value
        elif here.hidden and call.operation.action is OperationKind.APPEND:
            found.hidden = True
            _, found.without = register.after(call, here.without)
        if found.hidden and found.without == value:
            return None
        return found

    def _apply_reads(self, node: SearchNode) -> SearchNode:
        """`node` after all calls that do not change its value and agree with it took effect."""
        register = self._register
        every, changed = register.calls, True
        while changed:
            changed = False
            node.rest, node.first = register.open_at(node.done, node.first)
            for bit in bits(node.rest & register.known_mask):
                if sees(every[bit], node.value):
                    node.done |= 1 << bit
                    changed = True
                    node.hidden = node.hidden and sees(every[bit], node.without)
        return node

    def _is_new(self, node: SearchNode) -> bool:
        without = node.without if node.hidden else None
        mark = (node.done, node.value, node.hidden, without)
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True


def check_key(
    calls: Sequence[OperationCall], *, configurations_max: int = CONFIGURATIONS_MAX
) -> Verdict:
    """Whether the calls on one key without an initial value are linearizable."""
    return Search(Register(calls)).run(configurations_max)


class Linearizability(Checker):
    """Each read and write takes effect at one moment between its invocation and its return."""

    name: ClassVar[str] = "linearizable reads and writes"

    def __init__(self, *, configurations_max: int = CONFIGURATIONS_MAX) -> None:
        self._history = OperationHistory()
        self._configurations_max = configurations_max
        self.undecided: list[str] = []
        """Keys whose check was stopped at the limit."""

    def on_invoke(self, operation: ClientOperation) -> None:
        self._history.invoke(operation)

    def on_return(self, operation: ClientOperation, result: OperationResult) -> None:
        self._history.finish(operation, result)

    def at_end(self, nodes: object) -> None:
        for key, calls in self._history.calls().items():
            verdict = check_key(calls, configurations_max=self._configurations_max)
            if verdict is Verdict.UNDECIDED:
                self.undecided.append(key)
            elif verdict is Verdict.VIOLATED:
                raise InvariantBroken(self.name, f"key {key!r}:\n{shortest(calls)}")


def shortest(calls: Sequence[OperationCall]) -> str:
    """The calls up to the first return that makes the history wrong, one per line."""
    order = sorted((call for call in calls if call.result is not None), key=lambda c: c.returned)
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if check_key(before(calls, order[middle].returned)) is Verdict.VIOLATED:
            high = middle
        else:
            low = middle + 1
    moment = order[low].returned if low < len(order) else NEVER
    return "\n".join(describe(call) for call in before(calls, moment)[-30:])


def before(calls: Sequence[OperationCall], moment: int) -> list[OperationCall]:
    """The history at `moment`: calls that had not returned have unknown status."""
    return [
        call
        if call.returned <= moment
        else OperationCall(call.operation, call.invoked, NEVER, None)
        for call in calls
        if call.invoked <= moment
    ]


def describe(call: OperationCall) -> str:
    """A call as one line."""
    operation, result = call.operation, call.result
    ended = "unknown" if result is None else f"until {call.returned}"
    saw = ""
    returns = (OperationKind.GET, OperationKind.INCREMENT)
    if result is not None and operation.action in returns:
        saw = f" -> {result.value!r}"
    elif result is not None and operation.action is OperationKind.CAS:
        saw = f" -> {result.swapped}"
    wanted = f" from {operation.expected!r}" if operation.action is OperationKind.CAS else ""
    written = f" {operation.value!r}" if operation.value else ""
    if operation.action is OperationKind.INCREMENT:
        written = f" by {operation.by}"
    return (
        f"  {call.invoked} {ended}: client {operation.client} {operation.action.value}"
        f"{written}{wanted}{saw}"
    )
