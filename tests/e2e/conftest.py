"""Fixtures of several files of end-to-end tests: a NATS server, and a cluster on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import RunningCluster, running_cluster
from support.processes import NatsServer, running_nats


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One for all tests of a file."""
    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path, nats_server: NatsServer) -> Iterator[RunningCluster]:
    """Three nodes with their defaults."""
    with running_cluster(tmp_path, nats=nats_server.url) as running:
        yield running
