"""Who may be a node of the cluster, and how a node leaves it. Pure.

A data directory has an id. The node's number belongs to the directory that was admitted, or that
registered first, until the node is removed. A removed number is refused until another empty
directory is admitted for it: what the old one held and voted for is gone for good then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Final, NamedTuple

from bascule.cluster_version import NATS_LACKS
from bascule.errors import (
    CannotDrain,
    CannotRemoveNode,
    NodeRefused,
    UnknownNode,
)
from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    AdmitNode,
    ChangePartitions,
    Command,
    ForgetDeletions,
    PartitionChange,
    RegisterNode,
    RemoveNode,
    SetDrained,
    SetLeaving,
    SetNatsLack,
)
from bascule.metadata.elections import changes_after_loss, doubtful_candidates
from bascule.metadata.image import Image
from bascule.metadata.replicas.eligible import replicas_before_move, with_eligible
from bascule.metadata.replicas.reassignment import completed, holds_replicas, wanted_count
from bascule.metadata.versions import check_drain_reason, check_release
from bascule.model import NodeRegistration, PartitionState, is_internal_stream

SHOWN_MAX: Final = 3
"""Partitions named in an error."""


def check_registration(image: Image, node: NodeRegistration) -> None:
    """Raises: NodeRefused where the process may not be this node."""
    number = node.node_id
    if number in image.removed:
        raise NodeRefused(
            number,
            "it was removed from the cluster; to use its number again, start it with --join and an "
            "empty data directory",
        )
    check_release(image.cluster_version, node)
    present = image.nodes.get(number)
    if present is None or not present.directory or present.directory == node.directory:
        return
    raise NodeRefused(
        number,
        "its number belongs to another data directory; use another number, or remove the node "
        f"first with `bascule node remove {number}`",
    )


def admit(image: Image, node: NodeRegistration) -> tuple[Command, ...]:
    """Decide on a node with an empty data directory that wants to join. Raises: NodeRefused."""
    present = image.nodes.get(node.node_id)
    if present is None:
        check_release(image.cluster_version, node)
        _check_addresses(image, node)
        return (AdmitNode(replace(node, incarnation=0)),)
    check_registration(image, node)
    if not present.directory:
        raise NodeRefused(node.node_id, "its number belongs to a node; use another number")
    return ()  # The same request again.


def _check_addresses(image: Image, node: NodeRegistration) -> None:
    """Raises: NodeRefused where a node of the cluster has an address that no other one reaches."""
    for number, present in sorted(image.nodes.items()):
        if present.peer.startswith(("0.0.0.0:", "[::]:")):
            raise NodeRefused(
                node.node_id,
                f"node {number} has the peer address {present.peer}, which other nodes cannot "
                f"connect to; start node {number} with its own address as peer.advertised",
            )


def leave(image: Image, number: int, *, force: bool) -> tuple[Command, ...]:
    """Decide on the removal of a node.

    Its replicas move to other nodes first. With `force` they are given up: the node is dead.

    Raises: UnknownNode, CannotRemoveNode.
    """
    node = image.nodes.get(number)
    if node is None:
        raise UnknownNode(number)
    others = [each for each in image.usable() if each != number]
    if not others:
        raise CannotRemoveNode(number, "no other node is alive and stays in the cluster")
    if force:
        return _give_up(image, node)
    for _, definition in sorted(image.streams.items()):
        replicas = definition.config.replicas
        holds = any(number in state.replicas for state in image.partitions[definition.id])
        if holds and replicas > len(others) and not is_internal_stream(definition.name):
            give_up = (
                "" if node.alive else "; a node that is lost for good is given up with --force"
            )
            raise CannotRemoveNode(
                number,
                f"stream {definition.name!r} has {replicas} replicas, and only nodes {others} "
                "would be left for them: start another node first, or lower `replicas` of the "
                f"stream{give_up}",
            )
    return () if node.is_leaving else (SetLeaving(number, node.epoch),)


def stay(image: Image, number: int) -> tuple[Command, ...]:
    """Take the removal of a node back. Its replicas that move already go on to do so.

    Raises: UnknownNode, also where the node has left already.
    """
    node = image.nodes.get(number)
    if node is None:
        raise UnknownNode(number)
    return (SetLeaving(number, node.epoch, is_leaving=False),) if node.is_leaving else ()


def drain(image: Image, number: int, *, empties: bool, reason: str = "") -> tuple[Command, ...]:
    """Decide that a node gives up its leaders and gets nothing new; with `empties` its replicas
    move to other nodes, too. Nothing where that is so already. `reason` is what operators are told.

    Raises: UnknownNode; CannotDrain where no other node would take anything; NeedsClusterVersion
    for a reason.
    """
    check_drain_reason(image, reason)
    node = image.nodes.get(number)
    if node is None:
        raise UnknownNode(number)
    if not any(each != number for each in image.usable()):
        raise CannotDrain(number, "no other node is alive and takes leaders and replicas")
    wanted = SetDrained(
        number, node.epoch, is_drained=True, is_emptied=empties or node.is_emptied,
        reason=reason or node.drain_reason,
    )  # fmt: skip
    same = node.is_drained, node.is_emptied, node.drain_reason
    return () if same == (True, wanted.is_emptied, wanted.reason) else (wanted,)


def resume(image: Image, number: int) -> tuple[Command, ...]:
    """Decide that a drained node leads again and gets replicas. Raises: UnknownNode."""
    node = image.nodes.get(number)
    if node is None:
        raise UnknownNode(number)
    return (SetDrained(number, node.epoch, is_drained=False),) if node.is_drained else ()


def note_stopping(image: Image, number: int, epoch: int) -> tuple[RegisterNode, ...]:
    """Note that the process that registered at `epoch` is about to stop; nothing where that is
    known, or the process is gone. The image keeps it, so that every controller knows."""
    node = image.nodes.get(number)
    if node is None or not node.alive or node.epoch != epoch or node.is_stopping:
        return ()
    return (RegisterNode(replace(node, is_stopping=True)),)


class NatsNote(NamedTuple):
    """What a process has told of its NATS connection."""

    node_id: int
    epoch: int
    """Of its registration."""
    lacks_since_ms: int
    """Since when it has none; 0: it has one."""


def note_nats(image: Image, notes: Iterable[NatsNote]) -> tuple[SetNatsLack, ...]:
    """Note which processes lack NATS, and which have it again; nothing for those of which that is
    known, for those that are gone, and before the cluster version that brings it is in force."""
    if image.cluster_version < NATS_LACKS:
        return ()
    return tuple(
        SetNatsLack(*note)
        for note in notes
        if image.is_alive(note.node_id)
        and image.nodes[note.node_id].epoch == note.epoch
        and image.nodes[note.node_id].lacks_nats != (note.lacks_since_ms > 0)
    )


def finish_leaving(image: Image, number: int) -> tuple[Command, ...]:
    """Remove a node that leaves, if it holds nothing any more."""
    node = image.nodes.get(number)
    if node is None or not node.is_leaving or holds_replicas(image, number):
        return ()
    return _removal(image, node)


def _give_up(image: Image, node: NodeRegistration) -> tuple[Command, ...]:
    number = node.node_id
    if node.alive:
        raise CannotRemoveNode(
            number, "it is alive; remove it without --force, or stop its process first"
        )
    # In a large image its loss has steps, which may not be done: it must not lead on.
    unfinished = changes_after_loss(image, number)
    if unfinished is not None:
        image = apply(image, unfinished)
    names = image.index.names
    changes, last, leaderless = [], [], []
    for stream_id, index, state in sorted(image.partition_states(), key=itemgetter(0, 1)):
        if number not in state.replicas:
            continue
        last_known = {*state.isr, *state.eligible} or {*state.lossy}
        if last_known == {number}:
            last.append(f"{names[stream_id]} {index}")
            continue
        if number in replicas_before_move(state) and doubtful_candidates(image, state):
            leaderless.append(f"{names[stream_id]} {index}")
            continue
        target = tuple(each for each in state.target if each != number)
        origin = tuple(each for each in state.origin if each != number)
        if number in state.target and target and len(target) < len(origin):
            target = origin  # What is left of the target would be fewer replicas than before.
        elif number in state.target and target:
            target = _filled(image, stream_id, state, target, without=number)
        after = replace(
            state,
            replicas=tuple(each for each in state.replicas if each != number),
            since=tuple(each for each in state.since if each[0] != number),
            isr=tuple(each for each in state.isr if each != number),
            target=target,
            origin=origin if target else (),
            min_isr=state.min_isr if target else 0,
            leader_epoch=state.leader_epoch + 1,
            version=state.version + 1,
        )
        after = with_eligible(image, stream_id, state, after, without=number)
        done = completed(image, image.stream_of(stream_id), after)
        changes.append(PartitionChange(stream_id, index, done))
    _check_given_up(number, last, "it has the only up-to-date copy of")
    _check_given_up(number, leaderless, "after a loss of power its log is needed for")
    finished = () if unfinished is None else (unfinished,)
    given_up = (ChangePartitions(tuple(changes)),) if changes else ()
    return (*finished, *given_up, *_removal(image, node))


def _check_given_up(number: int, partitions: Sequence[str], why: str) -> None:
    """Raises: CannotRemoveNode, where there are partitions that need the node."""
    if partitions:
        extra = len(partitions) - SHOWN_MAX
        more = f" and {extra} more" if extra > 0 else ""
        raise CannotRemoveNode(
            number,
            f"{why} {', '.join(partitions[:SHOWN_MAX])}{more}; start it again, let another replica "
            "lead with `bascule stream recover --accept-loss`, or delete these streams",
        )


def _filled(
    image: Image,
    stream_id: bytes,
    state: PartitionState,
    target: tuple[int, ...],
    *,
    without: int,
) -> tuple[int, ...]:
    """The target of a move that has lost the node `without`, with replicas in its place that were
    to go, are alive and have every committed record. They stay until there is another node for
    them: also those of a node that is to be removed, which would leave the cluster else."""
    definition = image.stream_of(stream_id)
    assert definition is not None, "partitions belong to streams"
    count = min(len(state.target), wanted_count(image, definition))
    known = {*state.isr, *state.eligible}.difference(target, (without,))
    staying = [node for node in state.replicas if node in known and image.is_alive(node)]
    return (*target, *staying[: max(0, count - len(target))])


def _removal(image: Image, node: NodeRegistration) -> tuple[Command, ...]:
    """Nobody waits for a removed node to remove the data of deleted streams."""
    number = node.node_id
    ids = tuple(sorted(id for id, each in image.deletions.items() if number in each.nodes))
    forgotten = (ForgetDeletions(ids, number),) if ids else ()
    return (*forgotten, RemoveNode(number, node.epoch))
