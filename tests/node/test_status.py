"""What a node says of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.config import Config
from bascule.host.real import RealClock, RealFiles
from bascule.node.status import NodeStatus
from bascule.replica.partitions import Partitions


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_node_that_no_controller_reaches_is_not_ready(tmp_path: Path, is_suspended: bool) -> None:
    """In `/v1/node` and `bascule_ready`, as in `/readyz`: it leads nothing."""
    status: Any = NodeStatus(
        Config(), data=str(tmp_path), files=RealFiles(), clock=RealClock(), partitions=Partitions()
    )
    status.ready = True
    status.ingest = SimpleNamespace(connected=True, server="nats://127.0.0.1:4222")
    views = SimpleNamespace(nodes=list)
    status.controller = SimpleNamespace(is_suspended=is_suspended, views=views)
    assert status.node_info().ready is not is_suspended
