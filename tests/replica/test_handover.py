"""What a new leader does with messages that its predecessor may have received, too."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.model import AckPolicy
from bascule.publish.acks import ACK_POLICIES, AckError
from bascule.publish.headers import read_publish_headers
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.record.builder import build_batch
from bascule.record.header import seal
from bascule.replica.handover import comparison
from bascule.replica.handover.comparison import TailContents
from bascule.replica.handover.held_messages import HoldingMemory
from bascule.replica.handover.takeover import append_held, end_appends, hold
from bascule.wire import ack_codes
from support.replica_group import HASH_KEY, ReplicaGroup
from support.replicas import decode_acks
from support.twins import Twin, load_twin

Headers = tuple[tuple[str, bytes], ...]


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def both_twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Twin:
    twin: Twin = request.param
    monkeypatch.setattr(comparison, "_hot", load_twin("replica/handover", twin))
    preconditions = load_twin("publish/preconditions", twin)
    monkeypatch.setattr(comparison, "drop_records", preconditions.drop_records)
    monkeypatch.setattr(comparison, "split_ack_entries", preconditions.split_ack_entries)
    return twin


def batch_of(
    *values: bytes, inboxes: Sequence[str] = (), headers: Headers = (), policy: str = "all"
) -> UnstampedBatch:
    """Records with these values; those with an inbox that is not empty want an ack."""
    records = [Record(n, 1_000, None, value, headers) for n, value in enumerate(values)]
    data = bytearray(build_batch(records, base_offset=0, log_append_time=True))
    number = ACK_POLICIES[AckPolicy(policy)]
    made = UnstampedBatch(data=memoryview(data), record_count=len(values))
    for n, inbox in enumerate(inboxes):
        if inbox:
            made.ack_entries += struct.pack("<BIH", number << 1, n, len(inbox)) + inbox.encode()
            made.ack_policies = 1 << number
    if headers:
        made.headers = read_publish_headers(made.data, len(values), HASH_KEY)
    return made


def values_of(group: ReplicaGroup, node: int) -> list[bytes]:
    """The values in a node's log, in its order."""
    data = group.replicas[node].log_bytes()
    return [
        bytes(record.value or b"")
        for _, start, end in scan_batches(data)
        for record in RecordBatch(data[start:end])
    ]


def begin_holding(
    group: ReplicaGroup, node: int = 2, *, grouped: bool = False, bytes_max: int = 1 << 20
) -> None:
    """What the new leader does before it subscribes."""
    follower = group.replicas[node]
    start = None if grouped else follower.log.end.offset
    hold(follower.partition, HoldingMemory(bytes_max), start)


def change_leader(group: ReplicaGroup, node: int = 2) -> bytes:
    """Another leader begins its epoch; the replies that it sends at once."""
    replies = group.apply(leader=node, leader_epoch=group.state.leader_epoch + 1)
    return replies + append_held(group.replicas[node].partition)


contents = st.lists(st.sampled_from([b"a", b"b", b"c", b"dd"]), max_size=12)


@given(stored=contents, received=contents, cut=st.integers(0, 12))
def test_for_each_content_the_log_has_the_larger_of_two_numbers(
    stored: list[bytes], received: list[bytes], cut: int
) -> None:
    tail = TailContents()
    for base, part in ((100, stored[:cut]), (100 + len(stored[:cut]), stored[cut:])):
        if part:
            data = bytes(batch_of(*part).data)
            tail.add(data, record_count=len(part), base_offset=base)
    left: list[bytes] = []
    named: list[int] = []
    for part in (received[: cut // 2], received[cut // 2 :]):
        if not part:
            continue
        batch = batch_of(*part, inboxes=[f"in.{n}" for n in range(len(part))])
        found = tail.take(batch, HASH_KEY)
        if batch.record_count:
            left += _values(batch)
        assert batch.record_count + (0 if found is None else found.duplicate_count) == len(part)
        if found is not None:
            named += [found.duplicates_base + n for n in _indexes(found.duplicates)]
    assert Counter(stored) + Counter(left) == Counter(stored) | Counter(received)
    assert len(set(named)) == len(named), "each stored record accounts for one message"
    assert Counter(stored[n - 100] for n in named) == Counter(stored) & Counter(received)


def _values(batch: UnstampedBatch) -> list[bytes]:
    data, count = bytearray(batch.data), batch.record_count
    seal(data, record_count=count, base_timestamp=0, max_timestamp=0, base_offset=0)
    return [bytes(record.value or b"") for record in RecordBatch(data)]


def _indexes(entries: bytes) -> list[int]:
    found, at = [], 0
    while at < len(entries):
        _, index, size = struct.unpack_from("<BIH", entries, at)
        found.append(index)
        at += 7 + size
    return found


def test_a_message_that_both_leaders_received_is_stored_once() -> None:
    group = ReplicaGroup()
    group.apply()
    group.leader.append(batch_of(b"before"))
    group.replicate(2, 3)
    begin_holding(group)
    new = group.replicas[2].partition
    assert new.append(batch_of(b"both", b"new", inboxes=["in.both", "in.new"])) == b""
    group.leader.append(batch_of(b"old", b"both", inboxes=["in.old", "in.both"]))
    group.copy(2)
    assert change_leader(group) == b""
    assert values_of(group, 2) == [b"before", b"old", b"both", b"new"]
    acks = decode_acks(group.replicate(1, 3))
    assert (acks["in.both"]["offset"], acks["in.both"]["duplicate"]) == (2, True)
    assert acks["in.new"]["offset"] == 3
    assert "duplicate" not in acks["in.new"]
    assert new.counts.handover_duplicates == 1


def test_a_stored_double_is_acked_only_once_it_is_committed() -> None:
    group = ReplicaGroup()
    group.apply()
    begin_holding(group)
    group.replicas[2].partition.append(batch_of(b"both", inboxes=["in.both"]))
    group.leader.append(batch_of(b"both"))
    group.copy(2)
    assert change_leader(group) == b""
    assert group.leader.sync() == b"", "neither follower has said that it has the record"
    assert decode_acks(group.replicate(1, 3))["in.both"]["offset"] == 0


def test_records_of_before_the_subscription_account_for_nothing() -> None:
    group = ReplicaGroup()
    group.apply()
    group.leader.append(batch_of(b"equal", b"equal"))
    group.replicate(2, 3)
    begin_holding(group)
    group.replicas[2].partition.append(batch_of(b"equal"))
    change_leader(group)
    assert values_of(group, 2) == [b"equal"] * 3


def test_after_a_truncation_what_came_instead_is_compared() -> None:
    group = ReplicaGroup()
    group.apply()
    group.leader.append(batch_of(b"kept"))
    group.replicate(2, 3)
    group.leader.append(batch_of(b"lost", b"lost"))
    group.copy(3)
    begin_holding(group, 3)
    group.apply(1, 2, leader=2, leader_epoch=2)
    group.tell(3)
    group.leader.append(batch_of(b"both"))
    group.replicas[3].partition.append(batch_of(b"both"))
    group.copy(3)
    change_leader(group, 3)
    assert values_of(group, 3) == [b"kept", b"both"]


def test_in_a_queue_group_nothing_is_compared() -> None:
    group = ReplicaGroup()
    group.apply()
    begin_holding(group, grouped=True)
    group.replicas[2].partition.append(batch_of(b"equal"))
    group.leader.append(batch_of(b"equal"))
    group.copy(2)
    change_leader(group)
    assert values_of(group, 2) == [b"equal", b"equal"]


@pytest.mark.parametrize("headers", [(("Nats-Msg-Id", b"one"),), (("Other", b"one"),)])
def test_headers_are_content(headers: Headers) -> None:
    group = ReplicaGroup()
    group.apply()
    begin_holding(group)
    new = group.replicas[2].partition
    new.append(batch_of(b"v", inboxes=["in.same"], headers=headers))
    new.append(batch_of(b"v", inboxes=["in.plain"]))
    group.leader.append(batch_of(b"v", headers=headers))
    group.copy(2)
    change_leader(group)
    assert values_of(group, 2) == [b"v", b"v"]
    acks = decode_acks(group.replicate(1, 3))
    assert (acks["in.same"]["offset"], acks["in.same"]["duplicate"]) == (0, True)
    assert acks["in.plain"]["offset"] == 1


def test_a_message_id_of_long_before_is_found_in_the_window() -> None:
    group = ReplicaGroup()
    group.apply()
    headers = (("Nats-Msg-Id", b"one"),)
    group.leader.append(batch_of(b"first", headers=headers))
    group.replicate(2, 3)
    begin_holding(group)
    group.replicas[2].partition.append(batch_of(b"again", inboxes=["in.0"], headers=headers))
    ack = decode_acks(change_leader(group))["in.0"]
    assert values_of(group, 2) == [b"first"]
    assert (ack["offset"], ack["duplicate"]) == (0, True)


def test_what_a_message_expects_does_not_matter_if_it_is_stored() -> None:
    group = ReplicaGroup()
    group.apply()
    begin_holding(group)
    expects = (("Nats-Expected-Last-Sequence", b"0"),)
    new = group.replicas[2].partition
    new.append(batch_of(b"both", inboxes=["in.both"], headers=expects))
    new.append(batch_of(b"late", inboxes=["in.late"], headers=expects))
    assert decode_acks(group.leader.append(batch_of(b"both", headers=expects))) == {}
    group.copy(2)
    change_leader(group)
    acks = decode_acks(group.replicate(1, 3))
    assert acks["in.both"]["offset"] == 0
    refused = acks["in.late"]["error"]
    assert isinstance(refused, dict)
    assert refused["err_code"] == ack_codes.WRONG_LAST_SEQUENCE
    assert values_of(group, 2) == [b"both"]


def test_only_as_much_is_held_as_there_is_room_for() -> None:
    group = ReplicaGroup()
    group.apply()
    begin_holding(group, bytes_max=1_000)
    new = group.replicas[2].partition
    new.append(batch_of(b"x" * 600))
    new.append(batch_of(b"y" * 600))
    new.append(batch_of(b"z"))
    change_leader(group)
    assert [value[:1] for value in values_of(group, 2)] == [b"x", b"z"]
    assert new.counts.records_dropped == 1


def test_a_node_that_does_not_lead_drops_what_it_held() -> None:
    group = ReplicaGroup()
    group.apply()
    memory = HoldingMemory()
    partition = group.replicas[2].partition
    hold(partition, memory, 0)
    partition.append(batch_of(b"held", inboxes=["in.0"]))
    assert memory.used > 0
    group.apply(leader=3, leader_epoch=2)
    assert append_held(partition) == b""
    assert (memory.used, partition.counts.records_dropped) == (0, 1)
    assert values_of(group, 2) == []


def test_messages_of_this_process_are_not_held() -> None:
    group = ReplicaGroup()
    group.apply()
    begin_holding(group)
    internal = batch_of(b"internal")
    outcomes: list[tuple[int, AckError | None]] = []
    internal.on_committed = lambda offset, error: outcomes.append((offset, error))
    group.replicas[2].partition.append(internal)
    assert [offset for offset, _ in outcomes] == [-1]


def test_an_old_leader_appends_nothing_after_it_has_said_where_its_log_ends() -> None:
    group = ReplicaGroup()
    group.apply()
    old = group.leader
    old.append(batch_of(b"first"))
    assert end_appends(old, 1) == -1, "it leads that epoch itself"
    assert end_appends(group.replicas[2].partition, 2) == -1, "it does not lead"
    assert end_appends(old, 2) == 1
    assert old.append(batch_of(b"late", inboxes=["in.late"])) == b""
    group.replicate(2, 3)
    assert values_of(group, 2) == [b"first"]
    group.apply(leader=2, leader_epoch=2)
    group.apply(leader=1, leader_epoch=3)
    old.append(batch_of(b"again"))
    assert values_of(group, 1) == [b"first", b"again"]


def test_after_a_handover_the_old_leader_acks_what_is_committed() -> None:
    group = ReplicaGroup()
    group.apply()
    old, sent = group.leader, []
    old.commitment.send_kept = sent.append
    old.append(batch_of(b"v", inboxes=["in.0"]))
    old.append(batch_of(b"w", inboxes=["in.leader"], policy="leader"))
    group.copy(2)
    end_appends(old, 2)
    change_leader(group)
    assert old.counts.records_dropped == 1, "under `leader` a deposed leader answers nothing"
    group.copy(1)
    assert sent == [], "not committed yet"
    group.replicate(1, 3)
    assert decode_acks(b"".join(sent))["in.0"]["offset"] == 0


def test_after_a_handover_the_old_leader_does_not_answer_for_records_that_it_removes() -> None:
    group = ReplicaGroup()
    group.apply()
    old, sent = group.leader, []
    old.commitment.send_kept = sent.append
    old.append(batch_of(b"kept", inboxes=["in.0"]))
    group.copy(2)
    old.append(batch_of(b"removed", inboxes=["in.1"]))
    end_appends(old, 2)
    change_leader(group)
    group.leader.append(batch_of(b"instead"))
    group.replicate(1, 3)
    assert values_of(group, 1) == [b"kept", b"instead"]
    assert decode_acks(b"".join(sent)).keys() == {"in.0"}
    assert old.counts.records_dropped == 1, "the removed one, whose publisher waited"
    assert old.fail("disk").count(b"error") == 0, "it does not know"


def test_an_old_leader_that_begins_an_empty_log_counts_the_acks_that_it_does_not_send() -> None:
    group = ReplicaGroup()
    group.apply()
    old = group.leader
    old.append(batch_of(b"v", b"w", inboxes=["in.0", "in.1"]))
    group.copy(2)
    end_appends(old, 2)
    change_leader(group)
    assert old.counts.records_dropped == 0
    old.restart_replicated(2)
    assert (old.counts.records_dropped, len(old.commitment.pending)) == (2, 0)
