"""A partition as a leader, as a follower and as neither."""

from __future__ import annotations

import contextlib
import errno
import threading
from dataclasses import replace

import pytest

from bascule.errors import FencedEpoch, NotLeader, OffsetOutOfRange
from bascule.host.api import Files
from bascule.host.real import RealRandom
from bascule.model import NO_LEADER, SyncPolicy
from bascule.publish.acks import AckError
from bascule.replica.log_writer import LogWriter
from bascule.replica.maintenance.purging import follow_start, purge
from bascule.replica.opening import close_partition
from bascule.replica.roles import PartitionRole, commitment
from bascule.replica.roles.batch_positions import position_of
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.storage.truncation import reset
from bascule.wire import ack_codes
from support.keyed_logs import Model, append_keyed, close_segment, compact, open_keyed
from support.replica_group import LAG_NS, ReplicaGroup, message
from support.replicas import awaited_batch, decode_acks, no_reserve, open_partition


def test_a_record_is_committed_and_acked_once_the_isr_has_synced_it() -> None:
    group = ReplicaGroup()
    group.apply()
    assert group.leader.append(message(b"in.0")) == b""
    assert group.leader.sync() == b""
    group.copy(2)
    assert group.report(2) == b"", "appended, and not synced"
    group.replicas[2].partition.sync()
    assert group.report(2) == b"", "node 3 is in the ISR, too"
    acks = decode_acks(group.replicate(3))
    assert (acks["in.0"]["offset"], acks["in.0"]["replicas"]) == (0, 3)
    assert acks["in.0"]["synced"] is True
    assert group.leader.high_watermark.offset == 1
    group.copy(2)
    assert group.replicas[2].partition.committed_offset == 1


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_without_syncs_the_ends_of_the_logs_count(policy: SyncPolicy) -> None:
    group = ReplicaGroup(sync=policy)
    group.apply(isr=(1, 2))
    assert group.leader.append(message(b"in.0")) == b""
    group.copy(2)
    assert decode_acks(group.report(2))["in.0"]["replicas"] == 2


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_an_ack_that_says_synced_is_true_of_records_from_before_the_change(
    policy: SyncPolicy,
) -> None:
    group = ReplicaGroup(sync=policy)
    group.apply()
    group.leader.append(message(b"in.0"))
    group.copy(2)
    assert group.report(2) == b""
    for node in (1, 2, 3):
        partition = group.replicas[node].partition
        config = replace(partition.definition.config, sync=SyncPolicy.ALWAYS)
        partition.configure(replace(partition.definition, config=config))
    group.copy(3)
    group.replicas[3].partition.sync()
    assert group.report(3) == b"", "nodes 1 and 2 have not synced it"
    group.replicas[2].partition.sync()
    assert group.report(2) == b"", "the leader has not"
    assert decode_acks(group.leader.sync())["in.0"]["synced"] is True


@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_tombstones_stay_until_all_replicas_have_synced_them(policy: SyncPolicy) -> None:
    """A replica that loses power copies again what it had not synced."""
    group = ReplicaGroup(sync=policy)
    group.apply()
    group.leader.append(message())
    for node in (2, 3):
        group.copy(node)
        group.report(node)
        group.replicas[node].partition.sync()
    assert group.leader.replicated_offset == 0, "no follower has said that it has synced"
    group.report(2)
    group.report(3)
    assert group.leader.replicated_offset == 0, "the leader may lose it, too"
    group.leader.sync()
    assert group.leader.committed_offset == group.leader.replicated_offset == 1


def test_a_new_leader_reads_its_log_before_it_takes_the_lock_of_its_commitment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop takes the lock, too, and would wait for the disk."""
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message())
    group.replicate(2, 3)
    looked: list[bool] = []

    def look(log: PartitionLog, offset: int, *, nowait: bool) -> LogPosition | None:
        partition = next(r.partition for r in group.replicas.values() if r.log is log)
        looked.append(partition.commitment._lock.locked() and not nowait)
        return position_of(log, offset, nowait=nowait)

    monkeypatch.setattr(commitment, "position_of", look)
    group.apply(leader=2, leader_epoch=2)
    assert looked == [False]
    assert group.leader.append(message(b"in.0")) == b""
    group.copy(3)
    group.copy(1)
    assert decode_acks(group.replicate(1, 3))["in.0"]["offset"] == 1
    group.apply(isr=(2, 3))
    assert looked == [False], "an ISR changes without a look at the log"


def test_the_start_of_a_log_is_found_while_its_segment_is_replaced() -> None:
    """The new segment is in use before its file has its name, for long if that fails."""
    number, is_due = 0, True
    while is_due:
        files = SimFiles(RealRandom(1))
        log, model = open_keyed(files), Model()
        for n in range(8):
            append_keyed(log, model, [(b"k", b"a" * 300), (b"key-%d" % n, b"a" * 300)])
        close_segment(log)
        log.advance_start(1, high_watermark=log.end.offset)
        number += 1
        files.fail(number, errno.EIO)
        with contextlib.suppress(OSError):
            compact(files, log, now_ms=5_000)
        is_due = not files.fault_pending()
        files.forget_faults()
        assert position_of(log, 1, nowait=False) == LogPosition(0, 0, 0)


def test_a_log_that_begins_anew_has_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower's watermark is below the log until it hears of that. The segment of the empty log
    was read, and taken for something else while its file had not got its name."""
    log, model = open_keyed(SimFiles(RealRandom(1))), Model()
    append_keyed(log, model, [(b"k", b"a"), (b"l", b"a")])
    finish, found = reset.finish, list[LogPosition | None]()

    def look(files: Files, directory: str) -> None:
        found.append(position_of(log, 1, nowait=False))
        finish(files, directory)

    monkeypatch.setattr(reset, "finish", look)
    log.start_at(184, 0)
    found.append(position_of(log, 1, nowait=False))
    assert found == [log.end, log.end]


def test_logs_of_leader_and_follower_are_equal_byte_for_byte() -> None:
    group = ReplicaGroup(segment_bytes_max=1_000)
    group.apply()
    for n in range(40):
        group.leader.append(message(count=n % 4 + 1, Nats_Msg_Id=str(n)))
        if n % 7 == 0:
            group.replicate(2, 3)
    group.replicate(2, 3)
    first, second, third = (replica.log_bytes() for replica in group.replicas.values())
    assert all(replica.segments() > 2 for replica in group.replicas.values())
    assert first == second == third


def test_readers_stop_at_the_watermark_at_every_batch() -> None:
    group = ReplicaGroup(segment_bytes_max=1_000)
    group.apply(isr=(1, 2))
    store = group.replicas[1].log
    for n in range(30):
        group.leader.append(message(count=n % 3 + 1))
        if n % 5:
            continue
        group.replicate(2)
        mark = group.leader.high_watermark
        assert mark.offset == store.end.offset == group.leader.committed_offset
        assert mark == store.end
        last = store.plan_read(mark.offset - 1, bytes_max=1 << 20, end=mark)
        assert last is not None
        assert last.length > 0


def test_the_watermark_of_a_new_leader_begins_at_what_it_knows() -> None:
    group = ReplicaGroup(segment_bytes_max=1_000)
    group.apply(isr=(1, 2))
    for n in range(20):
        group.leader.append(message())
        if n == 9:
            group.replicate(2)
    group.copy(2)
    group.replicas[2].partition.sync()
    group.apply(2, leader=2, leader_epoch=2, isr=(2,))
    partition = group.replicas[2].partition
    assert partition.high_watermark.offset == partition.committed_offset == 10
    store = group.replicas[2].log
    part = store.plan_read(9, bytes_max=1 << 20, end=partition.high_watermark)
    assert part is not None
    assert part.length > 0
    partition.append(message())
    partition.sync()
    assert partition.committed_offset == 10, "one of three replicas commits nothing"


def test_below_min_isr_messages_are_refused_before_they_get_an_offset() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1,))
    refused = decode_acks(group.leader.append(message(b"in.0")))["in.0"]["error"]
    assert isinstance(refused, dict)
    assert refused["err_code"] == ack_codes.NOT_ENOUGH_REPLICAS
    assert group.replicas[1].log.end.offset == 0
    group.apply(isr=(1, 2))
    assert group.leader.append(message(b"in.1")) == b""
    assert decode_acks(group.replicate(2))["in.1"]["offset"] == 0


def test_a_deposed_leader_answers_nothing() -> None:
    group = ReplicaGroup()
    group.apply()
    outcomes: list[tuple[int, AckError | None]] = []
    internal = message()
    internal.on_committed = lambda offset, error: outcomes.append((offset, error))
    old = group.leader
    assert old.append(message(b"in.0", 3)) + old.append(internal) + old.sync() == b""
    assert group.apply(1, leader=2, leader_epoch=2, isr=(2, 3)) == b""
    assert old.role is PartitionRole.FOLLOWER
    late = message()
    late.on_committed = internal.on_committed
    assert old.append(message(b"in.1")) + old.append(late) + old.sync() == b""
    assert old.refuse(message(b"in.2"), "the disk is full") == b""
    assert [(offset, error is not None) for offset, error in outcomes] == [(3, True), (-1, True)]
    codes = [error.err_code for _, error in outcomes if error is not None]
    assert codes == [ack_codes.INDETERMINATE, ack_codes.NOT_STORED]
    assert old.counts.records_dropped == 4 + 3
    assert group.replicas[1].log.end.offset == 4, "what has an offset stays until it is compared"


def test_a_diverging_tail_is_cut_by_epoch_and_not_by_watermark() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    group.leader.append(message(b"in.0"))
    group.replicate(2)
    group.leader.append(message(b"in.1"))
    group.copy(2)  # node 2 has it, but knows the watermark of before
    group.leader.append(message(b"in.2"))  # nobody has it
    group.replicas[2].partition.sync()
    assert group.replicas[2].partition.committed_offset == 1
    group.apply(leader=2, leader_epoch=2, isr=(2,))
    group.apply(isr=(1, 2), version=9)
    group.leader.append(message())
    group.replicate(1)
    assert group.replicas[1].log_bytes() == group.replicas[2].log_bytes()
    assert group.leader.committed_offset == 3
    assert group.replicas[1].partition.committed_offset == 3
    epochs = [(e.number, e.start) for e in group.replicas[1].log.epochs.entries]
    assert epochs == [(1, 0), (2, 2)]


def test_committed_records_are_never_truncated() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    group.leader.append(message(count=5))
    group.replicate(2)
    with pytest.raises(OffsetOutOfRange):
        group.replicas[2].partition.truncate_replicated(3)
    assert group.replicas[2].log.end.offset == 5


def test_after_an_unclean_election_committed_records_are_removed() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    for n in range(8):
        group.leader.append(message(Nats_Msg_Id=str(n)))
        group.replicate(*((2, 3) if n < 4 else (2,)))
    lost = group.replicas[1].partition
    assert lost.committed_offset == 8
    assert group.replicas[3].partition.committed_offset == 4
    # Nodes 1 and 2 are gone, and node 3 has to do.
    group.apply(leader=3, leader_epoch=2, isr=(3,), unclean_epoch=2)
    group.apply(isr=(2, 3), version=9)
    group.leader.append(message(b"in.0", Nats_Msg_Id="7"))
    acks = decode_acks(group.replicate(2))
    assert (acks["in.0"]["offset"], acks["in.0"].get("duplicate")) == (4, None)
    group.replicate(1)
    assert lost.committed_offset == 5
    assert lost.counts.records_lost == 4
    assert group.replicas[1].log_bytes() == group.replicas[3].log_bytes()
    with pytest.raises(OffsetOutOfRange):
        lost.truncate_replicated(4)  # of the epoch that is in force nothing is lost
    group.apply(leader=1, leader_epoch=3, isr=(1, 2), version=12)
    replies = group.leader.append(message(b"in.1", Nats_Msg_Id="7"))
    again = decode_acks(replies + group.replicate(2))
    assert again["in.1"]["duplicate"] is True


def test_a_restart_in_the_middle_of_an_unclean_election_loses_nothing_more() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    group.leader.append(message(count=5))
    group.replicate(2, 3)
    group.leader.append(message(count=5))
    group.replicate(2)
    group.apply(3, leader=3, leader_epoch=2, isr=(3,), unclean_epoch=2)
    old = group.replicas[1]
    write_checkpoint(old.partition)
    close_partition(old.partition)
    old.open()
    assert old.partition.committed_offset == 10
    group.apply(isr=(3,), version=9)
    group.copy(1)
    assert (old.log.end.offset, old.partition.committed_offset) == (5, 5)
    close_partition(old.partition)
    old.open()
    assert old.partition.committed_offset <= 5


def test_a_new_leader_knows_the_message_ids_of_the_window() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    group.leader.append(message(Nats_Msg_Id="a"))
    group.replicate(2)
    group.leader.append(message(Nats_Msg_Id="lost"))
    group.apply(leader=2, leader_epoch=2, isr=(2,))
    group.apply(isr=(2, 3), version=9)
    replies = group.leader.append(message(b"in.0", Nats_Msg_Id="a"))
    replies += group.leader.append(message(b"in.1", Nats_Msg_Id="lost"))
    acks = decode_acks(replies + group.replicate(3, 1))
    assert acks["in.0"].get("duplicate") is True
    assert "duplicate" not in acks["in.1"]
    group.apply(leader=1, leader_epoch=3, isr=(1,))
    group.apply(isr=(1, 3), version=19)
    replies = group.leader.append(message(b"in.2", Nats_Msg_Id="lost"))
    acks = decode_acks(replies + group.replicate(3))
    assert (acks["in.2"]["offset"], acks["in.2"].get("duplicate")) == (1, True)


def test_a_truncation_takes_message_ids_back() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    group.leader.append(message(Nats_Msg_Id="kept"))
    group.replicate(2)
    group.leader.append(message(Nats_Msg_Id="lost"))
    group.apply(leader=2, leader_epoch=2, isr=(2,))
    group.apply(isr=(1, 2), version=9)
    group.leader.append(message(Nats_Msg_Id="other"))
    group.replicate(1)
    group.apply(leader=1, leader_epoch=3, isr=(1,))
    group.apply(isr=(1, 2), version=19)
    replies = b"".join(
        group.leader.append(message(b"in." + name.encode(), Nats_Msg_Id=name))
        for name in ("kept", "other", "lost")
    )
    acks = decode_acks(replies + group.replicate(2))
    found = {inbox: (ack["offset"], ack.get("duplicate")) for inbox, ack in acks.items()}
    assert found == {"in.kept": (0, True), "in.other": (1, True), "in.lost": (2, None)}


def test_a_follower_keeps_the_window_as_it_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading minutes of a log would delay its election."""
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    for n in range(20):
        group.leader.append(message(count=2, Nats_Msg_Id=str(n)))
        if n % 3 == 0:
            group.replicate(2)
    group.replicate(2)
    follower = group.replicas[2]
    assert follower.partition.preconditions.ids == group.leader.preconditions.ids > 0
    monkeypatch.setattr(follower.log, "find_timestamp", None)
    group.apply(2, 3, leader=2, leader_epoch=2, isr=(2, 3))
    replies = group.leader.append(message(b"in.0", Nats_Msg_Id="7"))
    acks = decode_acks(replies + group.replicate(3))
    assert (acks["in.0"]["offset"], acks["in.0"].get("duplicate")) == (7, True)
    config = follower.partition.definition.config
    follower.clock.ms += 2 * config.dedupe_window_ms
    assert group.leader.append(message(b"in.1", Nats_Msg_Id="7")) == b"", "it is forgotten"


def test_a_refusal_that_rests_on_uncommitted_records_waits_for_them() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    wrong = message(b"in.0", Nats_Expected_Last_Sequence="7")
    assert "error" in decode_acks(group.leader.append(wrong))["in.0"], "the log is empty"
    group.leader.append(message())
    wrong = message(b"in.1", Nats_Expected_Last_Sequence="7")
    assert group.leader.append(wrong) == b""
    assert "error" in decode_acks(group.replicate(2))["in.1"]


def test_a_committed_change_of_the_isr_releases_acks() -> None:
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message(b"in.0"))
    assert group.replicate(2) == b""
    acks = decode_acks(group.apply(1, isr=(1, 2)))
    assert acks["in.0"]["replicas"] == 2
    assert group.apply(1, version=1) == b"", "an older state changes nothing"
    assert group.leader.state is not None
    assert group.leader.state.isr == (1, 2)


def test_a_proposal_is_of_the_state_in_force() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    commitment = group.leader.commitment
    group.leader.append(message())
    group.leader.sync()
    group.replicate(2, 3)
    wanted = commitment.wanted_isr({})
    assert wanted == (1, 2, 3)
    assert group.leader.state is not None
    assert commitment.on_isr_proposed(wanted, group.leader.state)
    assert not commitment.on_isr_proposed(wanted, group.leader.state), "one at a time"
    group.leader.append(message(b"in.0"))
    assert group.replicate(2) == b"", "node 3 counts from now on"
    assert decode_acks(group.leader.sync() + group.replicate(3))["in.0"]["replicas"] == 2


def test_an_epoch_that_the_log_has_already_is_not_begun_again() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    group.leader.append(message())
    group.replicate(2)
    again = group.replicas[1].open()
    with pytest.raises(FencedEpoch):
        group.tell(1)
    assert again.role is PartitionRole.NONE
    assert again.append(message(b"in.0")) == b""
    group.apply(1, leader_epoch=2)
    assert again.role is PartitionRole.LEADER


def test_a_partition_that_waits_for_its_role_knows_the_checkpointed_watermark() -> None:
    group = ReplicaGroup()
    group.apply(isr=(1, 2))
    group.leader.append(message(count=3))
    group.replicate(2)
    group.leader.append(message(count=2))
    close_partition(group.leader)
    again = group.replicas[1].open()
    assert (again.role, again.committed_offset, again.high_watermark.offset) == (
        PartitionRole.NONE,
        3,
        3,
    )
    assert again.info().end_offset == 5


def test_without_a_leader_a_partition_waits() -> None:
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message(b"in.0"))
    old = group.leader
    assert group.apply(leader=NO_LEADER, leader_epoch=2) == b""
    assert all(replica.partition.role is PartitionRole.NONE for replica in group.replicas.values())
    assert old.append(message(b"in.1")) == b""


def test_a_leader_alone_commits_what_it_syncs_and_gets_followers_later() -> None:
    group = ReplicaGroup()
    group.replicas[1].config = group.replicas[2].config
    group.apply(1, replicas=(1,), isr=(1,))
    # `min_isr` of this stream is 2 of 3 replicas.
    assert "error" in decode_acks(group.leader.append(message(b"in.0")))["in.0"]
    group.apply(replicas=(1, 2, 3), isr=(1,))
    group.replicate(2)
    assert group.leader.commitment.wanted_isr({}) == (1, 2)
    group.apply(isr=(1, 2))
    group.leader.append(message(b"in.1"))
    assert decode_acks(group.replicate(2))["in.1"]["replicas"] == 2


def test_a_follower_whose_log_ends_below_the_leader_s_start_begins_anew() -> None:
    group = ReplicaGroup(segment_bytes_max=500)
    group.apply(isr=(1, 2))
    for _ in range(10):
        group.leader.append(message())
    group.replicate(2)
    purge(group.leader, to_offset=6, before_ms=None)
    follower = group.replicas[3].partition
    follower.restart_replicated(6)
    group.replicate(3)
    assert (follower.start_offset, follower.committed_offset) == (6, 10)
    assert group.replicas[3].log.end.offset == 10


def test_a_replica_joins_above_what_was_purged_while_retention_goes_on() -> None:
    """A follower removes later what retention has removed from its leader's log: it would hardly
    ever start where that does."""
    group = ReplicaGroup(segment_bytes_max=500)
    group.apply(isr=(1, 2))
    leader = group.leader
    for _ in range(10):
        leader.append(message())
    group.replicate(2, 3)

    assert leader.commitment.wanted_isr({}) == (1, 2, 3)
    group.replicas[1].log.advance_start(4, high_watermark=10)
    assert leader.commitment.wanted_isr({}) == (1, 2, 3)
    purge(leader, to_offset=6, before_ms=None)
    assert leader.commitment.wanted_isr({}) is None
    follow_start(group.replicas[3].partition, 6, 1)
    group.report(3)
    assert leader.commitment.wanted_isr({}) == (1, 2, 3)

    group.replicas[1].log.advance_start(8, high_watermark=10)
    group.apply(leader_epoch=2)
    group.replicate(2, 3)
    assert leader.commitment.wanted_isr({}) is None, "a leader before may have purged it"
    follow_start(group.replicas[3].partition, 8, 2)
    group.report(3)
    assert leader.commitment.wanted_isr({}) == (1, 2, 3)


def test_roles_change_in_order_with_appends() -> None:
    partition = open_partition(SimFiles(RealRandom(1)))
    group = ReplicaGroup()
    state = group.state
    sent = b""
    lock = threading.Lock()

    def send(operations: bytes) -> None:
        nonlocal sent
        with lock:
            sent += operations

    syncer = LogSyncer(clock=SimClock(1_000), threads=1)
    writer = LogWriter(syncer, no_reserve())
    syncer.start(send)
    writer.start(send)
    try:
        writer.append(partition, [awaited_batch(b"in.0")])
        follows = writer.set_role(partition, state, 2, lag_ns_max=LAG_NS)
        writer.append(partition, [awaited_batch(b"in.1")])
        follows.result(20)
        stale = writer.set_role(partition, state, 9, lag_ns_max=LAG_NS)
        stale.result(20)
        failed = writer.call(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            failed.result(20)
        writer.wait_written()
    finally:
        writer.stop()
        syncer.stop()
    assert b"in.1" not in sent
    assert partition.log is not None
    assert partition.log.end.offset == 1
    assert partition.role is PartitionRole.NONE
    assert partition.counts.records_dropped >= 1


def test_a_purge_without_a_leader_names_none() -> None:
    group = ReplicaGroup()
    group.apply(leader=NO_LEADER)
    with pytest.raises(NotLeader, match="no leader is known"):
        purge(group.replicas[1].partition, to_offset=0, before_ms=None)
