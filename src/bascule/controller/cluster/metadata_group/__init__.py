"""The Raft group that agrees on the metadata, and how this node asks its leader, the controller.

metadata_group  the state machine, and decisions on requests, here or forwarded
foreseen        what a controller has proposed, as if it were applied
disk_check      asks the disk of the controller before it decides
living_peers    requests that end once the node that is asked is lost
watching        tells who waits of new images and other controllers
"""

from __future__ import annotations

from bascule.controller.cluster.metadata_group.living_peers import LivingPeers
from bascule.controller.cluster.metadata_group.metadata_group import (
    DECIDE,
    GROUP,
    STEPS_IN_FLIGHT,
    ControllerCounts,
    MetadataGroup,
    Peers,
)

__all__ = [
    "DECIDE",
    "GROUP",
    "STEPS_IN_FLIGHT",
    "ControllerCounts",
    "LivingPeers",
    "MetadataGroup",
    "Peers",
]
