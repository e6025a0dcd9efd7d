"""The copy of a compacted log: with whom it goes on, and when it begins again."""

from __future__ import annotations

import pytest

from bascule.model import Cleanup
from bascule.peer.replica_session import NOTHING_SAID
from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.replica.roles.commitment import LogFlags
from bascule.storage.compaction.segment_replacement import CleanedPart
from bascule.storage.partition_log import PartitionLog
from bascule.storage.truncation.partial_copy import PartialCopy
from bascule.wire.messages.peer.replica_fetch import COMPARE_ONLY
from support.followed_logs import NO_FLAGS, reported
from support.keyed_logs import Model, append_keyed, close_segment, compact, held, held_batches
from support.replica_group import ReplicaGroup
from support.stored_batches import make_batch


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


def test_a_loss_is_counted_from_where_the_log_starts() -> None:
    """It was purged before that: what the leader lacks below it was lost earlier."""
    scene = RemovedKey()
    scene.fetch_first(4)
    partition = scene.group.replicas[3].partition
    scene.log.partial_copy.end()
    scene.log.sync()
    scene.log.advance_start(3, high_watermark=4)
    scene.group.apply(leader=2, leader_epoch=2, unclean_epoch=2, isr=(2,))
    follower = scene.follow()
    assert follower.truncate(follower.attempt, 0, 1)
    assert scene.log.end.offset == 0
    assert partition.counts.records_lost == 1


def test_a_copy_of_since_the_unclean_election_goes_on() -> None:
    """Also while it has nothing but records of before."""
    scene = RemovedKey()
    scene.group.apply(unclean_epoch=2, leader_epoch=2, isr=(1,))
    scene.fetch_first(3)
    assert scene.log.epochs.latest < 2
    assert reported(scene.follow()).log_end == 3


def test_a_copy_of_since_the_unclean_election_is_truncated_to_its_leaders() -> None:
    """Where it has nothing but records of before, the two logs may differ indeed."""
    scene = RemovedKey()
    scene.group.apply(unclean_epoch=2, leader_epoch=2, isr=(1,))
    scene.fetch_first(3)
    partition = scene.group.replicas[3].partition
    partition.on_leader_watermark(3, 2)
    follower = scene.follow()
    assert follower.truncate(follower.attempt, 0, 1)
    assert (scene.log.end.offset, partition.committed_offset) == (1, 1)


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
