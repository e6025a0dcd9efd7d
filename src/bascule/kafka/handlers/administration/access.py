"""Whether clients may change streams here, and what they are told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from bascule.errors import BasculeError, CannotAlter, ConfigError, RequestExpired
from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode, code_of

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE_MAX: Final = 16
"""Changes of one request that are under way: those that come together share a commit."""
CHANGES_MAX: Final = 1_000
"""Topics that one request changes. Their settings, in the response to CreateTopics, are 2 MB."""
TOO_MANY: Final = (
    f"a request changes at most {CHANGES_MAX} topics: name this one in another request"
)
_OF_FIELDS: Final = {
    "partitions": ErrorCode.INVALID_PARTITIONS,
    "replicas": ErrorCode.INVALID_REPLICATION_FACTOR,
}
"""Settings of a stream that are not settings of a topic in Kafka."""


def refusal(context: Context, client_id: str | None, api: str) -> str:
    """Why clients may not change streams here; empty: they may. A refusal is logged."""
    client = context.config.client
    if client.administers:
        return ""
    why = f"client.administration is {client.administration}"
    if client.administration == "auto":
        why += f" and client.host is {client.host}, which is not a loopback address"
    reason = f"{why}: change streams over HTTP, or set client.administration to on"
    context.refusals.note(context.peer, client_id, api=api, reason=reason)
    return reason


def described_error(error: BasculeError | OSError) -> tuple[ErrorCode, str]:
    """The code and the text for a change that was not made.

    A code that clients retry in silence is used where a retry can help soon.
    """
    if isinstance(error, ConfigError | CannotAlter) and error.field in _OF_FIELDS:
        return _OF_FIELDS[error.field], str(error)
    if isinstance(error, OSError | RequestExpired):
        return ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return code_of(error), str(error)


async def change_each(change: Callable[[S], Awaitable[T]], items: Iterable[S]) -> list[T]:
    """The results of a change of each item, in order; some changes at a time. Other work comes in
    between, also where no change has to wait."""
    waiting = list(items)
    numbered = enumerate(waiting)
    results: dict[int, T] = {}

    async def work() -> None:
        for number, item in numbered:
            results[number] = await change(item)
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(min(AT_ONCE_MAX, len(waiting)))))
    return [results[number] for number in sorted(results)]


def named_twice(names: Iterable[str]) -> set[str]:
    """The names that a request has more than once: which one is meant is not known."""
    return {name for name, count in Counter(names).items() if count > 1}
