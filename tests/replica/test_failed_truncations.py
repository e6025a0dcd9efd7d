"""Truncations during which the disk fails: nobody counts on what the log does not have any more."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from bascule.errors import BasculeError
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.header import PAYLOAD_LINKS
from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.replica.handover.takeover import end_appends
from bascule.sim.disk import SimFiles
from bascule.storage.payloads.payload_log import PayloadLog
from support.payload_logs import link_batch, receive
from support.replica_group import ReplicaGroup, message


class Undone:
    """Node 1 has led, and appended two records that its successor lacks, the last one with a
    payload."""

    def __init__(self) -> None:
        self.group = ReplicaGroup(log=PayloadLog)
        self.replica = self.group.replicas[1]
        self.partition = self.replica.partition
        self.sent: list[bytes] = []
        self.partition.commitment.send_kept = self.sent.append
        self.group.apply()
        self.group.leader.append(message())
        self.group.replicate(2, 3)
        self.partition.append(message(inbox=b"want"))
        self.receive(1)
        self.partition.append(
            UnstampedBatch(memoryview(link_batch(0, 5)), 1, attributes=PAYLOAD_LINKS)
        )

    def receive(self, node: int) -> None:
        log = self.group.replicas[node].log
        assert isinstance(log, PayloadLog)
        receive(log, 5)

    def attempt(self) -> None:
        """Attempts as the fetcher makes them, until nothing is to be truncated."""
        follower = FollowedPartition(self.partition, self.group.state.leader_epoch, node_id=1)
        for _ in range(3):
            try:
                assert follower.begin()
                ours, theirs = self.replica.log, self.group.leader.log
                assert theirs is not None
                latest = ours.epochs.latest
                epoch, end = theirs.epochs.end_of(latest, end_offset=theirs.end.offset)
                if epoch < latest or end < ours.end.offset:
                    follower.truncate(follower.attempt, epoch, end)
            except (OSError, BasculeError) as error:
                follower.fail(error, self.sent.append)
                if self.partition.failure is not None:
                    break

    def elect_clean(self) -> None:
        """Node 1 has handed over to node 2, which is lost before it has copied the rest. Node 3
        leads then."""
        self.partition.sync()
        assert end_appends(self.partition, 2) >= 0
        self.group.apply(leader=2, leader_epoch=2)
        self.group.apply(leader=3, leader_epoch=3, isr=(1, 3))
        for _ in range(2):
            self.group.leader.append(message(value=b"another"))
        assert len(self.partition.commitment.pending) == 1

    def elect_unclean(self) -> None:
        """Nodes 1 and 3 have committed all, and node 2 leads without it."""
        self.group.apply(isr=(1, 3))
        self.receive(3)
        self.group.replicate(3)
        assert self.partition.committed_offset == 3
        self.group.apply(leader=2, leader_epoch=2, isr=(2,), unclean_epoch=2)


def fail_once(files: SimFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the file of a linked payload keep its name once."""
    failed = []

    def fail(rename: Callable[[str, str], None], source: str, target: str) -> None:
        if source.endswith(".linked") and not failed:
            failed.append(source)
            raise OSError(errno.EIO, "Input/output error", source)
        rename(source, target)

    monkeypatch.setattr(files, "rename", partial(fail, files.rename))


def test_a_kept_ack_does_not_outlive_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was sent once the other leader's record at its offset was committed."""
    scene = Undone()
    scene.elect_clean()
    fail_once(scene.replica.files, monkeypatch)
    scene.attempt()
    assert scene.replica.log.end.offset == 1
    scene.group.replicate(1)
    assert scene.partition.committed_offset == scene.group.leader.committed_offset == 3
    assert scene.sent == []


def test_a_loss_is_counted_where_a_payload_cannot_be_renamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Undone()
    scene.elect_unclean()
    fail_once(scene.replica.files, monkeypatch)
    scene.attempt()
    assert (scene.replica.log.end.offset, scene.partition.committed_offset) == (1, 1)
    assert scene.partition.counts.records_lost == 2


@pytest.mark.parametrize(
    ("elect", "start"),
    [(Undone.elect_clean, 0), (Undone.elect_unclean, 0), (Undone.elect_unclean, 2)],
    ids=["clean", "unclean", "log that starts behind it"],
)
def test_any_operation_of_a_truncation_may_fail(
    elect: Callable[[Undone], None], start: int
) -> None:
    """The log is as before, or has stopped, or all know of its new end."""
    stops = 0
    for n in count(1):
        scene = Undone()
        elect(scene)
        partition, log, files = scene.partition, scene.replica.log, scene.replica.files
        log.advance_start(start, high_watermark=partition.committed_offset)
        files.fail(n, errno.EIO)
        scene.attempt()
        if files.fault_pending():
            break
        files.forget_faults()
        stops += partition.failure is not None
        end, note = log.end.offset, f"operation {n}"
        assert partition.committed_offset <= end, note
        assert not len(partition.commitment.pending) or end > 1, note
        if scene.group.state.unclean_epoch:
            assert partition.counts.records_lost == 3 - max(end, start), note
    assert stops > 0
