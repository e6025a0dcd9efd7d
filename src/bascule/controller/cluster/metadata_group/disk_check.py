"""The question to the controller's disk before it decides: once for requests that come together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bascule.errors import Broken


class DiskCheck:
    """Belongs to the event loop."""

    def __init__(self, node_id: int, make_room: Callable[[], None]) -> None:
        """`make_room` is called on a thread; it raises DiskFull."""
        self._node_id = node_id
        self._make_room = make_room
        self._last: asyncio.Task[None] | None = None
        """The question that is under way, or was the last one."""
        self._next: asyncio.Task[None] | None = None
        """The one after it, which answers those who ask meanwhile."""

    async def pass_through(self) -> None:
        """Return, in the order of calls, once the disk has room. Raises: DiskFull, Broken."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask(self._last))
            # Whoever asked may be gone.
            self._next.add_done_callback(lambda check: check.cancelled() or check.exception())
        await asyncio.shield(self._next)

    async def _ask(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._last, self._next = self._next, None
        try:
            await asyncio.to_thread(self._make_room)
        except OSError as error:
            raise Broken(
                f"the disk of node {self._node_id}, the controller, fails: {error}"
            ) from error
