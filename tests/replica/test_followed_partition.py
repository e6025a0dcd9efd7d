"""The follower's side of a partition: attempts, and what is appended where."""

from __future__ import annotations

import pytest

from bascule.errors import CorruptData, RemoteProtocolError, UnexpectedOffset
from bascule.model import Cleanup
from bascule.peer.replica_session import NOTHING_SAID
from bascule.replica.follower.followed_partition import FollowedPartition, whole_batches
from bascule.replica.roles.commitment import LogFlags
from bascule.storage.appended_batches import split_for_segments
from bascule.storage.compaction.segment_replacement import CleanedPart
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.truncation.partial_copy import PartialCopy
from bascule.wire.messages.peer.replica_fetch import (
    COMPARE_ONLY,
    ReplicaFetchPartition,
    ReplicaFetchPartitionResponse,
)
from support.keyed_logs import Model, append_keyed, close_segment, compact, held, held_batches
from support.replica_group import ReplicaGroup, message
from support.stored_batches import make_batch

NO_FLAGS = LogFlags(may_have_ids=False, may_have_gaps=False)


def followed(group: ReplicaGroup, node: int = 2) -> FollowedPartition:
    found = FollowedPartition(group.replicas[node].partition, group.state.leader_epoch)
    assert found.begin()
    return found


def reported(follower: FollowedPartition) -> ReplicaFetchPartition:
    found = follower.report()
    assert found is not None
    return found


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
    assert follower.begin()
    assert reported(follower).fetch_offset == reported(follower).log_start == 0
    assert partition.committed_offset == 0
    assert follower.restart(follower.attempt, 7)
    assert follower.begin()
    assert reported(follower).fetch_offset == 7, "it begins where its leader's log starts"
    group.apply(leader_epoch=3, isr=(2, 3))
    follower = FollowedPartition(partition, 3, node_id=2)
    assert follower.begin()
    assert reported(follower).fetch_offset == 7, "in sync it has what its leader has"


def test_an_empty_log_stays_where_no_unclean_election_was() -> None:
    group = ReplicaGroup()
    group.apply()
    partition = group.replicas[2].partition
    partition.restart_replicated(40)
    group.apply(leader=3, leader_epoch=2, isr=(3,))
    follower = FollowedPartition(partition, 2, node_id=2)
    assert follower.begin()
    assert reported(follower).fetch_offset == 40


class RemovedKey:
    """A compacted stream with a key that was removed. Node 2 has removed the tombstone, as it may:
    all replicas had it then. Node 1 has not yet. Node 3 begins again with an empty log."""

    def __init__(self, cleanup: Cleanup = Cleanup.COMPACT) -> None:
        self.group = group = ReplicaGroup(cleanup=(cleanup,))
        for node in (1, 2):
            log, model = group.replicas[node].log, Model()
            append_keyed(log, model, [(b"k", b"value")])
            append_keyed(log, model, [(b"other", b"value")])
            append_keyed(log, model, [(b"k", None)])
            close_segment(log)
            append_keyed(log, model, [(b"last", b"value")])
            log.sync()
        for now_ms in (10_000, 20_000):
            self.compact(2, now_ms=now_ms)
        group.apply(isr=(1, 2))

    def compact(self, node: int, *, now_ms: int) -> None:
        compact(self.group.replicas[node].files, self.group.replicas[node].log, now_ms=now_ms)

    def cleaned(self, node: int) -> CleanedPart:
        log, partition = self.group.replicas[node].log, self.group.replicas[node].partition
        if Cleanup.COMPACT not in partition.definition.config.cleanup and not log.gaps_allowed:
            return NOTHING_SAID
        return log.replacement.cleaned_part(log_end=log.end.offset)

    def take_over(self, follower: FollowedPartition) -> None:
        """The follower hears what compaction has removed from its leader's log."""
        cleaned = self.cleaned(self.group.state.leader)
        assert follower.has_to_take_over(cleaned)
        assert follower.take_over(follower.attempt, cleaned)
        assert follower.begin()

    def fetch_first(self, batches: int = 1) -> None:
        """Node 3 copies some batches of its leader."""
        leader = self.group.replicas[self.group.state.leader].log
        follower = self.follow()
        if follower.has_to_take_over(self.cleaned(self.group.state.leader)):
            self.take_over(follower)
        for batch in held_batches(leader)[:batches]:
            start = self.log.end.offset
            flags = LogFlags(may_have_ids=False, may_have_gaps=leader.gaps_allowed)
            assert follower.append(follower.attempt, start, memoryview(batch), flags)

    def follow(self) -> FollowedPartition:
        found = FollowedPartition(
            self.group.replicas[3].partition, self.group.state.leader_epoch, node_id=3
        )
        assert found.begin()
        return found

    @property
    def log(self) -> PartitionLog:
        return self.group.replicas[3].log


def test_a_copy_of_a_compacted_log_begins_again_with_a_leader_that_lacks_a_tombstone() -> None:
    scene = RemovedKey()
    scene.fetch_first()
    scene.group.apply(leader=2, leader_epoch=2)
    follower = scene.follow()
    assert reported(follower).fetch_offset == 1, "it asks what the leader has removed"
    scene.take_over(follower)
    assert reported(follower).fetch_offset == 0
    assert scene.group.replicas[3].partition.committed_offset == 0
    scene.take_over(follower)
    scene.group.copy(3)
    assert [each.key for each in held(scene.log)] == [b"other", b"last"]
    assert scene.cleaned(3).tombstones_end == 3, "what a copy of this copy has to know"


def test_a_copy_of_a_log_that_was_compacted_as_far_goes_on_with_another_leader() -> None:
    scene = RemovedKey()
    scene.compact(1, now_ms=10_000)
    scene.fetch_first()
    assert [each.key for each in held(scene.log)] == [b"other"]
    scene.group.apply(leader=2, leader_epoch=2)
    follower = scene.follow()
    scene.take_over(follower)
    assert reported(follower).fetch_offset == 2
    copy = scene.log.partial_copy
    assert (copy.epoch, copy.clean_offset, copy.begun) == (2, 3, 1)
    scene.group.copy(3)
    assert [each.key for each in held(scene.log)] == [b"other", b"last"]
    assert scene.cleaned(3).tombstones_end == 3


def test_a_copy_that_has_every_removed_tombstone_goes_on_with_another_leader() -> None:
    scene = RemovedKey()
    scene.fetch_first(3)
    scene.group.apply(leader=2, leader_epoch=2)
    follower = scene.follow()
    scene.take_over(follower)
    assert reported(follower).fetch_offset == 3
    scene.group.copy(3)
    assert [each.key for each in held(scene.log)] == [b"k", b"other", b"k", b"last"]
    assert scene.log.partial_copy.clean_offset == 0, "as the first leader was compacted"


def test_a_copy_begins_again_after_an_unclean_election() -> None:
    """It may have undone the records for which the former leader's log was compacted."""
    scene = RemovedKey()
    scene.compact(1, now_ms=10_000)
    scene.fetch_first()
    scene.group.apply(leader=2, leader_epoch=2, unclean_epoch=2, isr=(2,))
    follower = scene.follow()
    assert reported(follower).log_end == COMPARE_ONLY
    assert follower.truncate(follower.attempt, 0, 4)
    follower = scene.follow()
    assert (reported(follower).fetch_offset, reported(follower).log_end) == (0, 0)


@pytest.mark.parametrize("end", [2, 4])
def test_a_complete_log_that_may_be_compacted_begins_again_after_an_unclean_election(
    end: int,
) -> None:
    """As the copy. Where the log has lost its unsynced end, there is nothing to truncate."""
    scene = RemovedKey()
    scene.fetch_first(4)
    log, partition = scene.log, scene.group.replicas[3].partition
    log.partial_copy.end()
    scene.group.apply(leader=2, leader_epoch=2, unclean_epoch=2, isr=(2,))
    for _ in range(2):
        follower = scene.follow()
        assert reported(follower).log_end == COMPARE_ONLY, "the leader must not count it"
        assert log.end.offset == 4, "the leader may be lost, and this one be elected"
    assert follower.truncate(follower.attempt, 0, end)
    assert partition.counts.records_lost == 4 - end
    assert follower.begin()
    assert (reported(follower).fetch_offset, reported(follower).log_end) == (0, 0)
    assert log.partial_copy.epoch == 2
    scene.take_over(follower)
    scene.group.copy(3)
    assert [each.key for each in held(log)] == [b"other", b"last"]


def test_a_log_that_begins_again_is_not_truncated_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's log ends with the tombstone that is removed here. A log that ended there, since
    its node went down just then, could be elected, and no copy would reach its end."""
    scene = RemovedKey()
    scene.group.apply(isr=(1, 2), leader=2, leader_epoch=1)
    scene.fetch_first(4)
    assert [each.offset for each in held(scene.log)] == [1, 3]
    scene.log.partial_copy.end()
    scene.group.apply(leader=1, leader_epoch=2, unclean_epoch=2, isr=(1,))
    follower = scene.follow()

    def fail(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(scene.log, "start_at", fail)
        with pytest.raises(OSError):
            follower.truncate(follower.attempt, 0, 3)
    assert scene.log.end.offset == 4
    assert scene.group.replicas[3].partition.counts.records_lost == 0
    follower = scene.follow()
    assert reported(follower).log_end == COMPARE_ONLY
    assert follower.truncate(follower.attempt, 0, 3)
    assert scene.log.end.offset == 0
    assert scene.group.replicas[3].partition.counts.records_lost == 1


def test_a_log_that_has_records_of_since_the_unclean_election_stays() -> None:
    scene = RemovedKey()
    scene.group.apply(leader=2, leader_epoch=2, unclean_epoch=2, isr=(2,))
    scene.fetch_first(4)
    batch = memoryview(make_batch(4, 1, leader_epoch=2))
    follower = scene.follow()
    assert follower.append(follower.attempt, 4, batch, NO_FLAGS)
    scene.log.partial_copy.end()
    scene.group.apply(leader=1, leader_epoch=3)
    assert reported(scene.follow()).log_end == 5


def test_a_log_that_was_never_compacted_stays_after_an_unclean_election() -> None:
    scene = RemovedKey(Cleanup.DELETE)
    scene.fetch_first(4)
    scene.log.partial_copy.end()
    scene.group.apply(leader=2, leader_epoch=2, unclean_epoch=2, isr=(2,))
    assert reported(scene.follow()).log_end == 4


def test_a_copy_begins_again_at_0_after_an_unclean_election() -> None:
    """The leader may have other records below where the copy starts."""
    scene = RemovedKey()
    partition = scene.group.replicas[3].partition
    partition.restart_replicated(3)
    follower = scene.follow()
    batch = memoryview(make_batch(3, 1, leader_epoch=0))
    assert follower.append(follower.attempt, 3, batch, NO_FLAGS)
    partition.told_start.hear(3, partition.leader_epoch)
    scene.group.apply(leader=2, leader_epoch=2, unclean_epoch=2, isr=(2,))
    follower = scene.follow()
    assert follower.restart(follower.attempt, 0)
    assert follower.begin()
    found = reported(follower)
    assert (found.log_start, found.fetch_offset) == (0, 0)
    assert partition.told_start.offset == 0, "retention would have it start there again"


def test_a_copy_goes_on_with_nobody_who_does_not_say_what_it_has_removed() -> None:
    scene = RemovedKey()
    scene.fetch_first(3)
    scene.group.apply(leader=2, leader_epoch=2)
    follower = scene.follow()
    assert follower.has_to_take_over(NOTHING_SAID)
    assert follower.take_over(follower.attempt, NOTHING_SAID)
    assert follower.begin()
    assert reported(follower).fetch_offset == 0
    assert not follower.has_to_take_over(NOTHING_SAID), "an earlier release copies as before"


def test_a_copy_that_is_interrupted_goes_on_with_the_same_leader() -> None:
    scene = RemovedKey()
    scene.fetch_first()
    replica = scene.group.replicas[3]
    for restarts in (False, True):
        if restarts:
            replica.log.close(high_watermark=0)
            replica.open()
            scene.group.tell(3)
        assert reported(scene.follow()).fetch_offset == 1
    scene.group.apply(leader=2, leader_epoch=2)
    follower = scene.follow()
    scene.take_over(follower)
    assert reported(follower).fetch_offset == 0, "it is remembered over a restart"


def test_a_copy_that_is_cut_short_as_it_begins_again_begins_again() -> None:
    """Between the empty log and its mark the machine goes down."""
    scene = RemovedKey()
    scene.fetch_first()
    scene.group.apply(leader=2, leader_epoch=2)
    files, log = scene.group.replicas[3].files, scene.log
    log.start_at(0, 2)
    assert log.partial_copy.epoch == 1
    follower = scene.follow()
    assert reported(follower).fetch_offset == 0
    scene.take_over(follower)
    assert reported(follower).fetch_offset == 0
    assert PartialCopy(files, log.directory).epoch == 2


@pytest.mark.parametrize("members", [{"isr": (1, 2, 3)}, {"isr": (1,), "eligible": (2, 3)}])
def test_a_log_with_every_committed_record_stays(members: dict[str, tuple[int, ...]]) -> None:
    scene = RemovedKey()
    scene.fetch_first(4)
    scene.group.apply(leader=1, leader_epoch=2, **members)
    assert reported(scene.follow()).fetch_offset == 4


def test_a_log_that_was_never_empty_out_of_sync_goes_on_where_it_ends() -> None:
    scene = RemovedKey()
    scene.group.apply(isr=(1, 2, 3))
    scene.fetch_first(4)
    scene.group.apply(isr=(1, 2), leader=2, leader_epoch=2)
    assert reported(scene.follow()).fetch_offset == 4


def test_a_copy_of_a_log_that_is_not_compacted_goes_on_with_another_leader() -> None:
    scene = RemovedKey(Cleanup.DELETE)
    scene.fetch_first()
    scene.group.apply(leader=2, leader_epoch=2)
    assert reported(scene.follow()).fetch_offset == 1
    scene.group.replicas[3].log.allow_gaps()
    assert reported(scene.follow()).fetch_offset == 0, "it was compacted once"
