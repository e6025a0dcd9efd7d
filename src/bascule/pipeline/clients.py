"""Clients of this process, one for each server: Spark uses its Python workers again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Final, TypeVar

from bascule.client import SyncClient, connect_sync
from bascule.errors import Broken
from bascule.host.credential_files import client_tls

RETRY_PAUSES_S: Final = (0.1, 0.3, 1.0, 3.0, 5.0, 10.0)
"""A node that restarts is back in seconds; Spark in local mode gives a task no second try."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """How a client proves itself to NATS; files are read where the client is: on each executor."""

    nats: str | None = None
    """NATS servers, comma separated, instead of those that the node names."""
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
        """A client of its own. Raises: Broken, ConfigError."""
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
    """The client of this process for `server`; connected when it is first used."""
    client = _clients.get((server, login))
    if client is None:
        client = _clients[server, login] = login.connect(server)
    return client


def is_known(server: str, login: NatsLogin = NO_LOGIN) -> bool:
    """Whether this process has reached `server` before."""
    return (server, login) in _clients


def drop_client(server: str, login: NatsLogin = NO_LOGIN) -> None:
    """Close the client of this process for `server`: one that NATS turned away stays so."""
    client = _clients.pop((server, login), None)
    if client is not None:
        client.close()


def patiently(attempt: Callable[[], T]) -> T:
    """What `attempt` returns; a node that cannot be reached is given a while to come back."""
    for pause in RETRY_PAUSES_S:
        try:
            return attempt()
        except Broken:
            Event().wait(pause)
    return attempt()
