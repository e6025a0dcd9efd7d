"""Clients of this process, one for each server: Spark uses its Python workers again and again."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Final, TypeVar

from bascule.client import SyncClient, connect_sync
from bascule.errors import Broken

RETRY_PAUSES_S: Final = (0.1, 0.3, 1.0, 3.0, 5.0, 10.0)
"""A node that restarts is back in seconds; Spark in local mode gives a task no second try."""

T = TypeVar("T")
_clients: dict[str, SyncClient] = {}


def client_of(server: str) -> SyncClient:
    """The client of this process for `server`; connected when it is first used."""
    client = _clients.get(server)
    if client is None:
        client = _clients[server] = connect_sync(server or None)
    return client


def is_known(server: str) -> bool:
    """Whether this process has reached `server` before."""
    return server in _clients


def patiently(attempt: Callable[[], T]) -> T:
    """What `attempt` returns; a node that cannot be reached is given a while to come back."""
    for pause in RETRY_PAUSES_S:
        try:
            return attempt()
        except Broken:
            Event().wait(pause)
    return attempt()
