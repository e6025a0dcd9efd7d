"""The ids of requests that the metadata has the effect of, as long as they may be repeated. Pure.

A request carries, beside its id, the last index of the log at which it may take effect. Its id is
forgotten once the log has passed that index, and behind it the request is refused. So it takes
effect once, however late it is repeated (see `raft_driver.request_ids` for the general case).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bascule.metadata.command_codec import RequestId

ENTRIES_KEPT: Final = 20_000
"""Entries of the log for which a request may be repeated: at a thousand a second, as long as a node
repeats it. An id takes some 100 B of memory, and 25 B of a snapshot."""


class RememberedRequests:
    """Changes with each entry of the log, so that all nodes remember the same."""

    def __init__(self) -> None:
        self._last_indexes: dict[bytes, int] = {}
        """Id -> last index, in the order of the log."""

    def __contains__(self, id: bytes) -> bool:
        return id in self._last_indexes

    def __len__(self) -> int:
        return len(self._last_indexes)

    def accepts(self, request: RequestId, index: int) -> bool:
        """Whether the request takes effect with the entry at `index`; it is remembered then.

        Entries without an id always do. An id of an earlier release has no last index.
        """
        id, last_index = request
        is_accepted = not id or (id not in self and not 0 < last_index < index)
        if id and is_accepted:
            self._last_indexes[id] = last_index or index + ENTRIES_KEPT
        self._forget(index)
        return is_accepted

    def _forget(self, index: int) -> None:
        """Forget the oldest ids that are refused from the entry behind `index` on."""
        remembered = self._last_indexes
        while remembered and remembered[oldest := next(iter(remembered))] <= index:
            del remembered[oldest]

    def snapshot(self) -> list[RequestId]:
        """What `restore` needs, in the order of the log."""
        return [RequestId(*each) for each in self._last_indexes.items()]

    def restore(self, requests: Iterable[RequestId], index: int) -> None:
        """Remember these instead, as after the entry at `index`."""
        self._last_indexes = {id: last or index + ENTRIES_KEPT for id, last in requests}
