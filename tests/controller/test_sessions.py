"""Which nodes the controller takes for lost, and when. Time is virtual."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, cast

import msgspec
import pytest

from bascule.controller.cluster.sessions import (
    FOUND_RESTARTED,
    LAPSE_SECONDS,
    PING_SECONDS,
    PING_TIMEOUT_SECONDS,
    RESTARTED,
    SESSION_SECONDS,
    WATCH_SECONDS,
    Pong,
    Sessions,
)
from bascule.errors import Broken, ConnectionGone, LaggingIndex
from bascule.metadata.image import Image
from bascule.model import NodeRegistration
from bascule.sim.disk import SimClock
from support.deciding_controller import DecidingController
from support.virtual_time import VirtualTimeLoop, elapse, run_virtually


class Cluster:
    """Node 1 is the controller; nodes 2 and 3 answer as the test says."""

    def __init__(self) -> None:
        decisions = DecidingController()
        decisions.register(1, 2, 3)
        self.image: Image = decisions.image
        self.lost: list[tuple[int, str, float]] = []
        self.hung: set[int] = set()
        """Their event loops do not answer."""
        self.refusing: set[int] = set()
        self.losses: dict[int, str] = {}
        """What heartbeats say."""
        self.pong: dict[str, Any] = {}
        self.failing = 0
        """How many reports fail."""
        self.clock = SimClock(1_000_000)
        self.ahead_ms = 0
        """The clocks of the other nodes."""
        self.answers_after_ms = 0
        """Of node 2, by the clock of the controller."""
        self.sessions = Sessions(
            1, self, process_loss=self._process_loss, on_lost=self._on_lost, clock=self.clock
        )

    async def __aenter__(self) -> Cluster:
        self.sessions.follow(self.image)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sessions.close()

    def _process_loss(self, node: int, incarnation: int) -> str:
        assert incarnation == self.image.nodes[node].incarnation
        return self.losses.get(node, "")

    async def _on_lost(self, node: NodeRegistration, reason: str) -> None:
        if self.failing:
            self.failing -= 1
            raise LaggingIndex(2, 1)
        self.lost.append((node.node_id, reason, asyncio.get_running_loop().time()))

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        if node in self.refusing:
            raise ConnectionGone(f"node {node} does not listen")
        deadline = asyncio.get_running_loop().time() + timeout_s
        while node in self.hung:
            await elapse(0.001)
            if asyncio.get_running_loop().time() >= deadline:
                raise Broken(f"node {node} did not answer within {timeout_s} s")
        await elapse(0.001)
        self.clock.ms += self.answers_after_ms if node == 2 else 0
        pong = {
            "incarnation": self.image.nodes[node].incarnation,
            "applied": 0,
            "now_ms": self.clock.ms + self.ahead_ms,
            **self.pong,
        }
        return msgspec.msgpack.encode(Pong(**pong))


def virtually(
    test: Callable[[Cluster], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    async def run() -> None:
        async with Cluster() as cluster:
            await test(cluster)

    def wrapped() -> None:
        run_virtually(run())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def stall(seconds: float) -> None:
    cast(VirtualTimeLoop, asyncio.get_running_loop()).stall(seconds)


@virtually
async def test_nodes_that_answer_are_not_lost(cluster: Cluster) -> None:
    await elapse(60)
    assert cluster.lost == []


@virtually
async def test_a_process_that_does_not_run_is_lost_within_a_look(cluster: Cluster) -> None:
    await elapse(1)
    cluster.losses[2] = "no heartbeat for 0.6 s"
    await elapse(WATCH_SECONDS + 0.01)
    assert {(node, why) for node, why, _ in cluster.lost} == {(2, "no heartbeat for 0.6 s")}


@virtually
async def test_a_look_at_what_heartbeats_say_waits_for_nothing(cluster: Cluster) -> None:
    await elapse(1)
    cluster.losses[2] = "no heartbeat for 0.6 s"
    cluster.sessions.look()
    await elapse(0)
    assert [node for node, *_ in cluster.lost] == [2]


@virtually
async def test_a_new_controller_knows_at_once_what_its_heartbeats_say(cluster: Cluster) -> None:
    cluster.losses[3] = "no heartbeat for 2.0 s"
    await elapse(0.01)
    assert [node for node, *_ in cluster.lost] == [3]


@virtually
async def test_a_node_that_nobody_listens_at_is_lost_at_once(cluster: Cluster) -> None:
    await elapse(1)
    cluster.refusing.add(2)
    await elapse(PING_SECONDS + 0.01)
    assert {node for node, *_ in cluster.lost} == {2}


@virtually
async def test_an_event_loop_that_hangs_is_lost_after_the_session(cluster: Cluster) -> None:
    """Its thread may go on answering heartbeats."""
    await elapse(1)
    cluster.hung.add(3)
    await elapse(SESSION_SECONDS - 0.1)
    assert cluster.lost == []
    await elapse(0.1 + 2 * PING_TIMEOUT_SECONDS)
    node, reason, _ = cluster.lost[0]
    assert (node, "no answer for 1.5 s" in reason) == (3, True)


@virtually
async def test_an_event_loop_that_answers_every_ping_late_does_not_hang(cluster: Cluster) -> None:
    await elapse(1)
    for _ in range(10):
        cluster.hung.add(3)
        await elapse(1.2)
        cluster.hung.clear()
        await elapse(0.01)
    assert cluster.lost == []


@virtually
async def test_a_session_ends_before_the_node_stops_leading_by_itself(cluster: Cluster) -> None:
    cluster.hung.add(3)
    await elapse(LAPSE_SECONDS)
    assert cluster.lost[0][2] < LAPSE_SECONDS


@virtually
async def test_a_controller_that_was_stopped_blames_nobody(cluster: Cluster) -> None:
    await elapse(1)
    for seconds in (1.0, 5.0, 60.0):
        cluster.hung.update((2, 3))  # the answers come after the timers that are due
        await elapse(0.2)
        stall(seconds)
        await elapse(0.01)
        cluster.hung.clear()
        await elapse(2)
    assert cluster.lost == []


@virtually
async def test_a_controller_whose_event_loop_is_busy_blames_nobody(cluster: Cluster) -> None:
    """Each answer comes late by this node's own delay."""
    cluster.hung.update((2, 3))
    for _ in range(8):
        stall(1.0)
        await elapse(0.06)
    assert cluster.lost == []


@virtually
async def test_a_process_in_place_of_another_means_that_the_other_is_lost(
    cluster: Cluster,
) -> None:
    await elapse(0.01)
    cluster.pong = {"incarnation": 99}
    await elapse(2 * PING_SECONDS)
    assert {(node, reason) for node, reason, _ in cluster.lost} == {(2, RESTARTED), (3, RESTARTED)}


@virtually
async def test_a_process_that_a_new_controller_finds_in_place_of_another_is_no_surprise(
    cluster: Cluster,
) -> None:
    """As after a start of the whole cluster."""
    cluster.pong = {"incarnation": 99}
    await elapse(0.01)
    assert {(node, reason) for node, reason, _ in cluster.lost} == {
        (2, FOUND_RESTARTED),
        (3, FOUND_RESTARTED),
    }


@virtually
async def test_a_loss_that_is_not_committed_is_reported_again(cluster: Cluster) -> None:
    cluster.failing = 3
    cluster.losses[2] = "no heartbeat for 0.6 s"
    await elapse(1)
    assert cluster.lost[0][0] == 2


@virtually
async def test_sessions_end_with_the_controller(cluster: Cluster) -> None:
    cluster.sessions.close()
    cluster.losses[2] = "no heartbeat for 0.6 s"
    await elapse(10)
    assert cluster.lost == []


def test_virtual_time_jumps() -> None:
    async def main() -> float:
        await elapse(3_600)
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == pytest.approx(3_600)


@virtually
async def test_a_controller_knows_when_it_has_heard_a_majority_last(cluster: Cluster) -> None:
    loop, heard_at = asyncio.get_running_loop(), cluster.sessions.heard_at
    await elapse(10)
    assert loop.time() - heard_at((1, 2, 3)) < 2 * PING_SECONDS
    cluster.hung.add(2)
    await elapse(10)
    assert loop.time() - heard_at((1, 2, 3)) < 2 * PING_SECONDS, "itself and node 3"
    assert loop.time() - heard_at((1, 2)) > 9, "of two a majority is both"
    cluster.hung.add(3)
    silent_since = loop.time()
    await elapse(10)
    assert abs(heard_at((1, 2, 3)) - silent_since) < 2 * PING_SECONDS
    assert heard_at((1,)) == inf
    assert heard_at((1, 4, 5)) == -inf, "no session"
    cluster.hung.clear()
    await elapse(1)
    assert loop.time() - heard_at((1, 2, 3)) < 2 * PING_SECONDS


DIFFERS = "clock of a node differs from that of the controller"
AGREES = "clock of a node agrees with that of the controller again"


@pytest.mark.parametrize(
    ("ahead_ms", "answers_after_ms", "said"),
    [
        (1_001, 0, 1_001),
        (-1_001, 0, -1_001),
        (1_000, 0, None),
        (-1_000, 0, None),
        (3_000, 2_000, 3_000),
        (900, 2_000, None),
        (-1_900, 1_000, None),
        (-3_000, 1_000, -2_000),
    ],
)
def test_a_clock_that_differs_is_said_once_and_once_more_when_it_agrees(
    ahead_ms: int, answers_after_ms: int, said: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer that comes late is no difference: the node is behind for sure by what is left."""
    caplog.set_level(logging.INFO, "bascule.controller")

    def told() -> list[tuple[str, int, int]]:
        return [
            (each.message, each.node, each.ahead_ms)  # type: ignore[attr-defined]
            for each in caplog.records
            if "clock" in each.message and each.node == 2  # type: ignore[attr-defined]
        ]

    async def run() -> None:
        async with Cluster() as cluster:
            cluster.ahead_ms, cluster.answers_after_ms = ahead_ms, answers_after_ms
            await elapse(5)
            assert told() == ([] if said is None else [(DIFFERS, 2, said)])
            cluster.ahead_ms = cluster.answers_after_ms = 0
            await elapse(5)
            assert [each[0] for each in told()] == ([] if said is None else [DIFFERS, AGREES])
            assert cluster.lost == []

    run_virtually(run())


@virtually
async def test_a_node_of_an_earlier_release_says_no_time(cluster: Cluster) -> None:
    cluster.pong = {"now_ms": 0}
    await elapse(1)
    assert not any(each.clock_differs for each in cluster.sessions._sessions.values())
