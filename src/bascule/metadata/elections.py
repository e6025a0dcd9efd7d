"""Who leads a partition after a node was lost or has started, and who may change an ISR. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Final, NamedTuple

from bascule.errors import FencedEpoch, UnknownPartition
from bascule.metadata.commands import ChangePartitions, PartitionChange
from bascule.metadata.image import Image, state_of
from bascule.metadata.replicas.eligible import (
    replicas_before_move,
    with_eligible,
    without_lost_writes,
)
from bascule.metadata.replicas.reassignment import MOVED, completed
from bascule.model import NO_LEADER, PartitionState, StreamDefinition

STOPS: Final = "its node stops"


class LogEnd(NamedTuple):
    """Where the log of one replica ends."""

    node_id: int
    node_epoch: int
    """Of the registration of the process that said so."""
    last_epoch: int
    """The latest leader epoch in the log; -1: it is empty."""
    end_offset: int


class ComparedLogs(NamedTuple):
    """The logs of the replicas of one partition that has no leader."""

    stream_id: bytes
    partition: int
    version: int
    """Of the partition's state when the replicas were asked."""
    ends: tuple[LogEnd, ...]


def changes_after_loss(
    image: Image, lost: int, *, is_back: bool = False, ids: Iterable[bytes] | None = None
) -> ChangePartitions | None:
    """What changes when the process of node `lost` is gone; None: nothing. With `ids` only in the
    streams with these ids.

    The node leaves every ISR that has another member alive. Partitions that it led get another
    leader from their ISR, or an eligible one. A node that is the only member of an ISR stays in it
    where nobody is eligible, and the partition has no leader until it is back: no other node is
    sure to have every committed record. While the node `is_back` already, it has not to be replaced
    as the last one.
    """
    led = _leaders(image)
    changes = []
    affected = [each for each in image.partition_states(ids) if lost in each[2].isr]
    # The image has no order, and which node gets the next partition depends on the one before.
    affected.sort(key=itemgetter(0, 1))
    for stream_id, index, state in affected:
        others = tuple(node for node in state.isr if node not in (lost, *state.lossy))
        if not any(map(image.is_alive, others)):
            if state.leader == lost:
                elected = None if is_back else _elected_eligible(image, stream_id, state, led)
                after = elected or _elected(state, NO_LEADER)
                changes.append(PartitionChange(stream_id, index, after))
            continue
        leader, epoch = state.leader, state.leader_epoch
        if leader == lost:
            leader, epoch = _candidate(image, replace(state, isr=others), led), epoch + 1
            led[leader] += 1
        after = replace(
            state, isr=others, leader=leader, leader_epoch=epoch, version=state.version + 1
        )
        after = with_eligible(image, stream_id, state, after)
        changes.append(PartitionChange(stream_id, index, after))
    return ChangePartitions(tuple(changes)) if changes else None


def changes_after_lost_writes(
    image: Image, node: int, ids: Iterable[bytes] | None = None
) -> ChangePartitions | None:
    """What changes when a machine has lost what was not synced, before the node registers again;
    None: nothing. With `ids` only in the streams with these ids.

    Where not every message was synced, the node leaves the ISR, also as the last member. Nobody
    leads then until an eligible node is alive, or an operator allows an unclean election.
    """
    changes = []
    for stream_id, index, state in sorted(image.partition_states(ids), key=itemgetter(0, 1)):
        after = without_lost_writes(image, stream_id, state, node)
        if after is not None:
            changes.append(PartitionChange(stream_id, index, after))
    return ChangePartitions(tuple(changes)) if changes else None


def changes_after_less_needed(image: Image, ids: Iterable[bytes]) -> ChangePartitions | None:
    """What changes when streams need fewer replicas in sync: nobody is eligible any more where
    the ISR commits without them. None: nothing."""
    changes = []
    for stream_id, index, state in image.partition_states(ids):
        after = with_eligible(image, stream_id, state, state)
        if after != state:
            after = replace(after, version=state.version + 1)
            changes.append(PartitionChange(stream_id, index, after))
    return ChangePartitions(tuple(changes)) if changes else None


def changes_after_return(
    image: Image, ids: Iterable[bytes] | None = None
) -> ChangePartitions | None:
    """Elect a leader for every partition that has none and whose ISR has a member alive, or else
    an eligible node. With `ids` only in the streams with these ids. None: nothing to do.

    Doubtful replicas wait; see `elect_longest`.
    """
    led = _leaders(image)
    changes = []
    states = image.troubled_states() if ids is None else image.partition_states(ids)
    for stream_id, index, state in states:
        if state.leader != NO_LEADER:
            continue
        after = None
        if certain := tuple(node for node in state.isr if _is_certain(image, state, node)):
            leader = _preferred(image, certain, state, led)
            led[leader] += 1
            # Two losses whose steps overlap leave both nodes: each was the last when it was fenced.
            after = replace(_elected(state, leader), isr=certain)
            after = with_eligible(image, stream_id, state, after)
        else:
            after = _elected_eligible(image, stream_id, state, led)
        if after is not None:
            changes.append(PartitionChange(stream_id, index, after))
    return ChangePartitions(tuple(changes)) if changes else None


def changes_after_silence(
    image: Image,
    suspect: int,
    epoch: int,
    reporters: Mapping[int, int],
    ids: Iterable[bytes] | None = None,
) -> ChangePartitions | None:
    """What changes when nodes report that a leader does not answer them; None: nothing. With `ids`
    only in the streams with these ids.

    `suspect` registered at `epoch`; `reporters` are node ids with the epochs of their
    registrations. A partition gets another leader, and its ISR loses the suspect, if a majority of
    the ISR without the suspect reports. The leader is one of those who reported.
    """
    if not image.is_alive(suspect) or image.nodes[suspect].epoch != epoch:
        return None
    valid = {
        node
        for node, node_epoch in reporters.items()
        if image.is_alive(node) and image.nodes[node].epoch == node_epoch
    }
    led = _leaders(image)
    changes = []
    suspected = [each for each in image.partition_states(ids) if each[2].leader == suspect]
    for stream_id, index, state in sorted(suspected, key=itemgetter(0, 1)):
        others = tuple(node for node in state.isr if node != suspect)
        reporting = [node for node in others if node in valid]
        if 2 * len(reporting) <= len(others):
            continue
        leader = _preferred(image, reporting, state, led)
        led[leader] += 1
        after = replace(_elected(state, leader), isr=others)
        after = with_eligible(image, stream_id, state, after)
        changes.append(PartitionChange(stream_id, index, after))
    return ChangePartitions(tuple(changes)) if changes else None


def resign(
    image: Image,
    stream_id: bytes,
    partition: int,
    *,
    node: int,
    leader_epoch: int,
    is_whole: bool = False,
) -> ChangePartitions | None:
    """What changes when `node` cannot serve its replica as it is: its log is damaged, or was opened
    again in the epoch that it led, or its disk is full and the log `is_whole`.

    It leaves the ISR where another member is alive, or an eligible node, and that one leads. It is
    not eligible any more, unless its log `is_whole`. Else the last member stays and leads. In each
    case another leader epoch begins, also where the node was not in sync: a leader that stays
    forgets how far the node's log went, and does not take it into the ISR for that. A doubtful
    replica does not lead by this: it leaves where others are known that had every committed record.
    None: it stays for the comparison of logs, or the partition has changed since the node looked.
    """
    states = image.partitions.get(stream_id, ())
    if not 0 <= partition < len(states):
        return None
    state = states[partition]
    is_held = node in state.replicas
    if state.leader_epoch != leader_epoch or not is_held or not image.is_alive(node):
        return None
    known = {*state.isr, *state.eligible}
    is_compared = state.leader == NO_LEADER and node in known.intersection(state.lossy)
    if is_compared and (is_whole or known == {node}):
        return None  # It may lead afterwards, or nobody else is known to have every record.
    is_in_sync = node in state.isr
    others = state.isr
    if is_in_sync:
        others = tuple(each for each in state.isr if each not in (node, *state.lossy))
    rest = with_eligible(image, stream_id, state, replace(state, isr=others), without=node)
    if not is_in_sync:
        after = _elected(rest, state.leader)
    elif any(image.is_alive(each) for each in others):
        leader = state.leader
        if leader == node:
            leader = _candidate(image, rest, _leaders(image))
        after = _elected(rest, leader)
    elif state.leader not in (node, NO_LEADER):
        return None
    elif elected := _elected_eligible(image, stream_id, rest, _leaders(image)):
        after = elected
    elif is_compared:
        isr = tuple(each for each in state.isr if each != node)
        rest = with_eligible(image, stream_id, state, replace(state, isr=isr), without=node)
        after = _elected(rest, NO_LEADER)
    elif not is_whole and any(image.is_alive(each) for each in rest.eligible):
        after = _elected(rest, NO_LEADER)  # The logs of the rest are compared.
    else:
        lossy = tuple(each for each in state.lossy if each != node)
        after = replace(_elected(state, node), lossy=lossy)
    if is_whole:
        after = with_eligible(image, stream_id, state, after)
    return ChangePartitions((PartitionChange(stream_id, partition, after),))


def changes_before_stop(
    image: Image, node: int, epoch: int, ids: Iterable[bytes] | None = None
) -> ChangePartitions | None:
    """What changes before a process, which registered at `epoch`, stops: another member of the ISR
    leads wherever it leads, if one is alive and stays. The node stays in sync until it is gone.
    With `ids` only in the streams with these ids.

    None: nothing to change, or another process has the node's number now.
    """
    if not image.is_alive(node) or image.nodes[node].epoch != epoch:
        return None
    led = _leaders(image)
    changes = []
    given = [each for each in image.partition_states(ids) if each[2].leader == node]
    for stream_id, index, state in sorted(given, key=itemgetter(0, 1)):
        others = tuple(
            each
            for each in state.isr
            if each != node and image.is_alive(each) and not image.is_stopping(each)
        )
        if others:
            leader = _candidate(image, replace(state, isr=others), led)
            led[leader] += 1
            after = _elected(state, leader)
            changes.append(PartitionChange(stream_id, index, after, STOPS))
    return ChangePartitions(tuple(changes)) if changes else None


def change_isr(
    image: Image,
    stream_id: bytes,
    partition: int,
    *,
    leader: int,
    leader_epoch: int,
    version: int,
    members: Iterable[tuple[int, int]],
) -> PartitionChange | None:
    """The change of an ISR to `members` (node id, node epoch) that its leader asks for. Where that
    brings the target of a move in sync, it also ends the move; see `reassignment`.

    None: the partition has changed since the leader looked; it asks again. Raises: FencedEpoch for
    a leader that was deposed; UnknownPartition for a deleted stream.
    """
    states = image.partitions.get(stream_id, ())
    if not 0 <= partition < len(states):
        raise UnknownPartition(stream_id.hex(), partition, len(states))
    state = states[partition]
    if state.leader != leader or state.leader_epoch != leader_epoch:
        raise FencedEpoch(leader_epoch, state.leader_epoch)
    isr = dict(members)
    valid = leader in isr and all(
        node in state.replicas and image.is_alive(node) and image.nodes[node].epoch == epoch
        for node, epoch in isr.items()
    )
    if state.version != version or not valid:
        return None
    after = replace(state, isr=tuple(sorted(isr)), version=version + 1)
    definition = image.stream_of(stream_id)
    done = completed(image, definition, with_eligible(image, stream_id, state, after))
    reason = MOVED if done.leader != after.leader else ""
    return PartitionChange(stream_id, partition, done, reason)


def allows_unclean(image: Image, stream_id: bytes) -> bool:
    """Whether the stream of this id has `unclean_election`."""
    definition = image.stream_of(stream_id)
    return definition is not None and definition.config.unclean_election


def unclean_candidates(
    image: Image, stream_id: bytes, state: PartitionState, *, by_operator: bool = False
) -> tuple[int, ...]:
    """The replicas one of which may be elected although it is not in sync: those that are alive.

    Empty where the partition has a leader or will get one that has every committed record, or
    where neither the stream nor an operator allows it. Doubtful replicas may be among them: who
    asks has waited for what `is_enough`, or need not, as an operator.
    """
    if state.leader != NO_LEADER or not (by_operator or allows_unclean(image, stream_id)):
        return ()
    if any(_is_certain(image, state, node) for node in (*state.isr, *state.eligible)):
        return ()
    return tuple(node for node in state.replicas if image.is_alive(node))


def elect_uncleanly(
    image: Image, compared: Iterable[ComparedLogs], *, by_operator: bool = False
) -> ChangePartitions | None:
    """Elect leaders from outside of the ISR: of the replicas whose logs were compared that with the
    latest leader epoch in its log, then the longest log, which loses the fewest records. Of equal
    ones those come first that were in sync last.

    The leader is then the only member of the ISR. With `by_operator` the streams need not allow it,
    and views do not show it, since the operator knows. None: the partitions and nodes have changed
    since the logs were compared.
    """
    led = _leaders(image)
    changes = []
    for stream_id, index, state, ends in _unchanged(image, compared):
        candidates = unclean_candidates(image, stream_id, state, by_operator=by_operator)
        equal = _longest(image, candidates, ends)
        if not equal:
            continue
        in_sync_last = [node for node in equal if node in state.lossy]
        leader = _preferred(image, in_sync_last or equal, state, led)
        led[leader] += 1
        elected = replace(_elected(state, leader), isr=(leader,), eligible=(), lossy=())
        after = replace(elected, unclean_epoch=elected.leader_epoch)
        if by_operator:
            after = replace(after, acknowledged_epoch=after.unclean_epoch)
        done = completed(image, image.stream_of(stream_id), after)
        changes.append(PartitionChange(stream_id, index, done))
    return ChangePartitions(tuple(changes)) if changes else None


def doubtful_candidates(image: Image, state: PartitionState) -> tuple[int, ...]:
    """The replicas whose logs are to be compared, since each one that is in sync or eligible is
    doubtful or not alive: those that are alive. Empty where the partition has a leader, will get
    one without that, or where nobody is left who had every committed record.
    """
    known = (*state.isr, *state.eligible)
    if state.leader != NO_LEADER or any(_is_certain(image, state, node) for node in known):
        return ()
    if not any(image.is_alive(node) for node in known):
        return ()
    return tuple(node for node in state.replicas if image.is_alive(node))


def awaited_logs(state: PartitionState) -> frozenset[int]:
    """The replicas whose logs leave no doubt once all of them were compared."""
    known = frozenset((*state.isr, *state.eligible))
    # Of machines that went down together the last one may be all that is known.
    return known if len(known) > 1 else replicas_before_move(state)


def is_enough(state: PartitionState, answered: Collection[int], usable: Collection[int]) -> bool:
    """Whether the logs of these replicas may be compared where some are doubtful.

    Those who have `answered` and are not `usable` have failed. It takes all that are awaited, more
    than one of them usable, or all replicas. Without these it takes at least half of the replicas,
    and of those in sync or eligible: 1 of 2, 2 of 3, 2 of 4.
    """
    known = {*state.isr, *state.eligible}
    useful = known.intersection(usable)
    everyone = replicas_before_move(state)
    if useful and everyone.issubset(answered):
        return True
    if len(useful) > 1 and awaited_logs(state).issubset(answered):
        return True
    return 2 * len(useful) >= len(known) and 2 * len(everyone.intersection(usable)) >= len(everyone)


def elect_longest(image: Image, compared: Iterable[ComparedLogs]) -> ChangePartitions | None:
    """Elect leaders where replicas are doubtful: of the replicas whose logs were compared that with
    the latest leader epoch in its log, then the longest log.

    It has every committed record if any of them has. The leader is then the only member of the ISR;
    those whose logs end where its own does may be eligible. None: the partitions and nodes have
    changed since the logs were compared.
    """
    led = _leaders(image)
    changes = []
    for stream_id, index, state, ends in _unchanged(image, compared):
        equal = _longest(image, doubtful_candidates(image, state), ends)
        if not equal:
            continue
        known = [node for node in equal if node in (*state.isr, *state.eligible)]
        leader = _preferred(image, known or equal, state, led)
        led[leader] += 1
        after = replace(_elected(state, leader), isr=(leader,), lossy=())
        before = replace(state, isr=tuple(sorted(equal)), eligible=())
        after = with_eligible(image, stream_id, before, after)
        done = completed(image, image.stream_of(stream_id), after)
        changes.append(PartitionChange(stream_id, index, done))
    return ChangePartitions(tuple(changes)) if changes else None


def _unchanged(
    image: Image, compared: Iterable[ComparedLogs]
) -> Iterator[tuple[bytes, int, PartitionState, tuple[LogEnd, ...]]]:
    """Stream id, index, state and logs of the partitions that have not changed since they were
    compared."""
    for stream_id, index, version, ends in compared:
        state = state_of(image.partitions, stream_id, index)
        if state is not None and state.version == version:
            yield stream_id, index, state, ends


def _longest(image: Image, candidates: Sequence[int], ends: Iterable[LogEnd]) -> list[int]:
    """Those of the candidates that have the latest leader epoch in their logs, and of these the
    longest log. Empty: none of them is the process that was asked."""
    valid = [
        end
        for end in ends
        if end.node_id in candidates and image.nodes[end.node_id].epoch == end.node_epoch
    ]
    longest = max(((end.last_epoch, end.end_offset) for end in valid), default=None)
    return [end.node_id for end in valid if (end.last_epoch, end.end_offset) == longest]


def unclean_elections(before: Image, change: ChangePartitions) -> Iterator[PartitionChange]:
    """Those of the changes that elect a leader which is not in sync in the image `before`."""
    for each in change.changes:
        states = before.partitions.get(each.stream_id, ())
        if each.partition < len(states):
            known = states[each.partition].unclean_epoch
            if each.state.unclean_epoch > known:
                yield each


def acknowledge_loss(
    image: Image, stream_id: bytes, partition: int | None
) -> ChangePartitions | None:
    """An operator has taken notice of the unclean elections of a stream, or of one partition: views
    show them no longer. None: there is none. Raises: UnknownPartition."""
    states = image.partitions[stream_id]
    if partition is not None and not 0 <= partition < len(states):
        raise UnknownPartition(image.index.names[stream_id], partition, len(states))
    changes = []
    for index in unclean_partitions(states, partition):
        state = states[index]
        known = replace(state, acknowledged_epoch=state.unclean_epoch, version=state.version + 1)
        changes.append(PartitionChange(stream_id, index, known))
    return ChangePartitions(tuple(changes)) if changes else None


def unclean_partitions(states: Sequence[PartitionState], partition: int | None) -> list[int]:
    """The partitions of a stream, or the one of this number, whose unclean election is shown."""
    return [
        index
        for index, state in enumerate(states)
        if partition in (None, index) and state.shown_unclean_epoch
    ]


def why_leaderless(image: Image, definition: StreamDefinition, state: PartitionState) -> str:
    """Why nobody leads a partition, and what would help; empty: it has a leader."""
    if state.leader != NO_LEADER:
        return ""
    awaited = sorted({*state.isr, *state.eligible})
    if doubtful_candidates(image, state):
        return _waits_for_logs(image, state, awaited)
    if any(image.is_alive(node) for node in awaited):
        return "an election is under way"
    others = [str(node) for node in state.replicas if node not in awaited]
    what = _awaited_nodes(definition, state, awaited)
    if not others:
        return what
    if unclean_candidates(image, definition.id, state):
        return f"{what}; the logs of the other replicas are compared for an unclean election"
    if definition.config.unclean_election:
        return f"{what}; no other replica is alive either"
    return (
        f"{what}; the replicas on {', '.join(others)} may lack committed records, and "
        "unclean_election is off"
    )


def _waits_for_logs(image: Image, state: PartitionState, awaited: Sequence[int]) -> str:
    lossy = ", ".join(str(node) for node in awaited if node in state.lossy)
    what = f"the machines of the replicas in sync (on {lossy}) went down; their logs are compared"
    alive = [node for node in state.replicas if image.is_alive(node)]
    missing = ", ".join(str(node) for node in sorted(awaited_logs(state).difference(alive)))
    if not missing:
        return what
    if is_enough(state, alive, alive):
        known = f"once those on {missing} can be read"
        return f"{what} {known}; after a minute half of the replicas are enough"
    return f"{what} once more of them are alive: start the nodes {missing}"


def _awaited_nodes(
    definition: StreamDefinition, state: PartitionState, awaited: Sequence[int]
) -> str:
    nodes = ", ".join(map(str, awaited))
    if not awaited:
        lossy = ", ".join(map(str, state.lossy))
        policy = definition.config.sync
        return (
            f"the machine of each replica in sync (on {lossy}) went down before the node had "
            f"stopped, and has lost what sync = {policy} had not synced"
        )
    if len(awaited) == 1:
        return f"waits for node {nodes}, the last in sync, which is not alive"
    return f"waits for one of the nodes {nodes}, the last in sync, which are not alive"


def _elected_eligible(
    image: Image, stream_id: bytes, state: PartitionState, led: Counter[int]
) -> PartitionState | None:
    """The state with an eligible leader, which is then the only member of the ISR; None: no
    eligible node is alive and free of doubt."""
    certain = [node for node in state.eligible if _is_certain(image, state, node)]
    if not certain:
        return None
    leader = _preferred(image, certain, state, led)
    led[leader] += 1
    after = replace(_elected(state, leader), isr=(leader,))
    after = with_eligible(image, stream_id, state, after)
    return completed(image, image.stream_of(stream_id), after)


def _is_certain(image: Image, state: PartitionState, node: int) -> bool:
    """Whether a node that is in sync or eligible may lead without a comparison of logs."""
    return image.is_alive(node) and node not in state.lossy


def _elected(state: PartitionState, leader: int) -> PartitionState:
    epoch, version = state.leader_epoch + 1, state.version + 1
    return replace(state, leader=leader, leader_epoch=epoch, version=version)


def _candidate(image: Image, state: PartitionState, led: Counter[int]) -> int:
    """The member of the ISR that is alive, stays and leads the fewest partitions."""
    alive = [node for node in state.isr if image.is_alive(node)]
    return _preferred(image, alive, state, led)


def _preferred(image: Image, nodes: Iterable[int], state: PartitionState, led: Counter[int]) -> int:
    """The one of these replicas to lead: that which is the least reluctant, then that which leads
    the fewest partitions."""
    order = state.replicas

    def rank(node: int) -> tuple[tuple[bool, bool, bool], int, int]:
        return image.reluctance(node), led[node], order.index(node)

    return min(nodes, key=rank)


def _leaders(image: Image) -> Counter[int]:
    return Counter({node: load.led for node, load in image.index.loads.items()})
