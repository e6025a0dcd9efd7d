"""One client per server and process. Spark reuses its Python workers, so connections are reused
too."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from bascule.client import SyncClient, connect_sync
from bascule.host.credential_files import client_tls
from bascule.pipeline.retries import with_retries as with_retries


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
_connecting = Lock()
"""Several threads of a driver run jobs at once."""


def client_of(server: str, login: NatsLogin = NO_LOGIN) -> SyncClient:
    """Return this process's client for `server`. The first call connects."""
    client = _clients.get((server, login))
    if client is None:
        with _connecting:
            client = _clients.get((server, login))
            if client is None:
                client = _clients[server, login] = login.connect(server)
    return client


def drop_client(server: str, login: NatsLogin = NO_LOGIN) -> None:
    """Close and forget this process's client. A client that NATS refused does not recover."""
    client = _clients.pop((server, login), None)
    if client is not None:
        client.close()
