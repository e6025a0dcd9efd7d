"""The NATS client protocol without sockets: server addresses, the handshake, what a client sends.

Source: the NATS client protocol (INFO, CONNECT, PUB, HPUB, SUB, UNSUB, MSG, HMSG, PING, PONG,
-ERR). What the server sends as messages is parsed by `_hot.parse_messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from bascule.errors import Broken, ConfigError, RemoteProtocolError

DEFAULT_PORT: Final = 4222
LINE_BYTES_MAX: Final = 1 << 20
"""An INFO line lists the servers of a cluster; this is far beyond any real one."""

HEADER_VERSION: Final = b"NATS/1.0\r\n"


class NatsRefused(Broken):
    """The server said -ERR and means it: credentials, permissions, limits."""

    retriable = False


class ServerInfo(msgspec.Struct, frozen=True):
    """What INFO tells; unknown fields are passed over."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    max_payload: int = 1 << 20
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    client_id: int = 0
    connect_urls: list[str] = []
    ldm: bool = False
    """Lame duck mode: the server is about to go; reconnect elsewhere."""
    nonce: str = ""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a NATS server is and what its URL said of credentials."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = None
    token: str | None = None

    def __str__(self) -> str:
        """Without the credentials, so that it can be shown and logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """What a client says of itself in CONNECT. Credentials of a server's URL win over these."""

    name: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    echo: bool = True
    """Whether the server sends our own messages back to our own subscriptions."""


def parse_server_url(url: str) -> ServerAddress:
    """Parse `nats://[user:password@|token@]host[:port]` (or `tls://`, or `host[:port]`).

    Raises: ConfigError naming the part that is wrong.
    """
    text = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ConfigError(f"NATS server {url!r} is not a URL: {error}") from None
    if parts.scheme not in ("nats", "tls"):
        raise ConfigError(
            f"NATS server {url!r} begins with {parts.scheme}://, expected nats:// or tls://"
        )
    if not parts.hostname:
        raise ConfigError(f"NATS server {url!r} names no host")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    token = user if user is not None and password is None else None
    return ServerAddress(
        host=parts.hostname,
        port=port,
        tls=parts.scheme == "tls",
        user=None if token is not None else user,
        password=password,
        token=token,
    )


def encode_connect(options: ConnectOptions, address: ServerAddress, *, version: str) -> bytes:
    """CONNECT with credentials, headers and no-responders support, without verbose +OK."""
    fields: dict[str, object] = {
        "verbose": False, "pedantic": False, "lang": "python", "version": version,
        "name": options.name, "protocol": 1, "headers": True, "no_responders": True,
        "echo": options.echo, "tls_required": address.tls,
    }  # fmt: skip
    own = address.user is not None or address.token is not None
    credentials = {
        "user": address.user if own else options.user,
        "pass": address.password if own else options.password,
        "auth_token": address.token if own else options.token,
    }
    fields.update({name: value for name, value in credentials.items() if value is not None})
    return b"CONNECT " + msgspec.json.encode(fields) + b"\r\n"


def encode_sub(subject: str, sid: int, *, group: str | None = None) -> bytes:
    queue = f" {group}" if group else ""
    return f"SUB {subject}{queue} {sid}\r\n".encode()


def encode_unsub(sid: int) -> bytes:
    return b"UNSUB %d\r\n" % sid


def decode_info(line: bytes) -> ServerInfo:
    """Decode an INFO line. Raises: RemoteProtocolError."""
    try:
        return msgspec.json.decode(line[len(b"INFO ") :], type=ServerInfo)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"INFO of the NATS server is not understood: {error}") from None


def decode_error(line: bytes) -> str:
    """The text of a `-ERR 'text'` line."""
    return line[len(b"-ERR") :].strip().strip(b"'").decode("utf-8", "replace")


class Step(Enum):
    """What a handshake needs next."""

    NEED_DATA = "need data"
    START_TLS = "start tls"
    READY = "ready"


class NatsHandshake:
    """From the first byte of a server to its first PONG; bytes in, bytes out, no socket.

    Feed what arrives to `receive` and send what `to_send` returns after every step. At START_TLS
    the caller wraps the connection, then calls `tls_started`. At READY `info` is known, the
    credentials are accepted and `rest` holds what came behind the PONG.
    """

    def __init__(self, options: ConnectOptions, address: ServerAddress, *, version: str) -> None:
        self._options = options
        self._address = address
        self._version = version
        self._received = bytearray()
        self._outgoing = bytearray()
        self._tls = False
        self._connected = False
        self.info: ServerInfo | None = None
        self.rest = b""

    def to_send(self) -> bytes:
        """Take what is to be sent now."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def tls_started(self) -> None:
        self._tls = True
        self._connect()

    def receive(self, data: bytes) -> Step:
        """Raises: NatsRefused (credentials), RemoteProtocolError."""
        self._received += data
        while True:
            end = self._received.find(b"\r\n")
            if end < 0:
                if len(self._received) > LINE_BYTES_MAX:
                    raise RemoteProtocolError(
                        f"{self._address} sent no line end; is it a NATS server?"
                    )
                return Step.NEED_DATA
            line = bytes(self._received[:end])
            del self._received[: end + 2]
            step = self._on_line(line)
            if step is not None:
                return step

    def _on_line(self, line: bytes) -> Step | None:
        word = line[:5].upper()
        if word.startswith(b"-ERR"):
            raise NatsRefused(f"{self._address} refused the connection: {decode_error(line)}")
        if self.info is None:
            if word != b"INFO ":
                raise RemoteProtocolError(
                    f"{self._address} began with {line[:40]!r}, expected INFO; is it a NATS server?"
                )
            self.info = decode_info(line)
            if self._address.tls or self.info.tls_required:
                return Step.START_TLS
            self._connect()
        elif word.startswith(b"PONG"):
            self.rest = bytes(self._received)
            return Step.READY
        elif word.startswith(b"PING"):
            self._outgoing += b"PONG\r\n"
        elif word == b"INFO ":
            self.info = decode_info(line)
        return None if not self._outgoing else Step.NEED_DATA

    def _connect(self) -> None:
        self._outgoing += encode_connect(self._options, self._address, version=self._version)
        self._outgoing += b"PING\r\n"
