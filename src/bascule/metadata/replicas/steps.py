"""Decisions that concern very many partitions, some at a time. Pure.

The death of a node may change each of 100,000 partitions. One decision on all of them, and one
command with all the changes, would keep the event loop of every node busy for seconds. So in a
large image such a decision has steps, each of which proposes a command of a bounded size:

    the loss of a node    fence | elections and ISRs | ... |
    its registration      fence | elections and ISRs | ... | register | elections | ...
                          (after lost writes, it leaves ISRs before it registers)
    its silence           elections and ISRs | ...
    its stop              elections | ...
    its drain             note it | elections | ...

The fence comes first. From then on no decision elects the node or takes it into an ISR, so what is
left to do only becomes less, and a new controller finds it (`settle`). A process registers only
once no partition is left that the one before it led. Other decisions come between the steps: each
step looks at the image as it is then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Final, TypeAlias

from bascule.errors import CannotReplicate
from bascule.metadata.commands import ChangePartitions, Command, FenceNode, RegisterNode
from bascule.metadata.elections import (
    changes_after_loss,
    changes_after_lost_writes,
    changes_after_return,
    changes_after_silence,
    changes_before_stop,
)
from bascule.metadata.image import Image, in_parts
from bascule.metadata.nodes import check_registration, drain, note_stopping
from bascule.metadata.replicas.leadership import moves_from_drained
from bascule.metadata.requests import (
    ControllerRequest,
    Drain,
    LoseNode,
    RegisterProcess,
    ReplaceLeader,
    StepDown,
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
Changing: TypeAlias = Generator[tuple[Command, ...], Image, None]
"""A part of the steps."""


def steps_of(image: Image, request: ControllerRequest) -> Steps:
    """Decide on `request`. In a small image there is one step. Raises: as `decide`.

    A request with more steps is repeated without harm.
    """
    steps: Steps | None = None
    if image.index.partitions > CHANGES_MAX:
        match request:
            case LoseNode():
                steps = _lose(request)
            case RegisterProcess():
                steps = _register(request)
            case ReplaceLeader():
                steps = _replace(request)
            case StepDown():
                steps = _step_down(request)
            case Drain():
                steps = _drain(request)
            case _:
                pass
    if steps is None:
        return decide(image, request)
    # An image that is kept until the last step would be freed as a whole then, in a long stall.
    del image
    return (yield from steps)


def settle_in_steps(image: Image) -> Steps:
    """What a new controller finds undone; see `settle`."""
    if image.index.partitions <= CHANGES_MAX:
        return settle(image)
    lost = [node_id for node_id, node in image.nodes.items() if not node.alive]
    del image
    for node_id in lost:
        yield from _finish_loss(node_id, is_back=False)
    yield from _elect()
    return ()


def _lose(request: LoseNode) -> Steps:
    node = (yield ()).nodes.get(request.node_id)
    if node is None or node.epoch != request.epoch:
        return ()
    if node.alive:
        yield (FenceNode(request.node_id, request.epoch),)
    yield from _finish_loss(request.node_id, is_back=False)
    return ()


def _register(request: RegisterProcess) -> Steps:
    """Raises: NodeRefused; CannotReplicate where a process of the node registers meanwhile. Whoever
    waits for this one asks again."""
    node = request.node
    image = yield ()
    check_registration(image, node)
    present = image.nodes.get(node.node_id)
    if present is not None:
        if present.alive and present.incarnation == node.incarnation:
            return decide(image, request)
        del image
        if present.alive:
            yield (FenceNode(node.node_id, present.epoch),)
        yield from _finish_loss(node.node_id, is_back=True)
        check_registration((yield ()), node)
    if request.has_lost_writes:
        ids = yield from _visited(lambda state: node.node_id in (*state.isr, *state.eligible))

        def change(now: Image, part: list[bytes]) -> ChangePartitions | None:
            if now.is_alive(node.node_id):
                return None
            return changes_after_lost_writes(now, node.node_id, part)

        yield from _change(ids, change)
    if (yield ()).is_alive(node.node_id):
        # The same request again, or the next process: nothing of this one is done to that.
        raise CannotReplicate(f"node {node.node_id} has registered meanwhile")
    yield (RegisterNode(node),)
    yield from _elect()
    return ()


def _replace(request: ReplaceLeader) -> Steps:
    suspect, epoch, reporters = request.node_id, request.epoch, request.reporters
    ids = yield from _visited(lambda state: state.leader == suspect)
    yield from _change(
        ids, lambda now, part: changes_after_silence(now, suspect, epoch, reporters, part)
    )
    return ()


def _step_down(request: StepDown) -> Steps:
    node, epoch = request.node_id, request.epoch
    yield note_stopping((yield ()), node, epoch)
    ids = yield from _visited(lambda state: state.leader == node)
    yield from _change(ids, lambda now, part: changes_before_stop(now, node, epoch, part))
    return ()


def _drain(request: Drain) -> Steps:
    yield drain((yield ()), request.node_id, empties=request.empties, reason=request.reason)
    ids = yield from _visited(lambda state: state.leader == request.node_id)
    yield from _change(ids, lambda now, part: moves_from_drained(now, ids=part))
    return ()


def _finish_loss(lost: int, *, is_back: bool) -> Changing:
    """The changes after the loss of a node that is fenced; none once it is alive again."""
    ids = yield from _visited(lambda state: lost in state.isr)

    def change(now: Image, part: list[bytes]) -> ChangePartitions | None:
        if now.is_alive(lost):
            return None
        return changes_after_loss(now, lost, is_back=is_back, ids=part)

    yield from _change(ids, change)


def _elect() -> Changing:
    """Elections where a partition has no leader, and can have one."""
    ids = list((yield ()).index.troubled)
    yield from _change(ids, changes_after_return)


def _visited(
    is_wanted: Callable[[PartitionState], bool],
) -> Generator[tuple[Command, ...], Image, list[bytes]]:
    """The ids of the streams with such a partition."""
    found = []
    for number, (stream_id, states) in enumerate((yield ()).partitions.items()):
        if number % VISITED_MAX == VISITED_MAX - 1:
            yield ()
        if any(is_wanted(state) for state in states):
            found.append(stream_id)
    return found


def _change(
    ids: Iterable[bytes], change: Callable[[Image, list[bytes]], ChangePartitions | None]
) -> Changing:
    """Change the partitions of these streams."""
    image = yield ()
    # The lambda sees the latest image: one that it kept would be freed as a whole at the end.
    for part in _parts(ids, lambda id: len(image.partitions.get(id, ()))):  # noqa: B023
        command = change(image, part)
        image = yield () if command is None else (command,)


def _parts(ids: Iterable[bytes], size_of: Callable[[bytes], int]) -> Iterator[list[bytes]]:
    """The ids in order, for some CHANGES_MAX partitions each; a stream has `size_of` its id."""
    # One sort of all takes long: ids are random, so their first byte divides them.
    buckets: list[list[bytes]] = [[] for _ in range(256)]
    for stream_id in ids:
        buckets[stream_id[0]].append(stream_id)
    in_order = chain.from_iterable(map(sorted, buckets))
    return in_parts(in_order, size_of, CHANGES_MAX)
