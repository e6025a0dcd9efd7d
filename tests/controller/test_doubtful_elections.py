"""How long the controller waits for logs where all machines have lost their power. Time is virtual.

The log of one node is damaged, which nobody can tell: it is shorter than those of the others.
"""

from __future__ import annotations

import pytest

from bascule.controller.unclean.elections import (
    DOUBTFUL_SECONDS_MAX,
    MISSING_SECONDS_MAX,
    RETRY_SECONDS,
)
from bascule.errors import CannotRemoveNode
from bascule.metadata.commands import FenceNode
from bascule.metadata.requests import Alter, Leave, settle
from bascule.metadata.troubles import find_troubles
from bascule.model import NO_LEADER
from support.electing_controller import Cluster, virtually
from support.virtual_time import elapse

WHOLE, DAMAGED, BEHIND = (0, 100, False), (0, 60, False), (0, 10, False)
FAILED = -1, 0, True


async def come_later(cluster: Cluster, first_s: float, opening_s: float) -> None:
    """The damaged node is back before the others, which take time to open their logs."""
    damaged, *others = cluster.lose_power()
    cluster.reboot(damaged, DAMAGED)
    await elapse(first_s)
    assert cluster.leader == NO_LEADER
    for node in others:
        cluster.reboot(node, None)
    await elapse(opening_s)
    assert cluster.leader == NO_LEADER
    for node in others:
        cluster.said[node] = WHOLE
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader in others


@virtually(min_isr=2)
async def test_a_node_that_comes_is_waited_for_while_it_opens_its_log(cluster: Cluster) -> None:
    await come_later(cluster, MISSING_SECONDS_MAX + 1, 2)


@virtually(min_isr=1)
async def test_also_where_one_replica_in_sync_is_known(cluster: Cluster) -> None:
    await come_later(cluster, MISSING_SECONDS_MAX + 1, 2)


@virtually(min_isr=3)
async def test_logs_that_take_long_to_open_are_waited_for(cluster: Cluster) -> None:
    await come_later(cluster, 0, MISSING_SECONDS_MAX + 2)


@virtually(min_isr=3)
async def test_a_node_that_comes_late_gets_time_to_open_its_log(cluster: Cluster) -> None:
    damaged, whole, slow = cluster.lose_power()
    cluster.reboot(damaged, DAMAGED)
    await elapse(DOUBTFUL_SECONDS_MAX - 1)
    cluster.reboot(whole, None)
    cluster.reboot(slow, None)
    await elapse(DOUBTFUL_SECONDS_MAX - 5)
    assert cluster.leader == NO_LEADER
    cluster.said[whole] = WHOLE
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == NO_LEADER, "the third one has its time, too"
    await elapse(5)
    assert cluster.leader == whole


@virtually(min_isr=3)
async def test_a_node_that_comes_again_and_again_stops_nobody(cluster: Cluster) -> None:
    first, second, flapping = cluster.lose_power()
    cluster.reboot(first, WHOLE)
    cluster.reboot(second, WHOLE)
    for incarnation in range(2, 2 + int(2 * DOUBTFUL_SECONDS_MAX)):
        cluster.reboot(flapping, None, incarnation=incarnation)
        await elapse(1)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader in (first, second)


@virtually(min_isr=2)
async def test_a_machine_that_never_comes_back_stops_nobody(cluster: Cluster) -> None:
    damaged, whole, _ = cluster.lose_power()
    cluster.reboot(damaged, DAMAGED)
    cluster.reboot(whole, WHOLE)
    await elapse(DOUBTFUL_SECONDS_MAX - 1)
    assert cluster.leader == NO_LEADER
    await elapse(1 + 2 * RETRY_SECONDS)
    assert cluster.leader == whole


@virtually(min_isr=2)
async def test_one_of_three_does_not_decide(cluster: Cluster) -> None:
    """Two were found dead one after the other, so that two count as in sync or eligible."""
    whole, _, damaged = cluster.lose_power()
    cluster.reboot(damaged, DAMAGED)
    await elapse(3_600)
    assert cluster.leader == NO_LEADER
    (ref,) = find_troubles(cluster.image).leaderless
    assert "once more of them are alive: start the nodes" in ref.waits
    cluster.reboot(whole, WHOLE)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == whole


@virtually(min_isr=3, unclean=True)
async def test_after_the_minute_an_unclean_election_is_held_where_it_is_allowed(
    cluster: Cluster,
) -> None:
    alive, _, _ = cluster.lose_power()
    cluster.reboot(alive, WHOLE)
    await elapse(DOUBTFUL_SECONDS_MAX - 1)
    assert cluster.leader == NO_LEADER
    await elapse(1 + 2 * RETRY_SECONDS)
    assert cluster.leader == alive
    assert cluster.state.unclean_epoch == cluster.state.leader_epoch


@virtually(min_isr=1, unclean=True)
async def test_such_an_election_passes_over_a_log_that_has_failed(cluster: Cluster) -> None:
    other, _, last = cluster.lose_power()
    cluster.reboot(last, FAILED)
    cluster.reboot(other, WHOLE)
    await elapse(DOUBTFUL_SECONDS_MAX + 2 * RETRY_SECONDS)
    assert cluster.leader == other


@virtually(min_isr=2)
async def test_a_node_whose_log_is_awaited_is_not_given_up(cluster: Cluster) -> None:
    _, awaited, damaged = cluster.lose_power()
    cluster.reboot(damaged, DAMAGED)
    with pytest.raises(CannotRemoveNode, match="its log is needed for a 0; start it again"):
        cluster.decisions.submit(Leave(awaited, force=True))


@virtually(min_isr=0)
async def test_a_stream_that_is_to_have_one_replica_compares_those_that_it_has(
    cluster: Cluster,
) -> None:
    _, whole, damaged = cluster.lose_power()
    cluster.reboot(whole, WHOLE)
    cluster.decisions.submit(Alter("a", {"replicas": 1}))
    cluster.reboot(damaged, DAMAGED)
    assert cluster.leader == NO_LEADER
    await elapse(DOUBTFUL_SECONDS_MAX + 2 * RETRY_SECONDS)
    assert cluster.leader == whole


@virtually(min_isr=2)
async def test_who_comes_after_minutes_gets_time_to_open_its_log_too(cluster: Cluster) -> None:
    """Nobody could decide before."""
    behind, whole, damaged = cluster.lose_power()
    cluster.reboot(damaged, DAMAGED)
    await elapse(2 * DOUBTFUL_SECONDS_MAX + 5)
    cluster.reboot(behind, BEHIND)
    cluster.reboot(whole, None)
    await elapse(3)
    assert cluster.leader == NO_LEADER
    cluster.said[whole] = WHOLE
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == whole


@virtually(min_isr=2)
async def test_a_log_that_has_failed_does_not_let_one_decide_at_once(cluster: Cluster) -> None:
    """Its directory may not be mounted."""
    whole, failed, damaged = cluster.lose_power()
    cluster.reboot(damaged, DAMAGED)
    cluster.reboot(failed, FAILED)
    await elapse(5)
    assert cluster.leader == NO_LEADER
    cluster.reboot(whole, WHOLE)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == whole


@virtually(min_isr=2, unclean=True)
async def test_the_minute_does_not_begin_with_another_wait(cluster: Cluster) -> None:
    """For an hour the partition waited for an unclean election; nobody had a log."""
    failed, whole, damaged = cluster.lose_power()
    cluster.reboot(failed, FAILED)
    await elapse(3_600)
    cluster.reboot(damaged, DAMAGED)
    await elapse(5)
    assert cluster.leader == NO_LEADER
    cluster.reboot(whole, WHOLE)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == whole


@virtually(min_isr=2)
async def test_no_replica_is_given_up_while_logs_are_to_be_compared(cluster: Cluster) -> None:
    """Without it half of the replicas would be one, which may be the damaged one."""
    gone, _, damaged = cluster.lose_power()
    assert gone not in (*cluster.state.isr, *cluster.state.eligible)
    cluster.reboot(damaged, DAMAGED)
    with pytest.raises(CannotRemoveNode, match="its log is needed for a 0"):
        cluster.decisions.submit(Leave(gone, force=True))


@virtually(min_isr=1)
async def test_a_failed_log_resigns_once(cluster: Cluster) -> None:
    """Many partitions: the nodes are fenced before anybody leaves the replicas in sync."""
    one, away, failed = cluster.replicas()
    for node in (one, away, failed):
        cluster.decisions.commit((FenceNode(node, cluster.image.nodes[node].epoch),))
    cluster.decisions.commit(settle(cluster.image))
    cluster.reboot(one, None)
    cluster.reboot(failed, FAILED)
    cluster.resign(failed)
    assert cluster.leader == NO_LEADER
    assert failed not in (*cluster.state.isr, *cluster.state.eligible)
    assert away in cluster.state.isr


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_only_replica_that_is_known_does_not_lead_by_resigning(is_whole: bool) -> None:
    """An operator repairs its log, or its disk is full. The others are about to open theirs."""
    cluster = Cluster(min_isr=1)
    *others, last = cluster.lose_power()
    cluster.reboot(last, FAILED)
    for node in others:
        cluster.reboot(node, None)
    before = cluster.state
    cluster.resign(last, is_whole=is_whole)
    assert cluster.state == before


def test_one_stays_known_where_all_that_were_in_sync_have_failed() -> None:
    cluster = Cluster(min_isr=2)
    _, second, first = cluster.lose_power()
    cluster.reboot(first, FAILED)
    cluster.reboot(second, FAILED)
    for node in (first, second):
        cluster.resign(node)
    assert {*cluster.state.isr, *cluster.state.eligible} == {second}
