"""Which replicas the controller asks before an unclean election, and how long. Time is virtual."""

from __future__ import annotations

from bascule.controller.unclean.elections import MISSING_SECONDS_MAX, RETRY_SECONDS
from bascule.metadata.requests import RegisterProcess
from bascule.model import NO_LEADER
from support.deciding_controller import registration
from support.electing_controller import Cluster, virtually
from support.virtual_time import elapse


@virtually(unclean=True)
async def test_the_longest_log_of_the_living_replicas_leads(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (0, 80, False)}
    await elapse(1)
    assert cluster.leader == second
    assert sorted(node for node, _ in cluster.asked) == sorted((first, second))


@virtually(unclean=True)
async def test_nobody_is_asked_about_partitions_that_have_a_leader(cluster: Cluster) -> None:
    cluster.decisions.lose(cluster.replicas()[1])
    await elapse(5)
    assert cluster.asked == []


@virtually(unclean=True)
async def test_a_replica_that_is_not_open_yet_is_waited_for(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: None}
    await elapse(MISSING_SECONDS_MAX - 2)
    assert cluster.leader == NO_LEADER
    cluster.said[second] = (0, 80, False)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == second


@virtually(unclean=True)
async def test_after_some_time_those_decide_that_have_answered(cluster: Cluster) -> None:
    first, _ = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False)}
    await elapse(MISSING_SECONDS_MAX / 2)
    assert cluster.leader == NO_LEADER
    await elapse(MISSING_SECONDS_MAX)
    assert cluster.leader == first


@virtually(unclean=True)
async def test_a_replica_that_has_stopped_is_not_elected(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (-1, 0, True)}
    await elapse(1)
    assert cluster.leader == first


@virtually(unclean=True)
async def test_without_any_log_the_partition_waits(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (-1, 0, True), second: (-1, 0, True)}
    await elapse(2 * MISSING_SECONDS_MAX)
    assert cluster.leader == NO_LEADER
    cluster.said[second] = (0, 1, False)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == second, "it was repaired"


@virtually(unclean=True)
async def test_only_the_controller_asks(cluster: Cluster) -> None:
    cluster.is_controller = False
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (0, 80, False)}
    await elapse(5)
    assert (cluster.asked, cluster.leader) == ([], NO_LEADER)
    cluster.is_controller = True
    cluster.watchers.tell()
    await elapse(1)
    assert cluster.leader == second


@virtually(unclean=True)
async def test_nothing_is_looked_at_while_nothing_changes(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (0, 80, False)}
    await elapse(0.1)
    assert cluster.leader == second, "at once"
    await elapse(1)
    looks = cluster.looks
    await elapse(60)
    assert cluster.looks == looks


@virtually(unclean=True)
async def test_a_node_that_is_back_is_asked_at_once(cluster: Cluster) -> None:
    first, second, last = cluster.replicas()
    for node in (second, last, first):
        cluster.decisions.lose(node)
    await elapse(60)
    assert cluster.asked == []
    cluster.said = {second: (0, 40, False)}
    cluster.decisions.submit(RegisterProcess(registration(second, incarnation=2)))
    await elapse(0.1)
    assert cluster.leader == second


@virtually(unclean=True)
async def test_a_new_controller_asks_again(cluster: Cluster) -> None:
    """The one before ended while it asked; this one was it in an earlier term."""
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: None}
    await elapse(MISSING_SECONDS_MAX / 2)
    cluster.is_controller = False
    cluster.watchers.tell()
    await elapse(MISSING_SECONDS_MAX)
    cluster.is_controller = True
    cluster.watchers.tell()
    await elapse(MISSING_SECONDS_MAX / 2)
    assert cluster.leader == NO_LEADER, "it waits as long as the one before"
    cluster.said[second] = (0, 80, False)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == second
