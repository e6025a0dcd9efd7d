"""One client per server and process. Spark reuses its Python workers, so connections are reused
too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Final, TypeVar

from bascule.client import SyncClient, connect_sync
from bascule.errors import Broken
from bascule.host.credential_files import client_tls

RETRY_PAUSES_S: Final = (0.1, 0.3, 1.0, 3.0, 5.0, 10.0)
"""A restarting node is back within seconds. Spark in local mode does not retry a failed task."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """NATS credentials. Files are read on the machine that connects, which includes each
    executor."""

    nats: str | None = None
    """NATS servers, separated by commas. Default: the servers that the node reports."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey: str | None = None
    nkey_seed: str | None = field(default=None, repr=False)
    creds: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_first: bool = False

    def connect(self, server: str) -> SyncClient:
        """Open a new client. Raises: Broken, ConfigError."""
        tls = None
        if self.tls_ca or self.tls_cert:
            tls = client_tls(ca=self.tls_ca or "", cert=self.tls_cert or "", key=self.tls_key or "")
        return connect_sync(
            server or None,
            nats=self.nats,
            user=self.user,
            password=self.password,
            token=self.token,
            nkey=self.nkey,
            nkey_seed=self.nkey_seed,
            creds=self.creds,
            tls=tls,
            tls_first=self.tls_first,
        )


NO_LOGIN: Final = NatsLogin()
_clients: dict[tuple[str, NatsLogin], SyncClient] = {}


def client_of(server: str, login: NatsLogin = NO_LOGIN) -> SyncClient:
    """Return this process's client for `server`. The first call connects."""
    client = _clients.get((server, login))
    if client is None:
        client = _clients[server, login] = login.connect(server)
    return client


def has_client(server: str, login: NatsLogin = NO_LOGIN) -> bool:
    """Whether this process has connected to `server` before."""
    return (server, login) in _clients


def drop_client(server: str, login: NatsLogin = NO_LOGIN) -> None:
    """Close and forget this process's client. A client that NATS refused does not recover."""
    client = _clients.pop((server, login), None)
    if client is not None:
        client.close()


def with_retries(attempt: Callable[[], T]) -> T:
    """Call `attempt` and return its result. On Broken, retry with the pauses in RETRY_PAUSES_S.

    Raises: what the last attempt raises.
    """
    for pause in RETRY_PAUSES_S:
        try:
            return attempt()
        except Broken:
            Event().wait(pause)
    return attempt()
