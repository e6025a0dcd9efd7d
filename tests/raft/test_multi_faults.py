"""Hubs under faults by dice, then without: every group goes on, rests, and all agree on what rests.

Each seed has its own mix of loss, repetition, delay, cuts in one or both directions, crashes, slow
disks, proposals and members that come and go. What the state machines apply is compared all along.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import BasculeError
from bascule.raft.effects import Role
from bascule.raft.multi import peer as peer_module
from bascule.raft.multi.bundle import NUMBER_MAX, Bundle, Hibernation
from raft.multi_raft_world import CONFIG, Faults, World

SEEDS = 20
FAULTY_TICKS = 250
PATIENCE = 40 * CONFIG.election_ticks


def misfortune(world: World, dice: Random) -> None:
    """One thing or another."""
    what = dice.randrange(12)
    nodes = list(world.stores)
    node, other = dice.sample(nodes, 2)
    if what == 0 and len(world.processes) > 1 and node in world.processes:
        world.kill(node)
    elif what <= 2:
        for stopped in world.stores.keys() - world.processes.keys():
            world.start(stopped)
    elif what == 3:
        world.cut.add((node, other))
    elif what == 4:
        world.isolate(node)
    elif what <= 6:
        world.cut.clear()
    elif what == 7:
        world.faults = Faults(
            loss=dice.choice((0, 0.05, 0.4)), twice=dice.choice((0, 0.3)),
            late_ticks=dice.choice((0, 1, 4, 12)),
        )  # fmt: skip
    elif what == 8 and node in world.processes:
        move(world, dice, node)
    else:
        group = dice.choice(list(world.stores[node]))
        if leader := world.leader(group):
            attempt(world, leader, group, b"%d" % dice.getrandbits(32))


def move(world: World, dice: Random, node: int) -> None:
    """Let go of a group and take it in again, as when it moves between processes."""
    group = dice.choice(world.multi_raft(node).groups)
    process = world.processes[node]
    process.multi_raft.remove(group)
    for _ in range(dice.randrange(3)):
        world.tick()
    if node in world.processes and world.processes[node] is process:
        process.writes.clear()
        world.kill(node)
        world.start(node)


def attempt(world: World, node: int, group: int, payload: bytes) -> None:
    try:
        world.multi_raft(node).node(group).propose(payload)
    except BasculeError:
        return


def heal(world: World) -> None:
    world.cut.clear()
    world.faults = Faults()
    world.disk_ticks = 0
    for node in world.stores.keys() - world.processes.keys():
        world.start(node)


def check_agreement(world: World) -> None:
    """What each hub believes of the others' groups is what they believe."""
    for node, process in world.processes.items():
        for other, far in world.processes.items():
            if node == other:
                continue
            led = process.multi_raft._peer(other).led
            followed = far.multi_raft._peer(node).followed
            assert led.groups == followed.groups
            assert not followed.refused
            for group, rest in led.groups.items():
                mine, theirs = process.multi_raft.node(group), far.multi_raft.node(group)
                assert mine.role is Role.LEADER
                assert (theirs.leader, theirs.term) == (node, rest.term)
                assert theirs.commit == rest.index == mine.commit


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_group_goes_on_and_rests_when_faults_stop(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = Random(seed)
    monkeypatch.setattr(peer_module, "CHANGES_MAX", dice.choice((1, 3, 1_000)))
    nodes, groups = dice.choice((3, 3, 3, 5)), dice.choice((1, 4, 10))
    world = World(nodes, groups, seed=seed, disk_ticks=dice.choice((0, 0, 3)))
    if dice.randrange(2):
        world.run_until_hibernation(PATIENCE)
    often = dice.choice((0.05, 0.3))
    for _ in range(FAULTY_TICKS):
        if dice.random() < often:
            misfortune(world, dice)
        world.tick()
    heal(world)
    for group in range(1, groups + 1):
        world.propose(group, b"after seed %d" % seed, PATIENCE)
    world.run_until_hibernation(PATIENCE)
    world.run(2 * CONFIG.election_ticks)
    check_agreement(world)
    start = world.now
    world.run(20)
    assert not [message for one in world.sent_since(start) for message in one.messages]
    pairs = nodes * (nodes - 1)
    beats = len(range(0, 20, CONFIG.heartbeat_ticks))
    assert len(world.sent_since(start)) <= pairs * beats


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_loss_does_not_keep_groups_from_resting(seed: int) -> None:
    """A tenth of the bundles lost, repeated and late: hardly an election is held."""
    world = World(3, 10, seed=seed)
    world.run_until_hibernation(PATIENCE)
    terms = sum(world.multi_raft(1).node(group).term for group in range(1, 11))
    world.faults = Faults(loss=0.1, twice=0.1, late_ticks=1)
    start = world.now
    world.run(300)
    messages = sum(len(one.messages) for one in world.sent_since(start))
    every_beat = 10 * 2 * 2 * 300 // CONFIG.heartbeat_ticks
    assert messages < every_beat / 20
    assert sum(world.multi_raft(1).node(group).term for group in range(1, 11)) == terms


small = st.integers(0, 4)
numbers = st.one_of(small, st.integers(0, 300), st.integers(0, NUMBER_MAX))
rests = st.lists(st.builds(Hibernation, small, small, numbers), max_size=3).map(tuple)
beats = st.builds(
    Bundle, source=st.integers(2, 3), target=st.just(1), incarnation=numbers,
    heard_incarnation=numbers, clock=numbers, echo=numbers, session=numbers,
    heard_session=numbers, held=numbers, base=numbers, version=numbers, hibernated=rests,
    woken=st.lists(small, max_size=3).map(tuple), refused=rests,
)  # fmt: skip


@settings(max_examples=25)
@given(st.lists(beats, max_size=8))
def test_wrong_beats_cost_rest_and_nothing_else(bundles: list[Bundle]) -> None:
    """Whatever a peer says of rest, groups go on."""
    world = World(3, 3, seed=1)
    world.run_until_hibernation()
    for bundle in bundles:
        world.multi_raft(1).receive(bundle)
        world.tick()
    for group in (1, 2, 3):
        world.propose(group, b"x", PATIENCE)
