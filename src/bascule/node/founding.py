"""How empty nodes become one cluster, and never two, and why a node must not come back empty.

A voter of a Raft group that has lost its disk could vote twice in a term, and the only replica in
sync of a partition could lead with an empty log. So a node founds the group only together with all
others: each promises itself on its disk, and goes on when it has heard the promise of every other
one. A node without a promise that meets a cluster which has formed has lost its disk, or does not
belong to it; it does not start. The promise is kept in `cluster.json` in the data directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from bascule.config.addresses import format_address
from bascule.controller.cluster.earlier_image import FILE_NAME as IMAGE_FILE_NAME
from bascule.controller.cluster.metadata_group import Peers
from bascule.errors import BasculeError, ConfigError, CorruptData
from bascule.host.api import Files
from bascule.storage.checkpoint import replace_file

log = logging.getLogger("bascule.node")

FILE_NAME: Final = "cluster.json"
FOUNDING: Final = "founding"
"""The kind of control request that asks a node for its promise."""
ASK_SECONDS_MAX: Final = 2.0
RETRY_SECONDS: Final = 0.1
LOG_SECONDS: Final = 10.0
"""Time between log lines of a node that waits for others."""


class FoundingPromise(msgspec.Struct, frozen=True):
    """What a node says of itself; also the content of its file."""

    founders: str
    """`--peers`, sorted; empty for a node that began alone."""
    has_promised: bool = True
    """False in an answer of a node whose promise is not on its disk yet."""
    has_formed: bool = False
    """Whether the node has heard the promises of all founders."""


class Founding:
    """This node's part. Belongs to the event loop."""

    def __init__(
        self, node_id: int, founders: Mapping[int, tuple[str, int]], files: Files, data: str
    ) -> None:
        """`founders` are node id -> peer address of all founding nodes; `data` is the data
        directory."""
        self._node_id = node_id
        self._others = [node for node in sorted(founders) if node != node_id]
        self._text = ",".join(f"{n}@{format_address(*at)}" for n, at in sorted(founders.items()))
        self._files = files
        self._data = data
        self._path = f"{data}/{FILE_NAME}"
        self._said = FoundingPromise(self._text, has_promised=False)

    async def answer(self, body: bytes) -> bytes:
        """Answer another node's question."""
        return msgspec.json.encode(self._said)

    async def take_part(self, peers: Peers) -> None:
        """Return once the cluster has formed, with this node.

        Raises: ConfigError where this node does not belong to the cluster that has formed, worked
        alone before, or was started with other founders; CorruptData, OSError.
        """
        kept = await asyncio.to_thread(self._load)
        if kept is None:
            await self._check_nobody_formed(peers)
            await self._keep(FoundingPromise(self._text))
        else:
            self._said = kept
        if not self._said.has_formed:
            await self._wait_for_all(peers)
            await self._keep(FoundingPromise(self._text, has_formed=True))

    def _load(self) -> FoundingPromise | None:
        if self._text and self._files.exists(f"{self._data}/{IMAGE_FILE_NAME}"):
            raise self._worked_alone()
        if not self._files.exists(self._path):
            return None
        data = self._files.read_bytes(self._path)
        try:
            kept = msgspec.json.decode(data, type=FoundingPromise)
        except msgspec.MsgspecError as error:
            raise CorruptData(self._path, 0, "a promise as JSON", str(error)) from None
        if kept.founders != self._text and not kept.founders:
            raise self._worked_alone()
        if kept.founders != self._text:
            raise ConfigError(
                f"cluster.peers is {self._text or 'empty'}, and {self._path} names the founders "
                f"{kept.founders}: start the node with these"
            )
        return kept

    def _worked_alone(self) -> ConfigError:
        return ConfigError(
            f"data directory {self._data} is that of a node that worked alone: start it without "
            "--peers, or name an empty directory with --data"
        )

    async def _keep(self, promise: FoundingPromise) -> None:
        await asyncio.to_thread(
            replace_file, self._files, self._path, msgspec.json.encode(promise) + b"\n"
        )
        self._said = promise

    async def _check_nobody_formed(self, peers: Peers) -> None:
        """Raises: ConfigError where the others have formed a cluster without this directory."""
        for node in self._others:
            said = await self._ask(peers, node)
            if said is not None and said.has_formed:
                raise ConfigError(
                    f"node {node} says that the cluster has formed, and data directory "
                    f"{self._data} has no part in it: a node that has lost its disk cannot come "
                    "back under its number yet; restore the directory"
                )

    async def _wait_for_all(self, peers: Peers) -> None:
        loop = asyncio.get_running_loop()
        missing, next_line = list(self._others), loop.time() + LOG_SECONDS
        while missing:
            answers = await asyncio.gather(*(self._ask(peers, node) for node in missing))
            missing = [
                node
                for node, said in zip(missing, answers, strict=True)
                if said is None or not said.has_promised
            ]
            if missing and loop.time() > next_line:
                log.info("waiting for the other founders", extra={"nodes": missing})
                next_line = loop.time() + LOG_SECONDS
            if missing:
                await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self, peers: Peers, node: int) -> FoundingPromise | None:
        """What a node says of itself; None where it does not answer. Raises: ConfigError."""
        try:
            reply = await peers.control(node, FOUNDING, b"", timeout_s=ASK_SECONDS_MAX)
            said = msgspec.json.decode(reply, type=FoundingPromise)
        except (BasculeError, msgspec.MsgspecError) as error:
            log.debug("no answer of a founder", extra={"node": node, "error": str(error)})
            return None
        if said.founders != self._text:
            raise ConfigError(
                f"cluster.peers is {self._text}, and node {node} was started with {said.founders}: "
                "give all nodes the same --peers"
            )
        return said
