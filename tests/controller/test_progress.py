"""What operators are told of moves, while streams come and go."""

from __future__ import annotations

from bascule.controller.cluster.operations.progress import plan_of
from bascule.metadata.requests import Create, Delete
from bascule.model import PartitionInfo, StreamConfig, StreamInfo
from support.deciding_controller import DecidingController


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
