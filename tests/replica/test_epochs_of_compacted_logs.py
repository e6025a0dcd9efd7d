"""Replicas that are copied of a compacted log know where each leader epoch began, by real threads,
sockets and files: records do not say of which epoch those were that compaction has removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.storage.epochs import NO_EPOCHS, LeaderEpochs
from support.keyed_nodes import CONFIG, KeyedNodes
from support.replica_nodes import wait_until


@pytest.fixture
def group(tmp_path: Path) -> Iterator[KeyedNodes]:
    with KeyedNodes(tmp_path, CONFIG) as nodes:
        yield nodes


def test_a_record_of_a_deposed_leader_goes_where_compaction_has_removed_that_offset(
    group: KeyedNodes,
) -> None:
    group.apply(leader=3, leader_epoch=1)
    group.put(3, b"k", b"acked")
    group.wait_committed(1, 1, 2, 3)
    group.apply(1, 2, leader=1, leader_epoch=2, isr=(1, 2))  # node 3 is cut off
    group.put(3, b"k", None)
    lost = group.partition(3).log
    assert lost is not None
    wait_until(lambda: lost.synced.offset == 2)
    group.nodes[3].stop(kill=True)
    for value in (b"1", b"2"):
        group.put(1, b"b", value)
    group.put(1, b"z", b"1")
    group.wait_committed(4, 1, 2)
    group.compact(1, 4)
    group.apply(1, isr=(1,))
    group.copy_anew(2)
    group.wait_committed(4, 1, 2)
    assert group.epochs(2) == group.epochs(1) == [(1, 0), (2, 1)]

    group.apply(1, 2, leader=2, leader_epoch=3, isr=(1, 2))
    group.start(3)
    group.tell(3)
    group.put(2, b"y", b"1")
    group.wait_committed(5, 1, 2, 3)
    assert group.rows(3) == group.rows(2)
    assert (0, b"k", b"acked") in group.rows(3)


def lose_an_epoch(group: KeyedNodes) -> None:
    """Node 2 leads, and has a copy of a log that was compacted: no record of epoch 2 is left there.
    Node 3 has one, and comes back."""
    group.apply()
    group.put(1, b"a", b"1")
    group.wait_committed(1, 1, 2, 3)
    group.apply(leader=2, leader_epoch=2)
    group.put(2, b"b", b"1")
    group.wait_committed(2, 1, 2, 3)
    group.nodes[3].stop()
    group.apply(1, 2, leader=1, leader_epoch=3, isr=(1, 2))
    group.put(1, b"b", b"2")
    group.put(1, b"z", b"1")
    group.wait_committed(4, 1, 2)
    group.compact(1, 4)
    group.apply(1, isr=(1,))
    group.copy_anew(2)
    group.wait_committed(4, 1, 2)
    group.apply(1, 2, isr=(1, 2))
    group.nodes[1].stop()
    group.apply(2, leader=2, leader_epoch=4, isr=(2,))
    group.start(3)
    group.tell(3)


def test_a_replica_follows_that_ends_with_an_epoch_of_which_compaction_left_nothing(
    group: KeyedNodes,
) -> None:
    lose_an_epoch(group)
    log = group.partition(3).log
    assert log is not None
    wait_until(lambda: log.synced.offset == 4, seconds=20)
    assert group.epochs(3) == group.epochs(2) == [(1, 0), (2, 1), (3, 2)]
    assert (1, b"b", b"1") in group.rows(3), "it goes on where it was"


def test_a_replica_that_a_copy_contradicts_is_copied_again(
    group: KeyedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of earlier releases lack epochs."""
    monkeypatch.setattr(LeaderEpochs, "after", lambda *_: NO_EPOCHS)
    lose_an_epoch(group)
    assert group.epochs(2)[:2] == [(1, 0), (3, 1)]
    wait_until(lambda: group.rows(3) == group.rows(2), seconds=20)
    assert group.epochs(3) == group.epochs(2)
