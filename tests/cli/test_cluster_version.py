"""What `bascule cluster status` says of the cluster version."""

from __future__ import annotations

import pytest

from bascule.cli.cluster.commands import version_text
from bascule.model import ClusterInfo, NodeRegistration


def cluster(in_force: int, *newest: int) -> ClusterInfo:
    nodes = tuple(
        NodeRegistration(n, "", "", "", version="0.1.0", cluster_version_max=version)
        for n, version in enumerate(newest, 1)
    )
    return ClusterInfo("c", 1, 1, 1, nodes, 0, (), (), (), cluster_version=in_force)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (cluster(1, 1, 1, 1), "1"),
        (cluster(2, 2, 2), "2"),
        (cluster(1, 2, 2), "1"),
        (cluster(1, 2, 1, 2), "1; 2 once node 2 (release 0.1.0) has a release for it"),
        (
            cluster(1, 3, 1, 2),
            "1; 3 once nodes 2 (release 0.1.0), 3 (release 0.1.0) have a release for it",
        ),
    ],
)
def test_it_says_what_keeps_the_version_from_rising(info: ClusterInfo, text: str) -> None:
    assert version_text(info) == text
