"""Every checker reports violations of its invariant, and accepts similar correct histories."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bascule.raft.effects import Apply, Ready, Role
from bascule.raft.membership import Members
from bascule.raft.messages import (
    AnyMessage,
    AppendReply,
    Chunk,
    EntryKind,
    RaftSnapshot,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.raft.store import PersistentState
from bascule.sim.checkers import Checker, Checkers, InvariantBroken, standard_checkers
from support.raft_events import THREE, FakeNode, Scene, broken, entry


def test_every_checker_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "invariants.md").read_text()
    names = [checker.name for checker in standard_checkers()]
    assert len(set(names)) == len(names)
    for checker in standard_checkers():
        title = checker.name[0].upper() + checker.name[1:]
        item = re.search(
            rf"^\d+\. \*\*{title}\.\*\*(.*?)\*Checked by\* `(\w+)`", text, re.MULTILINE | re.DOTALL
        )
        assert item is not None, f"docs/invariants.md has no {title!r}"
        assert item.group(2) == type(checker).__name__


def test_a_correct_group_breaks_no_invariant() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1, b"", EntryKind.NO_OP), entry(2, 1))
    scene.checkers.on_apply(1, Apply(last=2, entries=scene.nodes[1].log.slice(1, 3)))
    scene.crash(2)
    scene.start(2, entry(1, 1, b"", EntryKind.NO_OP), entry(2, 1), term=1)
    scene.checkers.at_end(scene.nodes)


def test_checkers_get_only_the_events_that_they_handle() -> None:
    told = []

    class Listener(Checker):
        name = "listener"
        sends = (VoteReply,)

        def on_send(self, node_id: int, message: AnyMessage) -> None:
            told.append((node_id, message))

    checkers = Checkers([Checker(), Listener(), Listener()])
    checkers.on_send(1, AppendReply(1, 2, 1, True, 1))
    vote = VoteReply(1, 2, 1, False, True)
    checkers.on_send(1, vote)
    assert told == [(1, vote), (1, vote)]


# -- elections --------------------------------------------------------------------------------


def test_two_leaders_in_one_term() -> None:
    scene = Scene()
    scene.lead(1, 1)
    with broken("election safety"):
        scene.lead(2, 1)


def test_a_restarted_leader_leads_its_term_again() -> None:
    scene = Scene()
    scene.lead(1, 1)
    scene.crash(1)
    scene.start(1, term=1, vote=1)
    scene.numbers.clear()
    with broken("election safety"):
        scene.lead(1, 1)


def test_two_votes_in_one_term() -> None:
    scene = Scene()
    scene.write(3, vote=(1, 1))
    scene.send(VoteReply(3, 1, 1, False, True))
    scene.send(VoteReply(3, 1, 1, False, True))
    scene.crash(3)
    scene.start(3, term=1, vote=1)
    with broken("one durable vote a term"):
        scene.send(VoteReply(3, 2, 1, False, True))


def test_a_vote_for_another_after_one_for_itself() -> None:
    scene = Scene()
    scene.write(3, vote=(1, 3))
    scene.send(VoteRequest(3, 1, 1, False, 0, 0))
    with broken("one durable vote a term"):
        scene.send(VoteReply(3, 2, 1, False, True))


def test_a_vote_sent_before_it_is_on_disk() -> None:
    scene = Scene()
    scene.write(3, vote=(1, 1), disk=False)
    scene.send(VoteReply(3, 1, 1, True, True))  # a pre-vote need not be on disk
    scene.send(VoteReply(3, 2, 1, False, False))
    with broken("one durable vote a term"):
        scene.send(VoteReply(3, 1, 1, False, True))


def test_a_term_without_a_pre_vote() -> None:
    scene = Scene()
    node = scene.nodes[1]
    scene.checkers.on_step(node, VoteReply(2, 1, 1, True, False))
    scene.checkers.on_step(node, VoteReply(3, 1, 2, True, True))
    node.term, node.role = 1, Role.CANDIDATE
    with broken("no term without a pre-vote"):
        scene.checkers.observe(node)


def test_a_late_reply_to_an_older_pre_vote_is_allowed() -> None:
    scene = Scene()
    node = scene.nodes[1]
    scene.checkers.on_step(node, VoteReply(2, 1, 2, True, True))
    scene.checkers.on_step(node, VoteReply(3, 1, 1, True, True))
    node.term, node.role = 2, Role.CANDIDATE
    scene.checkers.observe(node)


def test_a_pre_vote_of_a_learner_does_not_count() -> None:
    scene = Scene()
    node = scene.nodes[1]
    node.members = Members((1, 2), (3,))
    scene.checkers.on_step(node, VoteReply(3, 1, 1, True, True))
    node.term, node.role = 1, Role.CANDIDATE
    with broken("no term without a pre-vote"):
        scene.checkers.observe(node)


def test_a_transfer_needs_no_pre_vote() -> None:
    scene = Scene()
    node = scene.nodes[1]
    scene.checkers.on_step(node, TimeoutNow(2, 1, 4))
    node.term, node.role = 5, Role.CANDIDATE
    scene.checkers.observe(node)
    node.term = 6
    with broken("no term without a pre-vote"):
        scene.checkers.observe(node)


# -- logs -------------------------------------------------------------------------------------


def test_a_leader_that_replaces_an_entry() -> None:
    scene = Scene()
    scene.write(1, entry(1, 0), entry(2, 0))
    scene.lead(1, 1)
    scene.write(1, entry(3, 1))
    with broken("leader append-only"):
        scene.write(1, entry(3, 1, b"other"), truncate_from=3)


def test_a_new_leader_may_write_entries_of_its_time_as_follower() -> None:
    scene = Scene()
    scene.write(1, entry(1, 0), entry(2, 0))
    scene.lead(1, 1)
    scene.write(1, entry(2, 1), truncate_from=2)


def test_two_payloads_at_one_index_and_term() -> None:
    scene = Scene()
    scene.nodes[2].term = scene.nodes[1].term = 1
    scene.write(1, entry(1, 1, b"a"))
    with broken("log matching"):
        scene.write(2, entry(1, 1, b"b"))


def test_two_previous_entries_of_one_entry() -> None:
    scene = Scene()
    scene.nodes[2].term = scene.nodes[1].term = 2
    scene.write(1, entry(1, 1), entry(2, 2))
    scene.write(2, entry(1, 2))
    with broken("log matching"):
        scene.write(2, entry(2, 2))


def test_an_entry_of_a_later_term_than_the_node() -> None:
    scene = Scene()
    with broken("log matching"):
        scene.write(1, entry(1, 5))


def test_a_leader_without_a_committed_entry() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.crash(2)
    scene.nodes[2] = FakeNode(2, term=1, commit=1)  # its log is empty
    with broken("leader completeness"):
        scene.lead(2, 2)


def test_a_leader_with_another_entry_at_a_committed_index() -> None:
    scene = Scene()
    scene.write(3, entry(1, 0))
    scene.lead(1, 1)
    for node_id in (1, 2):
        scene.nodes[node_id].term = 1
        scene.write(node_id, entry(1, 1))
    scene.commit(1, 1)
    with broken("leader completeness"):
        scene.lead(3, 2)


def test_a_leader_of_an_old_term_may_lack_later_commits() -> None:
    scene = Scene()
    scene.lead(1, 5)
    for node_id in (1, 2):
        scene.nodes[node_id].term = 5
        scene.checkers.observe(scene.nodes[node_id])
        scene.write(node_id, entry(1, 5))
    scene.commit(1, 1)
    scene.lead(3, 4)


# -- commits ----------------------------------------------------------------------------------


def test_two_entries_committed_at_one_index() -> None:
    scene = Scene()
    scene.write(3, entry(1, 0, b"other"))
    scene.lead(1, 1)
    for node_id in (1, 2):
        scene.nodes[node_id].term = 1
        scene.write(node_id, entry(1, 1))
    scene.commit(1, 1)
    with broken("state-machine safety"):
        scene.commit(3, 1)


def test_a_snapshot_of_another_log() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.lead(2, 2)
    node = FakeNode(4, term=2, members=THREE)
    scene.checkers.on_start(node, PersistentState(initial_members=Members(())))
    node.log.reset(RaftSnapshot(1, 2, THREE, (b"",)))
    node.commit = 1
    with broken("state-machine safety"):
        scene.checkers.observe(node)


def test_a_commit_index_that_falls() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.nodes[2].commit = 0
    with broken("monotonic commit and term"):
        scene.checkers.observe(scene.nodes[2])


def test_a_term_that_falls() -> None:
    scene = Scene()
    scene.write(2, vote=(3, 1))
    scene.nodes[2].term = 2
    with broken("monotonic commit and term"):
        scene.checkers.observe(scene.nodes[2])


def test_a_restart_below_the_term_on_disk() -> None:
    scene = Scene()
    scene.write(2, vote=(3, 1))
    scene.crash(2)
    with broken("monotonic commit and term"):
        scene.start(2, term=2)


def test_a_commit_without_a_majority_of_disks() -> None:
    scene = Scene()
    scene.lead(1, 1)
    scene.write(1, entry(1, 1))
    scene.nodes[2].term = 1
    scene.write(2, entry(1, 1), disk=False)
    with broken("a commit is a majority's"):
        scene.commit(1, 1)


def test_the_disk_of_a_learner_does_not_count() -> None:
    scene = Scene()
    scene.lead(1, 1)
    scene.nodes[1].members = Members((1, 2), (3,), 0)
    for node_id in (1, 3):
        scene.nodes[node_id].term = 1
        scene.write(node_id, entry(1, 1))
    with broken("a commit is a majority's"):
        scene.commit(1, 1)


def test_an_old_terms_entry_committed_by_count() -> None:
    scene = Scene()
    for node_id in (1, 2, 3):
        scene.write(node_id, entry(1, 0))
    scene.lead(1, 1)
    with broken("a commit is a majority's"):
        scene.commit(1, 1)


def test_a_follower_that_commits_before_any_leader() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.write(2, entry(2, 1))
    with broken("a commit is a majority's"):
        scene.commit(2, 2)


def test_a_committed_entry_that_is_truncated() -> None:
    scene = Scene()
    scene.lead(1, 1)
    for node_id in (1, 2, 3):
        scene.nodes[node_id].term = 1
        scene.write(node_id, entry(1, 1), entry(2, 1))
    scene.commit(1, 1)
    scene.send(AppendReply(2, 1, 1, True, 1))
    scene.write(2, truncate_from=2)
    with broken("no committed entry lost"):
        scene.write(2, truncate_from=1)


def test_a_node_may_lose_a_committed_entry_that_it_did_not_acknowledge() -> None:
    """Node 3 has the entry from a leader that could not commit it. The third leader commits it with
    the other nodes. Then a late message of the second leader, which lacks the entry, arrives at
    node 3."""
    scene = Scene()
    for node_id in (1, 2, 3):
        scene.nodes[node_id].term = 1
        scene.write(node_id, entry(1, 1))
    scene.send(AppendReply(3, 1, 1, True, 1))  # to the leader of term 1, which has stopped
    scene.lead(1, 3)
    for node_id in (1, 2):
        scene.nodes[node_id].term = 3
        scene.write(node_id, entry(2, 3))
    scene.commit(1, 2)
    scene.nodes[3].term = 2
    scene.write(3, truncate_from=1)


def test_the_newest_snapshot_deleted() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1), entry(2, 1))
    for index in (1, 2):
        scene.write(2, chunks=(Chunk(index, 1, THREE, 0, 1, b"s"),))
    scene.write(2, delete_chunks=((1, 1),))
    with broken("no committed entry lost"):
        scene.write(2, delete_chunks=((2, 1),))


def test_a_committed_entry_on_a_minority_at_the_end() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.checkers.at_end(scene.nodes)
    for node_id in (2, 3):
        disks = next(c for c in scene.standard if c.name == "what was synced survives")
        disks.by_node.pop(node_id)  # type: ignore[attr-defined]  # as if its disk were another
    with broken("no committed entry lost"):
        scene.checkers.at_end(scene.nodes)


def test_a_match_that_is_not_on_disk() -> None:
    scene = Scene()
    scene.nodes[2].term = 1
    write = scene.write(2, entry(1, 1), entry(2, 1), disk=False)
    scene.send(AppendReply(2, 1, 1, False, 2))
    with broken("a match is durable"):
        scene.send(AppendReply(2, 1, 1, True, 2))
    scene.checkers.on_written(2, write)
    scene.send(AppendReply(2, 1, 1, True, 2))
    with broken("a match is durable"):
        scene.send(SnapshotReply(2, 1, 1, 3))


def test_a_match_for_a_replaced_entry() -> None:
    """The disk has an entry at that index, but not that of the leader."""
    scene = Scene()
    scene.lead(1, 2)
    scene.write(1, entry(1, 2))
    scene.write(2, entry(1, 0))
    with broken("a match is durable"):
        scene.send(AppendReply(2, 1, 2, True, 1))


def test_a_match_for_entries_that_the_same_write_replaces() -> None:
    """The entries of term 1 and their replacements arrived before anything was written."""
    scene = Scene()
    scene.nodes[2].term = 2
    scene.write(2, entry(1, 1), entry(2, 1))
    scene.write(2, entry(2, 2), vote=(2, 0), truncate_from=2)
    scene.send(AppendReply(2, 1, 1, True, 2))
    scene.send(AppendReply(2, 1, 1, True, 3))
    with broken("a match is durable"):
        scene.send(AppendReply(2, 1, 2, True, 3))


# -- disks ------------------------------------------------------------------------------------


def test_a_disk_that_loses_an_entry() -> None:
    scene = Scene()
    scene.nodes[2].term = 1
    scene.write(2, entry(1, 1), entry(2, 1))
    scene.write(2, entry(3, 1), disk=False)
    scene.crash(2)
    with broken("what was synced survives"):
        scene.start(2, entry(1, 1), term=1)


def test_a_disk_may_keep_or_lose_unsynced_writes() -> None:
    for kept in (2, 3, 4):
        scene = Scene()
        scene.nodes[2].term = 1
        scene.write(2, entry(1, 1), entry(2, 1), entry(3, 1))
        scene.write(2, entry(3, 1), entry(4, 1), disk=False, truncate_from=3)
        scene.crash(2)
        scene.start(2, *[entry(index, 1) for index in range(1, kept + 1)], term=1)


def test_a_disk_that_loses_a_vote() -> None:
    scene = Scene()
    scene.write(2, vote=(1, 3))
    scene.crash(2)
    with broken("what was synced survives"):
        scene.start(2, term=1, vote=0)


def test_a_disk_that_loses_a_snapshot() -> None:
    scene = Scene()
    scene.replicated(entry(1, 1))
    scene.write(2, chunks=(Chunk(1, 1, THREE, 0, 1, b"s"),), truncate_until=1)
    scene.crash(2)
    with pytest.raises(InvariantBroken):
        scene.start(2, entry(1, 1), term=1)


def test_an_unsynced_snapshot_that_survives_replaces_a_conflicting_log() -> None:
    """The entries on the disk after the snapshot belong to a log that conflicts with it."""
    scene = Scene()
    scene.lead(1, 2)
    for node_id in (1, 3):
        scene.nodes[node_id].term = 2
        scene.write(node_id, entry(1, 1), entry(2, 2))
    scene.commit(1, 2)
    scene.nodes[2].term = 2
    scene.write(2, *[entry(index, 1) for index in (1, 2, 3)])
    scene.write(2, chunks=(Chunk(2, 2, THREE, 0, 1, b"s"),), disk=False)
    scene.crash(2)
    scene.start(2, term=2, snapshot=RaftSnapshot(2, 2, THREE, (b"s",)))


def test_a_node_that_counts_itself_beyond_its_disk_or_log() -> None:
    scene = Scene()
    node = scene.nodes[1]
    node.term = 2
    write = scene.write(1, entry(1, 1), entry(2, 1), disk=False)
    node.synced = 2
    with broken("its own part is durable"):
        scene.checkers.on_ready(node, Ready())
    scene.checkers.on_written(1, write)
    scene.checkers.on_ready(node, Ready())
    node.synced = 3
    with broken("its own part is durable"):
        scene.checkers.on_ready(node, Ready())
    # A later leader replaced entry 2, and its write is not done.
    node.synced = 2
    node.log.truncate_from(2)
    node.log.append(entry(2, 2))
    with broken("its own part is durable"):
        scene.checkers.on_ready(node, Ready())
