"""A repetition of a stored message is a duplicate, also while its stream takes no new message."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest

from bascule.host.real import RealRandom
from bascule.model import AckPolicy
from bascule.publish import preconditions as preconditions_module
from bascule.publish.acks import AckError
from bascule.publish.headers import read_publish_headers
from bascule.publish.preconditions import dedupe_window as window_module
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.dedupe_loading import load_dedupe_window
from bascule.replica.maintenance.purging import purge
from bascule.replica.partition import Partition
from bascule.sim.disk import SimClock, SimFiles
from bascule.wire import ack_codes
from support.replica_group import HASH_KEY, ReplicaGroup, message
from support.replicas import decode_acks, open_partition
from support.twins import load_twin

WINDOW_MS = 120_000


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def both_twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    twin = load_twin("publish/preconditions", request.param)
    monkeypatch.setattr(preconditions_module, "_hot", twin)
    monkeypatch.setattr(window_module, "_hot", twin)
    return twin


@pytest.fixture
def partition() -> Partition:
    """With the committed messages `old` and `a`, at offsets 0 and 1."""
    made = open_partition(SimFiles(RealRandom(1)))
    for message_id in ("old", "a"):
        made.append(message(Nats_Msg_Id=message_id))
    made.sync()
    assert made.committed_offset == 2
    return made


def pause(partition: Partition) -> None:
    partition.configure(replace(partition.definition, paused=True))


def make_read_only(partition: Partition) -> None:
    config = replace(partition.definition.config, read_only=True)
    partition.configure(replace(partition.definition, config=config))


def stop(partition: Partition) -> None:
    partition.fail("the disk is gone", reason="disk error")


def code(ack: dict[str, object]) -> object:
    error = ack["error"]
    assert isinstance(error, dict)
    return error["err_code"]


@pytest.mark.parametrize(
    ("close", "refusal"),
    [
        (pause, ack_codes.PAUSED),
        (make_read_only, ack_codes.READ_ONLY),
        (stop, ack_codes.NOT_STORED),
    ],
)
def test_while_the_stream_is_closed(
    partition: Partition, close: Callable[[Partition], None], refusal: int
) -> None:
    close(partition)
    ack = decode_acks(partition.append(message(b"in", Nats_Msg_Id="a")))["in"]
    assert (ack["offset"], ack.get("duplicate")) == (1, True)
    assert partition.preconditions.counts.duplicates == 1
    new = decode_acks(partition.append(message(b"in", Nats_Msg_Id="b")))["in"]
    assert code(new) == refusal
    assert code(decode_acks(partition.append(message(b"in")))["in"]) == refusal


def test_while_the_disk_is_full(partition: Partition) -> None:
    def refuse(message_id: str) -> dict[str, object]:
        batch = message(b"in", Nats_Msg_Id=message_id)
        return decode_acks(partition.refuse(batch, "the disk is full"))["in"]

    assert refuse("a")["duplicate"] is True
    assert code(refuse("b")) == ack_codes.NOT_STORED
    assert partition.counts.records_not_stored == 1


def test_of_one_batch_each_message_is_answered_for_itself(partition: Partition) -> None:
    pause(partition)
    ids = ("b", "a", "a", "c", "old")
    records = [Record(n, 0, None, b"v", (("Nats-Msg-Id", i.encode()),)) for n, i in enumerate(ids)]
    data = memoryview(bytearray(build_batch(records, base_offset=0, log_append_time=True)))
    batch = UnstampedBatch(data, len(ids), headers=read_publish_headers(data, len(ids), HASH_KEY))
    for row in range(len(ids)):
        batch.ack_entries += struct.pack("<BIH", 0, row, 4) + b"in.%d" % row
    acks = decode_acks(partition.append(batch))
    assert {inbox: acks[inbox].get("offset") for inbox in sorted(acks)} == {
        "in.0": None, "in.1": 1, "in.2": 1, "in.3": None, "in.4": 0
    }  # fmt: skip
    counts = partition.preconditions.counts
    assert (counts.duplicates, counts.closed_refused) == (3, 2)


def test_an_id_is_forgotten_at_the_end_of_the_window(partition: Partition) -> None:
    pause(partition)
    clock = partition._clock
    assert isinstance(clock, SimClock)
    clock.ms += WINDOW_MS + 1
    again = decode_acks(partition.append(message(b"in", Nats_Msg_Id="a")))["in"]
    assert code(again) == ack_codes.PAUSED


def test_a_message_of_another_stream_is_refused_as_ever(partition: Partition) -> None:
    pause(partition)
    other = message(b"in", Nats_Msg_Id="a", Nats_Expected_Stream="other")
    assert code(decode_acks(partition.append(other))["in"]) == ack_codes.PAUSED


def test_a_caller_within_the_process_is_told_the_offset(partition: Partition) -> None:
    pause(partition)
    told: list[tuple[int, AckError | None]] = []
    for message_id in ("a", "b"):
        batch = message(Nats_Msg_Id=message_id)
        batch.on_committed = lambda offset, error: told.append((offset, error))
        assert partition.append(batch) == b""
    (first, second) = told
    assert first == (1, None)
    assert second[1] is not None
    assert second[1].err_code == ack_codes.PAUSED


def test_a_deleted_stream_knows_no_messages(partition: Partition) -> None:
    partition.deleted = True
    again = decode_acks(partition.append(message(b"in", Nats_Msg_Id="a")))["in"]
    assert code(again) == ack_codes.NOT_STORED


@pytest.mark.parametrize("policy", [AckPolicy.ALL, AckPolicy.LEADER])
def test_with_too_few_replicas_in_sync(policy: AckPolicy) -> None:
    """What is committed is a duplicate. What the leader alone has may be lost: it is neither stored
    nor refused."""
    group = ReplicaGroup()
    group.apply()
    group.leader.append(message(Nats_Msg_Id="committed"))
    group.replicate(2, 3)
    group.leader.append(message(Nats_Msg_Id="leader"))
    group.leader.sync()
    group.leader.append(message(Nats_Msg_Id="appended"))
    group.apply(isr=(1,))
    assert group.leader.committed_offset == 1

    def ask(message_id: str) -> dict[str, object]:
        again = message(b"in", policy=policy, Nats_Msg_Id=message_id)
        return decode_acks(group.leader.append(again))["in"]

    assert (ask("committed")["offset"], ask("committed")["duplicate"]) == (0, True)
    if policy is AckPolicy.LEADER:
        assert (ask("leader")["offset"], ask("leader")["replicas"]) == (1, 1)
    else:
        assert code(ask("leader")) == ack_codes.INDETERMINATE
    assert code(ask("appended")) == ack_codes.INDETERMINATE
    assert code(ask("new")) == ack_codes.NOT_ENOUGH_REPLICAS
    group.apply(isr=(1, 2))
    group.replicate(2)
    assert ask("appended")["duplicate"] is True


def test_a_purge_takes_no_id_from_a_node_that_runs_and_all_from_one_that_starts() -> None:
    """The second half is what `docs/publishing.md` warns of."""
    files = SimFiles(RealRandom(1))
    partition = open_partition(files)
    for message_id in ("purged", "kept"):
        partition.append(message(Nats_Msg_Id=message_id))
        partition.sync()
    purge(partition, to_offset=1, before_ms=None)
    assert partition.start_offset == 1

    def ask(message_id: str) -> dict[str, object]:
        replies = partition.append(message(b"in", Nats_Msg_Id=message_id)) + partition.sync()
        return decode_acks(replies)["in"]

    assert (ask("purged")["offset"], ask("purged")["duplicate"]) == (0, True)
    assert partition.log is not None
    partition.log.close()
    partition = open_partition(files)
    assert partition.log is not None
    load_dedupe_window(partition.preconditions, partition.log, since_ms=0)
    assert (ask("kept")["offset"], ask("kept")["duplicate"]) == (1, True)
    assert "duplicate" not in ask("purged")
    assert ask("purged")["offset"] == 2


def test_a_raised_window_has_what_is_known_and_after_a_start_what_is_in_the_log() -> None:
    """As `docs/publishing.md` says: a node that runs does not read its log again."""
    files = SimFiles(RealRandom(1))
    partition = open_partition(files)
    config = partition.definition.config

    def set_window(ms: int) -> None:
        changed = replace(config, dedupe_window_ms=ms)
        partition.configure(replace(partition.definition, config=changed))

    def ask(message_id: str) -> dict[str, object]:
        replies = partition.append(message(b"in", Nats_Msg_Id=message_id)) + partition.sync()
        return decode_acks(replies)["in"]

    clock = partition._clock
    assert isinstance(clock, SimClock)
    set_window(1_000)
    assert [ask(each)["offset"] for each in ("forgotten", "in the log")] == [0, 1]
    clock.ms += 1_001
    assert ask("known")["offset"] == 2
    set_window(WINDOW_MS)
    clock.ms += 2_000
    assert (ask("known")["offset"], ask("known")["duplicate"]) == (2, True)
    assert ask("forgotten")["offset"] == 3
    assert partition.log is not None
    partition.log.close()
    partition = open_partition(files)
    assert partition.log is not None
    load_dedupe_window(partition.preconditions, partition.log, since_ms=0)
    known = [ask(each)["offset"] for each in ("forgotten", "in the log", "known")]
    assert known == [3, 1, 2]


def test_a_replica_that_was_away_for_longer_than_the_window_knows_what_was_stored_since() -> None:
    """It gets both messages at once, and the second one is seconds old."""
    group = ReplicaGroup()
    group.apply(isr=(1, 3))
    clocks = [each.clock for each in group.replicas.values()]

    def store(inbox: bytes, follower: int) -> dict[str, object]:
        replies = group.leader.append(message(inbox, Nats_Msg_Id="a"))
        return decode_acks(replies + group.replicate(follower))[inbox.decode()]

    assert store(b"in.0", 3)["offset"] == 0
    for clock in clocks:
        clock.ms += WINDOW_MS + 1
    assert store(b"in.1", 3)["offset"] == 1
    group.replicate(2)
    group.apply(2, 3, leader=2, leader_epoch=2, isr=(2, 3))
    for clock in clocks:
        clock.ms += WINDOW_MS
    again = store(b"in.2", 3)
    assert (again["offset"], again.get("duplicate")) == (1, True)
