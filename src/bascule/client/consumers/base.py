"""What consumers of all kinds share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from bascule.client.consumers.delivery import Delivery
from bascule.client.messages import Message, NewMessage
from bascule.errors import BasculeError

log = logging.getLogger(__name__)


class MessageConsumer(ABC):
    """An asynchronous iterator of messages, in an `async with` block, that commits done messages.

    A message is done when the next one is requested.
    """

    def __init__(self, label: str, delivery: Delivery) -> None:
        """`label` names the consumer in logs."""
        self._label = label
        self._delivery = delivery
        self._committed: dict[int, int] = {}

    @property
    def committed(self) -> dict[int, int]:
        """Partition -> the last committed offset that this consumer knows."""
        return dict(self._committed)

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that it reads now."""
        return self._delivery.partitions

    @abstractmethod
    async def open(self) -> Self:
        """Start."""

    @abstractmethod
    async def close(self, *, done: bool = True) -> None:
        """Stop, and commit done messages. With `done`, every delivered message counts as done.
        Idempotent."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit all delivered messages, including the last one. Return when the commit is
        stored."""

    def make_messages(self, new: NewMessage) -> None:
        """Call it before the first message is read."""
        self._delivery.new_message = new

    @abstractmethod
    def take(self) -> Message | None:
        """Return the next message that has arrived. The previous one is done."""

    @abstractmethod
    async def refill(self) -> bool:
        """Wait for more messages. Return False at the end."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave(failed=kind is not None)

    async def leave(self, *, failed: bool) -> None:
        """End the `async with` block. If the block failed, its exception is more important than a
        failed commit, which is only logged. Raises: as `commit`, if the block did not fail."""
        try:
            await self.close(done=not failed)
        except BasculeError as error:
            if not failed:
                raise
            log.warning("the last commit of %s failed: %s", self._label, error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while (message := self.take()) is None:
            if not await self.refill():
                raise StopAsyncIteration
        return message
