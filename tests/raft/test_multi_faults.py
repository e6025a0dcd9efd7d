"""Processes with many groups under random faults, and after them.

Each seed has its own mix of losses, duplicates, delays, cuts in one or both directions, crashes,
slow disks, proposals, and groups that are removed and added. The applied entries are always
compared.
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
TICKS_TO_SETTLE = 40 * CONFIG.election_ticks


def inject_fault(world: World, random: Random) -> None:
    """Inject a random fault."""
    what = random.randrange(13)
    nodes = list(world.stores)
    node, other = random.sample(nodes, 2)
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
            loss=random.choice((0, 0.05, 0.4)), twice=random.choice((0, 0.3)),
            late_ticks=random.choice((0, 1, 4, 12)),
        )  # fmt: skip
    elif what == 8 and node in world.processes:
        move(world, random, node)
    elif what == 9 and node in world.processes:
        world.multi_raft(node).on_process_lost(other)  # right or wrong
    else:
        group = random.choice(list(world.stores[node]))
        if leader := world.leader(group):
            attempt(world, leader, group, b"%d" % random.getrandbits(32))


def move(world: World, random: Random, node: int) -> None:
    """Remove a group and add it again, as when it moves between processes."""
    group = random.choice(world.multi_raft(node).groups)
    process = world.processes[node]
    process.multi_raft.remove(group)
    for _ in range(random.randrange(3)):
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
    """Check that all processes agree on the hibernating groups."""
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
def test_every_group_commits_and_hibernates_after_the_faults(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(peer_module, "CHANGES_MAX", random.choice((1, 3, 1_000)))
    nodes, groups = random.choice((3, 3, 3, 5)), random.choice((1, 4, 10))
    world = World(nodes, groups, seed=seed, disk_ticks=random.choice((0, 0, 3)))
    if random.randrange(2):
        world.run_until_hibernation(TICKS_TO_SETTLE)
    often = random.choice((0.05, 0.3))
    for _ in range(FAULTY_TICKS):
        if random.random() < often:
            inject_fault(world, random)
        world.tick()
    heal(world)
    for group in range(1, groups + 1):
        world.propose(group, b"after seed %d" % seed, TICKS_TO_SETTLE)
    world.run_until_hibernation(TICKS_TO_SETTLE)
    world.run(2 * CONFIG.election_ticks)
    check_agreement(world)
    start = world.now
    world.run(20)
    assert not [message for one in world.sent_since(start) for message in one.messages]
    pairs = nodes * (nodes - 1)
    beats = len(range(0, 20, CONFIG.heartbeat_ticks))
    assert len(world.sent_since(start)) <= pairs * beats


@pytest.mark.parametrize("seed", range(5))
def test_groups_hibernate_despite_constant_message_loss(seed: int) -> None:
    """A tenth of the bundles is lost, repeated or late: there are few elections."""
    world = World(3, 10, seed=seed)
    world.run_until_hibernation(TICKS_TO_SETTLE)
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
def test_wrong_heartbeats_only_wake_groups(bundles: list[Bundle]) -> None:
    """Groups make progress despite wrong hibernation fields of a peer."""
    world = World(3, 3, seed=1)
    world.run_until_hibernation()
    for bundle in bundles:
        world.multi_raft(1).receive(bundle)
        world.tick()
    for group in (1, 2, 3):
        world.propose(group, b"x", TICKS_TO_SETTLE)
