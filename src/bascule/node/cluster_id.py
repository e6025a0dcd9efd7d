"""The cluster id of a data directory: drawn at its first start, and never silently anew."""

from __future__ import annotations

from typing import Final

from bascule.controller import held_partitions
from bascule.controller.cluster.image_files import earlier_image
from bascule.controller.directories import LAYOUT_FILE_NAME
from bascule.errors import CorruptData
from bascule.host.api import Files, Random
from bascule.metadata.codec import decode_cluster_id, encode_cluster_id
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "node.json"
CLUSTER_ID_BYTES: Final = 12
_WRITTEN_LATER: Final = (earlier_image.FILE_NAME, held_partitions.FILE_NAME, LAYOUT_FILE_NAME)
"""Files that a node writes after its cluster id."""


def load_cluster_id(files: Files, data: str, dice: Random, *, draw_new: bool) -> str:
    """The cluster id of the data directory `data`, which is drawn at the first start.

    `draw_new` replaces an id that is missing or damaged. Raises: CorruptData where the file is
    damaged, or missing from a directory that a node has used; OSError.
    """
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
