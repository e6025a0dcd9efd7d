"""Releases that run beside each other for the time of an upgrade have Raft settings that fit."""

from __future__ import annotations

from bascule.cluster_version import HISTORY
from bascule.node.cluster import RAFT_CONFIG
from bascule.raft_driver.driver import DriverSettings

PINNED = (
    ("tick_ms", 50),
    ("election_ticks", 30),
    ("heartbeat_ticks", 2),
    ("lease_reads", 0),
    ("lease_margin_ticks", 2),
    ("commit_count_to_take_snapshot", 10_000),
)
"""The Raft settings of the releases with the cluster versions below."""
PINNED_FOR = {1, 2}


def test_no_setting_differs_from_the_releases_before_by_accident() -> None:
    """While leases are off a setting may be another one in the next release, if the two work well
    beside each other: change it here, too. With leases on nodes of two releases with other settings
    refuse each other, so that a cluster cannot be upgraded node by node. See decision 70.
    """
    settings = (("tick_ms", DriverSettings(cluster="c").tick_ms), *RAFT_CONFIG.shared)
    assert settings == PINNED
    assert {each.number for each in HISTORY} == PINNED_FOR


def test_leases_are_off() -> None:
    """They would have to be turned on with a cluster version, by all nodes together."""
    assert not RAFT_CONFIG.lease_reads
