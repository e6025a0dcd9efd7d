"""`cluster.json` in the data directory: which cluster the node belongs to, and where its peers are.

It exists from the moment at which the node promised itself to a set of founders, or was about to
ask for its admission. From then on the directory belongs to that cluster.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from bascule.errors import CorruptData
from bascule.host.api import Files, Random
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "cluster.json"
DIRECTORY_ID_BYTES: Final = 12


class ClusterFile(msgspec.Struct, frozen=True):
    """The content of the file. Files of earlier releases have the first three fields."""

    founders: str = ""
    """`--peers`, sorted; empty on a node that began alone or joined later."""
    has_promised: bool = True
    has_formed: bool = False
    """Whether all founders have promised themselves, or the node was admitted."""
    cluster_id: str = ""
    """Empty until it is known. A node takes part in Raft with an id, unless the cluster was formed
    by an earlier release and this node has not stored its id since."""
    directory: str = ""
    """Id of this data directory."""
    admitted_index: int = 0
    """Log index of the admission of a node that joined later: it votes once it has the log so far.
    0 on every other node. """
    nodes: dict[int, str] = {}
    """Node id -> host:port of its peer listener, as last known."""
    cluster_version: int = 1
    """The cluster version in force, as last known."""
    directories: dict[int, str] = {}
    """Founder -> id of its data directory, as all founders promised; empty where not all had a
    release that says it, and on a node that began alone or joined later."""


class KeptCluster:
    """The file of one data directory. Belongs to the event loop."""

    def __init__(self, files: Files, data: str, dice: Random) -> None:
        """`data` is the data directory."""
        self.path = f"{data}/{FILE_NAME}"
        self.content: ClusterFile | None = None
        """None: the directory belongs to no cluster yet."""
        self._files = files
        self._dice = dice
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read the file. Raises: CorruptData, OSError."""
        self.content = await asyncio.to_thread(self._read)
        if self.content is not None and not self.content.directory:
            await self.keep()

    def _read(self) -> ClusterFile | None:
        if not self._files.exists(self.path):
            return None
        data = self._files.read_bytes(self.path)
        try:
            return msgspec.json.decode(data, type=ClusterFile)
        except msgspec.MsgspecError as error:
            raise CorruptData(self.path, 0, "a cluster as JSON", str(error)) from None

    async def keep(self, **changes: Any) -> None:
        """Change fields of the content; on the disk on return. Raises: OSError."""
        async with self._writing:
            before = self.content or ClusterFile()
            if not before.directory:
                changes["directory"] = self._dice.bytes(DIRECTORY_ID_BYTES).hex()
            content = msgspec.structs.replace(before, **changes)
            if content == self.content:
                return
            await asyncio.to_thread(
                replace_file, self._files, self.path, msgspec.json.encode(content) + b"\n"
            )
            self.content = content

    @property
    def known(self) -> ClusterFile:
        """The content, which is there once the node has taken part in its cluster."""
        return self.content or ClusterFile()
