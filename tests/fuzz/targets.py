"""All targets, by name."""

from __future__ import annotations

from fuzz import (
    announce_targets,
    kafka_targets,
    nats_targets,
    payload_targets,
    raft_targets,
    record_targets,
    storage_targets,
    text_targets,
    value_targets,
)
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        announce_targets,
        nats_targets,
        kafka_targets,
        payload_targets,
        raft_targets,
        record_targets,
        storage_targets,
        text_targets,
        value_targets,
    )
    for target in module.TARGETS
}
