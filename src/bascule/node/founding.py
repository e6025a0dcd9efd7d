"""How empty nodes become one cluster, and never two, and why a node must not come back empty.

A voter of a Raft group that has lost its disk could vote twice in a term, and the only replica in
sync of a partition could lead with an empty log. So a node founds the group only together with all
others: each promises itself on its disk, and goes on when it has heard the promise of every other
one. A node without a promise that meets a cluster which has formed has lost its disk, or does not
belong to it; it does not start. The promise is kept in `cluster.json` in the data directory.

With the promises come the ids of all data directories, and the cluster id is made of these. So a
founder knows it before it takes part in Raft, and founders with other directories are another
cluster, even if all their numbers, addresses and names are the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from bascule.config.addresses import format_address, parse_address
from bascule.controller.cluster.metadata_group import Peers
from bascule.errors import BasculeError, ConfigError
from bascule.node.cluster_file import ClusterFile, KeptCluster
from bascule.node.cluster_id import founding_id

log = logging.getLogger("bascule.node")

FOUNDING: Final = "founding"
"""The kind of control request that asks a node for its promise."""
ASK_SECONDS_MAX: Final = 2.0
RETRY_SECONDS: Final = 0.1
LOG_SECONDS: Final = 10.0
"""Time between log lines of a node that waits for others."""


class FoundingPromise(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    founders: str
    """`--peers`, sorted; empty on a node that began alone or joined later."""
    has_promised: bool = True
    """False as long as the promise is not on the node's disk."""
    has_formed: bool = False
    """Whether the node has heard the promises of all founders, or was admitted later."""
    cluster_id: str = ""
    """Empty until the node knows it."""
    directories: dict[int, str] = {}
    """Founder -> id of its data directory: that of the node, and of all founders once it has
    formed. Empty on a node that joined later, and without a promise."""


class Founding:
    """This node's part. Belongs to the event loop."""

    def __init__(
        self, node_id: int, founders: Mapping[int, tuple[str, int]], kept: KeptCluster
    ) -> None:
        """`founders` are node id -> peer address of all founding nodes."""
        self._node_id = node_id
        self._others = [node for node in sorted(founders) if node != node_id]
        self._text = ",".join(f"{n}@{format_address(*at)}" for n, at in sorted(founders.items()))
        self._kept = kept

    async def answer(self, body: bytes) -> bytes:
        """Answer another node's question."""
        kept = self._kept.content
        if kept is None:
            return msgspec.json.encode(FoundingPromise(self._text, has_promised=False))
        return msgspec.json.encode(
            FoundingPromise(
                kept.founders,
                kept.has_promised,
                kept.has_formed,
                kept.cluster_id,
                self._directories(kept),
            )
        )

    def _directories(self, kept: ClusterFile) -> dict[int, str]:
        if kept.has_formed or not kept.founders:
            return kept.directories
        return {self._node_id: kept.directory}

    async def take_part(self, peers: Peers) -> None:
        """Return once the cluster has formed, with this node.

        Raises: ConfigError where this node does not belong to the cluster that has formed, or was
        started with other founders; OSError.
        """
        kept = self._kept.content
        if kept is None:
            await self._check_nobody_formed(peers)
            await self._kept.keep(founders=self._text)
        elif kept.founders != self._text:
            why = f"names the founders {kept.founders}: start the node with these"
            if not kept.founders:
                is_alone = kept.has_formed and not kept.admitted_index
                why = (
                    "is that of a node that worked alone: start it without --peers, or name an "
                    "empty directory with --data"
                    if is_alone
                    else "says that the node joined later: leave it out"
                )
            raise ConfigError(f"cluster.peers is {self._text}, and {self._kept.path} {why}")
        if not self._kept.known.has_formed:
            promises = await self._wait_for_all(peers)
            id, directories = self._identity(promises)
            await self._kept.keep(
                has_formed=True, cluster_id=id, directories=directories, raft_commits=0
            )

    async def _check_nobody_formed(self, peers: Peers) -> None:
        """Raises: ConfigError where the others have formed a cluster without this directory."""
        for node in self._others:
            said = await self._ask(peers, node)
            if said is not None and said.has_formed:
                raise ConfigError(
                    f"node {node} says that the cluster has formed, and the directory of "
                    f"{self._kept.path} has no part in it: {self._advice}"
                )

    def _identity(self, promises: Mapping[int, FoundingPromise]) -> tuple[str, dict[int, str]]:
        """The cluster id by the promises of all others, and the directories of which it is made.

        Empty where not all say theirs: the first controller draws the id then. Raises: ConfigError
        where others have formed a cluster with another directory of this node, or where no founder
        is left in it that could say with which one.
        """
        mine = self._kept.known.directory
        directories = {self._node_id: mine}
        for node, said in sorted(promises.items()):
            if not said.has_formed:
                directories |= {each: id for each, id in said.directories.items() if each == node}
            elif said.directories:
                if said.directories.get(self._node_id) == mine:
                    return said.cluster_id, said.directories
                raise ConfigError(
                    f"node {node} says that cluster {said.cluster_id} has formed with another "
                    f"directory of node {self._node_id} than that of {self._kept.path}: "
                    f"{self._advice}"
                )
        formed = [said for said in promises.values() if said.has_formed]
        if formed and not any(said.founders for said in formed):
            raise ConfigError(
                f"the cluster has formed without the directory of {self._kept.path}, and the nodes "
                f"that are in it now have all joined later: {self._advice}"
            )
        if formed or len(directories) <= len(promises):
            return "", {}
        return founding_id(directories), directories

    @property
    def _advice(self) -> str:
        return (
            "name the directory with --data; if it is lost, run `bascule node remove "
            f"{self._node_id} --force --yes`, and start the node with --join instead of --peers; "
            "an older copy is no substitute"
        )

    async def _wait_for_all(self, peers: Peers) -> dict[int, FoundingPromise]:
        """The promises of all others."""
        loop = asyncio.get_running_loop()
        promises: dict[int, FoundingPromise] = {}
        missing, next_line = list(self._others), loop.time() + LOG_SECONDS
        while missing:
            answers = await asyncio.gather(*(self._ask(peers, node) for node in missing))
            promises |= {
                node: said
                for node, said in zip(missing, answers, strict=True)
                if said is not None and said.has_promised
            }
            missing = [node for node in missing if node not in promises]
            if missing and loop.time() > next_line:
                log.info("waiting for the other founders", extra={"nodes": missing})
                next_line = loop.time() + LOG_SECONDS
            if missing:
                await asyncio.sleep(RETRY_SECONDS)
        return promises

    async def _ask(self, peers: Peers, node: int) -> FoundingPromise | None:
        """What a node says of itself; None where it does not answer. Raises: ConfigError."""
        try:
            reply = await peers.control(node, FOUNDING, b"", timeout_s=ASK_SECONDS_MAX)
            said = msgspec.json.decode(reply, type=FoundingPromise)
        except (BasculeError, msgspec.MsgspecError) as error:
            log.debug("no answer of a founder", extra={"node": node, "error": str(error)})
            return None
        if said.founders != self._text and not (said.has_formed and not said.founders):
            raise ConfigError(
                f"cluster.peers is {self._text}, and node {node} was started with {said.founders}: "
                "give all nodes the same --peers"
            )
        return said


def founding_nodes(entries: Sequence[str], node_id: int) -> dict[int, tuple[str, int]]:
    """Node id -> peer address of the founding nodes, from N@host:port each.

    Raises: ConfigError for an entry of another form, or where this node is missing.
    """
    found: dict[int, tuple[str, int]] = {}
    for entry in entries:
        number, at, address = entry.partition("@")
        if not (at and number.isascii() and number.isdigit()):
            raise ConfigError(
                f"cluster.peers has {entry!r}, expected N@host:port with the number of a node"
            )
        if int(number) in found:
            raise ConfigError(f"cluster.peers names node {number} twice")
        try:
            found[int(number)] = parse_address(address)
        except ValueError as error:
            raise ConfigError(f"the address of node {number} in cluster.peers {error}") from None
    if node_id not in found:
        raise ConfigError(
            f"cluster.peers names the nodes {sorted(found)}, and this is node {node_id}: "
            "give its number with --node-id"
        )
    return found
