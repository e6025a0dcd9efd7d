"""Who is eligible and who has lost writes, where few replicas are left."""

from __future__ import annotations

import pytest

from bascule.metadata.apply import apply
from bascule.metadata.commands import CreateStream
from bascule.metadata.image import Image
from bascule.metadata.replicas.eligible import unsynced_away, with_eligible, without_lost_writes
from bascule.model import PartitionState, StreamConfig, StreamDefinition, SyncPolicy

STREAM = b"1" * 16


def image_of(state: PartitionState) -> tuple[Image, StreamDefinition]:
    """An image with one stream of three replicas, which does not sync every message."""
    config = StreamConfig("s", replicas=3, min_isr=2, sync=SyncPolicy.INTERVAL)
    definition = StreamDefinition("s", STREAM, 0, config)
    return apply(Image(), CreateStream(definition, (state,))), definition


@pytest.mark.parametrize("is_alone", [False, True])
def test_the_only_replica_of_a_partition_goes_on_with_what_its_machine_has_left(
    is_alone: bool,
) -> None:
    """Also where the stream is to have more, as those of the cluster itself on its first node."""
    replicas = (1,) if is_alone else (1, 2, 3)
    state = PartitionState(replicas, (1,), 1, 3, 4)
    image, definition = image_of(state)
    after = without_lost_writes(image, STREAM, state, 1)
    assert unsynced_away(image, definition) == (() if is_alone else (1,))
    if is_alone:
        assert after is None
    else:
        assert after is not None
        assert (after.isr, after.eligible, after.lossy) == ((), (), (1,))


def test_only_a_replica_is_eligible() -> None:
    before = PartitionState((1, 2, 3), (1, 2, 3), 1, 3, 4)
    image, _ = image_of(before)
    after = PartitionState((1, 2), (1,), 1, 4, 5)
    assert with_eligible(image, STREAM, before, after).eligible == (2,)
    assert with_eligible(image, STREAM, before, after, without=2).eligible == ()
