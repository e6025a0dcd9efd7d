"""Who is told of new images and other controllers, and requests that end with what they wait for.

A request to a node that hangs is answered by nobody. Whoever asks goes on as soon as the cluster
knows better: another node is the controller, or leads the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bascule.errors import Broken

T = TypeVar("T")


class Watchers:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []

    def add(self, on_changed: Callable[[], None]) -> None:
        """Have `on_changed` called after each change from now on."""
        self._watchers.append(on_changed)

    def tell(self) -> None:
        """Something has changed."""
        for on_changed in tuple(self._watchers):
            on_changed()

    async def ask_while(
        self, is_due: Callable[[], bool], asking: Coroutine[Any, Any, T], *, otherwise: str
    ) -> T:
        """What `asking` returns.

        Raises: what it raises; Broken(otherwise) where `is_due` has become false before.
        """
        loop = asyncio.get_running_loop()
        is_over = loop.create_future()

        def look() -> None:
            if not is_over.done() and not is_due():
                is_over.set_result(None)

        task = loop.create_task(asking)
        self._watchers.append(look)
        try:
            look()
            await asyncio.wait((task, is_over), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Broken(otherwise)
        finally:
            self._watchers.remove(look)
            task.cancel()
