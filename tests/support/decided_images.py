"""Images of a cluster whose controller decides anything, for the tests of who follows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    AlterStream,
    ChangePartitions,
    CreateStream,
    DeleteStream,
    ForgetDeletions,
    PartitionChange,
)
from bascule.metadata.image import Image
from bascule.model import PartitionState, StreamConfig, StreamDefinition

NODE: Final = 1
OTHERS: Final = (2, 3)
NAMES: Final = ("a", "b")
PARTITIONS_MAX: Final = 3
ROUNDS: Final = 4
"""Plans that a node may need without failures: a replica that has moved away and come back takes
two."""

CHANGES: Final = (
    "create", "delete", "grow", "move", "move", "move back", "elect", "forget",
)  # fmt: skip
Change = tuple[str, str, int, bool]
"""What, the stream, the partition, and whether this node is a replica then, or leads."""
CHANGE: Final = st.tuples(
    st.sampled_from(CHANGES), st.sampled_from(NAMES), st.integers(0, 2), st.booleans()
)


class Decisions:
    """The images of a cluster whose controller decides anything."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._created = 0

    def decide(self, change: Change) -> None:
        what, name, index, is_here = change
        present = self.image.streams.get(name)
        if what == "forget":
            for other in (NODE, *OTHERS):
                self.image = apply(
                    self.image, ForgetDeletions(tuple(self.image.deletions), node_id=other)
                )
        elif present is None:
            self._created += 1
            id = self._created.to_bytes(16, "big")
            definition = StreamDefinition(name, id, 0, StreamConfig(name, partitions=2))
            # As after elections that this node has not heard of.
            states = (_new(is_here=is_here, leader_epoch=1 + index), _new(is_here=not is_here))
            self.image = apply(self.image, CreateStream(definition, states))
        elif what in ("create", "delete"):
            self.image = apply(self.image, DeleteStream(name, present.id))
        elif what == "grow":
            count = present.partition_count
            if count < PARTITIONS_MAX:
                config = replace(present.config, partitions=count + 1)
                added = (_new(is_here=is_here),)
                self.image = apply(self.image, AlterStream(name, present.id, config, added))
        elif index < present.partition_count:
            state = self.image.partitions[present.id][index]
            if what == "elect":
                states = [_led(state, is_here=is_here)]
            else:
                # Back at once: this node may not hear that it was no replica meanwhile.
                away = _moved(state, is_here=False)
                back = what == "move back" or NODE not in state.replicas
                states = [away, _moved(away, is_here=True)] if back else [away]
                if what == "move back" and is_here:
                    states.append(_led(states[-1], is_here=True))
            for each in states:
                moved = PartitionChange(present.id, index, each)
                self.image = apply(self.image, ChangePartitions((moved,)))


def _new(*, is_here: bool, leader_epoch: int = 1) -> PartitionState:
    replicas = (NODE, 2) if is_here else OTHERS
    return PartitionState(replicas, replicas, replicas[0], leader_epoch, 1)


def _led(state: PartitionState, *, is_here: bool) -> PartitionState:
    leader = NODE if is_here and NODE in state.replicas else state.replicas[-1]
    epoch, version = state.leader_epoch + 1, state.version + 1
    return replace(state, leader=leader, leader_epoch=epoch, version=version)


def _moved(state: PartitionState, *, is_here: bool) -> PartitionState:
    version = state.version + 1
    since = state.since
    if not is_here:
        replicas, since = OTHERS, ()
    elif NODE not in state.replicas:
        replicas, since = (2, NODE), ((NODE, version),)
    else:
        replicas = state.replicas
    return replace(
        state,
        replicas=replicas,
        isr=tuple(sorted(replicas)),
        leader=replicas[0],
        leader_epoch=state.leader_epoch + 1,
        version=version,
        since=since,
    )
