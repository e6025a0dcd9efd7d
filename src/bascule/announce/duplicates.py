"""Which streams of two clusters are the same, and when that is a conflict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bascule.model import DuplicateStream, StreamDefinition
from bascule.wire.announcements import StreamClaim
from bascule.wire.subjects import subjects_overlap


def claim_of(definition: StreamDefinition) -> StreamClaim:
    config = definition.config
    return StreamClaim(
        name=definition.name,
        subject=config.subject,
        id=definition.id.hex(),
        acks=config.acks,
        shared=config.shared,
        group=definition.queue_group or "",
    )


def is_conflict(own: StreamClaim, other: StreamClaim) -> bool:
    """Whether a stream of another cluster with the same name conflicts with our own.

    A shared stream never does. Otherwise two streams in one queue group do, because each of them
    gets a part of the messages; and two streams that both answer publishers.
    """
    if own.shared or not subjects_overlap(own.subject, other.subject):
        return False
    in_one_group = own.group != "" and own.group == other.group
    return in_one_group or (own.acks and other.acks)


def duplicates_of(
    own: StreamClaim, others: Iterable[tuple[str, int, StreamClaim]]
) -> Mapping[str, DuplicateStream]:
    """Cluster id -> the same stream there; `others` are cluster id, node id and claim with the
    name of `own`. Nodes of one cluster make one entry."""
    found: dict[str, DuplicateStream] = {}
    for cluster_id, node_id, claim in sorted(others, key=lambda each: each[:2]):
        if not subjects_overlap(own.subject, claim.subject):
            continue
        before = found.get(cluster_id)
        found[cluster_id] = DuplicateStream(
            cluster_id,
            nodes=tuple(sorted({node_id, *(before.nodes if before else ())})),
            subject=before.subject if before else claim.subject,
            acks=claim.acks or (before is not None and before.acks),
            shared=claim.shared and (before is None or before.shared),
            conflict=is_conflict(own, claim) or (before is not None and before.conflict),
        )
    return found
