"""`StateMachine`: the state that committed entries change; a user of Raft provides it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

from bascule.raft.messages import Entry, RaftSnapshot


class FrozenChunks:
    """The chunks of a state that later calls of `apply` and `restore` do not change.

    For example, `chunks` is a generator over an immutable image of the state. It is consumed on
    another thread while the state machine goes on.
    """

    __slots__ = ("chunks",)

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks = chunks


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

    def take_snapshot(self) -> Iterable[bytes] | FrozenChunks:
        """The present state in one or more chunks, best of up to 1 MiB each.

        A list or tuple is used as it is. Any other iterable is consumed on another thread, so that
        a large state does not block the loop. No `apply` and no `restore` runs meanwhile, but
        reads of the state may. With `FrozenChunks` entries are applied meanwhile, too.
        """
        ...

    def restore(self, snapshot: RaftSnapshot) -> Awaitable[None] | None:
        """Replace the state by the one in `snapshot.chunks`.

        If it returns an awaitable, the state is restored when that is done: a large one is best
        decoded on another thread, and put in place on the loop at the end. Until then nothing is
        applied; reads of any kind wait for their index as always.
        """
        ...
