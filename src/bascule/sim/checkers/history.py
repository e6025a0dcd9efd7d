"""What clients did: operations on keys, when each began and ended, and what it answered.

The order of the calls is the only time there is: an operation precedes another where it returned
before the other was invoked.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class Action(Enum):
    """What an operation does to the value of its key; a key without a value holds None."""

    GET = "get"
    """Answers the value."""
    PUT = "put"
    """Sets the value."""
    CAS = "cas"
    """Sets the value if it is `expected`, and answers whether it was."""
    APPEND = "append"
    """Adds to the end of the value; None counts as empty."""


class Operation(msgspec.Struct, frozen=True):
    """One call of a client. `number` is its own in the whole history."""

    number: int
    client: int
    key: str
    action: Action
    value: bytes = b""
    """What a put, cas or append writes. Checks are fastest where no two write the same."""
    expected: bytes | None = None
    """What a cas wants to find."""


class Fate(Enum):
    """What a client knows of its operation."""

    OK = "ok"
    FAILED = "failed"
    """It had no effect and never will."""
    UNKNOWN = "unknown"
    """It may have taken effect, now or later; an operation that never returned is the same."""


class Result(msgspec.Struct, frozen=True):
    """How an operation ended."""

    fate: Fate
    value: bytes | None = None
    """What a get found."""
    swapped: bool = False
    """Whether a cas found what it expected."""


NEVER: Final = 1 << 62
"""When an operation with an unknown fate returned, as far as order goes."""


class Call(msgspec.Struct, frozen=True):
    """An operation with its place in time: `[invoked, returned]`, `NEVER` for an unknown fate."""

    operation: Operation
    invoked: int
    returned: int
    result: Result | None
    """None where the fate is unknown."""


class History:
    """Collects invocations and returns in the order in which they happen."""

    __slots__ = ("_calls", "_open", "_time")

    def __init__(self) -> None:
        self._time = 0
        self._open: dict[int, tuple[Operation, int]] = {}
        self._calls: list[Call] = []

    def __len__(self) -> int:
        return len(self._calls) + len(self._open)

    def invoke(self, operation: Operation) -> None:
        """`operation` begins now."""
        assert operation.number not in self._open, operation
        self._time += 1
        self._open[operation.number] = (operation, self._time)

    def give_back(self, operation: Operation, result: Result) -> None:
        """`operation` ends now. One that failed had no effect and is forgotten."""
        _, invoked = self._open.pop(operation.number)
        self._time += 1
        if result.fate is Fate.OK:
            self._calls.append(Call(operation, invoked, self._time, result))
        elif result.fate is Fate.UNKNOWN:
            self._calls.append(Call(operation, invoked, NEVER, None))

    def calls(self) -> dict[str, list[Call]]:
        """All calls by key, those still open among them, each key's in the order of invocation."""
        found = [*self._calls]
        found += [Call(operation, at, NEVER, None) for operation, at in self._open.values()]
        by_key: dict[str, list[Call]] = {}
        for call in sorted(found, key=lambda call: call.invoked):
            by_key.setdefault(call.operation.key, []).append(call)
        return by_key
