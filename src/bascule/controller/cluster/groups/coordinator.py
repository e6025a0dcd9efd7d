"""The coordinator of groups that a configuration asks for."""

from __future__ import annotations

from typing import Final

from bascule.cluster_version import CONFIRMATIONS, CONSUMER_GROUPS
from bascule.config.sections import GroupsConfig
from bascule.controller.cluster.controller import ClusterController
from bascule.groups import CommittedOffsetStore, GroupCoordinator
from bascule.groups.classic import GroupLimits
from bascule.host.api import Random
from bascule.metadata.versions import check_in_force
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

CONFIRM_SECONDS_MAX: Final = 3.0
"""For the confirmation of a coordinator, with all tries. Clients wait longer for an answer, and
their sessions are longer."""


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

    async def leads(partition: Partition) -> bool:
        if controller.image.cluster_version < CONFIRMATIONS:
            return True
        confirmation = controller.confirmation
        is_confirmed = await confirmation.is_confirmed(seconds=CONFIRM_SECONDS_MAX)
        return is_confirmed and confirmation.leads(partition, partition.leader_epoch)

    return GroupCoordinator(
        partitions,
        offsets,
        dice,
        limits,
        check_version=check_version,
        is_cut_off=lambda: controller.is_cut_off,
        leads=leads,
    )
