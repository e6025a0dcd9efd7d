"""When a node that is no peer is worth a warning. Time is virtual."""

from __future__ import annotations

import logging

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.errors import RemoteProtocolError
from bascule.host.real import RealRandom
from bascule.raft_driver.transport import UNKNOWN_SECONDS, PeerTransport, UnknownPeer
from support.virtual_time import elapse, run_virtually


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of what was logged since the last look."""
    found = [record.levelname for record in caplog.records]
    caplog.clear()
    return found


def test_a_node_that_stays_unknown_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        transport = PeerTransport(
            1, 1, cluster=ClusterIdentity("blue"), random=RealRandom(1), on_bundle=lambda _: None
        )
        transport.on_refused("peer", UnknownPeer(9))
        await elapse(UNKNOWN_SECONDS - 1)
        transport.on_refused("peer", UnknownPeer(9))
        assert levels(caplog) == ["INFO", "INFO"]
        await elapse(1.1)
        transport.on_refused("peer", UnknownPeer(9))
        transport.on_refused("peer", UnknownPeer(8))
        assert levels(caplog) == ["WARNING", "INFO"], "each node has its own time"
        transport.on_refused("peer", RemoteProtocolError("not a hello"))
        assert levels(caplog) == ["WARNING"]
        assert transport.statistics().refused == 5

    run_virtually(scene())
