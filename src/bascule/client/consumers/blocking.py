"""Consumers without asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from bascule.client.consumers.base import MessageConsumer
from bascule.client.consumers.group import GroupOptions, OnPartitions
from bascule.client.messages import Message

T = TypeVar("T")
ConsumerT = TypeVar("ConsumerT", bound=MessageConsumer)


class CoroutineRunner(Protocol):
    """Runs a coroutine on the client's event loop and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


def with_hooks_on_threads(options: GroupOptions) -> GroupOptions:
    """Options whose functions may block, and may use the blocking consumer."""
    return replace(
        options,
        on_assigned=_on_thread(options.on_assigned),
        on_revoked=_on_thread(options.on_revoked),
        on_lost=_on_thread(options.on_lost),
    )


def _on_thread(hook: OnPartitions | None) -> OnPartitions | None:
    if hook is None:
        return None

    async def call(partitions: frozenset[int]) -> None:
        await asyncio.to_thread(hook, partitions)

    return call


class SyncConsumer(Generic[ConsumerT]):
    """A blocking `Consumer` or `GroupConsumer`: an iterator in a `with` block. Not thread-safe."""

    def __init__(self, consumer: ConsumerT, run: CoroutineRunner) -> None:
        self._consumer = consumer
        self._run = run

    @property
    def committed(self) -> dict[int, int]:
        """Partition -> the last committed offset that this consumer knows."""
        return self._consumer.committed

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that it reads now."""
        return self._consumer.partitions

    def commit(self) -> None:
        """See `Consumer.commit` and `GroupConsumer.commit`."""
        self._run(self._consumer.commit())

    def close(self, *, done: bool = True) -> None:
        """See `Consumer.close` and `GroupConsumer.close`."""
        self._run(self._consumer.close(done=done))

    def __enter__(self) -> SyncConsumer[ConsumerT]:
        self._run(self._consumer.open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._consumer.leave(failed=kind is not None))

    def __iter__(self) -> SyncConsumer[ConsumerT]:
        return self

    def __next__(self) -> Message:
        while (message := self._consumer.take()) is None:
            if not self._run(self._consumer.refill()):
                raise StopIteration
        return message
