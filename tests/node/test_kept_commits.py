"""A node does not start without the metadata that it has confirmed, nor with an older copy."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealFiles, RealRandom
from bascule.node.cluster_file import KeptCluster, KeptCommits
from bascule.raft.membership import Members
from bascule.raft_driver.data_directory import DataDirectory

NODE = 3
FOUNDERS = "1@a:1,2@b:1,3@c:1"
NODES = {1: "a:1", 2: "b:1", 3: "c:1"}


class Directory:
    """The data directory of a node of a cluster, which starts and stops."""

    def __init__(self, path: Path, **content: Any) -> None:
        """`content` is what the file of the cluster says."""
        self.path = path
        path.mkdir(exist_ok=True)
        asyncio.run(self._kept().keep(has_formed=True, **content))

    def _kept(self) -> KeptCluster:
        return KeptCluster(RealFiles(), str(self.path), RealRandom())

    def run(self, *terms: int) -> None:
        """Start the node, have it vote in these terms, and stop it."""

        async def start() -> None:
            kept = self._kept()
            await kept.load()
            commits = KeptCommits(kept, NODE)
            directory = DataDirectory(str(self.raft), node_id=NODE, known=commits.known)
            try:
                await commits.on_opened(directory.commits)
                store = directory.store(1)
                if store.load().initial_members is None:
                    store.bootstrap(Members.of(1, 2, 3))
                for term in terms:
                    store.persist_term(term, 1)
                await commits.keep(directory.commits)
            finally:
                directory.close()

        asyncio.run(start())

    @property
    def raft(self) -> Path:
        return self.path / "raft"

    def change(self, **content: Any) -> None:
        """Change the file as another release would."""
        file = self.path / "cluster.json"
        before = json.loads(file.read_bytes())
        kept = {name: value for name, value in before.items() if name not in content}
        kept |= {name: value for name, value in content.items() if value is not None}
        file.write_bytes(msgspec.json.encode(kept))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path, founders=FOUNDERS, nodes=NODES, raft_commits=0)


def test_a_node_that_has_voted_does_not_start_without_its_store(directory: Directory) -> None:
    directory.run(1)
    shutil.rmtree(directory.raft)
    with pytest.raises(CorruptData, match=r"commits or more, as .*cluster\.json says, found no d"):
        directory.run()
    with pytest.raises(CorruptData, match=r"node remove N --force --yes.* --join and an empty"):
        directory.run()


def test_an_older_copy_of_the_store_is_refused_however_often_it_is_started(
    directory: Directory, tmp_path: Path
) -> None:
    directory.run(1)
    shutil.copytree(directory.raft, tmp_path / "copy")
    directory.run(2, 3)
    shutil.rmtree(directory.raft)
    shutil.copytree(tmp_path / "copy", directory.raft)
    for _ in range(12):
        with pytest.raises(CorruptData, match=r"expected \d+ commits.*found \d+: it is an older"):
            directory.run()


def test_a_crash_between_forming_and_the_first_vote_costs_nothing(directory: Directory) -> None:
    directory.raft.mkdir()
    directory.run(1)
    directory.run(2)


@pytest.mark.parametrize("admitted_index", [0, 9])
def test_a_directory_of_an_earlier_release_has_a_store_once_the_nodes_are_kept(
    directory: Directory, admitted_index: int
) -> None:
    directory.run(1)
    directory.change(raft_commits=None, admitted_index=admitted_index)
    directory.run(2)
    directory.change(raft_commits=None)
    shutil.rmtree(directory.raft)
    with pytest.raises(CorruptData, match="found no database"):
        directory.run()


def test_a_founder_of_an_earlier_release_that_was_never_registered_may_start(
    tmp_path: Path,
) -> None:
    Directory(tmp_path, founders=FOUNDERS).run(1)


@pytest.mark.parametrize(
    "content", [{}, {"nodes": {NODE: "c:1"}}, {"founders": FOUNDERS, "nodes": {NODE: "c:1"}}]
)
def test_a_node_without_others_goes_on_from_an_older_copy(
    tmp_path: Path, content: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    alone = Directory(tmp_path / "data", raft_commits=0, **content)
    alone.run(1)
    shutil.copytree(alone.raft, tmp_path / "copy")
    alone.run(2, 3)
    shutil.rmtree(alone.raft)
    with pytest.raises(CorruptData, match="found no database"):
        alone.run()
    shutil.rmtree(alone.raft)
    shutil.copytree(tmp_path / "copy", alone.raft)
    alone.run()
    assert "an older copy" in caplog.text
    alone.run()
