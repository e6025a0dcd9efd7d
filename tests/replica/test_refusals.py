"""A refusal is answered once what it rests on is certain."""

from __future__ import annotations

import struct

import pytest

from bascule.host.real import RealRandom
from bascule.model import AckPolicy
from bascule.publish.acks import ACK_POLICIES
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.replica.partition import Partition
from bascule.sim.disk import SimFiles
from bascule.wire import ack_codes
from support.replica_group import ReplicaGroup, message
from support.replicas import decode_acks, open_partition


def both_expect_an_empty_log(policy: AckPolicy = AckPolicy.ALL) -> UnstampedBatch:
    """Two messages, of which the first makes the condition of the second wrong."""
    batch = message(count=2, Nats_Expected_Last_Sequence="0")
    number = ACK_POLICIES[policy]
    for row, inbox in enumerate((b"first", b"second")):
        batch.ack_entries += struct.pack("<BIH", number << 1, row, len(inbox)) + inbox
    batch.ack_policies = 1 << number
    return batch


def is_refused(acks: dict[str, dict[str, object]], inbox: str) -> bool:
    error = acks[inbox].get("error")
    return isinstance(error, dict) and error["err_code"] == ack_codes.WRONG_LAST_SEQUENCE


@pytest.mark.parametrize("policy", list(AckPolicy))
def test_a_refusal_by_a_message_of_the_same_batch_waits_for_it(policy: AckPolicy) -> None:
    group = ReplicaGroup()
    group.apply()
    assert group.leader.append(both_expect_an_empty_log(policy)) == b""
    synced, committed = group.leader.sync(), b""
    if policy is not AckPolicy.LEADER:
        assert synced == b"", "a successor may not have the first message"
        synced = group.replicate(2)
        assert synced == b"", "the third replica is in sync, too"
        committed = group.replicate(3)
    acks = decode_acks(synced + committed)
    assert is_refused(acks, "second")
    assert acks.keys() == ({"second"} if policy is AckPolicy.NONE else {"first", "second"})


def test_a_leader_that_is_deposed_leaves_it_unanswered() -> None:
    group = ReplicaGroup()
    group.apply()
    old = group.leader
    assert old.append(both_expect_an_empty_log()) == b""
    assert group.apply(leader=2, leader_epoch=2, isr=(2, 3)) == b""
    assert old.sync() == b""


def alone() -> tuple[SimFiles, Partition]:
    files = SimFiles(RealRandom(1))
    return files, open_partition(files)


def test_a_single_replica_syncs_first() -> None:
    _, partition = alone()
    assert partition.append(both_expect_an_empty_log()) == b""
    assert partition.needs_sync
    acks = decode_acks(partition.sync())
    assert is_refused(acks, "second")
    assert acks["first"]["offset"] == 0
    late = partition.append(message(b"late", Nats_Expected_Last_Sequence="0"))
    assert is_refused(decode_acks(late), "late"), "what it rests on is synced"


def test_what_rests_on_nothing_is_answered_at_once() -> None:
    _, partition = alone()
    assert partition.append(message(b"in")) == b""
    malformed = decode_acks(partition.append(message(b"bad", Nats_Expected_Last_Sequence="seven")))
    error = malformed["bad"]["error"]
    assert isinstance(error, dict)
    assert error["err_code"] == ack_codes.MALFORMED_SEQUENCE


def test_a_failed_append_refuses_nothing_falsely() -> None:
    files, partition = alone()
    files.fail(1, 28)
    acks = decode_acks(partition.append(both_expect_an_empty_log()))
    assert acks.keys() == {"first", "second"}
    for inbox in acks:
        error = acks[inbox]["error"]
        assert isinstance(error, dict)
        assert error["err_code"] in (ack_codes.NOT_STORED, ack_codes.INDETERMINATE), inbox


def test_a_failed_sync_refuses_nothing_falsely() -> None:
    files, partition = alone()
    assert partition.append(both_expect_an_empty_log()) == b""
    files.fail(1, 5)
    acks = decode_acks(partition.sync())
    assert acks.keys() == {"first", "second"}
    for inbox in acks:
        error = acks[inbox]["error"]
        assert isinstance(error, dict)
        assert error["err_code"] == ack_codes.INDETERMINATE, inbox
