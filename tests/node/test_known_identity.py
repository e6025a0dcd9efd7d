"""What a node knows of its cluster's identity, by its disk and by the metadata. Time is virtual."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bascule.cluster_identity import ClusterIdentity
from bascule.controller.cluster.metadata_group.watching import Watchers
from bascule.host.real import RealFiles, RealRandom
from bascule.metadata.image import Image
from bascule.node.cluster_file import ClusterFile, KeptCluster
from bascule.node.cluster_id import REQUIRED_SECONDS, KnownIdentity
from support.virtual_time import elapse, run_virtually


class Node:
    def __init__(self, directory: Path) -> None:
        self.kept = KeptCluster(RealFiles(), str(directory), RealRandom(1))
        self.identity = ClusterIdentity("blue")
        self.changes = 0
        self.others: list[str] = []
        self._watchers = Watchers()
        self._metadata = SimpleNamespace(image=Image(), watchers=self._watchers)
        self.known = KnownIdentity(
            self.identity, self.kept, cast(Any, self._metadata),
            on_changed=self._on_changed, on_other=self.others.append,
        )  # fmt: skip

    def _on_changed(self) -> None:
        self.changes += 1

    def learn(self, cluster_id: str, version: int) -> None:
        """The group agrees on this."""
        self._metadata.image = Image(cluster_id=cluster_id, cluster_version=version)
        self._watchers.tell()

    @property
    def state(self) -> tuple[str, bool, bool]:
        found = self.identity
        return found.id, found.tells_id, found.requires_ids


def test_ids_are_told_and_then_required_once_all_nodes_tell_them(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        node.kept.content = ClusterFile(cluster_id="a")
        node.known.on_kept()
        assert node.state == ("a", False, False)
        node.learn("", 1)
        node.learn("a", 1)
        assert (node.state, node.changes) == (("a", False, False), 0)
        node.learn("a", 2)
        node.learn("a", 2)
        assert (node.state, node.changes) == (("a", True, False), 1)
        await elapse(REQUIRED_SECONDS - 0.1)
        assert not node.identity.requires_ids
        await elapse(0.2)
        assert (node.state, node.changes) == (("a", True, True), 2)

    run_virtually(scene())


def test_a_node_that_starts_again_requires_them_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        await node.kept.keep(cluster_id="a", cluster_version=2)
        node.known.on_kept()
        assert node.state == ("a", True, True)

    asyncio.run(scene())


def test_an_id_that_comes_from_the_metadata_is_stored_first(tmp_path: Path) -> None:
    """Before the node registers, and so before the cluster version rises."""

    async def scene() -> None:
        node = Node(tmp_path)
        await node.kept.keep(has_formed=True)
        node.known.on_kept()
        keeping = asyncio.ensure_future(node.known.keep())
        asyncio.get_running_loop().call_soon(node.learn, "a", 1)
        await keeping
        assert (node.kept.known.cluster_id, node.state[0]) == ("a", "a")

    asyncio.run(scene())


def test_the_metadata_of_another_cluster_are_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        await node.kept.keep(cluster_id="a")
        node.known.on_kept()
        node.learn("b", 2)
        assert node.state == ("a", False, False)
        (why,) = node.others
        assert "belongs to cluster a, and its metadata are those of cluster b" in why

    asyncio.run(scene())
