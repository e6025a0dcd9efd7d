"""The follower's side of a partition: attempts, and what is appended where."""

from __future__ import annotations

import pytest

from bascule.errors import CorruptData, RemoteProtocolError, UnexpectedOffset
from bascule.replica.follower.followed_partition import FollowedPartition, whole_batches
from bascule.replica.roles.commitment import LogFlags
from bascule.storage.appended_batches import split_for_segments
from bascule.storage.partition_log import LogConfig
from bascule.wire.messages.peer.replica_fetch import (
    COMPARE_ONLY,
    ReplicaFetchPartitionResponse,
)
from support.followed_logs import NO_FLAGS, followed, reported
from support.replica_group import ReplicaGroup, message
from support.stored_batches import make_batch


def test_the_batch_that_is_cut_short_is_left() -> None:
    first, second = make_batch(10, 3, leader_epoch=4), make_batch(13, 2, leader_epoch=5)
    for size in (len(first), len(first) + 1, len(first) + len(second) - 1):
        assert whole_batches(memoryview(first + second)[:size])[:3] == (len(first), 13, 4)
    assert whole_batches(memoryview(first + second))[:3] == (len(first + second), 15, 5)
    with pytest.raises(RemoteProtocolError):
        whole_batches(memoryview(first)[:-1])


@pytest.mark.parametrize("limit", ["segment_bytes_max", "segment_messages_max", "age"])
def test_a_response_is_divided_by_the_limits_of_segments(limit: str) -> None:
    """A leader sends what is in several of its segments."""
    batches = [
        make_batch(4 * n, 4, timestamp=1_000 + 100 * n, size=20, leader_epoch=1) for n in range(9)
    ]
    data, size = memoryview(b"".join(batches)), len(batches[0])
    limits = {
        "segment_bytes_max": LogConfig(segment_bytes_max=2 * size + 1),
        "segment_messages_max": LogConfig(segment_messages_max=11),
        "age": LogConfig(segment_age_ms_max=200),
    }[limit]
    arrived = whole_batches(data)
    assert (arrived.offsets, arrived.age_ms) == (36, 800)
    assert arrived.fit_into_one(LogConfig())
    assert not arrived.fit_into_one(limits)
    parts = split_for_segments(data, limits)
    assert [len(part) for part in parts] == [2 * size] * 4 + [size]
    assert all(whole_batches(part).fit_into_one(limits) for part in parts)
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    log = group.replicas[2].log
    log.configure(limits)
    assert follower.append(follower.attempt, 0, data, NO_FLAGS, arrived)
    assert [info.bytes for info in log.segments_info()] == [2 * size] * 4 + [size]


def test_batches_before_a_damaged_one_are_appended_part_by_part() -> None:
    first, second = make_batch(0, 4, leader_epoch=1), bytearray(make_batch(4, 4, leader_epoch=1))
    second[-1] ^= 1
    data = memoryview(first + second)
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    log = group.replicas[2].log
    log.configure(LogConfig(segment_bytes_max=len(first)))
    with pytest.raises(CorruptData):
        follower.append(follower.attempt, 0, data, NO_FLAGS, whole_batches(data))
    assert log.end.offset == 4


def test_records_are_appended_where_they_were_asked_for_or_not_at_all() -> None:
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    attempt = follower.attempt
    later = memoryview(make_batch(5, 2, leader_epoch=1))
    with pytest.raises(UnexpectedOffset):
        follower.append(attempt, 5, later, NO_FLAGS)
    assert group.replicas[2].log.end.offset == 0, "it would look like a gap of compaction"


def test_a_gap_is_taken_only_from_a_log_that_may_have_some() -> None:
    """No CRC covers a base offset: one that a disk has changed looks like a gap of compaction."""
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    batches = make_batch(0, 2, leader_epoch=1) + make_batch(3, 2, leader_epoch=1)
    with pytest.raises(CorruptData, match="base offset 2"):
        follower.append(follower.attempt, 0, memoryview(batches), NO_FLAGS)
    assert group.replicas[2].log.end.offset == 0
    gaps = LogFlags(may_have_ids=False, may_have_gaps=True)
    assert follower.append(follower.attempt, 0, memoryview(batches), gaps)
    assert group.replicas[2].log.end.offset == 5


def test_what_an_older_attempt_brings_is_dropped() -> None:
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    old = follower.attempt
    batch = memoryview(make_batch(0, 2, leader_epoch=1))
    assert follower.advance(old, whole_batches(batch)) == 0
    assert reported(follower).fetch_offset == 2
    assert follower.begin()
    assert reported(follower).fetch_offset == 0
    assert follower.advance(old, whole_batches(batch)) == -1
    assert not follower.append(old, 0, batch, NO_FLAGS)
    assert follower.append(follower.attempt, 0, batch, NO_FLAGS)
    assert not follower.truncate(old, 0, 0)
    assert not follower.restart(old, 7)
    assert group.replicas[2].log.end.offset == 2


def test_a_report_has_the_epoch_of_the_last_record_before_its_fetch_offset() -> None:
    """The leader may compare the logs again in the middle of an attempt. With the epoch of the
    beginning and a later offset it would take the records between for those of another leader."""
    group = ReplicaGroup()
    group.apply(leader_epoch=3)
    follower = followed(group)
    assert (reported(follower).last_fetched_epoch, reported(follower).fetch_offset) == (-1, 0)
    batches = memoryview(make_batch(0, 2, leader_epoch=2) + make_batch(2, 3, leader_epoch=3))
    assert follower.advance(follower.attempt, whole_batches(batches)) == 0
    assert (reported(follower).last_fetched_epoch, reported(follower).fetch_offset) == (3, 5)


def test_nothing_is_reported_after_an_attempt_has_failed() -> None:
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    old, batch = follower.attempt, memoryview(make_batch(0, 2, leader_epoch=1))
    assert follower.advance(old, whole_batches(batch)) == 0
    follower.end_attempt()
    assert follower.report() is None, "what it has asked for is not in the log"
    assert not follower.append(old, 0, batch, NO_FLAGS)
    assert follower.begin()
    assert reported(follower).fetch_offset == 0


def test_nothing_is_reported_once_another_epoch_has_begun() -> None:
    """The former leader may not know of it yet, and would count the records of the new epoch as its
    own, acknowledge those, and lose them."""
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    former = group.leader
    former.append(message(b"in.0", 3))
    former.sync()
    group.apply(2, leader=2, leader_epoch=2)
    group.leader.append(message(count=3))
    group.leader.sync()
    assert follower.report() is None
    group.apply(2, leader=3, leader_epoch=3)
    assert follower.report() is None


def test_attempts_of_different_epochs_have_different_numbers() -> None:
    group = ReplicaGroup()
    group.apply()
    first = followed(group)
    group.apply(leader=3, leader_epoch=2)
    assert followed(group).attempt != first.attempt
    assert not first.begin(), "the partition follows another epoch"
    assert not first.append(first.attempt, 0, memoryview(b""), NO_FLAGS)


def test_the_watermark_of_the_leader_waits_for_the_records() -> None:
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    follower.on_news(ReplicaFetchPartitionResponse(high_watermark=2, log_start_offset=0))
    assert group.replicas[2].partition.committed_offset == 0
    batch = memoryview(make_batch(0, 3, leader_epoch=1))
    follower.append(follower.attempt, 0, batch, NO_FLAGS)
    assert group.replicas[2].partition.committed_offset == 2


def test_message_ids_are_announced_before_they_are_appended() -> None:
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message(Nats_Msg_Id="a"))
    follower = followed(group)
    assert not group.replicas[2].partition.may_have_ids
    batch = memoryview(make_batch(0, 3, leader_epoch=1))
    follower.append(
        follower.attempt, 0, batch, LogFlags(group.leader.may_have_ids, may_have_gaps=False)
    )
    assert group.replicas[2].partition.may_have_ids


def test_a_log_without_epochs_of_the_leader_is_emptied() -> None:
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    batch = memoryview(make_batch(0, 3, leader_epoch=1))
    follower.append(follower.attempt, 0, batch, NO_FLAGS)
    assert follower.truncate(follower.attempt, -1, 0)
    assert group.replicas[2].log.end.offset == 0
    with pytest.raises(RemoteProtocolError):
        follower.restart(follower.attempt, 0)
    assert follower.restart(follower.attempt, 40)
    assert group.replicas[2].log.end.offset == 40


def unclean_after_a_purge() -> ReplicaGroup:
    """Node 2 had five committed records, which a purge has removed; node 3 has only the first two
    of them, and leads after an unclean election."""
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message(count=2))
    group.replicate(2, 3)
    group.apply(isr=(1, 2))
    group.leader.append(message(count=3))
    group.replicate(2)
    assert group.replicas[2].log.advance_start(5, high_watermark=5).records == 5
    group.apply(leader=3, leader_epoch=2, isr=(3,), unclean_epoch=2)
    return group


def test_a_log_that_starts_behind_where_it_leaves_the_leaders_is_replaced() -> None:
    """Nothing of it is in the leader's log: truncated to its start, it would go on diverging."""
    group = unclean_after_a_purge()
    follower = followed(group)
    told = reported(follower)
    assert (told.last_fetched_epoch, told.log_end) == (1, 5)
    assert follower.truncate(follower.attempt, 1, 2)
    follower.begin()
    told = reported(follower)
    assert (told.last_fetched_epoch, told.fetch_offset, told.log_end) == (-1, 0, 0)
    partition = group.replicas[2].partition
    assert (partition.start_offset, partition.committed_offset) == (0, 0)
    assert partition.told_start.offset == 0
    group.leader.append(message(count=4))
    group.leader.sync()
    group.copy(2)
    assert group.replicas[2].log_bytes() == group.replicas[3].log_bytes()


def test_only_an_unclean_election_replaces_a_log_that_starts_too_late() -> None:
    group = unclean_after_a_purge()
    group.apply(leader=1, leader_epoch=3, unclean_epoch=0)
    follower = followed(group)
    with pytest.raises(RemoteProtocolError, match="nothing"):
        follower.truncate(follower.attempt, 1, 2)
    assert group.replicas[2].log.start_offset == 5


def test_a_log_whose_records_are_all_of_later_epochs_loses_them() -> None:
    """It began at the start of its leader's log, and got only records that were not committed."""
    group = ReplicaGroup()
    group.apply()
    partition = group.replicas[2].partition
    partition.restart_replicated(40)
    partition.append_replicated(memoryview(make_batch(40, 3, leader_epoch=8)), NO_FLAGS)
    group.apply(leader=3, leader_epoch=9, isr=(3,))
    follower = followed(group)
    assert follower.truncate(follower.attempt, 1, 40)
    follower.begin()
    assert (reported(follower).last_fetched_epoch, reported(follower).log_end) == (-1, 40)


def test_records_are_counted_as_lost_that_were_in_the_replaced_log() -> None:
    group = unclean_after_a_purge()
    batch = memoryview(make_batch(5, 3, leader_epoch=1))
    partition = group.replicas[2].partition
    partition.append_replicated(batch, NO_FLAGS)
    follower = followed(group)
    assert follower.truncate(follower.attempt, 1, 2)
    assert partition.counts.records_lost == 3


def test_a_truncation_that_changes_nothing_is_no_reason_to_ask_again_at_once() -> None:
    group = ReplicaGroup()
    group.apply()
    follower = followed(group)
    batch = memoryview(make_batch(0, 3, leader_epoch=1))
    follower.append(follower.attempt, 0, batch, NO_FLAGS)
    with pytest.raises(RemoteProtocolError, match="nothing"):
        follower.truncate(follower.attempt, 1, 7)


def test_an_empty_log_of_before_an_unclean_election_begins_anew() -> None:
    """It began where a leader had removed all before. The log of another one may have other records
    there, and no epoch of the empty log says that they differ."""
    group = ReplicaGroup()
    group.apply()
    partition = group.replicas[2].partition
    partition.restart_replicated(40)
    group.apply(leader=3, leader_epoch=2, isr=(3,), unclean_epoch=2)
    follower = FollowedPartition(partition, 2, node_id=2)
    for _ in range(2):
        assert follower.begin()
        assert reported(follower).log_end == COMPARE_ONLY, "the leader must not count it"
        assert (partition.start_offset, partition.committed_offset) == (40, 40), "it may be elected"
    assert follower.restart(follower.attempt, 0)
    assert follower.begin()
    assert reported(follower).log_end == reported(follower).log_start == 0
    assert partition.committed_offset == 0
    assert follower.restart(follower.attempt, 7)
    assert follower.begin()
    assert reported(follower).log_end == 7, "it begins where its leader's log starts"
    group.apply(leader_epoch=3, isr=(2, 3))
    follower = FollowedPartition(partition, 3, node_id=2)
    assert follower.begin()
    assert reported(follower).fetch_offset == 7, "in sync it has what its leader has"


@pytest.mark.parametrize("members", [{"isr": (2, 3)}, {"isr": (3,), "eligible": (2,)}])
def test_an_empty_log_with_every_committed_record_stays(
    members: dict[str, tuple[int, ...]],
) -> None:
    """All before it was purged. If it begins anew, its leader is lost, and it is elected, it leads
    from 0 on, and gives others the offsets of records that were there."""
    group = ReplicaGroup()
    group.apply(unclean_epoch=1)
    partition = group.replicas[2].partition
    partition.restart_replicated(40)
    group.apply(leader=3, leader_epoch=2, **members)
    follower = FollowedPartition(partition, 2, node_id=2)
    assert follower.begin()
    assert reported(follower).log_end == reported(follower).log_start == 40
    group.apply(leader=2, leader_epoch=3, isr=(2,))
    assert (partition.start_offset, partition.committed_offset) == (40, 40)


def test_an_empty_log_stays_where_no_unclean_election_was() -> None:
    group = ReplicaGroup()
    group.apply()
    partition = group.replicas[2].partition
    partition.restart_replicated(40)
    group.apply(leader=3, leader_epoch=2, isr=(3,))
    follower = FollowedPartition(partition, 2, node_id=2)
    assert follower.begin()
    assert reported(follower).fetch_offset == 40
