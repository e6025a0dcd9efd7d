"""What operators are told of moves, while streams come and go."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from bascule.controller.cluster.operations.progress import plan_of
from bascule.controller.cluster.views import bytes_behind
from bascule.metadata.requests import Create, Delete
from bascule.model import PartitionInfo, PartitionState, StreamConfig, StreamInfo
from support.deciding_controller import DecidingController

if TYPE_CHECKING:
    from bascule.replica.partition import Partition


def test_a_plan_outlives_a_stream_that_is_made_anew_with_fewer_partitions() -> None:
    """The plan is of the image, and the sizes are those that leaders have said since."""
    deciding = DecidingController()
    deciding.register(1)
    deciding.create("a", replicas=1, partitions=6)
    deciding.register(2)
    image = deciding.image
    deciding.submit(Delete("a"))
    deciding.submit(Create("a", StreamConfig("a"), b"later".ljust(16), 0))
    info = PartitionInfo(0, 0, 0, 0, 7, 0, 0)
    infos = {"a": StreamInfo(deciding.image.streams["a"], (info,))}
    plan = plan_of(image, infos)
    assert plan.count >= 3
    assert {each.partition for each in plan.moves} - {0}


def test_a_replica_that_is_planned_to_be_there_is_not_copied_again_to_lead() -> None:
    """A move brings it to the new node, and a later one makes it the preferred leader."""
    deciding = DecidingController()
    deciding.register(1, 2)
    deciding.create("a", replicas=2, partitions=12)
    deciding.register(3)
    info = [PartitionInfo(n, 0, 0, 0, 7, 0, 1_000) for n in range(12)]
    infos = {"a": StreamInfo(deciding.image.streams["a"], tuple(info))}
    moves = plan_of(deciding.image, infos).moves
    copied = [each.partition for each in moves if each.is_copied]
    twice = [each for each in moves if each.partition in copied and not each.is_copied]
    assert twice, "that is what is tested"
    assert len(copied) == len(set(copied)), "each is copied once"
    assert all(not each.bytes for each in twice)
    assert plan_of(deciding.image, infos).bytes == 1_000 * len(copied)


def test_what_replicas_that_stay_have_to_copy_is_counted() -> None:
    """Replica 3 is lost and is to go: nobody waits for it. 4 comes in its place."""
    state = PartitionState(
        replicas=(1, 2, 3, 4), isr=(1, 2), leader=1, leader_epoch=1, version=1, target=(1, 2, 4)
    )
    partition = SimpleNamespace(
        commitment=SimpleNamespace(
            replication=SimpleNamespace(state=state, lag=lambda node: {3: 100, 4: 40}[node])
        ),
        log=SimpleNamespace(
            end=SimpleNamespace(offset=100), start_offset=70, bytes_from=lambda offset: 100 - offset
        ),
    )
    assert bytes_behind(cast("Partition", partition)) == 30, "what is purged is not copied"
    partition.commitment.replication.state = replace(state, target=())
    assert bytes_behind(cast("Partition", partition)) == 60
