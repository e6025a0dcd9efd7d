"""Which cluster version is in force, and who supports it. Pure.

The version rises once all members of the metadata group have registered a release that supports a
higher one, whether they are alive or not: a node that is away has to be able to come back.
"""

from __future__ import annotations

from collections.abc import Collection

from bascule.cluster_version import DRAIN_REASONS, TABLES
from bascule.errors import NeedsClusterVersion, NodeRefused
from bascule.metadata.image import Image
from bascule.model import NodeRegistration, StreamConfig


def version_for_all(image: Image, members: Collection[int]) -> int:
    """The highest version that all nodes and members of the metadata group support; the one in
    force while there is none that is higher."""
    in_force = image.cluster_version
    if not image.nodes or any(member not in image.nodes for member in members):
        return in_force  # A founder that has not registered may have any release.
    highest = min(node.cluster_version_max for node in image.nodes.values())
    if any(node.cluster_version_min > highest for node in image.nodes.values()):
        return in_force
    return max(in_force, highest)


def check_release(in_force: int, node: NodeRegistration) -> None:
    """Raises: NodeRefused where the release of a node does not support the version in force."""
    oldest, newest = node.cluster_version_min, node.cluster_version_max
    if oldest <= in_force <= newest:
        return
    release = f"its release {node.version}".rstrip()
    supports = f"{oldest}" if oldest == newest else f"{oldest} to {newest}"
    found = f"{release} supports cluster version {supports}, and the cluster uses {in_force}"
    if newest < in_force:
        raise NodeRefused(
            node.node_id,
            f"{found}, which never goes down; start it with the release of the other nodes, or a "
            "newer one",
        )
    raise NodeRefused(
        node.node_id,
        f"{found}; start it with a release that supports {in_force}, and upgrade all nodes to the "
        f"releases between one after the other, until the cluster uses {oldest}",
    )


def check_in_force(image: Image, version: int, what: str, instead: str) -> None:
    """`what` needs `version`; `instead` is what to do as long as it is not in force.

    Raises: NeedsClusterVersion.
    """
    if image.cluster_version >= version:
        return
    behind = {
        number: node.version
        for number, node in sorted(image.nodes.items())
        if node.cluster_version_max < version
    }
    raise NeedsClusterVersion(what, version, image.cluster_version, behind, instead)


def check_table(image: Image, config: StreamConfig) -> None:
    """Raises: NeedsClusterVersion where nodes cannot store that a stream is a table."""
    if config.table:
        check_in_force(image, TABLES, "a table", "leave the setting `table` out")


def check_drain_reason(image: Image, reason: str) -> None:
    """Raises: NeedsClusterVersion where nodes cannot store the reason of a drain."""
    if reason:
        check_in_force(image, DRAIN_REASONS, "the reason of a drain", "leave it out")
