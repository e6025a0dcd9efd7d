"""Releases that are to run beside each other have Raft settings that fit."""

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
"""The settings that nodes of cluster versions 1 and 2 compare. Nodes of which one has other
settings than these refuse each other, so that a cluster cannot be upgraded node by node: do not
change them. See decision 69 for what a change needs."""


def test_the_settings_are_those_of_the_releases_before() -> None:
    settings = (("tick_ms", DriverSettings(cluster="c").tick_ms), *RAFT_CONFIG.shared)
    assert settings == PINNED
    assert {each.number for each in HISTORY} <= {1, 2}, "compare the settings of a new version, too"
