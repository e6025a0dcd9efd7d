"""How a node joins a cluster that exists, finds its peers again, and learns that it was removed.

::

    cluster.json with an id of the directory --> Admit --> the controller, the image of all nodes
        --> learner of the metadata group --> registers --> voter, when it is wanted as one

The admission comes before the Raft group is opened: a number is used by one directory at a time. A
node that was removed has no place in the group and hears nothing of it, so it asks: as long as no
controller reaches it, it has any node that it knows look up its standing at the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

import msgspec

from bascule.cluster_identity import ClusterIdentity, ForeignPeer
from bascule.config.addresses import parse_address
from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.errors import (
    BasculeError,
    ConfigError,
    Indeterminate,
    NodeRefused,
    RemoteProtocolError,
)
from bascule.metadata.requests import Admit, LookUp
from bascule.model import NodeRegistration
from bascule.node.cluster_file import KeptCluster
from bascule.node.founding import ASK_SECONDS_MAX, FOUNDING, LOG_SECONDS, FoundingPromise

log = logging.getLogger("bascule.node")

JOIN: Final = "join"
"""The kind of control request of a node that wants to be admitted."""
STANDING: Final = "standing"
"""The kind of control request that asks whether a node still belongs to the cluster."""
RETRY_SECONDS: Final = 0.5
JOIN_SECONDS_MAX: Final = 25.0
"""For an answer: longer than a node waits for a controller."""


class Seeds(Peers, Protocol):
    """Requests to nodes, and to addresses whose node is not known; see `peer_client`."""

    async def control_at(
        self, address: tuple[str, int], kind: str, body: bytes, *, timeout_s: float
    ) -> bytes: ...


class ClusterStanding(msgspec.Struct, frozen=True):
    """The answer to a node that belongs to the cluster."""

    cluster_id: str
    nodes: dict[int, str]
    """Node id -> host:port of its peer listener."""
    index: int
    """Log index at which it belongs to the cluster."""
    cluster_version: int = 1
    """In force."""
    controller: int = 0
    """As far as the node knows that answers; 0 of earlier releases."""


class Joining:
    """This node's part, and its answers to others. Belongs to the event loop."""

    def __init__(
        self,
        kept: KeptCluster,
        identity: ClusterIdentity,
        peers: Seeds,
        metadata: MetadataGroup,
        seeds: Sequence[str],
    ) -> None:
        """`seeds` are `--join`: host:port of peer listeners."""
        self._kept = kept
        self._identity = identity
        self._peers = peers
        self._metadata = metadata
        self._seeds = seeds

    async def check_same_cluster(self) -> None:
        """Ask the nodes that --join names which cluster they belong to; those that are silent count
        for none. Addresses that are only remembered may be another cluster's by now: the hello of
        each connection finds that.

        Raises: ConfigError for another cluster than that of the data directory.
        """
        if self._kept.known.cluster_id:
            await asyncio.gather(*(self._check_seed(each) for each in sorted(set(self._seeds))))

    async def _check_seed(self, address: str) -> None:
        said = await self._ask_cluster(address)
        mine = self._kept.known.cluster_id
        if said and said != mine:
            raise ConfigError(
                f"{self._kept.path} says that the node belongs to cluster {mine}, and the node at "
                f"{address} belongs to cluster {said}: name nodes of its own cluster with --join, "
                "or an empty directory with --data"
            )

    async def _ask_cluster(self, address: str) -> str | None:
        """The id of the cluster of the node there, which may be empty; None: no answer."""
        try:
            reply = await self._peers.control_at(
                parse_address(address), FOUNDING, b"", timeout_s=ASK_SECONDS_MAX
            )
            return msgspec.json.decode(reply, type=FoundingPromise).cluster_id
        except (BasculeError, msgspec.MsgspecError) as error:
            log.debug("no answer of a peer", extra={"peer": address, "error": str(error)})
            return None

    async def _is_of_this_cluster(self, address: str) -> bool:
        """Whether a node answers that does not belong to another cluster. That one knows other
        nodes by the numbers of this cluster, and would say that this one is not wanted."""
        said = await self._ask_cluster(address)
        try:
            self._identity.check_id(said or "")
        except ForeignPeer as error:
            self._identity.on_misled(error, node=0, address=address)
            return False
        return said is not None

    async def join(self, node: NodeRegistration) -> None:
        """Return once the cluster has admitted this node, however long it does not answer.

        Raises: NodeRefused, RemoteProtocolError for a cluster of another name; OSError.
        """
        await self._kept.keep(has_formed=False)
        loop = asyncio.get_running_loop()
        next_line, number = loop.time(), 0
        body = self._mine(node)
        while True:
            seed = self._seeds[number % len(self._seeds)]
            try:
                reply = await self._peers.control_at(
                    parse_address(seed), JOIN, body, timeout_s=JOIN_SECONDS_MAX
                )
                break
            except (NodeRefused, RemoteProtocolError):
                raise
            except BasculeError as error:
                if loop.time() >= next_line:
                    extra = {"peer": seed, "error": str(error)}
                    log.info("waiting for the cluster to join", extra=extra)
                    next_line = loop.time() + LOG_SECONDS
            number += 1
            await asyncio.sleep(RETRY_SECONDS)
        said = msgspec.msgpack.decode(reply, type=ClusterStanding)
        await self._kept.keep(
            has_formed=True,
            cluster_id=said.cluster_id,
            admitted_index=said.index,
            nodes=said.nodes,
            cluster_version=said.cluster_version,
            raft_commits=0,
        )
        log.info("admitted to the cluster", extra={"cluster_id": said.cluster_id})

    async def look_up(self, node: NodeRegistration) -> dict[int, str]:
        """Have another node look this one up; the addresses of all nodes, empty: none answered.

        Where the cluster has another address of this node, no controller reaches it: it asks the
        one that the other node knows until it is registered again.

        Raises: NodeRefused where this node was removed.
        """
        self._metadata.told_controller = 0
        body = self._mine(node)
        for address in sorted({*self._kept.known.nodes.values(), *self._seeds} - {node.peer}):
            if not await self._is_of_this_cluster(address):
                continue
            try:
                reply = await self._peers.control_at(
                    parse_address(address), STANDING, body, timeout_s=ASK_SECONDS_MAX
                )
                said = msgspec.msgpack.decode(reply, type=ClusterStanding)
                if said.nodes.get(node.node_id) != node.peer:
                    self._metadata.told_controller = said.controller
                return said.nodes
            except NodeRefused:
                raise
            except (BasculeError, msgspec.MsgspecError) as error:
                log.debug("no answer of a peer", extra={"peer": address, "error": str(error)})
        return {}

    async def answer_join(self, body: bytes) -> bytes:
        """Have the controller admit a node. Raises: NodeRefused, Indeterminate."""
        node = msgspec.msgpack.decode(body, type=NodeRegistration)
        self._check_controller()
        index = await self._metadata.submit(Admit(node))
        log.info("node admitted", extra={"node": node.node_id, "peer": node.peer})
        return self._standing(index)

    async def answer_standing(self, body: bytes) -> bytes:
        """Look another node up at the controller. Raises: NodeRefused, Indeterminate."""
        node = msgspec.msgpack.decode(body, type=NodeRegistration)
        self._check_controller()
        return self._standing(await self._metadata.submit(LookUp(node)))

    def _check_controller(self) -> None:
        if not self._metadata.controller_id:
            raise Indeterminate("this node knows no controller yet")

    def _mine(self, node: NodeRegistration) -> bytes:
        return msgspec.msgpack.encode(replace(node, directory=self._kept.known.directory))

    def _standing(self, index: int) -> bytes:
        image = self._metadata.image
        nodes = {number: each.peer for number, each in image.nodes.items()}
        return msgspec.msgpack.encode(
            ClusterStanding(
                image.cluster_id,
                nodes,
                index,
                image.cluster_version,
                self._metadata.controller_id,
            )
        )
