"""Like test_checkers, for answers, state machines, members and limits."""

from __future__ import annotations

from types import SimpleNamespace

from bascule.raft.effects import Apply, ReadPolicy, Ready, RequestOutcome, Role
from bascule.raft.membership import MemberChange, Members, encode_members
from bascule.raft.messages import (
    AppendRequest,
    Chunk,
    EntryKind,
    RaftSnapshot,
    SnapshotReply,
)
from bascule.raft.store import PersistentState
from support.raft_events import CONFIG, THREE, FakeNode, Scene, broken, entry

# -- answers ----------------------------------------------------------------------------------


def test_a_repeated_answer() -> None:
    scene = Scene()
    scene.answer(1, 7, RequestOutcome.INDETERMINATE)
    scene.answer(2, 7, RequestOutcome.INDETERMINATE)
    with broken("one answer to a ticket"):
        scene.answer(1, 7, RequestOutcome.INDETERMINATE)


def test_tickets_start_again_after_a_restart() -> None:
    scene = Scene()
    scene.answer(1, 1, RequestOutcome.INDETERMINATE)
    scene.crash(1)
    scene.start(1)
    scene.answer(1, 1, RequestOutcome.INDETERMINATE)


def test_a_wrong_committed_answer() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1, b"a"), entry(2, 1, b"b"))
    node = scene.nodes[1]
    for ticket, payload in ((1, b"a"), (2, b"a"), (3, b"c")):
        scene.checkers.on_propose(node, ticket, payload)
    scene.answer(1, 1, RequestOutcome.COMMITTED, 1)
    with broken("no answer that history contradicts"):
        scene.answer(1, 2, RequestOutcome.COMMITTED, 2)
    with broken("no answer that history contradicts"):
        scene.answer(1, 3, RequestOutcome.COMMITTED, 3)


def test_not_leader_for_a_committed_proposal() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1, b"a"))
    scene.checkers.on_propose(scene.nodes[1], 1, b"a")
    with broken("no answer that history contradicts"):
        scene.answer(1, 1, RequestOutcome.NOT_LEADER)


def test_not_leader_for_a_proposal_committed_later() -> None:
    scene = Scene()
    scene.checkers.on_propose(scene.nodes[1], 1, b"a")
    scene.answer(1, 1, RequestOutcome.NOT_LEADER)
    with broken("no answer that history contradicts"):
        scene.replicated(entry(1, 1, b"a"))


def test_one_proposal_committed_twice() -> None:
    scene = Scene()
    with broken("no answer that history contradicts"):
        scene.replicated(entry(1, 1, b"a"), entry(2, 1, b"a"))


def test_another_change_than_requested() -> None:
    scene = Scene()
    members = Members((1, 2, 3), (4,), 2)
    scene.replicated(
        entry(1, 1), entry(2, 1, encode_members(members), EntryKind.MEMBERS), entry(3, 1)
    )
    for ticket, change in enumerate((MemberChange.ADD_LEARNER, MemberChange.ADD_VOTER), 1):
        scene.checkers.on_change(scene.nodes[1], ticket, change, 4)
    scene.answer(1, 1, RequestOutcome.COMMITTED, 2)
    with broken("no answer that history contradicts"):
        scene.answer(1, 2, RequestOutcome.COMMITTED, 2)


def test_a_read_that_misses_a_committed_entry() -> None:
    scene = Scene()
    node = scene.nodes[3]
    scene.checkers.on_read(node, 1, ReadPolicy.LINEARIZABLE, 0)
    scene.replicated(entry(1, 1), entry(2, 1))
    scene.answer(3, 1, RequestOutcome.READABLE)
    scene.checkers.on_read(node, 2, ReadPolicy.LINEARIZABLE, 0)
    scene.checkers.on_read(node, 3, ReadPolicy.LOCAL, 1)
    scene.checkers.on_read(node, 4, ReadPolicy.LOCAL, 2)
    node.applied = 1
    scene.answer(3, 3, RequestOutcome.READABLE, 1)
    for ticket in (2, 4):
        with broken("reads see what was committed"):
            scene.answer(3, ticket, RequestOutcome.READABLE, 1)


# -- state machines ---------------------------------------------------------------------------


def test_entries_applied_with_a_gap_twice_or_wrongly() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1), entry(2, 1), entry(3, 1))
    scene.checkers.on_apply(1, Apply(last=1, entries=(entry(1, 1),)))
    for last, entries in (
        (3, (entry(3, 1),)),
        (1, (entry(1, 1),)),
        (2, (entry(2, 1, b"x"),)),
        (3, (entry(2, 1),)),
    ):
        with broken("applied in order"):
            scene.checkers.on_apply(1, Apply(last=last, entries=entries))


def test_a_snapshot_restored_over_a_later_state_or_before_its_commit() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1), entry(2, 1))
    scene.checkers.on_apply(1, Apply(last=2, restore=RaftSnapshot(2, 1, THREE, (b"s",))))
    for index in (1, 3):
        with broken("applied in order"):
            scene.checkers.on_apply(
                1, Apply(last=index, restore=RaftSnapshot(index, 1, THREE, (b"s",)))
            )


def test_snapshots_that_differ() -> None:
    for other in (
        Chunk(2, 1, THREE, 0, 1, b"t"),
        Chunk(2, 1, THREE, 0, 2, b"s"),
        Chunk(2, 1, Members.of(1, 2), 0, 1, b"s"),
    ):
        scene = Scene()
        scene.replicated(entry(1, 1), entry(2, 1))
        scene.write(1, chunks=(Chunk(2, 1, THREE, 0, 1, b"s"),))
        scene.write(2, chunks=(Chunk(2, 1, THREE, 0, 1, b"s"),))
        with broken("snapshots agree"):
            scene.write(3, chunks=(other,))


def test_a_snapshot_without_a_change_of_members() -> None:
    scene = Scene()
    members = Members((1, 2, 3), (4,), 2)
    scene.replicated(
        entry(1, 1), entry(2, 1, encode_members(members), EntryKind.MEMBERS), entry(3, 1)
    )
    scene.write(1, chunks=(Chunk(2, 1, members, 0, 1, b"s"),))
    with broken("snapshots agree"):
        scene.write(1, chunks=(Chunk(3, 1, THREE, 0, 1, b"s"),))


def test_a_snapshot_of_uncommitted_entries() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    with broken("snapshots agree"):
        scene.write(1, chunks=(Chunk(2, 1, THREE, 0, 1, b"s"),))
    with broken("snapshots agree"):
        scene.write(1, chunks=(Chunk(1, 2, THREE, 0, 1, b"s"),))


# -- members ----------------------------------------------------------------------------------


def change(scene: Scene, index: int, members: Members, term: int = 1) -> None:
    scene.nodes[1].members = members
    scene.write(1, entry(index, term, encode_members(members), EntryKind.MEMBERS))


def test_a_second_change_before_the_first_is_committed() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    change(scene, 2, Members((1, 2, 3), (4,), 2))
    with broken("one membership change at a time"):
        change(scene, 3, Members((1, 2, 3), (4, 5), 3))


def test_a_change_before_an_entry_of_the_term_is_committed() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.lead(1, 2)
    scene.write(1, entry(2, 2, b"", EntryKind.NO_OP))
    with broken("one membership change at a time"):
        change(scene, 3, Members((1, 2, 3), (4,), 3), 2)


def test_two_members_changed_at_once() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    with broken("one membership change at a time"):
        change(scene, 2, Members((1, 4), (), 2))


def test_a_promotion_is_one_change() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    change(scene, 2, Members((1, 2, 3), (4,), 2))
    scene.nodes[2].members = scene.nodes[1].members
    scene.write(2, scene.nodes[1].log.entry(2))
    scene.commit(1, 2)
    change(scene, 3, Members((1, 2, 3, 4), (), 3))


def test_a_restart_that_loses_a_change() -> None:
    scene = Scene()
    members = Members((1, 2, 3), (4,), 2)
    scene.replicated(entry(1, 1), entry(2, 1, encode_members(members), EntryKind.MEMBERS))
    scene.write(2, chunks=(Chunk(2, 1, members, 0, 1, b"s"),), truncate_until=2)
    scene.crash(2)
    with broken("members in force"):
        scene.start(2, term=1, snapshot=RaftSnapshot(2, 1, members, (b"s",)), members=THREE)


def test_a_joining_node_has_no_members_until_its_entry() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1), entry(2, 1))
    joining = FakeNode(4, members=Members(()))
    scene.nodes[4] = joining
    scene.checkers.on_start(joining, PersistentState(initial_members=Members(())))
    scene.write(4, entry(1, 1), vote=(1, 0))
    scene.commit(4, 1)


def test_a_write_from_before_an_installed_snapshot_does_not_hide_it() -> None:
    scene = Scene()
    scene.replicated(*[entry(index, 1) for index in range(1, 6)])
    joining = FakeNode(4, members=Members(()))
    scene.nodes[4] = joining
    scene.checkers.on_start(joining, PersistentState(initial_members=Members(())))
    scene.write(4, vote=(1, 0), chunks=(Chunk(5, 1, THREE, 0, 1, b"s"),))
    scene.write(4, entry(1, 1))
    scene.send(SnapshotReply(4, 1, 1, 5))


def test_members_of_a_truncated_entry() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.nodes[2].members = Members((1, 2, 3), (4,), 5)
    scene.nodes[2].term = 9
    with broken("members in force"):
        scene.checkers.observe(scene.nodes[2])


# -- limits -----------------------------------------------------------------------------------


def test_a_log_beyond_its_capacity() -> None:
    for kind, fires in ((EntryKind.NO_OP, False), (EntryKind.NORMAL, True)):
        scene = Scene()
        node = scene.nodes[1]
        for index in range(1, CONFIG.log_capacity + 1):
            node.log.append(entry(index, 0))
        scene.checkers.on_ready(node, Ready())
        node.log.append(entry(CONFIG.log_capacity + 1, 0, b"", kind))
        if not fires:
            scene.checkers.on_ready(node, Ready())
            continue
        with broken("bounded memory"):
            scene.checkers.on_ready(node, Ready())


def test_too_many_proposals() -> None:
    scene = Scene()
    node = scene.nodes[1]
    for index in range(1, CONFIG.pending_entries_max + 1):
        node.log.append(entry(index, 0))
        scene.checkers.on_propose(node, index, b"%d" % index)
    node.log.append(entry(CONFIG.pending_entries_max + 1, 0))
    with broken("bounded memory"):
        scene.checkers.on_propose(node, 9, b"one more")


def test_too_many_bytes_except_in_one_large_entry() -> None:
    scene = Scene()
    node = scene.nodes[1]
    node.log.append(entry(1, 0, bytes(1000)))
    scene.checkers.on_propose(node, 1, b"a")
    node.log.append(entry(2, 0, b""))
    with broken("bounded memory"):
        scene.checkers.on_propose(node, 2, b"b")


def test_too_large_messages_and_applies() -> None:
    scene = Scene()
    node = scene.nodes[1]
    entries = tuple(entry(index, 0) for index in range(1, 5))
    large = (entry(1, 0, bytes(80)), entry(2, 0, bytes(80)))
    scene.send(AppendRequest(1, 2, 1, 0, 0, 0, large[:1]))
    for message in (
        AppendRequest(1, 2, 1, 0, 0, 0, entries[:3]),
        AppendRequest(1, 2, 1, 0, 0, 0, large),
    ):
        with broken("bounded memory"):
            scene.send(message)
    with broken("bounded memory"):
        scene.checkers.on_ready(node, Ready(apply=Apply(last=4, entries=entries)))


def test_too_large_windows_and_queues() -> None:
    follower = SimpleNamespace(node=2, inflight_appends=0, inflight_bytes=0)
    full = {
        "reads_waiting": CONFIG.reads_max + 1,
        "proposals_waiting": 2 * CONFIG.log_capacity + 1,
    }
    for name, value in full.items():
        scene = Scene()
        setattr(scene.nodes[1], name, value)
        with broken("bounded memory"):
            scene.checkers.at_end(scene.nodes)
    for name, value in (("inflight_appends", 33), ("inflight_bytes", 1 << 40)):
        scene = Scene()
        scene.nodes[1].followers = (follower, SimpleNamespace(**{**vars(follower), name: value}))
        scene.checkers.at_end(scene.nodes)
        scene.nodes[1].role = Role.LEADER
        with broken("bounded memory"):
            scene.checkers.at_end(scene.nodes)
