"""`FollowFailure`: why the table of a replica does not follow its log, and for how long."""

from __future__ import annotations

import logging
from typing import Final

from bascule.errors import PartitionFailed

log = logging.getLogger("bascule.tables")

LASTING_SECONDS: Final = 3.0
"""A failure of that time is not over at the next try. Until then who waits goes on waiting."""


class FollowFailure:
    """Of one replica. Belongs to the event loop."""

    def __init__(self, stream: str, index: int) -> None:
        self._stream = stream
        self._index = index
        self.reason: str | None = None
        """Why the last try has failed; None if it has not."""
        self.lasting: PartitionFailed | None = None
        """Set once tries have failed for LASTING_SECONDS: the table is to be read elsewhere. Others
        go on; the log of the replica may be well."""
        self._since = 0.0

    def note(self, error: Exception, *, now: float) -> None:
        """A try has failed at a time in seconds."""
        if self.reason is None:
            self._since = now
            log.error(
                "table does not follow",
                extra={"stream": self._stream, "partition": self._index, "error": str(error)},
            )
        self.reason = str(error)
        if now - self._since >= LASTING_SECONDS:
            self.lasting = PartitionFailed(
                self._stream, self._index, f"its table does not follow: {error}"
            )

    def end(self) -> None:
        """A try has not failed: everything that is committed is in the table."""
        if self.reason is not None:
            log.info(
                "table follows again", extra={"stream": self._stream, "partition": self._index}
            )
        self.reason = self.lasting = None
