"""Who may lead beside the replicas in sync, since nothing was committed without them. Pure.

Nothing is committed while fewer than `min_isr` replicas are in sync. So whoever leaves the ISR when
fewer than that stay has every committed record until the ISR is large enough again (KIP-966). Such
a replica is *eligible*: it leads where no member of the ISR is alive.

A machine that went down without a clean stop has lost what was not synced; its replicas are
*lossy*. Under another `sync` than `always` that may be committed records, so they are neither in
sync nor eligible any more. An unclean election prefers them among equal logs.

Under `sync = always` they stay what they were, and are *doubtful*: a log that has also lost some of
what it had synced last, by damage, ends as if that had never been synced. Such a replica follows a
leader that is not doubtful, or leads once the logs of the others were compared with its own
(`elections.elect_longest`). A partition with a leader has no doubtful replica in sync.
"""

from __future__ import annotations

from dataclasses import replace

from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionState, StreamDefinition, SyncPolicy


def with_eligible(
    image: Image,
    stream_id: bytes,
    before: PartitionState,
    after: PartitionState,
    *,
    without: int = NO_LEADER,
) -> PartitionState:
    """`after`, with those who are eligible: `before` was the state until now.

    `without` is a node whose log is not whole.
    """
    definition = image.stream_of(stream_id)
    doubtful = {*before.isr}.intersection(after.isr, after.lossy)
    if definition is None or (len(after.isr) >= definition.needed_in_sync(after) and not doubtful):
        return replace(after, eligible=(), lossy=())
    known = {*before.isr, *before.eligible}.difference(after.isr, (without,))
    return replace(
        after,
        eligible=tuple(sorted(known.intersection(after.replicas))),
        lossy=tuple(
            each
            for each in after.lossy
            if each in after.replicas and (each in doubtful or each not in after.isr)
        ),
    )


def without_lost_writes(
    image: Image, stream_id: bytes, state: PartitionState, node: int
) -> PartitionState | None:
    """The next state of a partition after the machine of `node` has lost what was not synced; no
    process of the node leads it. None: nothing changes.

    The log of a stream with one replica is what is left: nobody has another one.
    """
    definition = image.stream_of(stream_id)
    if definition is None or node not in (*state.isr, *state.eligible):
        return None
    lossy = tuple(sorted({*state.lossy, node}))
    if definition.config.sync is SyncPolicy.ALWAYS:
        if node in state.lossy or len(replicas_before_move(state)) == 1:
            return None
        return replace(state, lossy=lossy, version=state.version + 1)
    if _has_one_replica(definition, state):
        return None
    isr = tuple(each for each in state.isr if each != node)
    after = replace(state, isr=isr, lossy=lossy, version=state.version + 1)
    return with_eligible(image, stream_id, state, after, without=node)


def replicas_before_move(state: PartitionState) -> frozenset[int]:
    """The replicas whose logs may have every committed record: not those that a move has added and
    that have not caught up yet."""
    return frozenset((*(state.origin or state.replicas), *state.isr, *state.eligible))


def unsynced_away(image: Image, definition: StreamDefinition) -> tuple[int, ...]:
    """The nodes that must be alive when a stream syncs every message from now on; sorted.

    Their replicas count as up to date and may have records that are not synced. If their machines
    went down meanwhile nobody would know it: under `sync = always` that loses nothing.
    """
    if definition.config.sync is SyncPolicy.ALWAYS:
        return ()
    known = {
        node
        for state in image.partitions.get(definition.id, ())
        if not _has_one_replica(definition, state)
        for node in (*state.isr, *state.eligible)
    }
    return tuple(sorted(node for node in known if not image.is_alive(node)))


def _has_one_replica(definition: StreamDefinition, state: PartitionState) -> bool:
    """Whether a log is what is left of it: nobody has another one."""
    return definition.config.replicas == 1 or len(state.replicas) == 1
