"""The health of the embedded NATS server, as `/healthz` and `/readyz` show it."""

from __future__ import annotations

import pytest

from bascule.http.app import _health_response
from bascule.http.health import nats_server_health


@pytest.mark.parametrize(
    ("failure", "has_given_up", "trouble", "state", "status"),
    [
        ("", False, "", "ok", 200),
        ("", False, "connected to 1 servers; expected 2", "degraded", 200),
        ("SIGKILL: Server is ready", False, "", "degraded", 200),
        ("SIGKILL: Server is ready", True, "", "down", 503),
    ],
)
def test_the_node_is_alive_while_the_server_is_being_restarted(
    failure: str, has_given_up: bool, trouble: str, state: str, status: int
) -> None:
    part = nats_server_health(failure=failure, has_given_up=has_given_up, trouble=trouble)
    assert part.state == state
    assert (failure or trouble) in part.reason
    assert _health_response((part,)).status_code == status
