"""The end of a node that its cluster refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from bascule.errors import Broken, NodeRefused

log = logging.getLogger("bascule.node")


class Refusal:
    """Whether the cluster refuses this node, and why. Belongs to the event loop."""

    def __init__(self, failed: asyncio.Future[str]) -> None:
        """`failed` is that of the node's `RaftDriver`."""
        self._failed = failed
        self._error: NodeRefused | None = None
        self._is_set = asyncio.Event()

    def set(self, error: NodeRefused) -> None:
        """The cluster refuses this node."""
        if self._error is None:
            log.error("this node is refused by its cluster", extra={"error": str(error)})
            self._error = error
            self._is_set.set()

    async def wait(self) -> None:
        """Wait until the cluster refuses this node. Raises: NodeRefused."""
        await self._is_set.wait()
        assert self._error is not None
        raise self._error

    async def guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work. Raises: NodeRefused if the cluster refuses this node first, Broken if its
        metadata fail first."""
        tasks = asyncio.create_task(work), asyncio.create_task(self.wait())
        ends: set[asyncio.Future[Any]] = {*tasks, self._failed}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None:
                raise self._error  # also where the work has failed because of it
            if self._failed.done():
                raise metadata_failed(self._failed.result())
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def metadata_failed(cause: str) -> Broken:
    """The error of a node whose metadata group has failed for good: nothing is decided any more."""
    return Broken(f"the metadata cannot be written any more: {cause}")
