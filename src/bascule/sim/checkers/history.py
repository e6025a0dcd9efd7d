"""The history of clients: operations on keys, with their invocations, returns and results.

The order of the events is the only notion of time: an operation precedes another one if it returned
before the other was invoked.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class OperationKind(Enum):
    """The effect of an operation on the value of its key; a key without a value has None."""

    GET = "get"
    """Returns the value."""
    PUT = "put"
    """Sets the value."""
    CAS = "cas"
    """Sets the value if it is `expected`, and returns whether it was."""
    APPEND = "append"
    """Appends to the value; None counts as empty."""
    REMOVE = "remove"
    """Removes the value, whether there is one or not."""
    INCREMENT = "increment"
    """Adds `by` to the value, which is decimal digits, and returns the sum; None counts as 0."""


class ClientOperation(msgspec.Struct, frozen=True):
    """One operation of a client. `number` is unique."""

    number: int
    client: int
    key: str
    action: OperationKind
    value: bytes = b""
    """What a put, cas or append writes. Checks are fastest if all values differ."""
    expected: bytes | None = None
    """The value that a cas expects."""
    by: int = 0
    """What an increment adds."""


class OperationStatus(Enum):
    """What a client knows about its operation."""

    OK = "ok"
    FAILED = "failed"
    """It has no effect and never will."""
    UNKNOWN = "unknown"
    """It may take effect or not, now or later; the same as an operation that never returned."""


class OperationResult(msgspec.Struct, frozen=True):
    """How an operation ended."""

    status: OperationStatus
    value: bytes | None = None
    """The value that a get returned; the sum that an increment returned."""
    swapped: bool = False
    """Whether a cas found the expected value."""


NEVER: Final = 1 << 62
"""The time at which an operation with unknown status returns."""


class OperationCall(msgspec.Struct, frozen=True):
    """An operation with its place in time: `[invoked, returned]`, `NEVER` for an unknown status."""

    operation: ClientOperation
    invoked: int
    returned: int
    result: OperationResult | None
    """None if the status is unknown."""


class OperationHistory:
    """Records invocations and returns in their order."""

    __slots__ = ("_calls", "_open", "_time")

    def __init__(self) -> None:
        self._time = 0
        self._open: dict[int, tuple[ClientOperation, int]] = {}
        self._calls: list[OperationCall] = []

    def __len__(self) -> int:
        return len(self._calls) + len(self._open)

    def invoke(self, operation: ClientOperation) -> None:
        """`operation` begins."""
        assert operation.number not in self._open, operation
        self._time += 1
        self._open[operation.number] = (operation, self._time)

    def finish(self, operation: ClientOperation, result: OperationResult) -> None:
        """`operation` ends. A failed one had no effect and is dropped."""
        _, invoked = self._open.pop(operation.number)
        self._time += 1
        if result.status is OperationStatus.OK:
            self._calls.append(OperationCall(operation, invoked, self._time, result))
        elif result.status is OperationStatus.UNKNOWN:
            self._calls.append(OperationCall(operation, invoked, NEVER, None))

    def calls(self) -> dict[str, list[OperationCall]]:
        """All calls by key, in the order of their invocations, including those without a return."""
        found = [*self._calls]
        found += [
            OperationCall(operation, at, NEVER, None) for operation, at in self._open.values()
        ]
        by_key: dict[str, list[OperationCall]] = {}
        for call in sorted(found, key=lambda call: call.invoked):
            by_key.setdefault(call.operation.key, []).append(call)
        return by_key
