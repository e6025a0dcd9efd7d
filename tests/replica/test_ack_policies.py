"""Acks of one partition by the policy of each message."""

from __future__ import annotations

import pytest

from bascule.model import AckPolicy, SyncPolicy
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.wire import ack_codes
from support.replica_group import ReplicaGroup, message
from support.replicas import decode_acks

LEADER, NONE = AckPolicy.LEADER, AckPolicy.NONE


def test_under_leader_the_ack_waits_for_the_leader_alone() -> None:
    group = ReplicaGroup()
    group.apply()
    assert group.leader.append(message(b"in.all")) == b""
    assert group.leader.append(message(b"in.leader", policy=LEADER)) == b"", "not synced yet"
    acks = decode_acks(group.leader.sync())
    assert acks.keys() == {"in.leader"}
    told = {name: acks["in.leader"][name] for name in ("offset", "replicas", "synced")}
    assert told == {"offset": 1, "replicas": 1, "synced": True}
    assert group.leader.committed_offset == 0, "consumers read what is committed"
    acks = decode_acks(group.replicate(2, 3))
    assert acks.keys() == {"in.all"}
    assert acks["in.all"]["replicas"] == 3


@pytest.mark.parametrize("sync", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_under_leader_the_ack_waits_for_what_sync_says(sync: SyncPolicy) -> None:
    group = ReplicaGroup(sync=sync)
    group.apply()
    ack = decode_acks(group.leader.append(message(b"in.0", policy=LEADER)))["in.0"]
    assert (ack["offset"], ack["replicas"], ack["synced"]) == (0, 1, False)


def test_under_leader_an_isr_change_releases_nothing_that_is_not_synced() -> None:
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message(b"in.all"))
    group.leader.sync()
    group.leader.append(message(b"in.leader", policy=LEADER))
    assert group.apply(isr=(1, 2)) == b""
    group.copy(2)
    group.replicas[2].partition.sync()
    assert decode_acks(group.report(2)).keys() == {"in.all"}
    assert decode_acks(group.leader.sync()).keys() == {"in.leader"}


def test_under_none_only_a_refused_message_is_answered() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1,))
    for policy in AckPolicy:
        refused = decode_acks(group.leader.append(message(b"in", policy=policy)))["in"]["error"]
        assert isinstance(refused, dict)
        assert refused["err_code"] == ack_codes.NOT_ENOUGH_REPLICAS, policy
    group.apply(isr=(1, 2))
    stored = group.leader.append(message(b"in", policy=NONE)) + group.replicate(2)
    assert stored == b""
    again = message(b"in.1", policy=NONE, Nats_Expected_Last_Sequence="7")
    refused = decode_acks(group.leader.append(again))["in.1"]["error"]
    assert isinstance(refused, dict)
    assert refused["err_code"] == ack_codes.WRONG_LAST_SEQUENCE


def test_under_leader_answers_rest_on_the_log_of_the_leader_only() -> None:
    group = ReplicaGroup()
    group.apply()

    def ask(inbox: bytes, policy: AckPolicy, **headers: str) -> UnstampedBatch:
        return message(inbox, policy=policy, **headers)

    leader = group.leader
    assert leader.append(message(Nats_Msg_Id="a")) == b""
    for policy in AckPolicy:
        assert leader.append(ask(b"dup." + policy.encode(), policy, Nats_Msg_Id="a")) == b""
    wrong = {}
    for policy in AckPolicy:
        replies = leader.append(
            ask(b"wrong." + policy.encode(), policy, Nats_Expected_Last_Sequence="9")
        )
        wrong |= decode_acks(replies)
    assert not wrong, "the message that they rest on is not synced yet"
    acks = decode_acks(leader.sync())
    assert acks.keys() == {"dup.leader", "wrong.leader"}
    ack = acks["dup.leader"]
    assert (ack["offset"], ack["duplicate"], ack["replicas"]) == (0, True, 1)
    acks = decode_acks(group.replicate(2, 3))
    assert acks.keys() == {"dup.all", "wrong.all", "wrong.none"}
    assert acks["dup.all"]["replicas"] == 3
    at_once = decode_acks(leader.append(ask(b"late", LEADER, Nats_Msg_Id="a")))
    assert at_once["late"]["duplicate"] is True


def test_a_deposed_leader_answers_no_policy() -> None:
    group = ReplicaGroup()
    group.apply()
    old = group.leader
    for policy in AckPolicy:
        old.append(message(b"in." + policy.encode(), policy=policy))
        old.append(message(b"dup." + policy.encode(), policy=policy, Nats_Msg_Id="a"))
    assert group.apply(1, leader=2, leader_epoch=2, isr=(2, 3)) == b""
    assert len(old.commitment.pending) == 0
    assert old.sync() == b""
    assert old.counts.records_dropped == 3, (
        "`in.all` and `dup.all`, which is no duplicate, and `in.leader`"
    )


def test_a_batch_with_several_policies_is_answered_in_parts() -> None:
    group = ReplicaGroup()
    group.apply()
    batch = message(b"in.0", count=3)
    for number, policy in enumerate((LEADER, NONE), start=1):
        other = message(b"in.%d" % number, policy=policy)
        entry = bytearray(other.ack_entries)
        entry[1] = number
        batch.ack_entries += bytes(entry)
        batch.ack_policies |= other.ack_policies
    group.leader.append(batch)
    assert group.leader.commitment.pending.record_count == 3
    stored = decode_acks(group.leader.sync())
    assert [(inbox, ack["offset"]) for inbox, ack in stored.items()] == [("in.1", 1)]
    committed = decode_acks(group.replicate(2, 3))
    assert [(inbox, ack["offset"]) for inbox, ack in committed.items()] == [("in.0", 0)]


def test_a_failed_sync_leaves_it_open_whether_messages_are_stored() -> None:
    group = ReplicaGroup()
    group.apply()
    for policy in AckPolicy:
        group.leader.append(message(b"in." + policy.encode(), policy=policy))
    failed = decode_acks(group.leader.fail("the disk is gone", reason="disk error"))
    assert failed.keys() == {"in.all", "in.leader"}
    for answer in failed.values():
        error = answer["error"]
        assert isinstance(error, dict)
        assert error["err_code"] == ack_codes.INDETERMINATE
