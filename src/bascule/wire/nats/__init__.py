"""The NATS client protocol without sockets: addresses, credentials, the handshake, what is sent.

    addresses   server URLs, and the pool of servers a connection may move between
    nkeys       Ed25519 seeds, credentials files, what a user JWT says of itself
    login       what one CONNECT proves itself with
    errors      what a -ERR means: its kind, whether the connection ends, what to do
    handshake   INFO, TLS, CONNECT, PONG; bytes in, bytes out

Source: the NATS client protocol (INFO, CONNECT, PUB, HPUB, SUB, UNSUB, MSG, HMSG, PING, PONG,
-ERR). What the server sends as messages is parsed by `wire._hot.parse_messages`. A seed, password
or token is in no text that this package makes, neither a `repr` nor an error.
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
