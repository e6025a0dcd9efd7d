"""The NATS client protocol without sockets: addresses, credentials, handshake, commands.

    addresses   server URLs, and the pool of servers that a connection may use
    nkeys       Ed25519 seeds, credentials files, claims of a user JWT
    login       the credentials of one CONNECT
    errors      -ERR: its kind, whether the connection ends, advice
    handshake   INFO, TLS, CONNECT, PONG; bytes in, bytes out

Source: the NATS client protocol (INFO, CONNECT, PUB, HPUB, SUB, UNSUB, MSG, HMSG, PING, PONG,
-ERR). `wire._hot.parse_messages` parses messages from the server. This package never writes a seed,
password or token to a `repr` or an error text.
"""

from __future__ import annotations

from bascule.wire.nats.addresses import (
    ServerAddress,
    ServerPool,
    parse_server_url,
    without_credentials,
)
from bascule.wire.nats.errors import ErrorKind, NatsRefused, ServerError
from bascule.wire.nats.handshake import (
    HEADER_VERSION,
    LINE_BYTES_MAX,
    NatsHandshake,
    ServerInfo,
    Step,
    decode_info,
    encode_sub,
    encode_unsub,
)
from bascule.wire.nats.login import ConnectOptions, Login, load_login

__all__ = [
    "HEADER_VERSION",
    "LINE_BYTES_MAX",
    "ConnectOptions",
    "ErrorKind",
    "Login",
    "NatsHandshake",
    "NatsRefused",
    "ServerAddress",
    "ServerError",
    "ServerInfo",
    "ServerPool",
    "Step",
    "decode_info",
    "encode_sub",
    "encode_unsub",
    "load_login",
    "parse_server_url",
    "without_credentials",
]
