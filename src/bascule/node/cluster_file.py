"""`cluster.json` in the data directory: which cluster the node belongs to, and where its peers are.

It exists from the moment at which the node promised itself to a set of founders, or was about to
ask for its admission. From then on the directory belongs to that cluster.

A node that has taken part in elections must not lose its votes, or entries that it has confirmed.
They are in `raft/`, so this file has how many commits the database there has had at least. Without
`raft/`, or with an older copy of it, the node does not start; only a node that has no others may go
on from an older copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bascule.errors import ConfigError, CorruptData
from bascule.host.api import Files, Random
from bascule.raft_driver.sqlite_store import KnownCommits
from bascule.storage.checkpoint import replace_file

log = logging.getLogger("bascule.node")

FILE_NAME: Final = "cluster.json"
DIRECTORY_ID_BYTES: Final = 12
COMMITS_SECONDS: Final = 2.0
"""Between two looks at how many commits the database of the metadata has; a number that has risen
is a write of the file."""
USED_COMMITS: Final = 2
"""A database has so many once it was created and opened."""


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
    raft_commits: int | None = None
    """The database of the metadata has had so many commits at least; 0: the node has formed or
    joined its cluster, and voted in none of its elections. None: an earlier release wrote this."""
    name: str | None = None
    """Of the cluster, since the node was registered with it; None: it was not yet, or an earlier
    release wrote this."""


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

    def check_name(self, name: str) -> None:
        """Raises: ConfigError where the directory belongs to a cluster of another name."""
        kept = self.known.name
        if kept is not None and kept != name:
            raise ConfigError(
                f"cluster.name is {name!r}, and {self.path} says that the node belongs to cluster "
                f"{kept!r}: start it with --cluster {kept}, or name an empty directory with --data"
            )

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


class KeptCommits:
    """Keeps `ClusterFile.raft_commits`. Belongs to the event loop."""

    def __init__(self, kept: KeptCluster, node_id: int) -> None:
        self._kept = kept
        self._node_id = node_id
        self._has_failed = False

    @property
    def known(self) -> KnownCommits:
        """What the database has to have when it is opened."""
        count = self._least
        if count and self._is_alone:
            count = USED_COMMITS
        return KnownCommits(count, self._kept.path)

    @property
    def _least(self) -> int:
        known = self._kept.known
        if known.raft_commits is not None:
            return known.raft_commits
        # An earlier release has kept the nodes once this one was registered, or admitted.
        return USED_COMMITS if known.nodes else 0

    @property
    def _is_alone(self) -> bool:
        """Whether the cluster has no other node, whose metadata an older copy would contradict."""
        known = self._kept.known
        if known.nodes:
            return known.nodes.keys() <= {self._node_id}
        return not known.admitted_index and "," not in known.founders

    async def on_opened(self, commits: int) -> None:
        """The database is open. On return the file says so: the node may vote. Raises: OSError."""
        if commits < self._least:
            log.warning(
                "the metadata are an older copy; streams and changes since then are not known",
                extra={"commits": commits, "commits_before": self._least},
            )
        await self._kept.keep(raft_commits=commits)

    async def follow(self, commits: Callable[[], int]) -> None:
        """Keep what the function returns, whenever it has risen."""
        while True:
            await asyncio.sleep(COMMITS_SECONDS)
            await self.keep(commits())

    async def keep(self, commits: int) -> None:
        """Keep the present number: an older one is right, too, if that fails."""
        try:
            await self._kept.keep(raft_commits=commits)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning("commits of the metadata not kept", extra={"error": str(error)})
            self._has_failed = True
