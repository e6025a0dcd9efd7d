"""Checkers of whole nodes that need no cluster to be checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.model import Cleanup, PartitionBy, SyncPolicy
from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.committed import CommittedRecords
from bascule.sim.cluster.checkers.contents import FinalContents, Log
from bascule.sim.cluster.checkers.growth import KNOWN_NS, ROUTED, PartitionGrowth
from bascule.sim.cluster.checkers.log_contents import StoredRecord
from bascule.sim.cluster.checkers.log_starts import LogStarts
from bascule.sim.cluster.checkers.losses import SETTLED_NS, AllowedLosses
from bascule.sim.cluster.checkers.replica_states import ReplicaStates
from bascule.sim.cluster.checkers.requests import RequestEffects
from bascule.sim.cluster.publishers import Publication
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.cluster.simulation import make_prng
from bascule.sim.cluster.streams import StreamTrait, draw_streams
from bascule.sim.cluster.world.loop import NS
from support.replica_group import ReplicaGroup, message

ID = b"request"


def test_a_request_takes_effect_once() -> None:
    effects = RequestEffects()
    effects.on_entry("n1.1", ID, 5, True)
    effects.on_entry("n2.1", ID, 5, True)
    effects.on_entry("n1.1", ID, 7, False)
    with pytest.raises(InvariantBroken, match="took effect at 5 and 8 on"):
        effects.on_entry("n1.1", ID, 8, True)


def test_nodes_agree_on_which_requests_take_effect() -> None:
    effects = RequestEffects()
    effects.on_entry("n1.1", ID, 5, True)
    with pytest.raises(InvariantBroken, match="nodes agree on requests"):
        effects.on_entry("n2.1", ID, 5, False)


def test_entries_without_a_request_are_no_requests() -> None:
    effects = RequestEffects()
    effects.on_entry("n1.1", b"", 5, True)
    effects.on_entry("n1.1", b"", 6, True)


def test_all_streams_have_the_traits_that_are_chosen() -> None:
    (found,) = draw_streams(make_prng(1), 1, replicas=3, traits=("compacted", "split", "strict"))
    config = found.config()
    assert found.traits == {StreamTrait.COMPACTED, StreamTrait.SPLIT, StreamTrait.STRICT}
    assert config.cleanup == (Cleanup.COMPACT,)
    assert config.partitions > 1
    assert config.partition_by is PartitionBy.KEY
    assert config.min_isr == 3
    assert config.sync is SyncPolicy.ALWAYS
    assert not found.has_ids


def test_a_purge_allows_what_was_asked_for() -> None:
    (plan,) = draw_streams(make_prng(1), 1, replicas=3, traits=("plain",))
    starts = LogStarts({plan.name: plan}, AllowedLosses(), clocks_jump=False)
    key = plan.name, 0
    assert starts.allowed(key, 0) == 0
    starts.on_purge(key, 7, is_done=False, now_ns=0)
    assert starts.allowed(key, 0) == 7


def contents_of(losses: AllowedLosses) -> FinalContents:
    growth = PartitionGrowth({}, losses)
    return FinalContents({}, {}, CommittedRecords({}, (), losses), losses, growth, {})


def elect_uncleanly(group: ReplicaGroup, losses: AllowedLosses, *, now_ns: int) -> None:
    """Have the second replica lead with what it has, and have the checkers look at it."""
    group.apply(leader=2, leader_epoch=2, isr=(2,), unclean_epoch=2)
    losses.allowed.add("s")
    partitions = [replica.partition for replica in group.replicas.values()]
    assert losses.look(partitions, (), now_ns) == [("s", 0)]


def test_purges_of_before_an_unclean_election_allow_nothing_behind_it() -> None:
    (plan,) = draw_streams(make_prng(1), 1, replicas=3, traits=("plain",))
    losses, group, key = AllowedLosses(), ReplicaGroup(), ("s", 0)
    starts = LogStarts({"s": plan}, losses, clocks_jump=False)
    group.apply()
    group.leader.append(message(count=3))
    group.replicate(2)
    starts.on_purge(key, 7, is_done=False, now_ns=0)
    elect_uncleanly(group, losses, now_ns=20 * NS)
    starts.on_purge(key, 5, is_done=False, now_ns=19 * NS)
    starts.forget(key, 20 * NS)
    assert starts.allowed(key, 0) == 7
    starts.note_end(group.replicas[2].partition, key)
    assert starts.allowed(key, 0) == 5  # may be under way
    starts.on_purge(key, 5, is_done=True, now_ns=20 * NS)
    starts.forget(key, 21 * NS)
    starts.note_end(group.replicas[2].partition, key)
    assert starts.allowed(key, 0) == 3


def test_what_is_sent_after_an_unclean_election_is_not_lost() -> None:
    losses, group = AllowedLosses(), ReplicaGroup()
    contents = contents_of(losses)
    group.apply()
    elect_uncleanly(group, losses, now_ns=0)
    sent = Publication("m", "s", 0, b"m", sends=1, offset=0, partition=0)
    publisher = cast("Any", SimpleNamespace(sent=[sent]))
    contents._check_acked(publisher, {("s", 0): Log(0)})
    sent.sent_ns = SETTLED_NS
    with pytest.raises(InvariantBroken, match="no acked message lost"):
        contents._check_acked(publisher, {("s", 0): Log(0)})


@pytest.mark.parametrize("is_acked", [True, False])
def test_all_is_stored_once_when_all_nodes_know_of_more_partitions(is_acked: bool) -> None:
    growth = PartitionGrowth({"s": 2}, AllowedLosses())
    sent = Publication("m", "s", 0, b"m", b"k", sent_ns=3 * KNOWN_NS)
    if is_acked:
        sent.offset, sent.partition = 0, 1
    record = StoredRecord(0, "", b"k", b"m")
    logs = {("s", index): (0, {0: record}) for index in range(2)}

    def check() -> None:
        growth.check([sent], logs, (), is_damaged=False, by_key=True)

    check()
    growth.on_asked("s", KNOWN_NS)
    assert growth.has_grown
    check()  # not all is well again
    growth.on_calm(2 * KNOWN_NS)
    with pytest.raises(InvariantBroken, match=ROUTED):
        check()
    sent.sent_ns -= 1
    check()


def test_all_messages_of_a_key_are_in_one_of_more_partitions() -> None:
    growth = PartitionGrowth({"s": 2}, AllowedLosses())
    growth.on_asked("s", 0)
    growth.on_calm(0)
    sent = [Publication(f"m{n}", "s", n, b"%d" % n, b"k", KNOWN_NS) for n in range(2)]
    for each in sent:
        each.offset, each.partition = 0, each.number
    growth.check(sent, {}, (), is_damaged=False, by_key=False)
    with pytest.raises(InvariantBroken, match="are in the partitions 0 and 1 of s"):
        growth.check(sent, {}, (), is_damaged=False, by_key=True)


def test_no_replica_in_sync_starts_before_a_confirmed_purge() -> None:
    (plan,) = draw_streams(make_prng(1), 1, replicas=3, traits=("plain",))
    starts, group = LogStarts({"s": plan}, AllowedLosses(), clocks_jump=False), ReplicaGroup()
    in_sync = [(1, group.replicas[1].partition)]
    starts.look_at_set(("s", 0), in_sync)
    starts.on_purge(("s", 0), 1, is_done=False, now_ns=0)
    starts.look_at_set(("s", 0), in_sync)
    starts.on_purge(("s", 0), 1, is_done=True, now_ns=0)
    with pytest.raises(InvariantBroken, match="starts at 0, is in sync, and a purge to 1 is"):
        starts.look_at_set(("s", 0), in_sync)


def test_a_start_falls_only_after_an_unclean_election(monkeypatch: pytest.MonkeyPatch) -> None:
    (plan,) = draw_streams(make_prng(1), 1, replicas=3, traits=("plain",))
    starts, group = LogStarts({"s": plan}, AllowedLosses(), clocks_jump=False), ReplicaGroup()
    partition = group.replicas[2].partition

    def look() -> None:
        starts.look(2, partition, now_ns=0, committed=3, latest_epoch=1)

    group.apply()
    group.leader.append(message(count=3))
    group.replicate(2)
    starts.on_purge(("s", 0), 3, is_done=False, now_ns=0)
    group.replicas[2].log.advance_start(3, high_watermark=3)
    look()
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "start_offset", 2)
        with pytest.raises(InvariantBroken, match="2 after 3"):
            look()
    look()
    group.apply(leader=3, leader_epoch=2, isr=(3,), unclean_epoch=2)
    look()
    group.leader.append(message())
    group.leader.sync()
    group.copy(2)
    assert partition.start_offset == 0
    look()


def test_a_watermark_goes_back_once_its_log_is_truncated_after_an_unclean_election(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (plan,) = draw_streams(make_prng(1), 1, replicas=3, traits=("plain",))
    states, group = ReplicaStates({"s": plan}, AllowedLosses()), ReplicaGroup()
    group.apply(isr=(1,), min_isr=1)
    group.leader.append(message())
    group.leader.sync()
    group.replicate(2)
    group.leader.append(message(count=2))
    group.leader.sync()
    old = group.replicas[1].partition
    states.look_at_mark(1, old)
    group.apply(leader=2, leader_epoch=2, isr=(2,), unclean_epoch=2)
    states.look_at_mark(1, old)
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "committed_offset", 2)
        with pytest.raises(InvariantBroken, match="2 after 3"):
            states.look_at_mark(1, old)
    states.look_at_mark(1, old)
    group.copy(1)
    assert old.committed_offset == 1
    states.look_at_mark(1, old)
    group.leader.append(message(count=2))
    group.leader.sync()
    group.replicate(1)
    group.copy(1)
    states.look_at_mark(1, old)
    assert old.committed_offset == 3
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "committed_offset", 2)
        with pytest.raises(InvariantBroken, match="2 after 3"):
            states.look_at_mark(1, old)


def test_what_was_sent_once_and_never_refused_is_stored_in_order() -> None:
    losses = AllowedLosses()
    contents = contents_of(losses)
    sent = [Publication(f"m{n}", "s", n, b"%d" % n, None, n) for n in range(2)]
    for publication, offset in zip(sent, (1, 0), strict=True):
        publication.sends, publication.offset, publication.partition = 1, offset, 0
    records = {each.offset: StoredRecord(each.offset, "", None, each.body) for each in sent}
    publisher = cast("Any", SimpleNamespace(sent=sent))
    with pytest.raises(InvariantBroken, match="m1 is at 0, an earlier message at 1"):
        contents._check_acked(publisher, {("s", 0): Log(0, records)})
    sent[0].errors.append("its leader had a full disk, and its successor has stored it")
    contents._check_acked(publisher, {("s", 0): Log(0, records)})


def test_the_replay_line_has_the_traits() -> None:
    assert ClusterOptions(traits="limited").as_arguments() == ' --traits "limited"'
