"""Bascule: durable streams on NATS subjects, read over the Kafka wire protocol and by PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bascule.client import Client, SyncClient, connect, connect_sync

__version__ = "0.1.0"

__all__ = ["Client", "SyncClient", "connect", "connect_sync"]


def __getattr__(name: str) -> object:
    """The client, imported when it is first asked for: the package itself stays light."""
    if name in __all__:
        from bascule import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
