"""Bascule: durable streams on NATS subjects, read over the Kafka wire protocol and by PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.version import __version__

if TYPE_CHECKING:
    from bascule.client import (
        Client,
        SyncClient,
        connect,
        connect_sync,
        open_replica,
        open_replica_sync,
    )

_OF_THE_CLIENT = (
    "Client",
    "SyncClient",
    "connect",
    "connect_sync",
    "open_replica",
    "open_replica_sync",
)

__all__ = [
    "Client",
    "SyncClient",
    "__version__",
    "connect",
    "connect_sync",
    "open_replica",
    "open_replica_sync",
]


def __getattr__(name: str) -> object:
    """Import the client on first use, so that an import of the package stays cheap."""
    if name in _OF_THE_CLIENT:
        from bascule import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
