"""What clients did: operations on keys, when each began and ended, and what it answered.

The order of the calls is the only time there is: an operation precedes another where it returned
before the other was invoked.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class OperationKind(Enum):
    """What an operation does to the value of its key; a key without a value holds None."""

    GET = "get"
    """Answers the value."""
    PUT = "put"
    """Sets the value."""
    CAS = "cas"
    """Sets the value if it is `expected`, and answers whether it was."""
    APPEND = "append"
    """Adds to the end of the value; None counts as empty."""


class ClientOperation(msgspec.Struct, frozen=True):
    """One call of a client. `number` is its own in the whole history."""

    number: int
    client: int
    key: str
    action: OperationKind
    value: bytes = b""
    """What a put, cas or append writes. Checks are fastest where no two write the same."""
    expected: bytes | None = None
    """What a cas wants to find."""


class OperationStatus(Enum):
    """What a client knows of its operation."""

    OK = "ok"
    FAILED = "failed"
    """It had no effect and never will."""
    UNKNOWN = "unknown"
    """It may have taken effect, now or later; an operation that never returned is the same."""


class OperationResult(msgspec.Struct, frozen=True):
    """How an operation ended."""

    fate: OperationStatus
    value: bytes | None = None
    """What a get found."""
    swapped: bool = False
    """Whether a cas found what it expected."""


NEVER: Final = 1 << 62
"""When an operation with an unknown fate returned, as far as order goes."""


class OperationCall(msgspec.Struct, frozen=True):
    """An operation with its place in time: `[invoked, returned]`, `NEVER` for an unknown fate."""

    operation: ClientOperation
    invoked: int
    returned: int
    result: OperationResult | None
    """None where the fate is unknown."""


class OperationHistory:
    """Collects invocations and returns in the order in which they happen."""

    __slots__ = ("_calls", "_open", "_time")

    def __init__(self) -> None:
        self._time = 0
        self._open: dict[int, tuple[ClientOperation, int]] = {}
        self._calls: list[OperationCall] = []

    def __len__(self) -> int:
        return len(self._calls) + len(self._open)

    def invoke(self, operation: ClientOperation) -> None:
        """`operation` begins now."""
        assert operation.number not in self._open, operation
        self._time += 1
        self._open[operation.number] = (operation, self._time)

    def give_back(self, operation: ClientOperation, result: OperationResult) -> None:
        """`operation` ends now. One that failed had no effect and is forgotten."""
        _, invoked = self._open.pop(operation.number)
        self._time += 1
        if result.fate is OperationStatus.OK:
            self._calls.append(OperationCall(operation, invoked, self._time, result))
        elif result.fate is OperationStatus.UNKNOWN:
            self._calls.append(OperationCall(operation, invoked, NEVER, None))

    def calls(self) -> dict[str, list[OperationCall]]:
        """All calls by key, those still open among them, each key's in the order of invocation."""
        found = [*self._calls]
        found += [
            OperationCall(operation, at, NEVER, None) for operation, at in self._open.values()
        ]
        by_key: dict[str, list[OperationCall]] = {}
        for call in sorted(found, key=lambda call: call.invoked):
            by_key.setdefault(call.operation.key, []).append(call)
        return by_key
