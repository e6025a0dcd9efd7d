"""Errors about the nodes of a cluster."""

from __future__ import annotations

from bascule.errors.system import BasculeError


class UnknownNode(BasculeError):
    """The cluster has no node of this number."""

    def __init__(self, node: int) -> None:
        super().__init__(f"the cluster has no node {node}; `bascule node list` shows its nodes")
        self.node = node


class NodeRefused(BasculeError):
    """A process may not be this node of the cluster; the text says why, and what to do."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(f"node {node} is refused: {why}")
        self.node = node
        self.why = why


class CannotRemoveNode(BasculeError):
    """A node cannot be removed as asked; the text says why, and what to do."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(f"node {node} cannot be removed: {why}")
        self.node = node
        self.why = why
