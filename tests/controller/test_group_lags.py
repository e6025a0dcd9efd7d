"""The lag of groups for metrics: which are shown, where ends come from, and how old they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import msgspec

from bascule.controller.cluster.groups import ENDS, GroupLags, PartitionEnds
from bascule.controller.cluster.groups.group_lags import GroupLagStatistics
from bascule.controller.cluster.groups.partition_ends import Ends, Place
from bascule.errors import Broken, UnknownStream
from bascule.groups.described import GroupSummary
from bascule.model import NO_LEADER, PartitionState
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import OffsetKey

HERE, ELSEWHERE, DEAD = 1, 2, 3


class Groups:
    """Two groups with members, of which one has none any more."""

    def __init__(self) -> None:
        self.code = ErrorCode.NONE

    def error(self) -> ErrorCode:
        return self.code

    def names(self) -> list[str]:
        return ["left", "billing"]

    def summary(self, name: str) -> GroupSummary | None:
        return GroupSummary(name, state="Stable", members=3) if name == "billing" else None


class Store:
    """Committed offsets; the stream `gone` does not exist."""

    def __init__(self) -> None:
        self.offsets = {
            OffsetKey("archive", "flights", 0): 10,
            OffsetKey("archive", "gone", 0): 10,
            OffsetKey("billing", "flights", 0): 40,
            OffsetKey("billing", "flights", 1): 70,
        }
        self.counts = SimpleNamespace(held=len(self.offsets))

    def consumers(self) -> list[str]:
        return ["archive", "billing"]

    def keys(self, consumer: str) -> list[OffsetKey]:
        return [key for key in self.offsets if key.consumer == consumer]

    def committed(self, *key: Any) -> int | None:
        return self.offsets.get(OffsetKey(*key))


class KnownEnds:
    def __init__(self) -> None:
        self.known = {("flights", 0): Ends(0, 50), ("flights", 1): Ends(0, 60)}
        self.asked: list[set[Place]] = []

    async def find(self, places: Iterable[Place], *, from_replicas: bool) -> dict[Place, Ends]:
        assert from_replicas
        wanted = set(places)
        self.asked.append(wanted)
        return {place: ends for place, ends in self.known.items() if place in wanted}


class Scene:
    def __init__(self, series_max: int = 100) -> None:
        self.groups, self.store, self.ends, self.now = Groups(), Store(), KnownEnds(), 100.0
        parts: Any = (self.groups, self.store, self.ends, lambda: self.now)
        self.lags = GroupLags(*parts, series_max=series_max)

    def collect(self) -> GroupLagStatistics:
        return asyncio.run(self.lags.collect())


def test_the_lag_of_each_offset_whose_end_is_known() -> None:
    found = Scene().collect()
    assert found.size == {("billing", "Stable"): 3}
    assert found.lag == {
        ("billing", "flights", 0): 10,
        ("billing", "flights", 1): 0,  # the end is older than the commit
        ("archive", "flights", 0): 40,
    }
    assert found.left_out == 1


def test_groups_with_members_are_shown_first_where_there_are_too_many() -> None:
    found = Scene(series_max=2).collect()
    assert set(found.lag) == {("billing", "flights", 0), ("billing", "flights", 1)}
    assert found.left_out == 2
    none = Scene(series_max=0).collect()
    assert (none.size, none.lag, none.left_out) == ({}, {}, 4)


def test_ends_are_looked_up_once_a_second() -> None:
    scene = Scene()
    scene.collect()
    scene.now += 0.9
    scene.store.offsets["archive", "flights", 0] = 20  # type: ignore[index]
    assert scene.collect().lag["archive", "flights", 0] == 30
    assert len(scene.ends.asked) == 1
    scene.ends.known["flights", 2] = Ends(0, 60)
    scene.store.offsets[OffsetKey("archive", "flights", 2)] = 20
    assert scene.collect().lag["archive", "flights", 2] == 40
    assert len(scene.ends.asked) == 2, "a partition that is new is asked for at once"
    scene.now += 1.1
    scene.collect()
    assert len(scene.ends.asked) == 3


def test_a_node_that_coordinates_nothing_shows_nothing() -> None:
    scene = Scene()
    scene.groups.code = ErrorCode.NOT_COORDINATOR
    assert scene.collect() == GroupLagStatistics()
    assert not scene.ends.asked


class Cluster:
    """Partitions of `flights`: 0 is led here, 1 and 2 elsewhere, 3 by a node that is dead, 4 by
    nobody. There are replicas here of all but 2; those of 1 and 4 are in sync."""

    LEADERS = (HERE, ELSEWHERE, ELSEWHERE, DEAD, NO_LEADER)
    IN_SYNC = ((HERE,), (HERE, ELSEWHERE), (ELSEWHERE,), (DEAD,), (HERE,))

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[Place]]] = []
        replicas = [
            SimpleNamespace(
                log=None if index == 2 else object(),
                start_offset=index,
                high_watermark=SimpleNamespace(offset=100 + index),
            )
            for index in range(len(self.LEADERS))
        ]
        streams = {"flights": replicas}
        self.partitions = SimpleNamespace(stream=streams.get)

    def definition(self, name: str) -> Any:
        if name != "flights":
            raise UnknownStream(name)
        return SimpleNamespace(id=b"flights")

    def states(self, id: bytes) -> list[PartitionState]:
        assert id == b"flights"
        return [
            PartitionState((1, 2, 3), in_sync, leader, 1, 1)
            for leader, in_sync in zip(self.LEADERS, self.IN_SYNC, strict=True)
        ]

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        places = msgspec.msgpack.decode(body, type=list[Place])
        self.asked.append((node, places))
        assert kind == ENDS
        if node == DEAD:
            raise Broken("it does not answer")
        return msgspec.msgpack.encode([(place, Ends(place[1], 200 + place[1])) for place in places])


PLACES = [("flights", index) for index in (*range(6), -1, -9)] + [("gone", 0)]
"""With partitions that there are not: an assignment is what a client has made of it."""


def ends_of(cluster: Cluster, *, from_replicas: bool) -> dict[int, int]:
    """Partition -> its end."""
    parts: Any = (cluster.partitions, cluster, cluster)
    found = asyncio.run(PartitionEnds(HERE, *parts).find(PLACES, from_replicas=from_replicas))
    assert all(stream == "flights" for stream, _ in found)
    return {partition: ends.high_watermark for (_, partition), ends in found.items()}


def test_leaders_are_asked_once_each() -> None:
    cluster = Cluster()
    assert ends_of(cluster, from_replicas=False) == {0: 100, 1: 201, 2: 202, 3: 103, 4: 104}
    assert sorted(cluster.asked) == [
        (ELSEWHERE, [("flights", 1), ("flights", 2)]),
        (DEAD, [("flights", 3)]),
    ]


def test_replicas_in_sync_are_good_enough_for_metrics() -> None:
    cluster = Cluster()
    assert ends_of(cluster, from_replicas=True) == {0: 100, 1: 101, 2: 202, 3: 103, 4: 104}
    assert sorted(cluster.asked) == [(ELSEWHERE, [("flights", 2)]), (DEAD, [("flights", 3)])]


def test_a_node_answers_for_what_it_leads() -> None:
    cluster = Cluster()
    parts: Any = (cluster.partitions, cluster, cluster)
    body = msgspec.msgpack.encode(PLACES)
    reply = asyncio.run(PartitionEnds(HERE, *parts).answer(body))
    assert msgspec.msgpack.decode(reply) == [[["flights", 0], [0, 100]]]
