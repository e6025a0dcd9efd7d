"""Decisions that concern very many partitions, some at a time. Pure.

The death of a node may change each of 100,000 partitions. One decision on all of them, and one
command with all the changes, would keep the event loop of every node busy for seconds. So in a
large image such a decision has steps, each of which proposes a command of a bounded size:

    the loss of a node    fence | elections and ISRs | ... |
    its registration      fence | elections and ISRs | ... | register | elections | ...

The fence comes first. From then on no decision elects the node or takes it into an ISR, so what is
left to do only becomes less, and a new controller finds it (`settle`). A process registers only
once no partition is left that the one before it led. Other decisions come between the steps: each
step looks at the image as it is then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, TypeAlias

from bascule.metadata.commands import ChangePartitions, Command, FenceNode, RegisterNode
from bascule.metadata.elections import (
    changes_after_loss,
    changes_after_return,
    changes_after_silence,
)
from bascule.metadata.image import Image
from bascule.metadata.nodes import check_registration
from bascule.metadata.requests import (
    ControllerRequest,
    LoseNode,
    RegisterProcess,
    ReplaceLeader,
    decide,
    settle,
)
from bascule.model import PartitionState

CHANGES_MAX: Final = 500
"""Partitions that a step changes, unless one stream has more: some 10 ms of work on each node."""
VISITED_MAX: Final = 5_000
"""Streams that a step looks at."""

Steps: TypeAlias = Generator[tuple[Command, ...], Image, tuple[Command, ...]]
"""Yields the commands of each step, which may be none, and gets the image after them. Returns the
commands of the last step, decided on the image that it got last."""


def steps_of(image: Image, request: ControllerRequest) -> Steps:
    """Decide on `request`. In a small image there is one step. Raises: as `decide`.

    A request with more steps is repeated without harm.
    """
    if image.index.partitions > CHANGES_MAX:
        match request:
            case LoseNode():
                return (yield from _lose(image, request))
            case RegisterProcess():
                return (yield from _register(image, request))
            case ReplaceLeader():
                return (yield from _replace(image, request))
            case _:
                pass
    return decide(image, request)


def settle_in_steps(image: Image) -> Steps:
    """What a new controller finds undone; see `settle`."""
    if image.index.partitions <= CHANGES_MAX:
        return settle(image)
    for node_id, node in image.nodes.items():
        if not node.alive:
            image = yield from _finish_loss(image, node_id, is_back=False)
    yield from _elect(image)
    return ()


def _lose(image: Image, request: LoseNode) -> Steps:
    node = image.nodes.get(request.node_id)
    if node is None or not node.alive or node.epoch != request.epoch:
        return ()
    image = yield (FenceNode(request.node_id, request.epoch),)
    yield from _finish_loss(image, request.node_id, is_back=False)
    return ()


def _register(image: Image, request: RegisterProcess) -> Steps:
    node = request.node
    check_registration(image, node)
    present = image.nodes.get(node.node_id)
    if present is not None:
        if present.alive and present.incarnation == node.incarnation:
            return decide(image, request)
        if present.alive:
            image = yield (FenceNode(node.node_id, present.epoch),)
        image = yield from _finish_loss(image, node.node_id, is_back=True)
        check_registration(image, node)
    image = yield (RegisterNode(node),)
    yield from _elect(image)
    return ()


def _replace(image: Image, request: ReplaceLeader) -> Steps:
    suspect = request.node_id
    ids = yield from _visited(image, lambda state: state.leader == suspect)
    image = yield ()
    yield from _change(
        image,
        ids,
        lambda now, part: changes_after_silence(
            now, suspect, request.epoch, request.reporters, part
        ),
    )
    return ()


def _finish_loss(
    image: Image, lost: int, *, is_back: bool
) -> Generator[tuple[Command, ...], Image, Image]:
    """The changes after the loss of a node that is fenced; none once it is alive again."""
    ids = yield from _visited(image, lambda state: lost in state.isr)
    image = yield ()

    def change(now: Image, part: list[bytes]) -> ChangePartitions | None:
        if lost in now.nodes and now.nodes[lost].alive:
            return None
        return changes_after_loss(now, lost, is_back=is_back, ids=part)

    return (yield from _change(image, ids, change))


def _elect(image: Image) -> Generator[tuple[Command, ...], Image, Image]:
    """Elections where a partition has no leader, and can have one."""
    return (yield from _change(image, list(image.index.troubled), changes_after_return))


def _visited(
    image: Image, is_wanted: Callable[[PartitionState], bool]
) -> Generator[tuple[Command, ...], Image, list[bytes]]:
    """The ids of the streams with such a partition."""
    found = []
    for number, (stream_id, states) in enumerate(image.partitions.items()):
        if number % VISITED_MAX == VISITED_MAX - 1:
            yield ()
        if any(is_wanted(state) for state in states):
            found.append(stream_id)
    return found


def _change(
    image: Image,
    ids: Iterable[bytes],
    change: Callable[[Image, list[bytes]], ChangePartitions | None],
) -> Generator[tuple[Command, ...], Image, Image]:
    """Change the partitions of these streams; returns the image after that."""
    for part in _parts(image, ids):
        command = change(image, part)
        image = yield () if command is None else (command,)
    return image


def _parts(image: Image, ids: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The ids in order, for some CHANGES_MAX partitions each."""
    # One sort of all takes long: ids are random, so their first byte divides them.
    buckets: list[list[bytes]] = [[] for _ in range(256)]
    for stream_id in ids:
        buckets[stream_id[0]].append(stream_id)
    part: list[bytes] = []
    count = 0
    for bucket in buckets:
        for stream_id in sorted(bucket):
            part.append(stream_id)
            count += len(image.partitions.get(stream_id, ()))
            if count >= CHANGES_MAX:
                yield part
                part, count = [], 0
    if part:
        yield part
