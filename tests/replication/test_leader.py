"""The leader's view of its followers, one rule a test."""

from __future__ import annotations

import pytest

from bascule.model import PartitionState
from bascule.replication.leader import UNKNOWN, LeaderReplication

LAG = 1_000
EPOCH = 4


def state(*isr: int, version: int = 1, replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionState:
    return PartitionState(replicas, isr, leader=1, leader_epoch=EPOCH, version=version)


def leading(
    *isr: int,
    end: int = 0,
    min_isr: int = 2,
    high_watermark: int = 0,
    log_start: int = 0,
    counts_synced: bool = True,
) -> LeaderReplication:
    return LeaderReplication(
        1, state(*isr), min_isr=min_isr, own_synced=end, now_ns=0, lag_ns_max=LAG,
        epoch_start=end, high_watermark=high_watermark, log_start=log_start,
        counts_synced=counts_synced,
    )  # fmt: skip


def test_the_high_watermark_is_the_least_position_of_the_isr() -> None:
    leader = leading(1, 2, 3)
    leader.on_appended(10, 1)
    assert not leader.on_synced(10)
    assert not leader.on_fetch(2, 1, 10, 7, 2, 10)
    assert leader.high_watermark == 0, "node 3 has not fetched in this epoch"
    assert leader.on_fetch(3, 1, 10, 5, 2, 10)
    assert leader.high_watermark == 5
    assert leader.on_fetch(3, 1, 10, 9, 3, 10)
    assert leader.high_watermark == 7


def test_the_leader_counts_only_what_it_has_synced() -> None:
    leader = leading(1, 2)
    leader.on_appended(10, 1)
    assert not leader.on_fetch(2, 1, 10, 10, 2, 10)
    assert leader.on_synced(6)
    assert leader.high_watermark == 6


def test_without_sync_the_ends_of_the_logs_count() -> None:
    leader = leading(1, 2, counts_synced=False)
    leader.on_appended(10, 1)
    assert leader.on_fetch(2, 1, 8, 0, 2, 10)
    assert leader.high_watermark == 8


def test_what_was_only_appended_does_not_count_once_syncs_do() -> None:
    leader = leading(1, 2, 3, counts_synced=False)
    leader.on_appended(10, 1)
    leader.on_fetch(2, 1, 10, 0, 2, 10)
    leader.on_fetch(3, 1, 4, 4, 2, 10)
    assert leader.high_watermark == 4
    leader.count(synced=True, own_synced=6, now_ns=5_000)
    assert not leader.on_fetch(3, 1, 10, 10, 5_001, 10)
    assert leader.wanted_isr(5_002) is None, "node 2 was at the end until now"
    assert leader.on_fetch(2, 1, 10, 10, 5_003, 10)
    assert leader.high_watermark == 6, "the leader has synced no more"
    assert leader.on_synced(10)
    assert leader.high_watermark == 10


def test_the_high_watermark_stays_below_min_isr() -> None:
    leader = leading(1, min_isr=2)
    leader.on_appended(10, 1)
    assert not leader.on_synced(10)
    assert not leader.has_min_isr
    assert leader.configure(state(1, 2, version=2), 1) is False, "node 2 has not fetched"
    assert leader.configure(state(1, version=3), 1)
    assert leader.high_watermark == 10


def test_the_high_watermark_never_goes_back() -> None:
    leader = leading(1, 2)
    leader.on_appended(10, 1)
    leader.on_synced(10)
    leader.on_fetch(2, 1, 10, 10, 2, 10)
    assert leader.high_watermark == 10
    assert not leader.on_fetch(2, 2, 4, 4, 3, 10), "a new incarnation that lost its unsynced tail"
    assert leader.high_watermark == 10
    assert leader.position(2) == 4


def test_stale_incarnations_do_not_count() -> None:
    leader = leading(1, 2)
    leader.on_appended(10, 1)
    leader.on_synced(10)
    leader.on_fetch(2, 7, 3, 3, 2, 10)
    assert not leader.accepts(2, 6)
    assert not leader.on_fetch(2, 6, 10, 10, 3, 10)
    assert (leader.position(2), leader.node_epoch(2)) == (3, 7)
    assert not leader.accepts(9, 1), "not a replica"
    assert not leader.on_fetch(9, 1, 10, 10, 3, 10)


def test_a_member_that_is_behind_for_too_long_is_removed_once_committed() -> None:
    leader = leading(1, 2, 3)
    leader.on_appended(10, 1)
    leader.on_synced(10)
    leader.on_fetch(2, 1, 10, 10, 2, 10)
    leader.on_fetch(3, 1, 4, 4, 2, 10)
    assert leader.wanted_isr(LAG) is None
    assert leader.wanted_isr(LAG + 1) == (1, 2)
    leader.on_isr_proposed((1, 2))
    assert leader.wanted_isr(5 * LAG) is None, "one proposal at a time"
    assert leader.high_watermark == 4, "node 3 counts until its removal is committed"
    assert leader.configure(state(1, 2, version=2), 2)
    assert leader.high_watermark == 10


def test_a_member_that_follows_a_busy_log_is_never_at_its_end_and_stays() -> None:
    leader = leading(1, 2)
    end = 0
    for now in range(0, 20 * LAG, LAG // 10):
        end += 5
        leader.on_appended(end, now)
        leader.on_fetch(2, 1, end - 4, end - 5, now, end)
        assert leader.wanted_isr(now) is None


def test_a_member_that_falls_ever_further_behind_is_removed() -> None:
    leader = leading(1, 2)
    removed_at = 0
    for now in range(0, 20 * LAG, LAG // 10):
        leader.on_appended(now, now)
        leader.on_fetch(2, 1, now // 3, now // 3, now, now)
        if leader.wanted_isr(now) == (1,):
            removed_at = now
            break
    assert LAG < removed_at <= 4 * LAG


def test_an_idle_member_at_the_end_stays_and_gets_its_time_after_an_append() -> None:
    leader = leading(1, 2, end=10)
    leader.on_fetch(2, 1, 10, 10, 5, 10)
    assert leader.wanted_isr(100 * LAG) is None
    leader.on_appended(20, 100 * LAG)
    assert leader.wanted_isr(101 * LAG) is None
    assert leader.wanted_isr(101 * LAG + 1) == (1,)


def test_a_member_that_stops_fetching_an_idle_log_is_removed() -> None:
    leader = leading(1, 2, end=10)
    leader.on_fetch(2, 1, 10, 10, 5, 10)
    leader.on_forgotten(2, 0)
    assert leader.position(2) == 10, "an older incarnation has gone"
    leader.on_forgotten(2, 1)
    assert leader.position(2) == UNKNOWN
    assert leader.wanted_isr(LAG) is None
    assert leader.wanted_isr(LAG + 6) == (1,)


def test_a_replica_is_added_at_the_watermark_and_the_start_of_the_epoch() -> None:
    leader = leading(1, 2, end=10, high_watermark=6)
    leader.on_fetch(2, 1, 6, 6, 1, 10)
    assert leader.high_watermark == 6
    leader.on_fetch(3, 1, 8, 8, 1, 10)
    assert leader.wanted_isr(2) is None, "at the watermark, but not at the start of the epoch"
    leader.on_fetch(3, 1, 10, 10, 2, 10)
    assert leader.wanted_isr(3) == (1, 2, 3)
    leader.on_isr_proposed((1, 2, 3))
    leader.on_appended(20, 4)
    leader.on_synced(20)
    leader.on_fetch(2, 1, 20, 20, 5, 20)
    assert leader.high_watermark == 10, "node 3 counts from the proposal on"
    leader.on_isr_failed()
    assert leader.high_watermark == 20


def test_a_replica_that_has_what_is_purged_is_not_added() -> None:
    leader = leading(1, end=10, min_isr=2, log_start=3)
    leader.on_fetch(2, 1, 10, 10, 1, 10, log_start=2)
    assert leader.wanted_isr(2) is None
    leader.on_fetch(2, 1, 10, 10, 2, 10, log_start=3)
    assert leader.wanted_isr(3) == (1, 2)
    leader.on_purged(5)
    leader.on_purged(4)
    assert leader.wanted_isr(3) is None
    leader.on_fetch(2, 1, 10, 10, 3, 10, log_start=5)
    assert leader.wanted_isr(4) == (1, 2)
    leader.configure(state(1, 2, version=2), 2)
    leader.on_purged(6)
    assert leader.wanted_isr(4) is None, "who is in sync follows soon"


def test_a_replica_that_does_not_say_where_its_log_starts_is_added() -> None:
    leader = leading(1, end=10, min_isr=2, log_start=5)
    leader.on_fetch(2, 1, 10, 10, 1, 10, log_start=UNKNOWN)
    assert leader.wanted_isr(2) == (1, 2)


def test_a_replica_that_is_not_heard_of_is_not_added() -> None:
    leader = leading(1, end=10, min_isr=2)
    leader.on_fetch(2, 1, 10, 10, 0, 10)
    assert leader.wanted_isr(LAG + 1) is None
    assert leader.wanted_isr(LAG + 1, {2: 50}) == (1, 2)


def test_a_replica_that_is_added_gets_its_time() -> None:
    leader = leading(1, end=10, min_isr=2)
    leader.on_fetch(2, 1, 10, 10, 0, 10)
    leader.on_appended(20, 1)
    assert leader.wanted_isr(5 * LAG, {2: 5 * LAG}) == (1, 2)
    leader.on_isr_proposed((1, 2))
    leader.configure(state(1, 2, version=2), 2)
    assert leader.wanted_isr(5 * LAG + 1) is None


def test_the_replicas_of_the_partition_may_change() -> None:
    leader = leading(1, 2)
    leader.on_fetch(2, 1, 0, 0, 1, 0)
    leader.configure(state(1, 2, version=2, replicas=(1, 2, 4)), 2)
    assert leader.accepts(4, 1)
    assert not leader.accepts(3, 1)
    assert leader.on_fetch(4, 1, 0, 0, 2, 0) is False
    assert leader.wanted_isr(3) == (1, 2, 4)


def test_a_partition_is_settled_while_time_alone_changes_nothing() -> None:
    leader = leading(1, 2, end=10)
    assert not leader.is_settled, "node 2 has not fetched"
    leader.on_fetch(2, 1, 10, 10, 1, 10)
    assert leader.is_settled, "node 3 is not there"
    leader.on_fetch(3, 1, 4, 4, 1, 10)
    assert not leader.is_settled, "node 3 may be added soon"
    leader.on_forgotten(3, 1)
    leader.on_appended(11, 2)
    assert not leader.is_settled


def test_what_all_replicas_have_counts_those_out_of_sync() -> None:
    leader = leading(1, 2, end=10)
    assert leader.replicated_offset == 0, "at the start of an epoch every position is unknown"
    leader.on_fetch(2, 1, 10, 10, 1, 10)
    assert (leader.high_watermark, leader.replicated_offset) == (10, 0)
    leader.on_fetch(3, 1, 4, 4, 1, 10)
    assert leader.replicated_offset == 4
    leader.on_fetch(3, 1, 10, 10, 1, 10)
    assert leader.replicated_offset == 10
    leader.on_forgotten(3, 1)
    assert leader.replicated_offset == 0, "it may come back with an empty disk"
    leader.on_fetch(3, 2, 10, 10, 1, 10)
    leader.configure(state(1, 2, version=2, replicas=(1, 2, 3, 4)), min_isr=2)
    assert leader.replicated_offset == 0, "a replica that is new has nothing"


@pytest.mark.parametrize("counts_synced", [True, False])
def test_what_all_replicas_have_is_what_they_have_synced(counts_synced: bool) -> None:
    leader = leading(1, 2, 3, end=10, counts_synced=counts_synced)
    leader.on_fetch(2, 1, 10, 10, 1, 10)
    leader.on_fetch(3, 1, 10, 6, 1, 10)
    assert leader.high_watermark == (6 if counts_synced else 10)
    assert leader.replicated_offset == 6


def test_a_follower_has_passed_an_offset_by_what_it_reported_last() -> None:
    leader = leading(1, 2, end=10)
    assert leader.has_passed(10), "nobody has begun a copy in this epoch"
    leader.on_fetch(3, 1, 4, 4, 1, 10)
    assert (leader.has_passed(4), leader.has_passed(5)) == (True, False)
    leader.on_forgotten(3, 1)
    assert not leader.has_passed(5), "it may come back and go on"
    leader.on_fetch(3, 2, 10, 6, 1, 10)
    assert (leader.has_passed(6), leader.has_passed(7)) == (True, False), "what it has not synced"
    leader.on_fetch(3, 3, 0, 0, 1, 10)
    assert not leader.has_passed(1), "it has begun again"


def test_programmer_errors_are_found() -> None:
    leader = leading(1, 2)
    with pytest.raises(AssertionError, match="another epoch"):
        leader.configure(PartitionState((1, 2), (1, 2), 1, EPOCH + 1, 2), 2)
    with pytest.raises(AssertionError, match="older"):
        leader.configure(state(1, 2, version=0), 2)
    with pytest.raises(AssertionError, match="does not lead"):
        LeaderReplication(
            2, state(1, 2), min_isr=1, own_synced=0, now_ns=0, lag_ns_max=LAG, epoch_start=0
        )
