"""Removes the committed offsets of deleted streams, on the node that coordinates the groups.

A stream of the same name that is created later has other commits. So this frees memory, and nobody
depends on it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from bascule.errors import BasculeError, Broken
from bascule.groups import CommittedOffsetStore
from bascule.model import StreamDefinition
from bascule.replica.partitions import Partitions
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.controller")


class CommitRemoval:
    """Belongs to the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        streams: Callable[[], Mapping[str, StreamDefinition]],
        wait_followed: Callable[[], Awaitable[None]],
    ) -> None:
        """`streams` has all streams of the cluster. `wait_followed` returns once this node has
        closed what is deleted by now, and raises Broken where it cannot."""
        self._partitions = partitions
        self._streams = streams
        self._wait_followed = wait_followed
        self.offsets: CommittedOffsetStore | None = None
        """Set by the node."""

    async def remove_deleted(self, stream: str) -> None:
        """Remove the commits of a stream that is deleted."""
        # Until then the coordinator takes commits for the stream.
        with contextlib.suppress(Broken):
            await self._wait_followed()
        await self._remove([stream])

    async def remove_orphans(self) -> None:
        """Remove the commits of all streams that are deleted: the leader before this node may have
        been lost before it had removed them.

        To be called once this node leads, with all commits read. Each of them was taken by an
        earlier leader that had not heard yet that this node leads. So their streams were created
        before that was decided, and this node knows of their creation.
        """
        if self.offsets is not None:
            present = self._streams()
            await self._remove([each for each in self.offsets.streams() if each not in present])

    async def _remove(self, streams: list[str]) -> None:
        for stream in streams:
            held = self._partitions.stream(OFFSETS_STREAM)
            if self.offsets is None or held is None or not held[0].is_leader:
                return
            try:
                await self.offsets.remove_deleted(stream, self._streams().get(stream))
            except BasculeError as error:
                log.warning(
                    "commits of a deleted stream stay",
                    extra={"stream": stream, "error": str(error)},
                )
