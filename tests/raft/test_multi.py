"""Many groups in one process: the cost of hibernation, and what wakes groups."""

from __future__ import annotations

from collections import Counter

import pytest

from bascule.errors import RemoteProtocolError
from bascule.raft.effects import Role, WriteDone
from bascule.raft.membership import MemberChange
from bascule.raft.messages import AppendRequest, Entry, Heartbeat, HeartbeatReply
from bascule.raft.multi import peer as peer_module
from bascule.raft.multi.bundle import Bundle
from bascule.raft.multi.multi_raft import MultiRaft
from bascule.raft.node import RaftNode
from raft.multi_raft_world import CONFIG, Sent, World, replaced

ELECTION = CONFIG.election_ticks
HEARTBEAT = CONFIG.heartbeat_ticks


def hibernating(groups: int = 6, *, seed: int = 1, nodes: int = 3) -> World:
    world = World(nodes, groups, seed=seed)
    world.run_until_hibernation()
    world.run(2 * HEARTBEAT)
    return world


def led_by(world: World, node: int) -> list[int]:
    return [group for group in world.stores[node] if world.leader(group) == node]


def bundles_of(world: World, tick: int, source: int, target: int) -> list[Bundle]:
    return [
        sent.bundle for sent in world.sent_since(tick)
        if (sent.bundle.source, sent.bundle.target) == (source, target)
    ]  # fmt: skip


# -- the cost of hibernation -----------------------------------------------------------------


def idle_traffic(groups: int, ticks: int) -> list[Sent]:
    world = hibernating(groups)
    start = world.now
    world.run(ticks)
    return world.sent_since(start)


def test_idle_traffic_does_not_depend_on_the_number_of_groups() -> None:
    counts, sizes = set(), set()
    for groups in (1, 20, 100):
        sent = idle_traffic(groups, 100)
        assert not [message for one in sent for message in one.messages]
        counts.add(Counter((one.bundle.source, one.bundle.target) for one in sent)[1, 2])
        sizes.add(max(one.size for one in sent))
    assert counts == {100 // HEARTBEAT}
    assert max(sizes) - min(sizes) <= 2, "bytes of version numbers alone"


def test_the_report_has_hibernating_groups_and_peers_in_contact() -> None:
    world = hibernating(9)
    report = world.multi_raft(1).report()
    assert (report.node, report.groups, report.hibernating) == (1, 9, 9)
    assert [link.peer for link in report.peers] == [2, 3]
    for link in report.peers:
        assert link.is_in_contact
        assert link.silent_ticks in range(HEARTBEAT + 1)
        assert link.led_hibernating == len(led_by(world, 1))
        assert link.followed_hibernating == len(led_by(world, link.peer))
        assert link.refused == 0
    world.isolate(1)
    world.run(2 * ELECTION)
    report = world.multi_raft(1).report()
    assert report.hibernating == 0
    assert [link.is_in_contact for link in report.peers] == [False, False]


def test_a_tick_does_not_touch_hibernating_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = hibernating(30)
    touched: list[str] = []
    for name in ("tick", "due", "ready", "step"):
        original = getattr(RaftNode, name)

        def watched(*args: object, _name: str = name, _original: object = original) -> object:
            touched.append(_name)
            return _original(*args)  # type: ignore[operator]

        monkeypatch.setattr(RaftNode, name, watched)
    world.run(100)
    assert touched == []
    world.processes[1].multi_raft.node(7)
    assert touched == ["tick"]


def test_an_awake_node_is_ticked_only_when_it_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    multi_raft = MultiRaft(1, 1, heartbeat_ticks=HEARTBEAT, election_ticks=ELECTION)
    world = World(3, 1)
    for group in range(1, 51):
        multi_raft.add(group, RaftNode(1, CONFIG, world.stores[1][1].load(), world.random))
    assert multi_raft.ready() is None
    asked: list[int] = []
    original = RaftNode.tick
    monkeypatch.setattr(
        RaftNode, "tick", lambda node, count: (asked.append(count), original(node, count))
    )
    for _ in range(ELECTION - 1):
        multi_raft.tick()
        assert multi_raft.ready() is None
    assert asked == []
    multi_raft.tick(ELECTION + 1)
    assert len(asked) == 50
    ready = multi_raft.ready()
    assert ready is not None
    assert [len(bundle.messages) for bundle in ready.bundles] == [50, 50], "one bundle per peer"


def test_messages_of_all_groups_leave_in_one_bundle() -> None:
    """A round of requests or replies needs one bundle for each peer, for any number of groups."""
    rounds = {}
    for groups in (1, 40):
        world = hibernating(groups)
        start = world.now
        for group in range(1, groups + 1):
            world.multi_raft(world.leader(group)).node(group).propose(b"x")
        world.tick()
        sent = world.sent_since(start - 1)
        assert sum(len(one.messages) for one in sent) >= 4 * groups
        rounds[groups] = max(Counter((s.bundle.source, s.bundle.target) for s in sent).values())
    assert rounds[40] <= rounds[1] + 3, "each node leads, follows and beats"


def test_a_group_of_one_member_hibernates_without_a_bundle() -> None:
    world = World(1, 3)
    world.run_until_hibernation()
    assert world.sent == []
    assert world.multi_raft(1).due() is None
    world.propose(2, b"alone")
    world.run_until_hibernation()


# -- waking ----------------------------------------------------------------------------------


def test_a_proposal_wakes_only_its_group() -> None:
    world = hibernating(10)
    start = world.now
    world.propose(4, b"x")
    woke = {group for one in world.sent_since(start) for group, _ in one.bundle.messages}
    assert woke == {4}
    assert world.now - start <= 1, "nobody waited for a timer"
    assert world.hibernating() == 3 * 9
    world.run_until_hibernation()


def test_groups_elect_leaders_when_the_process_of_their_leaders_dies() -> None:
    world = hibernating(30)
    orphans = led_by(world, 1)
    assert len(orphans) > 3
    kept = led_by(world, 2) + led_by(world, 3)
    terms = {group: world.multi_raft(2).node(group).term for group in kept}
    world.kill(1)
    world.run(4 * ELECTION)
    for group in orphans:
        assert world.leader(group) in (2, 3)
    assert {group: world.multi_raft(2).node(group).term for group in kept} == terms
    for group in kept:
        assert world.multi_raft(2).node(group).hibernating, "a majority is in contact"
    for group in orphans + kept:
        world.propose(group, b"%d" % group)
    start = world.now + world.run_until_hibernation()
    world.run(20)
    messages = [message for one in world.sent_since(start) for message in one.messages]
    assert not messages, "a node that is down costs no messages of groups"
    world.start(1)
    world.run_until_hibernation()
    for group in orphans + kept:
        assert world.processes[1].applied[group] == [b"%d" % group]


def test_elections_of_many_groups_are_spread_over_an_election_timeout() -> None:
    world = hibernating(120, seed=5)
    orphans = led_by(world, 1)
    assert len(orphans) > 20
    before = {group: world.multi_raft(3).node(group).term for group in orphans}
    world.kill(1)
    elected: Counter[int] = Counter()
    left = set(orphans)
    for tick in range(6 * ELECTION):
        world.tick()
        done = {g for g in left if world.leader(g) and world.multi_raft(3).node(g).term > before[g]}
        elected[tick] += len(done)
        left -= done
    assert not left
    assert max(elected.values()) < len(orphans) // 3


def test_a_leader_with_silent_peers_steps_down() -> None:
    world = hibernating(4)
    leader = world.leader(1)
    world.isolate(leader)
    world.run(3 * ELECTION + 4 * HEARTBEAT)
    assert world.multi_raft(leader).node(1).role is not Role.LEADER
    assert world.leader(1) not in (0, leader)
    world.cut.clear()
    world.propose(1, b"x")
    world.run_until_hibernation()


@pytest.mark.parametrize("away", ["hears", "is heard"])
def test_a_follower_that_cannot_send_does_not_keep_groups_awake(away: str) -> None:
    world = hibernating(4)
    leader = world.leader(1)
    follower = 1 + leader % 3
    term = world.multi_raft(leader).node(1).term
    for other in {1, 2, 3} - {follower}:
        world.cut.add((other, follower) if away == "is heard" else (follower, other))
    world.run(10 * ELECTION)
    if led_by(world, leader).count(1):
        assert world.multi_raft(leader).node(1).term == term, "a pre-vote wins nothing"
    world.cut.clear()
    world.propose(1, b"x")
    world.run_until_hibernation()
    assert world.multi_raft(leader).node(1).term == term


def test_a_leader_that_cannot_send_is_replaced() -> None:
    """Its messages are lost, but it receives those of the others."""
    world = hibernating(4)
    leader = world.leader(1)
    for other in {1, 2, 3} - {leader}:
        world.cut.add((leader, other))
    world.run(6 * ELECTION)
    assert world.leader(1) != leader
    assert world.multi_raft(leader).node(1).role is not Role.LEADER
    world.cut.clear()
    world.propose(1, b"x")
    world.run_until_hibernation()


def test_a_hibernating_leader_learns_of_another_election() -> None:
    """It has no contact with the voters of the election, but with a node that did not take part."""
    world = hibernating(8, nodes=5)
    leader = world.leader(1)
    a, b, c, friend = (node for node in range(1, 6) if node != leader)
    for other in (a, b, c):
        world.cut |= {(leader, other), (other, leader), (friend, other), (other, friend)}
    world.run(6 * ELECTION)
    assert world.leader(1) in (a, b, c)
    assert world.multi_raft(leader).node(1).role is not Role.LEADER
    world.cut.clear()
    world.propose(1, b"x")
    world.run_until_hibernation()


def test_a_stalled_process_wakes_no_group_when_it_continues() -> None:
    """The process has not read the bundles that arrived meanwhile, and has sent none."""
    world = hibernating(12)
    others = led_by(world, 2) + led_by(world, 3)
    terms = {group: world.multi_raft(2).node(group).term for group in others}
    multi_raft = world.multi_raft(1)
    kept = [body for _, body in stalled(world, 1, 3 * ELECTION)]
    multi_raft.tick(3 * ELECTION)
    assert multi_raft.report().hibernating == 12
    for bundle in kept:
        multi_raft.receive(bundle)
    world.run_until_hibernation()
    assert {group: world.multi_raft(2).node(group).term for group in others} == terms
    world.propose(1, b"x")


def test_all_processes_stall_at_once() -> None:
    world = hibernating(12)
    start = world.now
    for process in world.processes.values():
        process.multi_raft.tick(10 * ELECTION)
    world.run(20)
    assert not [message for one in world.sent_since(start) for message in one.messages]
    assert world.hibernating() == 36
    world.kill(1)
    world.run(6 * ELECTION)
    assert all(world.leader(group) for group in range(1, 13)), "silence is still noticed"


def stalled(world: World, node: int, ticks: int) -> list[tuple[int, Bundle]]:
    """(tick, bundle) of all bundles sent to a node while its process does not run."""
    start = world.now
    process = world.processes.pop(node)
    world.run(ticks)
    world.processes[node] = process
    return [(one.at, one.bundle) for one in world.sent_since(start) if one.bundle.target == node]


def test_waking_does_not_shorten_a_lease() -> None:
    """A lease may depend on a heartbeat that the follower received later than the last bundle
    between the processes."""
    world = hibernating(1)
    leader = world.leader(1)
    follower = 1 + leader % 3
    node = world.multi_raft(follower).node(1)
    node.step(Heartbeat(leader, follower, node.term, node.commit, 9))
    assert node.hibernate_as_follower(leader, node.term, node.log.last)
    node.tick(2)
    node.wake(7)
    assert node.report().leader_silent_ticks == 2
    assert node.hibernate_as_follower(leader, node.term, node.log.last)
    node.tick(20)
    node.wake(7)
    assert node.report().leader_silent_ticks == 7


# -- refused hibernation ---------------------------------------------------------------------


def test_a_follower_with_uncommitted_entries_refuses_hibernation() -> None:
    """The heartbeats with the commit index are lost, and its leader does not know that."""
    world = hibernating(2)
    leader = world.leader(1)
    follower = 1 + leader % 3
    world.cut = {(leader, follower)}
    ticket = world.multi_raft(leader).node(1).propose(b"x")
    world.tick()
    world.tick()
    assert ticket in [answer.ticket for _, answer in world.processes[leader].answers]
    world.cut.clear()
    world.drop = [Heartbeat]
    start = world.now
    world.run(2 * ELECTION)
    world.drop = []
    refusals = [b.refused for b in bundles_of(world, start, follower, leader) if b.refused]
    world.run_until_hibernation()
    assert world.processes[follower].applied[1] == [b"x"]
    node = world.multi_raft(follower).node(1)
    assert node.commit == node.log.last
    if not refusals:
        assert node.commit == world.multi_raft(leader).node(1).commit


def test_a_process_without_the_group_refuses_hibernation() -> None:
    world = hibernating(3)
    leader = world.leader(1)
    follower = 1 + leader % 3
    start = world.now
    world.multi_raft(follower).remove(1)
    world.run(ELECTION)
    refused = [rest.group for b in bundles_of(world, start, follower, leader) for rest in b.refused]
    assert refused
    assert set(refused) == {1}
    assert world.multi_raft(leader).node(1).hibernating is False
    assert world.multi_raft(leader).node(2).hibernating, "others rest on"
    world.multi_raft(follower).add(
        1, RaftNode(follower, CONFIG, world.stores[follower][1].load(), world.random)
    )
    world.propose(1, b"back")
    world.run_until_hibernation()


def test_a_refusal_is_sent_again_until_it_has_effect() -> None:
    world = hibernating(3)
    leader = world.leader(1)
    follower = 1 + leader % 3
    world.cut.add((follower, leader))
    world.multi_raft(follower).node(1).wake()
    world.run(2 * HEARTBEAT)
    assert world.multi_raft(leader).node(1).hibernating, "it cannot know"
    world.cut.clear()
    start = world.now
    world.run(HEARTBEAT + 1)
    assert [b.refused for b in bundles_of(world, start, follower, leader) if b.refused]
    world.run_until_hibernation()
    assert world.leader(1) == leader, "it beat again before an election"


def test_late_replies_to_the_last_heartbeat_wake_no_group() -> None:
    world = World(3, 1, seed=2)
    world.faults.late_ticks = 3
    world.run_until_hibernation(400)
    leader = world.leader(1)
    term = world.multi_raft(leader).node(1).term
    start = world.now
    for follower in {1, 2, 3} - {leader}:
        late = HeartbeatReply(follower, leader, term, 1)
        beat = bundles_of(world, 0, follower, leader)[-1]
        world.multi_raft(leader).receive(replaced(beat, messages=((1, late),)))
    world.run(20)
    assert world.multi_raft(leader).node(1).hibernating
    assert not [message for one in world.sent_since(start + 3) for message in one.messages]


# -- restarts ---------------------------------------------------------------------------------


def test_a_quick_restart_of_a_follower_wakes_the_shared_groups() -> None:
    world = hibernating(6)
    leader = world.leader(1)
    follower = 1 + leader % 3
    terms = {group: world.multi_raft(leader).node(group).term for group in led_by(world, leader)}
    world.kill(follower)
    world.start(follower)
    world.run_until_hibernation()
    assert {group: world.multi_raft(leader).node(group).term for group in terms} == terms
    world.propose(1, b"x")


def test_a_quick_restart_of_a_leader_ends_in_an_election() -> None:
    world = hibernating(6)
    leader = world.leader(1)
    term = world.multi_raft(leader).node(1).term
    world.kill(leader)
    world.start(leader)
    world.run(4 * ELECTION)
    assert world.leader(1) != 0
    assert world.multi_raft(leader).node(1).term > term
    world.propose(1, b"x")
    world.run_until_hibernation()


def test_a_bundle_of_an_earlier_incarnation_stops_no_group() -> None:
    world = hibernating(4)
    old = {(a, b): bundles_of(world, 0, a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b}
    world.kill(2)
    world.start(2)
    world.run_until_hibernation()
    for (_, target), bundles in old.items():
        for bundle in bundles[:: max(1, len(bundles) // 20)]:
            world.multi_raft(target).receive(bundle)
            world.tick()
    world.propose(1, b"x")
    world.run_until_hibernation()


def test_a_repeated_bundle_does_not_count_as_contact() -> None:
    world = hibernating(3)
    leader = world.leader(1)
    last = {other: bundles_of(world, 0, leader, other)[-1] for other in {1, 2, 3} - {leader}}
    world.kill(leader)
    for _ in range(5 * ELECTION):
        for other, bundle in last.items():
            world.multi_raft(other).receive(bundle)
        world.tick()
    assert world.leader(1) not in (0, leader)


def test_changes_of_an_earlier_session_are_not_taken() -> None:
    """They would restore groups that both processes have removed from the set."""
    world = hibernating(6, seed=2)
    leader = world.leader(1)
    follower = 1 + leader % 3
    old = [b for b in bundles_of(world, 0, leader, follower) if b.base == 0 and b.hibernated]
    assert old
    world.isolate(follower)
    world.run(3 * ELECTION)
    world.cut.clear()
    for node in (leader, follower):
        world.multi_raft(node).tick()
    for bundle in old:
        world.multi_raft(follower).receive(bundle)
    links = {link.peer: link for link in world.multi_raft(follower).report().peers}
    assert links[leader].followed_hibernating == 0


def test_a_follower_wakes_with_its_leader_without_a_heartbeat() -> None:
    """Only the bundle says that the leader's coalesced heartbeat no longer covers this group."""
    world = hibernating(1)
    leader = world.leader(1)
    world.drop = [Heartbeat]
    world.multi_raft(leader).node(1).wake()
    world.tick()
    for other in {1, 2, 3} - {leader}:
        assert not world.multi_raft(other).node(1).hibernating
    world.kill(leader)
    world.run(4 * ELECTION)
    assert world.leader(1) not in (0, leader)


def test_all_processes_restart() -> None:
    world = hibernating(6)
    for node in (1, 2, 3):
        world.kill(node)
    for node in (1, 2, 3):
        world.start(node)
    for group in range(1, 7):
        world.propose(group, b"x")
    world.run_until_hibernation()


# -- sizes ------------------------------------------------------------------------------------


def test_a_long_list_of_changes_is_sent_in_several_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "CHANGES_MAX", 2)
    world = hibernating(20)
    assert max(len(sent.bundle.hibernated) for sent in world.sent) == 2
    world.kill(1)
    world.start(1)
    world.run_until_hibernation()
    for process in world.processes.values():
        process.multi_raft.node(3).wake()
    world.run_until_hibernation()
    assert max(len(b.refused) + len(b.woken) for b in (sent.bundle for sent in world.sent)) <= 4


def test_a_large_bundle_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BUNDLE_BYTES_MAX", 1_000)
    world = hibernating(8)
    start = world.now
    payloads = {group: b"%d" % group * 400 for group in range(1, 9)}
    for group, payload in payloads.items():
        world.multi_raft(world.leader(group)).node(group).propose(payload)
    world.tick()
    sizes = [
        sum(len(e.payload) for m in one.messages if isinstance(m, AppendRequest) for e in m.entries)
        for one in world.sent_since(start - 1)
    ]
    assert max(sizes) <= 1_200
    assert sum(sizes) == 2 * sum(map(len, payloads.values()))
    for group, payload in payloads.items():
        for process in world.processes.values():
            assert process.applied[group] == [payload]


# -- members ----------------------------------------------------------------------------------


def test_an_added_member_hibernates_with_the_others() -> None:
    world = World(4, 1, seed=4, voters=3)
    world.run_until_hibernation_of((1, 2, 3))
    leader = world.leader(1)
    world.multi_raft(leader).node(1).change_members(MemberChange.ADD_LEARNER, 4)
    world.run_until_hibernation()
    assert world.multi_raft(4).node(1).hibernating
    start = world.now
    world.run(10 * HEARTBEAT)
    assert len(bundles_of(world, start, leader, 4)) == 10
    world.multi_raft(leader).node(1).change_members(MemberChange.REMOVE, 4)
    world.run_until_hibernation_of((1, 2, 3))
    start = world.now
    world.run(10 * HEARTBEAT)
    assert len(bundles_of(world, start, leader, 4)) == 0, "they share nothing any more"


# -- refused input ---------------------------------------------------------------------------


def test_a_bundle_for_another_node_is_a_protocol_error() -> None:
    world = hibernating(1)
    bundle = next(sent.bundle for sent in world.sent if sent.bundle.target == 1)
    for wrong in (replaced(bundle, target=2), replaced(bundle, source=1)):
        with pytest.raises(RemoteProtocolError):
            world.multi_raft(1).receive(wrong)


def test_messages_and_completions_of_a_removed_group_are_ignored() -> None:
    world = hibernating(2)
    leader = world.leader(1)
    multi_raft = world.multi_raft(leader)
    multi_raft.node(1).propose(b"x")
    ready = multi_raft.ready()
    assert ready is not None
    (group, write) = ready.writes[0]
    multi_raft.remove(group)
    assert multi_raft.groups == (2,)
    multi_raft.advance(group, WriteDone(write.number), write.then_send)
    other = 1 + leader % 3
    append = AppendRequest(other, leader, 9, 1, 1, 1, (Entry(2, 9, 0, b""),))
    beat = bundles_of(world, 0, other, leader)[-1]
    multi_raft.receive(replaced(beat, messages=((1, append),)))
    with pytest.raises(KeyError):
        multi_raft.node(1)
