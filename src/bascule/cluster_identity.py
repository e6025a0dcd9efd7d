"""Which cluster a node belongs to, and which peers it therefore refuses.

The name of a cluster is chosen by people, and the default is the same everywhere. So an address
that now is another cluster's may lead to nodes with the same name and the same numbers. The
*cluster id* is drawn once for each cluster. Each hello between nodes has both, in both directions::

    this node      the peer says    the peer is
    any id         the same id      of this cluster
    an id          another id       refused
    an id          no id            accepted until ids are required; then it may only ask to join
    no id yet      anything         accepted: this node has formed no cluster, or has an old release

Ids are required once the cluster version `CLUSTER_IDS` is in force: by then no node of the cluster
has a release without them, and each has its id on its disk.
"""

from __future__ import annotations

import logging
from typing import Final

from bascule.errors import RemoteProtocolError

log = logging.getLogger(__name__)

LOGGED_MAX: Final = 256
"""Foreign peers that are remembered as logged; beyond it the oldest is logged again."""
SHOWN_MAX: Final = 80
"""Characters of what a peer says."""


class ForeignPeer(RemoteProtocolError):
    """The peer is a node of another cluster."""

    def __init__(self, text: str, *, found: str, expected: str) -> None:
        """`found` and `expected` are cluster ids, or names where these differ."""
        super().__init__(text)
        self.found = found
        self.expected = expected


class ClusterIdentity:
    """The cluster of one node. The event loop changes it; any thread may read it."""

    __slots__ = ("_logged", "id", "name", "refused", "requires_ids", "tells_id")

    def __init__(self, name: str, id: str = "") -> None:
        """`id` is empty as long as the node does not know it."""
        self.name = name
        self.id = id
        self.tells_id = False
        """Whether PeerHello has the id: every node of the cluster has a release that reads it."""
        self.requires_ids = False
        """Whether every node of the cluster tells its id."""
        self.refused = 0
        """Hellos of and to nodes of other clusters."""
        self._logged: dict[tuple[str, int, str, str], None] = {}

    def check(self, name: str, id: str) -> None:
        """Raises: ForeignPeer where a peer that says this is a node of another cluster, or does not
        say an id that it has to say."""
        self.check_name(name)
        if self.requires_ids and not id:
            raise ForeignPeer(
                f"the peer says no cluster id, expected {self.id}: it has an earlier release, so "
                "it is none of this cluster's nodes; stop it, or upgrade it and let it join",
                found="",
                expected=self.id,
            )
        self.check_id(id)

    def check_name(self, name: str) -> None:
        """Raises: ForeignPeer for the name of another cluster."""
        if name != self.name:
            raise ForeignPeer(
                f"the peer belongs to cluster {name[:SHOWN_MAX]!r}, expected {self.name!r}",
                found=name[:SHOWN_MAX],
                expected=self.name,
            )

    def check_id(self, id: str) -> None:
        """Raises: ForeignPeer for the id of another cluster; an empty one is that of none."""
        if self.id and id and id != self.id:
            found = id[:SHOWN_MAX]
            raise ForeignPeer(
                f"the peer belongs to another cluster with the name {self.name!r}: found the id "
                f"{found}, expected the id {self.id}; an address of one cluster is used by the "
                "other one now: stop the node that is at a wrong address, or start it at another",
                found=found,
                expected=self.id,
            )

    def on_refused(self, error: ForeignPeer, *, node: int, peer: str) -> None:
        """A node of another cluster, which says that it is `node`, has connected from `peer`."""
        if self._note("from", node, peer.rpartition(":")[0], error):
            log.warning(
                "peer of another cluster refused",
                extra={
                    "node": node,
                    "peer": peer,
                    "found": error.found,
                    "expected": error.expected,
                    "error": str(error),
                },
            )

    def on_misled(self, error: ForeignPeer, *, node: int, address: str) -> None:
        """At the address of `node`, 0 if that is not known, is a node of another cluster."""
        if self._note("to", node, address, error):
            log.error(
                "peer address belongs to another cluster",
                extra={
                    "node": node,
                    "address": address,
                    "found": error.found,
                    "expected": error.expected,
                    "error": str(error),
                },
            )

    def _note(self, way: str, node: int, place: str, error: ForeignPeer) -> bool:
        """Count it. Whether it is to be logged: it was not yet."""
        self.refused += 1
        key = (way, node, place, error.found)
        if key in self._logged:
            return False
        if len(self._logged) >= LOGGED_MAX:
            self._logged.pop(next(iter(self._logged)), None)
        self._logged[key] = None
        return True
