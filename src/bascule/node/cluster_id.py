"""The cluster id: that of a data directory, drawn at its first start and never silently anew, that
of a new cluster of several founders, and what a node knows of its cluster's at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final

from bascule.cluster_identity import ClusterIdentity
from bascule.cluster_version import CLUSTER_IDS
from bascule.controller import held_partitions
from bascule.controller.cluster.image_files import earlier_image
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.directories import LAYOUT_FILE_NAME
from bascule.errors import ConfigError, CorruptData
from bascule.host.api import Files, Random
from bascule.metadata.codec import decode_cluster_id, encode_cluster_id
from bascule.node.cluster_file import KeptCluster
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "node.json"
CLUSTER_ID_BYTES: Final = 12
RESTORING_FILE_NAME: Final = "restoring"
"""In a directory that `bascule restore` has not completed."""
INTERRUPTED_RESTORE: Final = (
    "is of a restore that did not end: remove the directory, and run `bascule restore` again"
)
REQUIRED_SECONDS: Final = 5.0
"""From the moment at which a node hears that all nodes tell their ids, until it requires them: the
others hear it, too, and begin their connections anew."""
_WRITTEN_LATER: Final = (earlier_image.FILE_NAME, held_partitions.FILE_NAME, LAYOUT_FILE_NAME)
"""Files that a node writes after its cluster id."""


def load_cluster_id(files: Files, data: str, dice: Random, *, draw_new: bool) -> str:
    """The cluster id of the data directory `data`, which is drawn at the first start.

    `draw_new` replaces an id that is missing or damaged. Raises: CorruptData where the file is
    damaged, or missing from a directory that a node has used; ConfigError where a restore into the
    directory was interrupted: the node would begin an empty cluster; OSError.
    """
    if files.exists(f"{data}/{RESTORING_FILE_NAME}"):
        raise ConfigError(f"{data} {INTERRUPTED_RESTORE}")
    path = f"{data}/{FILE_NAME}"
    if files.exists(path):
        try:
            return decode_cluster_id(files.read_bytes(path), path)
        except CorruptData:
            if not draw_new:
                raise
    elif not draw_new and any(files.exists(f"{data}/{name}") for name in _WRITTEN_LATER):
        raise CorruptData(path, 0, "the cluster id of this data directory", "no such file")
    cluster_id = dice.bytes(CLUSTER_ID_BYTES).hex()
    replace_file(files, path, encode_cluster_id(cluster_id))
    return cluster_id


def founding_id(directories: Mapping[int, str]) -> str:
    """The id of the cluster that these data directories found, by node."""
    text = "\n".join(f"{node} {directory}" for node, directory in sorted(directories.items()))
    return sha256(text.encode()).digest()[:CLUSTER_ID_BYTES].hex()


class KnownIdentity:
    """Keeps a node's `ClusterIdentity` as its disk and the metadata say. On the event loop."""

    def __init__(
        self,
        identity: ClusterIdentity,
        kept: KeptCluster,
        metadata: MetadataGroup,
        *,
        on_changed: Callable[[], None],
        on_other: Callable[[str], None],
    ) -> None:
        """`on_changed` is called when the identity has changed by what the metadata say, and
        `on_other` with the reason where they are those of another cluster."""
        self._identity = identity
        self._kept = kept
        self._metadata = metadata
        self._on_changed = on_changed
        self._on_other = on_other
        self._is_known = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        metadata.watchers.add(self._on_image)

    def on_kept(self) -> None:
        """Take over what is on the disk: before the node says or hears anything, and when it has
        formed or joined its cluster."""
        known, identity = self._kept.known, self._identity
        identity.id = known.cluster_id
        if identity.id:
            self._is_known.set()
            # All nodes have known this version for as long as a start takes.
            identity.tells_id = identity.requires_ids = known.cluster_version >= CLUSTER_IDS

    async def keep(self) -> None:
        """Return once the id is on the disk. It is there before a node registers; so where the
        cluster version says that ids are told, no node of the cluster is without. Raises: OSError.
        """
        await self._is_known.wait()
        await self._kept.keep(cluster_id=self._identity.id)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_image(self) -> None:
        image, identity = self._metadata.image, self._identity
        has_changed = False
        if image.cluster_id and image.cluster_id != identity.id:
            if identity.id:
                self._on_other(
                    f"{self._kept.path} says that it belongs to cluster {identity.id}, and its "
                    f"metadata are those of cluster {image.cluster_id}: name the right data "
                    "directory; if it is lost, remove the node with --force and let it join with "
                    "an empty one"
                )
                return
            identity.id, has_changed = image.cluster_id, True
            self._is_known.set()
        if identity.id and not identity.tells_id and image.cluster_version >= CLUSTER_IDS:
            identity.tells_id = has_changed = True
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(REQUIRED_SECONDS, self._require)
        if has_changed:
            self._on_changed()

    def _require(self) -> None:
        self._identity.requires_ids = True
        self._on_changed()
