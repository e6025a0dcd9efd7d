"""Founders know the cluster id before they take part in Raft; another set of directories is another
cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from bascule.errors import Broken, ConfigError
from bascule.host.real import RealFiles, RealRandom
from bascule.node.cluster_file import KeptCluster
from bascule.node.cluster_id import founding_id
from bascule.node.founding import Founding, FoundingPromise

FOUNDERS = {number: ("127.0.0.1", 7_000 + number) for number in (1, 2, 3)}


@dataclass
class World:
    """Nodes that ask each other directly; one that is not in `nodes` does not answer."""

    directory: Path
    nodes: dict[int, Founding] = field(default_factory=dict)
    kept: dict[int, KeptCluster] = field(default_factory=dict)
    change: Callable[[FoundingPromise], FoundingPromise] = lambda said: said
    """What becomes of the promises."""

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        if node not in self.nodes:
            raise Broken("nobody there")
        reply = await self.nodes[node].answer(body)
        return msgspec.json.encode(self.change(msgspec.json.decode(reply, type=FoundingPromise)))

    async def found(self, *numbers: int, place: str = "") -> None:
        """Start these, each with a directory of its own, and return once they have formed."""
        for number in numbers:
            data = self.directory / f"{place}{number}"
            data.mkdir(exist_ok=True)
            kept = KeptCluster(RealFiles(), str(data), RealRandom())
            await kept.load()
            self.kept[number], self.nodes[number] = kept, Founding(number, FOUNDERS, kept)
        await asyncio.gather(*(self.nodes[number].take_part(self) for number in numbers))

    def ids(self, *numbers: int) -> set[str]:
        return {self.kept[number].known.cluster_id for number in numbers}


def as_before_ids(said: FoundingPromise) -> FoundingPromise:
    """The promise of an earlier release."""
    return msgspec.structs.replace(said, directories={})


def test_all_founders_get_the_id_of_their_directories(tmp_path: Path) -> None:
    world = World(tmp_path)
    asyncio.run(world.found(1, 2, 3))
    directories = {number: world.kept[number].known.directory for number in (1, 2, 3)}
    assert world.ids(1, 2, 3) == {founding_id(directories)}
    for number in (1, 2, 3):
        assert world.kept[number].known.directories == directories
    other = World(tmp_path)
    asyncio.run(other.found(1, 2, 3, place="other"))
    assert other.ids(1, 2, 3) != world.ids(1, 2, 3)


def test_a_founder_that_forms_last_learns_the_id_of_the_others(tmp_path: Path) -> None:
    """It has promised, and was stopped before it heard all promises. Meanwhile another one was lost
    and has joined anew."""

    async def scene() -> None:
        world = World(tmp_path)
        await world.found(1, 2, 3)
        await world.kept[3].keep(has_formed=False, cluster_id="", directories={})
        await world.kept[2].keep(founders="", directories={}, directory="another")
        await world.nodes[3].take_part(world)
        assert world.ids(1, 3) == world.ids(1)
        assert world.kept[3].known.directories == world.kept[1].known.directories

    asyncio.run(scene())


def test_a_founder_of_another_cluster_is_none_of_this_one(tmp_path: Path) -> None:
    """It has promised itself to founders at the same addresses, and never formed."""

    async def scene() -> None:
        world = World(tmp_path)
        await world.found(1, 2, 3)
        stray = KeptCluster(RealFiles(), str(tmp_path), RealRandom())
        await stray.keep(founders=world.kept[3].known.founders)
        with pytest.raises(ConfigError, match=r"another directory of node 3 .* node remove 3"):
            await Founding(3, FOUNDERS, stray).take_part(world)
        assert not stray.known.has_formed

    asyncio.run(scene())


def test_a_founder_without_its_disk_does_not_form_with_nodes_that_joined_later(
    tmp_path: Path,
) -> None:
    """The other founders were replaced one after the other. They did not answer while this one made
    its promise, and know of no founder's directory. Its votes are lost."""

    async def scene() -> None:
        world = World(tmp_path)
        await world.found(1, 2, 3)
        for number in (2, 3):
            await world.kept[number].keep(founders="", directories={}, directory=f"new{number}")
        empty = KeptCluster(RealFiles(), str(tmp_path), RealRandom())
        await empty.keep(founders=world.kept[1].known.founders)
        with pytest.raises(ConfigError, match=r"formed without .* node remove 1"):
            await Founding(1, FOUNDERS, empty).take_part(world)
        assert not empty.known.has_formed

    asyncio.run(scene())


@pytest.mark.parametrize("number", [1, 2, 3])
def test_with_founders_of_an_earlier_release_the_first_controller_draws_the_id(
    tmp_path: Path, number: int
) -> None:
    world = World(tmp_path)
    world.change = lambda said: as_before_ids(said) if number in said.directories else said
    asyncio.run(world.found(1, 2, 3))
    others = {1, 2, 3} - {number}
    assert world.ids(*others) == {""}
