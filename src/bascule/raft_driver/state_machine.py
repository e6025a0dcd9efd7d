"""What a user of Raft provides: the state that committed entries change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from bascule.raft.messages import Entry, RaftSnapshot


class StateMachine(Protocol):
    """The state of one group on one node. It is called on the event loop, one call at a time.

    It is deterministic: what it becomes, and what its snapshots are byte for byte, depends on the
    entries alone, not on clocks, dice, the node, or how the entries were cut into calls. An
    exception out of it ends its group on this node for good: the state behind it is not known.
    """

    def apply(self, entries: Sequence[Entry]) -> Sequence[Any]:
        """Apply committed entries in order; a result for each, which its proposer gets.

        An entry is applied once in the life of a state; after a restart that is again from the
        newest snapshot on, or from the first entry.
        """
        ...

    def take_snapshot(self) -> Iterable[bytes]:
        """The state as it is now, in one or more chunks.

        A list or tuple is taken as it is. Anything else is drained on another thread, so that a
        large state does not stop the loop: no `apply` and no `restore` runs meanwhile, but reads
        of the state may.
        """
        ...

    def restore(self, snapshot: RaftSnapshot) -> None:
        """Become the state whose chunks are `snapshot.chunks`."""
        ...
