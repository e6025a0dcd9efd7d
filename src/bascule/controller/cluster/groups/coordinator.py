"""The coordinator of groups that a configuration asks for."""

from __future__ import annotations

from bascule.cluster_version import CONSUMER_GROUPS
from bascule.config.sections import GroupsConfig
from bascule.controller.cluster.controller import ClusterController
from bascule.groups import CommittedOffsetStore, GroupCoordinator
from bascule.groups.classic import GroupLimits
from bascule.host.api import Random
from bascule.metadata.versions import check_in_force
from bascule.replica.partitions import Partitions


def make_coordinator(
    config: GroupsConfig,
    partitions: Partitions,
    offsets: CommittedOffsetStore,
    dice: Random,
    controller: ClusterController,
) -> GroupCoordinator:
    """A coordinator that is not started yet."""
    limits = GroupLimits(
        config.initial_delay_ms,
        config.session_ms_min,
        config.session_ms_max,
        config.members_max,
        consumer_session_ms=config.consumer_session_ms,
        consumer_heartbeat_ms=config.consumer_heartbeat_ms,
    )

    def check_version() -> None:
        check_in_force(
            controller.image,
            CONSUMER_GROUPS,
            "a group of the consumer protocol",
            "set group.protocol=classic",
        )

    return GroupCoordinator(
        partitions,
        offsets,
        dice,
        limits,
        check_version=check_version,
        is_cut_off=lambda: controller.is_cut_off,
    )
