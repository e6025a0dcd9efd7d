"""A driver knows that the process of a leader does not run: its groups do not wait for timeouts."""

from __future__ import annotations

import pytest

from bascule.raft.config import RaftConfig
from bascule.raft.effects import Role
from raft.multi_raft_world import CONFIG, World

FAST_TICKS = 5
"""Two voters begin one after the other: 1 and 3 ticks, and the votes."""


def led_world(nodes: int = 3, *, config: RaftConfig = CONFIG, seed: int = 0) -> tuple[World, int]:
    world = World(nodes, seed=seed, config=config)
    world.propose(1, b"before")
    return world, world.leader(1)


def report_loss(world: World, node: int) -> None:
    for process in world.processes.values():
        process.multi_raft.on_process_lost(node)


def ticks_to_another_leader(world: World, before: int) -> int:
    for ticks in range(200):
        if world.leader(1) not in (0, before):
            return ticks
        world.tick()
    raise AssertionError("no leader")


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_the_leader_is_replaced_within_a_few_ticks(seed: int, nodes: int) -> None:
    world, leader = led_world(nodes, seed=seed)
    term = world.multi_raft(leader).node(1).term
    world.kill(leader)
    world.tick()
    report_loss(world, leader)
    assert ticks_to_another_leader(world, leader) <= FAST_TICKS
    found = world.multi_raft(world.leader(1)).node(1)
    assert found.term == term + 1, "no votes were split"
    world.propose(1, b"after")


@pytest.mark.parametrize("seed", range(5))
def test_a_hibernating_group_wakes(seed: int) -> None:
    world, leader = led_world(seed=seed)
    world.run_until_hibernation()
    world.kill(leader)
    report_loss(world, leader)
    assert ticks_to_another_leader(world, leader) <= FAST_TICKS


@pytest.mark.parametrize("seed", range(5))
def test_followers_that_hear_of_it_at_different_times_agree(seed: int) -> None:
    world, leader = led_world(seed=seed)
    world.kill(leader)
    for node in world.processes:
        world.multi_raft(node).on_process_lost(leader)
        world.run(1)
    assert ticks_to_another_leader(world, leader) <= 2 * FAST_TICKS


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_report_of_one_follower_changes_nothing(seed: int) -> None:
    world, leader = led_world(seed=seed)
    term = world.multi_raft(leader).node(1).term
    follower = next(node for node in world.processes if node != leader)
    for _ in range(20):
        world.multi_raft(follower).on_process_lost(leader)
        world.run(3)
    world.run(CONFIG.election_ticks)
    assert (world.leader(1), world.multi_raft(leader).node(1).term) == (leader, term)


def test_the_loss_of_a_follower_changes_nothing() -> None:
    world, leader = led_world()
    other = next(node for node in world.processes if node != leader)
    report_loss(world, other)
    world.run(3 * CONFIG.election_ticks)
    assert world.leader(1) == leader


def test_nothing_is_hurried_where_leases_are_on() -> None:
    """A leader that is paused, and goes on, may rely on its lease."""
    config = RaftConfig(lease_reads=True)
    world, leader = led_world(config=config)
    world.kill(leader)
    report_loss(world, leader)
    assert ticks_to_another_leader(world, leader) >= config.election_ticks - config.heartbeat_ticks


def test_leaders_do_not_step_down_for_a_report() -> None:
    world, leader = led_world()
    world.multi_raft(leader).on_process_lost(leader)
    assert world.multi_raft(leader).node(1).role is Role.LEADER
