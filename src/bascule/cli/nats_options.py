"""NATS credentials of a command: flags, and the node's environment variables."""

from __future__ import annotations

import ssl
from typing import Annotated, TypedDict

import typer

from bascule.host.credential_files import client_tls

Servers = Annotated[
    str | None,
    typer.Option(help="NATS servers to publish to. Default: those that the node reports."),
]
User = Annotated[
    str | None, typer.Option(envvar="BASCULE_NATS_USER", help="User of the NATS servers.")
]
Password = Annotated[
    str | None, typer.Option(envvar="BASCULE_NATS_PASSWORD", help="The user's password.")
]
Token = Annotated[
    str | None,
    typer.Option(envvar="BASCULE_NATS_TOKEN", help="Token of the NATS servers, without a user."),
]
Nkey = Annotated[
    str | None, typer.Option(envvar="BASCULE_NATS_NKEY", help="File with an NKey seed (SU...).")
]
Creds = Annotated[
    str | None,
    typer.Option(envvar="BASCULE_NATS_CREDS", help="Credentials file: user JWT and NKey seed."),
]
TlsCa = Annotated[
    str | None,
    typer.Option(envvar="BASCULE_NATS_TLS_CA", help="Certificate authorities to trust (PEM)."),
]
TlsCert = Annotated[
    str | None, typer.Option(envvar="BASCULE_NATS_TLS_CERT", help="Client certificate (PEM).")
]
TlsKey = Annotated[
    str | None, typer.Option(envvar="BASCULE_NATS_TLS_KEY", help="The certificate's key (PEM).")
]
TlsFirst = Annotated[
    bool,
    typer.Option(
        envvar="BASCULE_NATS_TLS_FIRST", help="Start TLS before the server's first message."
    ),
]


class NatsArguments(TypedDict):
    """The arguments of `bascule.connect` for NATS."""

    nats: str | None
    user: str | None
    password: str | None
    token: str | None
    nkey: str | None
    nkey_seed: str | None
    creds: str | None
    tls: ssl.SSLContext | None
    tls_first: bool


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """A TLS context from the three files; None without files. Raises: ConfigError."""
    if not (ca or cert):
        return None
    return client_tls(ca=ca or "", cert=cert or "", key=key or "")
