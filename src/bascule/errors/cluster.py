"""Errors about the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from bascule.errors.system import BasculeError, RemoteProtocolError


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


class LostEntries(RemoteProtocolError):
    """The log of a member of a Raft group lacks entries that it has confirmed to its leader."""

    def __init__(self, node: int, leader: int, confirmed: int, last: int) -> None:
        super().__init__(
            f"node {node} has confirmed entry {confirmed} to node {leader}, which leads, and its "
            f"log ends at entry {last}: its data directory is an older copy; run `bascule node "
            f"remove {node} --force --yes`, and start it with --join and an empty directory"
        )
        self.node = node
        self.leader = leader
        self.confirmed = confirmed
        self.last = last


class CannotDrain(BasculeError):
    """A node cannot be drained; the text says why."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(f"node {node} cannot be drained: {why}")
        self.node = node
        self.why = why


class CannotLead(BasculeError):
    """A node cannot be given the leadership of a partition; the text says why."""

    def __init__(self, stream: str, partition: int, node: int, why: str) -> None:
        super().__init__(f"node {node} cannot be made the leader of {stream} {partition}: {why}")
        self.stream = stream
        self.partition = partition
        self.node = node
        self.why = why


class CannotCancel(BasculeError):
    """A move of replicas cannot be taken back; the text says why, and what to do.

    `partition` None: there is none in the whole stream.
    """

    def __init__(self, stream: str, partition: int | None, why: str) -> None:
        where = stream if partition is None else f"{stream} {partition}"
        super().__init__(f"no move of {where} can be cancelled: {why}")
        self.stream = stream
        self.partition = partition
        self.why = why


class CannotRemoveNode(BasculeError):
    """A node cannot be removed as asked; the text says why, and what to do."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(f"node {node} cannot be removed: {why}")
        self.node = node
        self.why = why


class NeedsClusterVersion(BasculeError):
    """The cluster version in force does not have what is asked for; see `cluster_version`.

    `behind` is number and release of each node that does not support version `needed`.
    """

    def __init__(
        self, what: str, needed: int, in_force: int, behind: Mapping[int, str], instead: str
    ) -> None:
        nodes = ", ".join(f"node {number} (release {of or '?'})" for number, of in behind.items())
        todo = f"upgrade {nodes}" if nodes else "all nodes support it, so try again in a moment"
        super().__init__(
            f"{what} needs cluster version {needed}, and the cluster uses {in_force}: {todo}, or "
            f"{instead}"
        )
        self.what = what
        self.needed = needed
        self.in_force = in_force
        self.behind = dict(behind)
