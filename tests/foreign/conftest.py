"""Fixtures of the tests with clients in other languages: a cluster, and what must be installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import RunningCluster, running_cluster
from support.foreign_clients import INSTALLED, SHORT_SESSIONS
from support.processes import running_nats


@pytest.fixture(scope="session", autouse=True)
def installed_clients() -> None:
    marker = INSTALLED / ".installed"
    assert marker.exists(), f"{marker} is missing: run `make foreign-clients`"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three nodes, with short sessions of the consumer protocol."""
    with (
        running_nats(tmp_path / "nats") as server,
        running_cluster(tmp_path, nats=server.url, environment=SHORT_SESSIONS) as running,
    ):
        yield running
