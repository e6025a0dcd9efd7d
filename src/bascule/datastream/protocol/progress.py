"""What the nodes of a tree have written and synced of one payload. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Reached(NamedTuple):
    """Positions below which a node, and all nodes below it in the tree, have everything."""

    written: int
    synced: int


NOTHING = Reached(0, 0)


class TreeProgress:
    """This node, and the successors that it has now."""

    def __init__(self, *, quorum: int = 0) -> None:
        """`quorum`: how many nodes have to have a packet, this one among them, however many are
        left; 0: all that are left."""
        self._quorum = quorum
        self._successors: dict[int, Reached] = {}

    def on_successor(self, node: int, reached: Reached) -> None:
        """A successor has answered; positions never go back."""
        before = self._successors.get(node, NOTHING)
        self._successors[node] = Reached(
            max(before.written, reached.written), max(before.synced, reached.synced)
        )

    def remove(self, node: int) -> None:
        """The node is not waited for any more."""
        self._successors.pop(node, None)

    def of(self, node: int) -> Reached:
        """What a successor has said last."""
        return self._successors.get(node, NOTHING)

    def reached(self, own: Reached) -> Reached:
        """What may be acknowledged, where this node itself has `own`."""
        everyone = [own, *self._successors.values()]
        if self._quorum:
            everyone += [NOTHING] * (self._quorum - len(everyone))
        at = (self._quorum or len(everyone)) - 1
        written = sorted((each.written for each in everyone), reverse=True)[at]
        synced = sorted((each.synced for each in everyone), reverse=True)[at]
        # Never more than this node has: it answers for its own file.
        return Reached(min(written, own.written), min(synced, own.synced))

    @property
    def has_quorum(self) -> bool:
        """Whether enough nodes are left."""
        return len(self._successors) + 1 >= self._quorum
