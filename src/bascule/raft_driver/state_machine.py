"""`StateMachine`: the state that committed entries change; a user of Raft provides it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from bascule.raft.messages import Entry, RaftSnapshot


class StateMachine(Protocol):
    """The state of one group on one node. It is called on the event loop, one call at a time.

    It is deterministic: its state and the bytes of its snapshots depend on the entries alone, not
    on clocks, random numbers, the node, or how the entries are divided into calls. After an
    exception its state is unknown, so the group stops on this node for good.
    """

    def apply(self, entries: Sequence[Entry]) -> Sequence[Any]:
        """Apply committed entries in order. Returns a result for each, which its proposer gets.

        Each entry is applied once to a state. After a restart, entries are applied again from the
        newest snapshot or the first entry on.
        """
        ...

    def take_snapshot(self) -> Iterable[bytes]:
        """The present state in one or more chunks.

        A list or tuple is used as it is. Any other iterable is consumed on another thread, so that
        a large state does not block the loop. No `apply` and no `restore` runs meanwhile, but
        reads of the state may.
        """
        ...

    def restore(self, snapshot: RaftSnapshot) -> None:
        """Replace the state by the one in `snapshot.chunks`."""
        ...
