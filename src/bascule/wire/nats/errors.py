"""The errors (-ERR) of a NATS server: their kind, whether the connection ends, and advice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bascule.errors import Broken


class ErrorKind(StrEnum):
    """Kinds of server errors. The values are labels of a metric."""

    AUTHENTICATION = "authentication"
    CONNECTIONS = "connections"
    SUBSCRIPTIONS = "subscriptions"
    SUBSCRIBE_PERMISSION = "subscribe_permission"
    PUBLISH_PERMISSION = "publish_permission"
    PAYLOAD = "payload"
    SLOW_CONSUMER = "slow_consumer"
    STALE = "stale"
    PROTOCOL = "protocol"
    SHUTDOWN = "shutdown"
    OTHER = "other"


_ADVICE: Final = {
    ErrorKind.AUTHENTICATION: "check the user, password, token, NKey or credentials file "
    "against the server's configuration",
    ErrorKind.CONNECTIONS: "raise max_connections of the server, or the connection limit of the "
    "account; it is tried again",
    ErrorKind.SUBSCRIPTIONS: "raise max_subscriptions of the server, or the subscription limit of "
    "the account or user; it is tried again",
    ErrorKind.SUBSCRIBE_PERMISSION: "permit this user to subscribe to the subject; it is tried "
    "again",
    ErrorKind.PUBLISH_PERMISSION: "permit this user to publish to the reply subjects of "
    "publishers (_INBOX.> or allow_responses); their acks are lost",
    ErrorKind.PAYLOAD: "raise max_payload of the server or account",
    ErrorKind.SLOW_CONSUMER: "publish with acks, raise max_pending and write_deadline of the "
    "server, or give the node a faster disk",
    ErrorKind.STALE: "the server had no PONG in time; the connection is made again",
    ErrorKind.PROTOCOL: "is this the client port of a NATS server?",
}

_KINDS: Final[tuple[tuple[str, ErrorKind, bool], ...]] = (
    # Prefix of the text, kind, whether the server ends the connection.
    ("permissions violation for subscription", ErrorKind.SUBSCRIBE_PERMISSION, False),
    ("permissions violation for publish", ErrorKind.PUBLISH_PERMISSION, False),
    ("maximum subscriptions exceeded", ErrorKind.SUBSCRIPTIONS, False),
    ("maximum account active connections", ErrorKind.CONNECTIONS, True),
    ("maximum connections exceeded", ErrorKind.CONNECTIONS, True),
    ("connection throttling", ErrorKind.CONNECTIONS, True),
    ("maximum payload", ErrorKind.PAYLOAD, True),
    ("maximum control line", ErrorKind.PROTOCOL, True),
    ("authorization", ErrorKind.AUTHENTICATION, True),
    ("authentication", ErrorKind.AUTHENTICATION, True),
    ("user authentication", ErrorKind.AUTHENTICATION, True),
    ("account authentication", ErrorKind.AUTHENTICATION, True),
    ("credentials", ErrorKind.AUTHENTICATION, True),
    ("secure connection", ErrorKind.AUTHENTICATION, True),
    ("slow consumer", ErrorKind.SLOW_CONSUMER, True),
    ("stale connection", ErrorKind.STALE, True),
    ("server shutdown", ErrorKind.SHUTDOWN, True),
    ("unknown protocol", ErrorKind.PROTOCOL, True),
    ("attempted to connect", ErrorKind.PROTOCOL, True),
    ("invalid client protocol", ErrorKind.PROTOCOL, True),
    ("parser error", ErrorKind.PROTOCOL, True),
    ("protocol violation", ErrorKind.PROTOCOL, True),
)  # fmt: skip
_QUOTED: Final = re.compile(r'"([^"]*)"(?: using queue "([^"]*)")?')


class NatsRefused(Broken):
    """The server refused with -ERR: credentials, permissions or limits."""

    retriable = False

    def __init__(self, text: str, kind: ErrorKind = ErrorKind.OTHER) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ServerError:
    """One decoded -ERR. An unknown text has the kind OTHER and is not fatal."""

    text: str
    kind: ErrorKind
    is_fatal: bool
    """Whether the server ends the connection after it."""
    subject: str = ""
    """The subject for which a permission is missing."""

    @classmethod
    def decode(cls, line: bytes) -> ServerError:
        """Read a `-ERR 'text'` line."""
        text = line[len(b"-ERR") :].strip().strip(b"'").decode("utf-8", "replace")
        lowered = text.lower()
        for beginning, kind, is_fatal in _KINDS:
            if lowered.startswith(beginning):
                quoted = _QUOTED.search(text)
                return cls(text, kind, is_fatal, quoted.group(1) if quoted else "")
        return cls(text, ErrorKind.OTHER, False)

    @property
    def advice(self) -> str:
        """Advice for the operator; empty if there is none."""
        return _ADVICE.get(self.kind, "")

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text
