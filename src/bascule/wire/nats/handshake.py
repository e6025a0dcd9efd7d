"""The handshake of a NATS connection up to the first PONG, and the commands of a client."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from bascule.errors import ConfigError, RemoteProtocolError
from bascule.wire.nats.addresses import ServerAddress
from bascule.wire.nats.errors import NatsRefused, ServerError
from bascule.wire.nats.login import ConnectOptions, Login, load_login

LINE_BYTES_MAX: Final = 1 << 20
"""An INFO line lists the servers of a cluster. The limit is far above a real one."""

HEADER_VERSION: Final = b"NATS/1.0\r\n"


class ServerInfo(msgspec.Struct, frozen=True):
    """The fields of INFO. Unknown fields are ignored."""

    server_name: str = ""
    cluster: str = ""
    version: str = ""
    max_payload: int = 1 << 20
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    connect_urls: list[str] = []
    ldm: bool = False
    """Lame duck mode: the server will shut down, so connect to another one."""
    nonce: str = ""
    """The text that an NKey must sign."""
    jetstream: bool = False


def encode_connect(
    options: ConnectOptions, login: Login, *, nonce: str, tls: bool, version: str
) -> bytes:
    """CONNECT with credentials, headers and no-responders support, without verbose +OK.

    Raises: ConfigError if an NKey is configured and the server sent no nonce.
    """
    fields: dict[str, object] = {
        "verbose": False, "pedantic": False, "lang": "python", "version": version,
        "name": options.name, "protocol": 1, "headers": True, "no_responders": True,
        "echo": options.echo, "tls_required": tls,
    }  # fmt: skip
    fields.update(login.fields(nonce))
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"INFO of the NATS server is malformed: {error}") from None


class Step(Enum):
    """What a handshake needs next."""

    NEED_DATA = "need data"
    START_TLS = "start tls"
    READY = "ready"


class NatsHandshake:
    """The handshake of one connection; bytes in, bytes out, no socket.

    Call `receive` with empty bytes first, then with the received bytes. After each call send the
    result of `to_send`. At START_TLS the caller starts TLS on the connection and then calls
    `tls_started`. At READY `info` is set, the server has accepted the credentials, and
    `trailing_bytes` are the bytes received after the PONG.
    """

    def __init__(
        self,
        options: ConnectOptions,
        address: ServerAddress,
        *,
        version: str,
        read: Callable[[str], str],
        now_s: Callable[[], int],
    ) -> None:
        """`read` returns the text of a credentials file, `now_s` the Unix time for error texts.

        Raises: ConfigError for credentials that cannot be read.
        """
        self._options = options
        self._address = address
        self._login = load_login(options, address, read)
        self._version = version
        self._now_s = now_s
        self._received = bytearray()
        self._outgoing = bytearray()
        self._tls = False
        self.info: ServerInfo | None = None
        self.trailing_bytes = b""

    def to_send(self) -> bytes:
        """The bytes to send now. They are returned once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def tls_started(self) -> None:
        self._tls = True
        if self.info is not None:
            self._connect(self.info)

    def receive(self, data: bytes) -> Step:
        """Process received bytes; returns what the handshake needs next.

        Raises: NatsRefused (credentials, limits, no TLS), RemoteProtocolError, ConfigError.
        """
        if self._options.tls_first and not self._tls:
            return Step.START_TLS
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
            error = ServerError.decode(line)
            why = self._login.explain(error, now_s=self._now_s())
            raise NatsRefused(f"{self._address} refused the connection: {why}", error.kind)
        if self.info is None:
            if word != b"INFO ":
                raise RemoteProtocolError(
                    f"{self._address} began with {line[:40]!r}, expected INFO; is it a NATS "
                    "server, and does it expect TLS first (nats.tls_first)?"
                )
            self.info = decode_info(line)
            if not self._tls and self._wants_tls(self.info):
                return Step.START_TLS
            self._connect(self.info)
        elif word.startswith(b"PONG"):
            self.trailing_bytes = bytes(self._received)
            return Step.READY
        elif word.startswith(b"PING"):
            self._outgoing += b"PONG\r\n"
        elif word == b"INFO ":
            self.info = decode_info(line)
        return None

    def _wants_tls(self, info: ServerInfo) -> bool:
        """Whether to start TLS. Raises: NatsRefused if TLS is required and not offered."""
        required = self._address.tls or self._options.tls
        if required and not (info.tls_required or info.tls_available):
            raise NatsRefused(
                f"{self._address} offers no TLS, which tls:// or nats.tls requires; set up its tls "
                "section, or connect without"
            )
        return required or info.tls_required

    def _connect(self, info: ServerInfo) -> None:
        try:
            connect = encode_connect(
                self._options, self._login, nonce=info.nonce, tls=self._tls, version=self._version
            )
        except ConfigError as error:
            raise ConfigError(f"{self._address}: {error}") from None
        self._outgoing += connect
        self._outgoing += b"PING\r\n"
